"""Publish and subscribe, on ours and on a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.support.commands.line import Line

from penstock import commands
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session


@pytest.fixture
def lines(peer: str) -> Iterator[Callable[..., Line]]:
    """Make connections, `lines()` in RESP2 and `lines(3)` in RESP3; all are closed at the end."""
    made: list[tuple[Line, redis.Redis]] = []

    def make(protocol: int = 2) -> Line:
        client = redis.Redis.from_url(peer, protocol=protocol)
        made.append((Line(client), client))
        return made[-1][0]

    yield make
    for line, client in made:
        line.close()
        client.close()


def test_messages_arrive_in_order_and_publish_counts_receivers(r: redis.Redis, lines: Callable[..., Line]) -> None:
    one, two = lines(), lines()
    assert one("SUBSCRIBE", "news", "other") == [b"subscribe", b"news", 1]
    assert one.read() == [b"subscribe", b"other", 2]
    assert two("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
    assert [r.publish("news", str(number)) for number in range(50)] == [2] * 50
    assert r.publish("nobody", "x") == 0
    for line in (one, two):
        assert [line.read() for _ in range(50)] == [[b"message", b"news", b"%d" % number] for number in range(50)]


def test_patterns_and_channels_each_get_the_message(r: redis.Redis, lines: Callable[..., Line]) -> None:
    line = lines()
    line("SUBSCRIBE", "news.art")
    assert line("PSUBSCRIBE", "news.*") == [b"psubscribe", b"news.*", 2]
    assert line("PSUBSCRIBE", "n?ws.[a-b]rt") == [b"psubscribe", b"n?ws.[a-b]rt", 3]
    assert r.publish("news.art", "x") == 3
    assert line.read() == [b"message", b"news.art", b"x"]
    assert sorted([line.read(), line.read()]) == [
        [b"pmessage", b"n?ws.[a-b]rt", b"news.art", b"x"], [b"pmessage", b"news.*", b"news.art", b"x"],
    ]  # fmt: skip


def test_unsubscribing_is_confirmed_for_every_name(lines: Callable[..., Line]) -> None:
    line = lines()
    assert line("UNSUBSCRIBE") == [b"unsubscribe", None, 0]
    assert line("PUNSUBSCRIBE") == [b"punsubscribe", None, 0]
    line("SUBSCRIBE", "a", "b"), line.read()
    assert line("SUBSCRIBE", "a") == [b"subscribe", b"a", 2]
    line("PSUBSCRIBE", "p*")
    assert line("UNSUBSCRIBE", "zzz") == [b"unsubscribe", b"zzz", 3]
    left = [line("UNSUBSCRIBE"), line.read()]
    assert sorted(reply[1] for reply in left) == [b"a", b"b"]
    assert [reply[2] for reply in left] == [2, 1]
    assert line("PUNSUBSCRIBE") == [b"punsubscribe", b"p*", 0]
    assert line("SET", "k", "v") == b"OK"


@pytest.mark.since("7.0")
def test_shard_channels_are_a_name_space_of_their_own(r: redis.Redis, lines: Callable[..., Line]) -> None:
    line = lines()
    assert line("SSUBSCRIBE", "a") == [b"ssubscribe", b"a", 1]
    assert line("SUBSCRIBE", "b") == [b"subscribe", b"b", 1]
    assert r.publish("a", "no") == 0
    assert r.execute_command("SPUBLISH", "a", "yes") == 1
    assert line.read() == [b"smessage", b"a", b"yes"]
    assert r.execute_command("PUBSUB", "SHARDCHANNELS") == [b"a"]
    assert r.execute_command("PUBSUB", "SHARDNUMSUB", "a", "b") == [b"a", 1, b"b", 0]
    assert line("SUNSUBSCRIBE") == [b"sunsubscribe", b"a", 0]
    inside = lines()
    inside("MULTI")
    inside("SSUBSCRIBE", "a")
    assert inside("EXEC") == ["ResponseError SSUBSCRIBE isn't allowed for a DENY BLOCKING client"]


@pytest.mark.since("7.0")
def test_a_listening_resp2_client_may_do_little_else(lines: Callable[..., Line]) -> None:
    line = lines()
    line("SUBSCRIBE", "a")
    refusal = "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
    assert line("GET", "k") == f"ResponseError Can't execute 'get': {refusal}"
    assert line("CONFIG", "GET", "port") == f"ResponseError Can't execute 'config|get': {refusal}"
    assert line("PING") == [b"pong", b""]
    assert line("PING", "x") == [b"pong", b"x"]
    assert line("RESET") == b"RESET"
    assert line("GET", "k") is None


def test_a_listening_resp3_client_may_do_everything(r: redis.Redis, lines: Callable[..., Line]) -> None:
    line = lines(3)
    line("SET", "k", "v")
    line._connection.send_command("SUBSCRIBE", "a")
    assert line._connection.read_response(push_request=True, disable_decoding=True) == [b"subscribe", b"a", 1]
    assert line("GET", "k") == b"v"
    assert r.publish("a", "x") == 1
    assert line._connection.read_response(push_request=True, disable_decoding=True) == [b"message", b"a", b"x"]


def test_publish_works_inside_multi_and_scripts(r: redis.Redis, lines: Callable[..., Line]) -> None:
    line = lines()
    line("SUBSCRIBE", "a")
    with r.pipeline() as pipe:
        assert pipe.publish("a", "1").publish("a", "2").execute() == [1, 1]
    assert r.eval("return redis.call('publish', KEYS[1], '3')", 1, "a") == 1
    assert [line.read()[2] for _ in range(3)] == [b"1", b"2", b"3"]


def test_introspection_sees_what_is_listened_to(r: redis.Redis, lines: Callable[..., Line]) -> None:
    one, two = lines(), lines()
    (
        one("SUBSCRIBE", "ab"),
        two("SUBSCRIBE", "ab"),
        two("SUBSCRIBE", "b"),
        two("PSUBSCRIBE", "a*"),
        one("PSUBSCRIBE", "a*"),
    )
    assert sorted(r.pubsub_channels()) == [b"ab", b"b"]
    assert r.pubsub_channels("a*") == [b"ab"]
    assert r.pubsub_numsub("ab", "b", "c") == [(b"ab", 2), (b"b", 1), (b"c", 0)]
    assert r.pubsub_numsub() == []
    assert r.pubsub_numpat() == 1
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        r.execute_command("PUBSUB", "CHANNELS", "a", "b")


def test_a_client_that_went_away_receives_nothing(r: redis.Redis, lines: Callable[..., Line]) -> None:
    line = lines()
    line("SUBSCRIBE", "a"), line("PSUBSCRIBE", "a*")
    assert r.publish("a", "x") == 2
    line._connection.disconnect()
    while r.pubsub_numpat():
        pass
    assert r.publish("a", "x") == 0
    assert r.pubsub_channels() == []


def test_redis_py_listens_with_its_own_client(r: redis.Redis) -> None:
    with r.pubsub() as listener:
        listener.subscribe("a")
        assert listener.get_message(timeout=60)["type"] == "subscribe"
        r.publish("a", "x")
        message = listener.get_message(timeout=60)
        assert (message["channel"], message["data"]) == (b"a", b"x")
        listener.ping()
        assert listener.get_message(timeout=60)["type"] == "pong"


class Listener:
    """An output that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None


def test_a_message_is_encoded_once_for_each_protocol() -> None:
    commands.load()
    engine = Engine()
    listeners = [Listener() for _ in range(1000)]
    for number, listener in enumerate(listeners):
        session = Session(engine, listener)
        session.protocol = 2 + number % 2
        engine.execute(session, [b"SUBSCRIBE", b"a"])
    assert engine.execute(Session(engine), [b"PUBLISH", b"a", b"hello"]) == 1000
    received = {id(listener.sent[-1]): listener.sent[-1] for listener in listeners}
    assert sorted(received.values()) == [
        b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$5\r\nhello\r\n", b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$5\r\nhello\r\n",
    ]  # fmt: skip


def test_forgetting_a_session_empties_the_tables() -> None:
    commands.load()
    engine = Engine()
    session = Session(engine)
    for words in ([b"SUBSCRIBE", b"a", b"b"], [b"PSUBSCRIBE", b"c*"], [b"SSUBSCRIBE", b"d"]):
        engine.execute(session, words)
    engine.forget(session)
    assert not session.subscribed
    publications = engine.publications
    assert not (publications.channels or publications.patterns or publications.shard_channels)
