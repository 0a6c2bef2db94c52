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


@pytest.mark.parametrize("made", CLIENTS)
@pytest.mark.parametrize(
    ("url", "why"),
    [
        (
            "redis://ada:secret@localhost?delivry=exactly-once",
            "^'delivry' is no option of a URL; did you mean delivery",
        ),
        (
            "penstock://a,b/orders?comand_timeout=5",
            "'comand_timeout' is no option of a URL; did you mean command_timeo",
        ),
        ("unix:///socket?qqqq=1", "'qqqq' is no option of a URL$"),
        ("redis://localhost?ssl_ca_certs=file", "'ssl_ca_certs' is no option of a URL without TLS"),
        ("redis://localhost/x", "its path is no number of a database"),
        ("redis://ada:12/secret@localhost/0", "its path is no number of a database"),
        ("http://ada:secret@localhost", "a URL must begin with one of redis://, .*, penstock://, "),
        ("redis://:12?secret=3@localhost/0", "it has an option that there is not"),
    ],
)
def test_a_url_is_checked_before_it_is_used_and_no_password_is_shown(made: Any, url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as wrong:
        made.from_url(url)
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize("made", CLIENTS)
@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost/2?socket_timeout=5&max_connections=3&client_name=a&protocol=2&decode_responses=True",
        "rediss://localhost?ssl_ca_certs=file&ssl_check_hostname=no&health_check_interval=3",
        "unix:///socket?db=2&username=ada&password=p%40ss",
        "penstock+sentinel://a/orders?sentinel_username=ada&sentinel_password=b&db=2&backoff_cap=1",
        "penstocks://a/orders?ssl_ca_certs=file",
        "redis://localhost",
        "redis://localhost/",
    ],
)
def test_all_options_of_redis_py_may_stand_in_a_url(made: Any, url: str) -> None:
    client = made.from_url(url)
    client.connection_pool.make_connection()


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
    client = connect(ours.url, nonsense=1)
    for _ in range(2):
        with pytest.raises(TypeError, match="nonsense") as unknown:
            client.ping()
        assert unknown.value.state is penstock.State.QUEUED  # type: ignore[attr-defined]
