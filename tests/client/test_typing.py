"""What a type checker and help() make of the clients."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Self, get_type_hints

import pytest

import penstock
from penstock import Server, aio
from penstock.client.api.sync import Pipeline
from penstock.testing.cluster import RedisCluster


class Own(penstock.Client):
    """A user's own class."""


class OwnOfAsyncio(aio.Client):
    """A user's own class."""


class OwnCluster(penstock.Cluster):
    """A user's own class."""


def test_a_subclass_keeps_its_type(ours: Server, cluster: RedisCluster) -> None:
    with Own.from_url(ours.url) as client, client.client() as twin:
        assert type(client) is type(twin) is Own
    with OwnCluster.from_url(f"redis://127.0.0.1:{cluster.nodes[0].port}") as nodes:
        assert type(nodes) is OwnCluster

    async def main() -> None:
        async with OwnOfAsyncio.from_url(ours.url) as client:
            assert type(client) is OwnOfAsyncio
            async with client.pipeline() as pipe:
                assert type(pipe) is aio.Pipeline

    asyncio.run(main())


def test_a_pipeline_that_was_entered_has_our_methods(ours: Server) -> None:
    with penstock.Client.from_url(ours.url) as client, client.pipeline() as pipe:
        assert type(pipe) is Pipeline
        pipe.delete("stream")
        pipe.twrite("stream", "tag", "entry")
        assert pipe.execute()[1] == 1


@pytest.mark.parametrize("made", [penstock.Cluster, aio.Cluster])
def test_help_shows_the_arguments_of_a_cluster_client(made: type) -> None:
    shown = inspect.signature(made).parameters
    assert {"host", "port", "startup_nodes", "delivery", "read_from_replicas", "on_replay"} <= shown.keys()
    assert "startup_nodes" in (inspect.getdoc(made.__init__) or "")  # type: ignore[misc]


def test_a_cluster_client_shows_where_it_starts_from() -> None:
    client = penstock.Cluster(startup_nodes=["a:7000", ("b", 7001)], password="secret")
    assert repr(client) == "<penstock.client.cluster.sync.Cluster(a:7000, b:7001)>"


@pytest.mark.parametrize(
    "method",
    [
        made_by
        for client in (penstock.Client, aio.Client, penstock.Cluster, aio.Cluster)
        for made_by in (client.from_url, getattr(client, "client", client.from_url))
    ]
    + [
        Pipeline.__enter__,
        aio.Pipeline.__aenter__,
        penstock.Cluster.__enter__,
        aio.Cluster.__aenter__,
        aio.ClusterPipeline.__aenter__,
    ],
)
def test_a_checker_is_told_that_they_give_what_they_are_called_on(method: Any) -> None:
    assert get_type_hints(method)["return"] is Self
