"""What a module's handler returns or raises ends its own command only: the connection stays in step, a transaction and
a script go on, and the log keeps what the handler had changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.engine.declarations import REGISTRY

MODULE = """
import ctypes
from penstock.modules import ALWAYS, OK, Access, Flag, Pairs, ReplyError, Status, command, key

nested = []
nested.append(nested)
deep = []
for _ in range(300):
    deep = [deep]
SHAPES = {
    b"object": object(), b"generator": iter([1]), b"inside": [b"a", {b"k": [object()]}], b"key": {frozenset([1j]): 1},
    b"itself": nested, b"deep": deep, b"long": [1, 1 << 64], b"line": Status(b"a\\r\\n+OK"), b"text": "\\ud800",
    b"pairs": Pairs([1, 2]), b"class": ValueError("x"),
    b"view": memoryview((ctypes.c_int32 * 2)(1, 2)), b"fine": [1, -5, None, True, 2.5, "t", b"b", {b"a": {b"s"}}, OK],
}

@command("REPLY.SLOW", arity=2, flags=Flag.READONLY, group="module")
def slow(session, argv):
    '''Answer in the shape of this name.'''
    return SHAPES[argv[1]]

@command("REPLY.FAST", arity=2, flags=Flag.READONLY | Flag.FAST, group="module")
def fast(session, argv):
    '''The same, in the inner loop.'''
    return SHAPES[argv[1]]

@command("REPLY.ASIDE", arity=2, flags=Flag.READONLY, group="module")
def aside(session, argv):
    '''The same, in a thread.'''
    return session.aside(ALWAYS, lambda: SHAPES[argv[1]])

@command("REPLY.FAIL", arity=3, flags=Flag.WRITE, keys=key(1, Access.UPDATE), group="module")
def fail(session, argv):
    '''Append to a string, and fail behind that.'''
    session.db.set(argv[1], (session.db.find_string(argv[1]) or b"") + argv[2])
    raise {b"word": ReplyError("refused"), b"key": KeyError("a\\nb"), b"end": SystemExit(3)}[argv[2]]
"""

WRONG = {
    "object": "an object, which has no RESP form",
    "generator": "a list_iterator, which has no RESP form",
    "inside": "an object, which has no RESP form",
    "key": "a complex, which has no RESP form",
    "itself": "more than 200 levels of arrays",
    "deep": "more than 200 levels of arrays",
    "long": "an int of more than 64 bits, which has no RESP form",
    "line": "a Status with a line break",
    "text": "a str that is no text",
    "pairs": "Pairs that are no pairs",
    "class": "a ValueError, which has no RESP form",
}


@pytest.fixture(autouse=True)
def _own_commands() -> Iterator[None]:
    before = REGISTRY.saved()
    yield
    REGISTRY.restore(before)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "replies.py").write_text(MODULE)
    return {"module": str(tmp_path / "replies.py"), "dir": str(tmp_path), "appendonly": "yes"}


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_reply_without_a_form_is_an_error_that_names_the_command_and_the_type(
    settings: dict[str, Any], protocol: int
) -> None:
    with Server(**settings) as server, redis.Redis.from_url(server.url, protocol=protocol) as client:
        first = client.client_id()
        for shape, words in WRONG.items():
            for name in ("REPLY.SLOW", "REPLY.FAST", "REPLY.ASIDE"):
                with pytest.raises(redis.ResponseError) as caught:
                    client.execute_command(name, shape)
                assert f"{name} returned {words}" in str(caught.value)
        assert client.client_id() == first, "the connection is the same one"
        assert client.execute_command("REPLY.SLOW", "view") == b"\1\0\0\0\2\0\0\0"
        fine = client.execute_command("REPLY.FAST", "fine")
        assert fine == client.execute_command("REPLY.ASIDE", "fine")
        assert fine[:3] == [1, -5, None]
        assert fine[-1] == b"OK"


@pytest.mark.parametrize("protocol", [2, 3])
def test_it_is_an_error_in_its_place_in_a_transaction_and_a_script(settings: dict[str, Any], protocol: int) -> None:
    with Server(**settings) as server, redis.Redis.from_url(server.url, protocol=protocol) as client:
        for shape, words in WRONG.items():
            with client.pipeline() as pipe:
                pipe.set("before", shape)
                pipe.execute_command("REPLY.SLOW", shape)
                pipe.get("before")
                ok, problem, value = pipe.execute(raise_on_error=False)
            assert (ok, value) == (True, shape.encode())
            assert f"REPLY.SLOW returned {words}" in str(problem)
            script = "local r = redis.pcall('REPLY.FAST', ARGV[1]) return {r.err, redis.call('get', 'before')}"
            problem, value = client.eval(script, 0, shape)
            assert f"REPLY.FAST returned {words}".encode() in problem
            assert value == shape.encode()


def test_a_handler_that_fails_in_a_transaction_does_not_stop_it(settings: dict[str, Any]) -> None:
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        with client.pipeline() as pipe:
            pipe.set("k", "a-")
            for word in ("word", "key", "end"):
                pipe.execute_command("REPLY.FAIL", "k", word)
            pipe.rpush("l", 1)
            first, refused, broken, ended, last = pipe.execute(raise_on_error=False)
        assert (first, last) == (True, 1)
        assert str(refused) == "refused"
        assert "internal error: KeyError('a\\nb')" in str(broken)
        assert "SystemExit(3)" in str(ended)
        assert client.get("k") == b"a-wordkeyend"
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("k") == b"a-wordkeyend", "the log has what memory had"
        assert client.lrange("l", 0, -1) == [b"1"]


def test_what_comes_behind_exec_is_answered_in_order(settings: dict[str, Any]) -> None:
    with Server(**settings) as server, RawClient(server.port) as client:
        for words in ("MULTI", "REPLY.FAIL k key", "REPLY.SLOW object"):
            client.ask(words)
        broken, formless = map(str, client.ask("EXEC"))
        assert "KeyError" in broken
        assert "REPLY.SLOW returned an object" in formless
        assert client.ask("ECHO next") == b"next"
