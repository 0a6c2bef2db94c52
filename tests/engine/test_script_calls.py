"""redis.call's short way, both versions of it, does as `Scripting.call` does: same value, counters, log and data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.twins import is_compilation_expected, pure_twin

from penstock import commands
from penstock.engine import script_calls
from penstock.engine.declarations import REGISTRY
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.observe.statistics import CALLS, COMMANDS, FAILED, HITS, MISSES, REJECTED
from penstock.engine.scripting import Run
from penstock.engine.session import Session
from penstock.testing.clock import ManualClock
from penstock.types import codec

commands.load()

KINDS = {"chosen": script_calls, "pure": pure_twin(script_calls)}


class Caller:
    """An engine in the middle of a script; `kind` is a version of the short way, or "whole" for the other one."""

    def __init__(self, kind: str, read_only: bool = False) -> None:
        self.engine = Engine(clock=ManualClock())
        self.logged: list[LogEntry] = []
        self.engine.log_to(self)  # type: ignore[arg-type]
        scripting = self.scripting = self.engine.scripting
        client = Session(self.engine)
        scripting.running = Run(client, [b"EVAL", b"", b"0"], scripting.load(b"return 1"), read_only)
        session = scripting._session
        self.call = (
            scripting.call
            if kind == "whole"
            else KINDS[kind].direct_call(scripting, self.engine, session, scripting.lua)
        )

    pending = False

    def log(self, entries: list[LogEntry]) -> None:
        self.logged += entries

    def append(self, database: int, argv: list[bytes]) -> None:
        raise AssertionError("the inner loop does not run here")

    def value(self, *words: Any) -> Any:
        """What redis.call gives to Lua, as Python sees it."""
        reply, lua = self.call(2, *words), self.scripting.lua
        if reply is True:
            return lua._slot[1]
        return sorted(reply.items(), key=str) if hasattr(reply, "items") else reply

    def facts(self) -> dict[str, Any]:
        stats, run = self.engine.stats, self.scripting.running
        assert run is not None
        return {
            "tally": [stats.tally[place] for place in (COMMANDS, HITS, MISSES)],
            "errors": dict(stats.errors),
            "calls": {
                name: [counters[place] for place in (CALLS, REJECTED, FAILED)]
                for name, counters in stats.calls.items()
                if any(counters)
            },
            "changes": self.engine.keyspace.dirty,
            "data": {key: codec.dump(value) for key, value in self.engine.keyspace[0].data.items()},
            "log": self.logged,
            "wrote": run.wrote,
        }


def _compare(kind: str, calls: list[tuple[Any, ...]], read_only: bool = False) -> None:
    mine, other = Caller(kind, read_only), Caller("whole", read_only)
    for words in calls:
        assert mine.value(*words) == other.value(*words), words
    assert mine.facts() == other.facts()


_CALLS: list[tuple[Any, ...]] = [
    (b"SET", b"a", b"1"),
    (b"set", b"b", 12),
    (b"set", b"c", -1.5),
    (b"set", b"d", 10**17),
    (b"set", b"e", 2**70),
    (b"set", b"f", -(10**17) + 1),
    (b"get", b"a"),
    (b"get", b"none"),
    (b"incr", b"a"),
    (b"incrbyfloat", b"c", 0.25),
    (b"hset", b"h", b"f", 1, b"g", b"two"),
    (b"hget", b"h", b"f"),
    (b"hget", b"h", b"none"),
    (b"mget", b"a", b"none"),
    (b"exists", b"a", b"none", b"h"),
    (b"lpush", b"l", *(b"%d" % number for number in range(40))),
    (b"lrange", b"l", 0, 2),
    (b"zadd", b"z", 1, b"m"),
    (b"lpush", b"a", b"x"),
    (b"get", b"h"),
    (b"incr", b"h"),
    (b"get",),
    (b"get", b"a", b"b"),
    (b"nosuch", b"a"),
    (b"subscribe", b"a"),
    (b"ping",),
    (b"gEt", b"a"),
    (b"expire", b"a", 100),
    (b"del", b"a", b"b"),
    (b"set", b"a", True),
    (None, b"a"),
    (),
    (5, b"a"),
]


def test_the_compiled_one_is_built_where_there_is_a_compiler() -> None:
    assert is_compilation_expected() == script_calls.COMPILED, (
        "the extension was not built although it could be; try: make clean test"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read_only", [False, True])
def test_each_call_is_what_the_whole_way_makes_of_it(kind: str, read_only: bool) -> None:
    _compare(kind, _CALLS, read_only)


@pytest.mark.parametrize("kind", KINDS)
@given(calls=st.lists(st.sampled_from(_CALLS), max_size=60))
@settings(max_examples=30)
def test_calls_in_any_order_are_too(kind: str, calls: list[tuple[Any, ...]]) -> None:
    _compare(kind, calls)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_argument_does_not_count_as_a_write(kind: str) -> None:
    caller = Caller(kind)
    caller.value(b"set", b"a", {})
    assert caller.scripting.running is not None
    assert not caller.scripting.running.wrote


@pytest.mark.parametrize("kind", KINDS)
def test_a_bug_in_a_handler_is_an_error_of_the_script(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REGISTRY.by_name[b"GET"], "handler", lambda session, argv: 1 // 0)
    ((_, text), _) = Caller(kind).value(b"get", b"a")
    assert text.startswith(b"ERR internal error: ZeroDivisionError")
    assert caplog.messages[0] == "internal error in a script's [b'get', b'a']"
