"""Options that cannot work are refused when they are given, by name; not when they are needed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.client.clients import Connect

import penstock
from penstock import Server, aio

CLIENTS = [penstock.Client, aio.Client]
CLUSTERS = [penstock.Cluster, aio.Cluster]


async def coroutine_function(_: object) -> None:
    """No code would await it."""


@pytest.mark.parametrize("made", CLIENTS + CLUSTERS)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"replay_filter": "DECR"}, "replay_filter='DECR' is no function"),
        ({"replay_filter": coroutine_function}, "replay_filter=.*coroutine function"),
        ({"on_reconnect": 3}, "on_reconnect=3 is no function"),
        ({"on_replay": coroutine_function}, "on_replay=.*coroutine function"),
        ({"command_timeout": "5"}, "command_timeout='5' is no number"),
        ({"command_timeout": -1}, "command_timeout=-1"),
        ({"backoff_base": -1}, "backoff_base=-1"),
        ({"max_buffered_bytes": "1"}, "max_buffered_bytes='1' is no number"),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(made: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        made(host="localhost", **options)


@pytest.mark.parametrize("made", CLIENTS + CLUSTERS)
@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("command_timeout=soon", "command_timeout='soon' in the URL is no number"),
        ("max_buffered_commands=1.5", "max_buffered_commands='1.5' in the URL is no number"),
        ("replay_filter=f", "replay_filter"),
        ("delivery=twice", "delivery='twice'"),
    ],
)
def test_so_is_one_in_a_url(made: Any, query: str, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        made.from_url(f"redis://localhost?{query}")


def test_a_url_may_say_that_commands_wait_for_ever(connect: Connect, ours: Server) -> None:
    client = connect(f"{ours.url}?command_timeout=none")
    assert client.ping() and client.settings.command_timeout is None
    cluster = penstock.Cluster.from_url("redis://localhost?command_timeout=none")
    assert cluster.core.rules.command_timeout is None


def test_a_filter_that_is_set_later_is_looked_at_too(connect: Connect, ours: Server) -> None:
    client = connect(ours.url)
    with pytest.raises(TypeError, match="replay_filter='DECR' is no function"):
        client.replay_filter = "DECR"
    assert client.replay_filter is None and client.ping()
    cluster = penstock.Cluster("localhost")
    with pytest.raises(TypeError, match="replay_filter='DECR' is no function"):
        cluster.replay_filter = "DECR"  # type: ignore[assignment]


def test_an_unknown_option_is_an_error_for_every_caller(connect: Connect, ours: Server) -> None:
    client = connect(f"{ours.url}?nonsense=1")
    for _ in range(2):
        with pytest.raises(TypeError, match="nonsense") as unknown:
            client.ping()
        assert unknown.value.state is penstock.State.QUEUED  # type: ignore[attr-defined]
