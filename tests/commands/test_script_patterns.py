"""Patterns of Lua that try without end: they can be interrupted, and what they find is
what Lua's own functions find.
"""

from __future__ import annotations

import math
import threading
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import assume, given
from hypothesis import strategies as st
from lupa import lua51
from tests.support.server_process import Process

from penstock.testing.redis import free_port

ENDLESS = {
    "find": "return ('a'):rep(60):find(('a?'):rep(60) .. ('a'):rep(60) .. 'b')",
    "match": "return ('a'):rep(60):match(('a-'):rep(40) .. 'b')",
    "gmatch": "return (string.gmatch(('a'):rep(3e6), '(a*)b')())",
    "gmatch with a character that is an anchor elsewhere": "return (string.gmatch(('^a'):rep(3e6), '^.-b')())",
    "gsub": "return (string.gsub(('a'):rep(60), ('a*'):rep(40) .. 'b', ''))",
    "balance": "return ('('):rep(3e6):find('%b()')",
    "back reference": "return ('a'):rep(1e5):find('(a*)%1b')",
    "plain": "return ('a'):rep(1e7):find(('a'):rep(4e6) .. 'b', 1, true)",
    "in a coroutine": "return coroutine.wrap(function() return ('a'):rep(60):find(('a-'):rep(40) .. 'b') end)()",
    "caught": "while true do pcall(string.find, ('a'):rep(60), ('a-'):rep(40) .. 'b') end",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("patterns")
    process = Process(folder, free_port(), options="--busy-reply-threshold 20")
    yield process
    process.kill()


@pytest.mark.parametrize("source", ENDLESS.values(), ids=list(ENDLESS))
def test_a_pattern_that_tries_without_end_is_killed(server: Process, source: str) -> None:
    answers: list[Any] = []

    def run() -> None:
        with redis.Redis(port=server.port, socket_timeout=100, retry=None) as client:
            try:
                answers.append(client.eval(source, 0))
            except redis.RedisError as error:
                answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    with redis.Redis(port=server.port, socket_timeout=50, retry=None) as other:
        while thread.is_alive():
            try:
                other.script_kill()
                break
            except redis.ResponseError as error:
                assert "NOTBUSY" in str(error)
        thread.join(100)
        assert "Script killed by user with SCRIPT KILL" in str(answers[0])
        assert other.eval("return ('key=value'):match('(%w+)=(%w+)')", 0) == b"key"


def test_long_texts_are_searched_as_short_ones_are(server: Process) -> None:
    with redis.Redis(port=server.port, retry=None) as client:
        source = """
            local text = ('x '):rep(20000) .. ' key = value; other=2 '
            local pairs = {}
            for name, value in text:gmatch('(%w+)%s*=%s*(%w+)') do pairs[#pairs + 1] = #name .. value end
            local short = text:gsub('(%w+)%s*(=)', '%2')
            return {table.concat(pairs, ','), short:sub(40001), text:find('()%s*;%s*(%w*)='),
                text:match('=%s*(.-)%s*;')}
        """
        assert client.eval(source, 0) == [b"3value,52", b" = value; =2 ", 40013, b"value"]
        with pytest.raises(redis.ResponseError, match="user_script:2: invalid pattern capture"):
            client.eval("local text = ('a'):rep(99999)\nreturn text:find('a*)b*c')", 0)
        with pytest.raises(redis.ResponseError, match="user_script:1: oh no"):
            client.eval("return (('a'):rep(99999) .. 'b'):gsub('a*b-b', function() error('oh no') end)", 0)


def _both() -> Any:
    """A function that calls Lua's own function, or ours, by name, and answers all its results as one text."""
    lua = lua51.LuaRuntime(encoding=None)
    source = resources.files("penstock.engine.lua").joinpath("patterns.lua").read_bytes()
    load = lua.execute(b"return function(source) return assert(loadstring(source))() end")
    functions = load(source)[1]
    return lua.execute(b"""return function(functions)
        local function joined(...)
            local words = {}
            for place = 1, select('#', ...) do words[place] = tostring((select(place, ...))) end
            return table.concat(words, '|')
        end
        local function every(iterator)
            local found = {}
            for first, second in iterator do found[#found + 1] = joined(first, second) end
            return table.concat(found, ';')
        end
        local replacements = {
            ['function'] = function(first, second) return first ~= 'a' and '<' .. joined(first, second) .. '>' end,
            ['table'] = {a = 'A', b = false, ab = 7},
        }
        return function(ours, name, text, pattern, third, fourth)
            local called = (ours and functions or string)[name]
            if name == 'gmatch' then
                return joined(pcall(function() return every(called(text, pattern)) end))
            end
            return joined(pcall(called, text, pattern, replacements[third] or third, fourth))
        end
    end""")(functions)


ITEMS = [
    b"a",
    b"b",
    b".",
    b"%a",
    b"%d",
    b"[ab]",
    b"[^a]",
    b"[a-c%d]",
    b"%1",
    b"%2",
    b"%b()",
    b"%f[%w]",
    b"$",
    b"%%",
    b"[]]",
    b"^",
]
MARKS = [b"(", b")", b"()", b"[", b"%", b"[^]]", b"%z", b"%f", b"%bx", b"-"]
CALL = _both()


@given(
    name=st.sampled_from([b"find", b"match", b"gmatch", b"gsub"]),
    text=st.lists(st.sampled_from(b"aab1 ()-.\0"), max_size=12).map(bytes),
    pattern=st.lists(
        st.builds(bytes.__add__, st.sampled_from(ITEMS + MARKS), st.sampled_from([b"", b"", b"*", b"+", b"-", b"?"])),
        max_size=6,
    ).map(b"".join),
    start=st.sampled_from([None, 0, 1, 3, -2, -50, 99, 2.7, b"2", math.nan, math.inf, -math.inf, 2.0**63, -(2.0**63)]),
    replacement=st.sampled_from([b"x", b"<%0>", b"%1", b"%2%%", b"function", b"table", 7, b"x%"]),
    limit=st.sampled_from([None, 0, 1, 2, -1, 1.5, 2.0**31, 2.0**32 + 1, -(2.0**31) - 1, math.inf, math.nan, 2.0**63]),
)
def test_what_is_found_is_what_lua_finds(
    name: bytes, text: bytes, pattern: bytes, start: Any, replacement: Any, limit: Any
) -> None:
    assume(name != b"find" or any(special in pattern for special in b"^$*+?.([%-"))  # all else is no pattern
    arguments = (replacement, limit) if name == b"gsub" else (start,)
    lua, ours = (CALL(is_ours, name, text, pattern, *arguments) for is_ours in (False, True))
    assert _words(ours) == _words(lua)


def _words(answer: bytes) -> bytes:
    """An answer; of an error only its words, without the line that an iterator puts before them."""
    return answer.removeprefix(b'false|[string "<python>"]:10: ')
