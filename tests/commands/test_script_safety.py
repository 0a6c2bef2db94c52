"""Scripts that crashed, corrupted or held up Redis, Valkey or stock Lua 5.1: each ends with an answer here.

One test for every published hole in the scripting of Redis and Valkey since 2015, and for those found in Lua 5.1 itself
or in the bridge to Python. The scripts run in a child process, so that a crash or a hang is a failed test.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands.bench import Bench

from penstock.engine.scripting import Scripting

PATIENCE = 60

PARAMETERS = ",".join(f"p{number}" for number in range(1, 51))
LOCALS = ",".join(f"a{number}" for number in range(1, 141))

HARMLESS = {
    # The holes of Redis and Valkey, by number.
    "CVE-2015-4335 compiled chunks": (
        "return tostring(loadstring(string.dump(function() return 1 end)))"
        " .. tostring(load(function() return nil end, 'x'))",
        "nil",
    ),
    "CVE-2015-8080 and CVE-2020-14147 struct numbers": (
        "return {pcall(struct.pack, '>I2147483648', 10)}",
        "integral size overflow",
    ),
    "CVE-2018-11219 struct sizes": ("return {pcall(struct.unpack, '<c4294967295', 'x')}", "integral size overflow"),
    "CVE-2018-11219 struct alignment": (
        "return {pcall(struct.unpack, '!4294967295xi4', 'x')}",
        "integral size overflow",
    ),
    "CVE-2018-11219 struct offset": ("return {pcall(struct.unpack, 'i4', 'abcdefgh', 2147483647)}", "too short"),
    "CVE-2018-11219 struct counted string": (
        "return {pcall(struct.unpack, '<i4c0', '\\255\\255\\255\\255abc')}",
        "too short",
    ),
    "CVE-2018-11218 many values to pack": (
        "local t = {} for i = 1, 7000 do t[i] = i end return #cmsgpack.pack(unpack(t))",
        ":",
    ),
    "CVE-2018-11218 many values to unpack": (
        "return {pcall(cmsgpack.unpack, string.rep('\\1', 100000))}",
        "too many results to unpack",
    ),
    "CVE-2018-11218 deep nesting": (
        "return {pcall(cmsgpack.unpack, string.rep('\\145', 100000) .. '\\1')}",
        "stack overflow",
    ),
    "CVE-2018-11218 lengths beyond the data": (
        "return {pcall(cmsgpack.unpack, '\\219\\255\\255\\255\\255')}",
        "Missing bytes",
    ),
    "CVE-2021-32626 deep replies": (
        "local t = {} for i = 1, 100000 do t = {t} end return t",
        "reached lua stack limit",
    ),
    "CVE-2021-32626 deep JSON": ("return {pcall(cjson.decode, string.rep('[', 100000))}", "too many nested"),
    "CVE-2021-32626 deep tables as JSON": (
        "local t = {} for i = 1, 100000 do t = {t} end return {pcall(cjson.encode, t)}",
        "excessive nesting",
    ),
    "CVE-2021-32626 deep tables packed": (
        "local t = {} for i = 1, 100000 do t = {t} end return #cmsgpack.pack(t)",
        ":17",
    ),
    "CVE-2021-32672 the debugger": ("redis.breakpoint() redis.debug({}) return 1", ":1"),
    "CVE-2022-0543 the package library": (
        "return {pcall(function() return package.loadlib('libc.so.6', '*') end)}",
        "nonexistent global variable 'package'",
    ),
    "CVE-2022-24735 read-only libraries": ("return {pcall(function() redis.call = 1 end)}", "readonly table"),
    "CVE-2022-24735 new globals": ("return {pcall(function() x = 1 end)}", "readonly table"),
    "CVE-2022-24735 raw writes": ("return {pcall(rawset, _G, 'x', 1)}", "readonly table"),
    "CVE-2022-24735 metatables of libraries": ("return {pcall(setmetatable, redis, {})}", "readonly table"),
    "CVE-2022-24735 the metatable of globals": (
        "return {pcall(function() getmetatable(_G).__index = 1 end)}",
        "readonly table",
    ),
    "CVE-2022-24735 environments": (
        "return {pcall(function() return setfenv end)}",
        "nonexistent global variable 'setfenv'",
    ),
    "CVE-2022-24735 environments read": (
        "return {pcall(function() return getfenv end)}",
        "nonexistent global variable 'getfenv'",
    ),
    "CVE-2022-24736 broken text": (
        "return {select(2, loadstring('return ' .. string.rep('{', 1000)))}",
        "too many syntax levels",
    ),
    "CVE-2022-24834 large JSON": (
        "local s = string.rep('x', 1.5e7) return {pcall(function() return #cjson.encode({s, s, s, s}) end)}",
        "not enough memory",
    ),
    "CVE-2022-24834 large packs": (
        "local s = string.rep('x', 1.5e7) return {pcall(function() return #cmsgpack.pack(s, s, s, s) end)}",
        "not enough memory",
    ),
    "CVE-2024-31449 bit.tohex": (
        "return {bit.tohex(65535, -2147483648), bit.tohex(-1, 2147483647), bit.tohex(1, -2^53)}",
        "0000FFFF",
    ),
    "CVE-2024-46981 the collector": (
        "for i = 1, 200 do collectgarbage('setpause', 0) collectgarbage('setstepmul', 1e9) collectgarbage('step', 1e9)"
        " loadstring('local a = ' .. i .. ' return function() return a end', 'n' .. i)() collectgarbage() end return 1",
        ":1",
    ),
    "CVE-2024-46981 finalizers": (
        "return {pcall(function() return newproxy end)}",
        "nonexistent global variable 'newproxy'",
    ),
    "CVE-2025-46817 unpack": ("return unpack({}, 0, 2147483647)", "too many results to unpack"),
    "CVE-2025-46817 unpack from below": (
        "return {pcall(unpack, {}, -2147483648, 2147483647)}",
        "too many results to unpack",
    ),
    "CVE-2025-46817 unpack beyond": ("return {pcall(unpack, {}, 1, 1e308)}", "too many results to unpack"),
    "CVE-2025-46817 unpack of no number": (
        "return {pcall(unpack, {}, 0/0, 1), pcall(unpack, {}, '0', '2147483647')}",
        "too many results",
    ),
    "CVE-2025-46817 numbers for table.concat": (
        "return {pcall(table.concat, {}, '', -2147483648, 2147483647)}",
        "invalid value",
    ),
    "CVE-2025-46817 numbers for string.byte": (
        "return {pcall(string.byte, string.rep('x', 1e6), -2147483648, 2147483647)}",
        "string slice too long",
    ),
    "CVE-2025-46817 numbers for select": (
        "pcall(select, 2147483647, 1) return {pcall(select, -2147483648, 1)}",
        "out of range",
    ),
    "CVE-2025-46818 the metatable of strings": (
        "return {pcall(function() getmetatable('').__index = function() end end)}",
        "readonly table",
    ),
    "CVE-2025-46818 the library behind it": (
        "return {pcall(rawset, getmetatable('').__index, 'len', 1)}",
        "readonly table",
    ),
    "CVE-2025-46818 metatables of other types": (
        "pcall(setmetatable, nil, {}) pcall(setmetatable, pcall, {}) return {pcall(setmetatable, 1, {})}",
        "table expected",
    ),
    "CVE-2025-46819 long brackets": (
        "local n = string.rep('=', 1e6) loadstring('return [' .. n) loadstring('return [' .. n .. '[')"
        " return loadstring('return #[' .. n .. '[x]' .. n .. ']')()",
        ":1",
    ),
    "CVE-2025-49844 a reader that collects garbage": (
        "local n = 0 local f = load(function() collectgarbage() n = n + 1 return ({'return ', '7'})[n] end,"
        " 'a' .. n .. 'b') collectgarbage() return f()",
        ":7",
    ),
    "CVE-2025-67733 lines in an error": ("return redis.error_reply('a\\0\\r\\n+OK')", "-ERR a"),
    "CVE-2025-67733 lines in a raised error": ("error({err = 'a\\0\\r\\n+OK'})", "-a"),
    "CVE-2025-67733 lines in an inner error": (
        "return {{err = 'a\\r\\n+OK'}, {ok = 'b\\r\\n+OK'}}",
        "-a  +OK\r\n+b  +OK\r\n",
    ),
    "CVE-2025-67733 lines in a big number": ("redis.setresp(3) return {big_number = '1\\r\\n+OK'}", "$"),
    "CVE-2025-67733 lines in a shebang": ("#!lua flags=a\\r\\n+OK\nreturn 1", "-Unexpected flag"),
    "CVE-2026-23631 scripts forgotten while one runs": (
        "return {redis.pcall('script', 'flush'), redis.pcall('function', 'flush'), redis.pcall('debug', 'reload')}",
        "-ERR This Redis command is not allowed from script\r\n-ERR This Redis command is not allowed from script",
    ),
    # Calls that took hours, in which nothing was heard.
    "an error of line breaks": ("return {err = string.rep('\\n', 1e6) .. 'x'}", "-"),
    "a raised error of line breaks": ("error({err = string.rep('\\n', 1e6) .. 'x'})", "-"),
    "an error reply of line breaks": ("return redis.error_reply('x' .. string.rep('\\n', 1e6) .. 'y')", "-ERR x  "),
    "one long string in a reply many times": (
        "redis.call('set', 'long', string.rep('x', 1e7)) local keys = {} for i = 1, 7000 do keys[i] = 'long' end"
        " return {select(2, pcall(redis.call, 'mget', unpack(keys)))}",
        "not enough memory",
    ),
    "a long chunk": ("return {select(2, loadstring(string.rep(' ', 1.7e7)))}", "chunk is too long"),
    # Lua 5.1 itself.
    "CVE-2014-5461 parameters and varargs": (
        f"local f = loadstring('local function f({PARAMETERS}, ...) local {LOCALS} return 1 end return f()')"
        " for i = 1, 50 do coroutine.wrap(f)() end return f()",
        ":1",
    ),
    "CVE-2014-5461 too many of them": (
        f"return {{select(2, loadstring('local function f({PARAMETERS}, ...) local {LOCALS}"
        f" return {{{PARAMETERS}}} end'))}}",
        "function or expression too complex",
    ),
    "CVE-2021-43519 coroutines in coroutines": (
        "local f f = function() return (coroutine.wrap(function() return (f()) end)()) end return f()",
        "C stack overflow",
    ),
    "deep patterns": (
        "return {pcall(string.find, string.rep('a', 1e6), string.rep('a?', 1e6))}",
        "pattern too complex",
    ),
    "deep patterns of a method": (
        "return {pcall(function() return ('a'):gsub(string.rep('a-', 1e6), '') end)}",
        "pattern too complex",
    ),
    "gsub in gsub in coroutines": (
        "local function deep(n) if n == 0 then return 'x' end return (string.gsub('a', 'a', function()"
        " return coroutine.wrap(function() return deep(n - 1) end)() end)) end return {pcall(deep, 150)}",
        "",
    ),
    "many empty strings": ("return #string.rep('', 2147483647)", ":0"),
    "many short strings": ("return {pcall(string.rep, 'x', 2147483647)}", "not enough memory"),
    "an insertion far below": ("return {pcall(table.insert, {}, -2147483648, 1)}", "position out of bounds"),
    "an insertion nowhere": (
        "return {pcall(table.insert, {}, 0/0, 1), pcall(table.insert, {}, 1e300, 1)}",
        "position out of bounds",
    ),
    "a level of the log that is no number": ("return {pcall(redis.log, 0/0, 'x')}", "Invalid debug level"),
    "errors without words": ("error({})", "-"),
    # The bridge between Lua and Python: memory that runs out in the middle of a call.
    "memory in a call of struct": (
        "local x = string.rep('y', 5e6) local t = {}"
        " pcall(function() while true do t[#t + 1] = string.rep('x', 1e5) .. #t end end)"
        " return {pcall(function() return #struct.pack('s', x) end)}",
        "",
    ),
    "memory in redis.call": (
        "redis.call('set', 'k', string.rep('y', 5e6)) local t = {}"
        " pcall(function() while true do t[#t + 1] = string.rep('x', 1e5) .. #t end end)"
        " return {pcall(function() return #redis.call('get', 'k') end)}",
        "",
    ),
    "memory for references": (
        "local tables = {} for i = 1, 7000 do tables[i] = {} end local t = {}"
        " pcall(function() while true do t[#t + 1] = {} end end)"
        " return {pcall(redis.call, unpack(tables)), pcall(bit.band, unpack(tables)), pcall(redis.call, {}, {}, {})}",
        "",
    ),
    "memory in an iterator of errors": (
        "local t = {} pcall(function() while true do t[#t + 1] = string.rep('x', 1e5) .. #t end end)"
        " for i = 1, 1000 do pcall(redis.call, 'nosuch') pcall(redis.sha1hex, 'x') pcall(cmsgpack.pack, i) end"
        " return 1",
        "",
    ),
    "errors of Python": (
        "local out = {} for _, call in ipairs({{struct.size, 'c' .. string.rep('9', 30)},"
        " {struct.pack, 'f', '0x' .. string.rep('f', 300)}, {struct.unpack, 'b', 'a', '0x' .. string.rep('f', 300)},"
        " {struct.unpack, 'b', 'a', 1 / 0}, {struct.pack, 'b', 0 / 0}, {bit.tohex, 1, 1 / 0}}) do"
        " local ok, value = pcall(unpack(call)) out[#out + 1] = type(value) end return table.concat(out, ' ')",
        "string string string string string string",
    ),
    "arguments that are together longer than a script's memory": (
        "local s, a = string.rep('x', 1e7), {} for i = 1, 199 do a[i] = s end"
        " return {select(2, pcall(bit.bor, unpack(a))), select(2, pcall(struct.pack, 'i', unpack(a))),"
        " select(2, pcall(redis.call, 'nosuch', unpack(a))), select(2, pcall(redis.acl_check_cmd, unpack(a)))}",
        "(number expected, got string)" + 3 * "\r\n$17\r\nnot enough memory",
    ),
    "a table among many arguments": (
        "local a = {} for i = 1, 500 do a[i] = i end a[300] = {} return {pcall(redis.call, 'del', unpack(a))}",
        "arguments must be strings or integers",
    ),
}

NESTED = "local function nested(n, f) if n == 0 then return f() end local _, e = pcall(nested, n - 1, f) return e end "
DEEP = "local function deep(n, f) if n == 0 then return f() end local value = deep(n - 1, f) return value end "
FULL_STACK = {
    "a handler that fails": "for i = 1, 20 do xpcall(error, function() {call} error('x') end) end",
    "nested calls of C": NESTED + "for n = 180, 202 do nested(n, function() {call} end) end",
    "nested calls": DEEP + "for n = 16360, 16384 do pcall(deep, n, function() {call} end) end",
    "a coroutine": DEEP + "for n = 16360, 16384, 2 do pcall(deep, n, coroutine.wrap(function() {call} end)) end",
}
"""Calls of Python where Lua's stack ends."""
FROM_FULL_STACK = {
    "ACL": "redis.acl_check_cmd('get', 'x')",
    "many arguments": "redis.call('exists', unpack(many))",
    "a long reply": "redis.call('getrange', 'long', 0, -1)",
    "many values": "struct.unpack('bb', 'ab')",
}


class Child:
    """A process that runs scripts."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.commands.script_child"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True, bufsize=1,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def eval(self, source: str | list[str]) -> str:
        """What a script answers, or a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(source) + "\n")
        self._process.stdin.flush()
        if not self._selector.select(PATIENCE):
            self.close()
            pytest.fail("the script did not end")
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait(PATIENCE)
            self.close()
            pytest.fail(f"the script ended the process: {status}")
        return str(json.loads(line))

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._selector.close()
        self._process.kill()
        with self._process:  # waits, and closes the pipes
            pass


class Children:
    """One child for as many scripts as it survives."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def current(self) -> Child:
        if self._child is None or not self._child.alive:
            self._child = Child()
        return self._child

    def close(self) -> None:
        if self._child is not None and self._child.alive:
            self._child.close()


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


@pytest.mark.parametrize("name", HARMLESS)
def test_a_script_that_was_a_hole_elsewhere_is_answered(children: Children, name: str) -> None:
    source, words = HARMLESS[name]
    child = children.current()
    answer = child.eval(source)
    assert words in answer
    assert child.eval("return #string.rep('x', 1e6)") == ":1000000\r\n", "the next script has its memory"


@pytest.mark.parametrize("where", FULL_STACK)
def test_python_is_called_where_the_stack_ends(children: Children, where: str) -> None:
    child = children.current()
    child.eval(["SET", "long", "y" * 100_000])
    for call in FROM_FULL_STACK.values():
        script = FULL_STACK[where].replace("{call}", call)
        assert child.eval(f"local many = {{}} for i = 1, 250 do many[i] = 'k' end {script} return 1") == ":1\r\n"


def test_a_handler_that_fails_is_called_again_until_lua_gives_up(children: Children) -> None:
    answer = children.current().eval(
        "local n = 0 local ok, problem = xpcall(error, function() n = n + 1 error(n) end)"
        " return {problem, n > 100, select(2, xpcall(error, function() n = n + 1 if n < 250 then error(n) end return n"
        " end))}"
    )
    assert answer == "*3\r\n$23\r\nerror in error handling\r\n:1\r\n:250\r\n"


def test_a_handler_is_not_called_where_memory_has_ended(children: Children) -> None:
    answer = children.current().eval(
        "local function grow() local t = {} while true do t[#t + 1] = string.rep('x', 1e6) .. #t end end"
        " return {xpcall(grow, function() return 'handled' end)}"
    )
    assert answer == "*2\r\n$-1\r\n$17\r\nnot enough memory\r\n"


ANY_CALL = """
math.randomseed(SEED)
local R, found, null = math.random, {}, cjson.null
local values = {0, 1, -1, 0.5, 1 / 0, -1 / 0, 0 / 0, 2 ^ 31, 2 ^ 53, 2 ^ 63, -2 ^ 63, 2 ^ 64, 1e300, '', 'x', '0x10',
    '1e5', 'inf', '\\0\\0\\0\\0', string.rep('\\255', 8), true, false, null, {}, {1}, function() end,
    coroutine.create(function() end), string.rep('9', 400), '1_0', '0x' .. string.rep('f', 300), 'mine:a', 'STREAMS'}
local letters = {'b', 'B', 'i', 'L', 'f', 'd', 's', 'c', 'c0', 'x', '!', '<', '>', ' ', 'i3', 'i16', 'i33',
    'c99999999999999999999', '!3', '!99999999999999999999', '\\178', '\\0'}
local names = {'get', 'set', 'lmpop', 'zunion', 'eval', 'mset', 'sort', 'xread', 'georadius', 'object', 'nosuch',
    'hello', 'bitfield', 'twrite'}
local functions = {redis.call, redis.pcall, redis.acl_check_cmd, redis.sha1hex}
for _, library in pairs({bit, struct}) do
    for _, called in pairs(library) do functions[#functions + 1] = type(called) == 'function' and called or nil end
end
local function look(...)
    for place = 1, select('#', ...) do
        local value = select(place, ...)
        if type(value) == 'userdata' and value ~= null then found[#found + 1] = tostring(value) end
    end
    return (...)
end
for _ = 1, 3000 do
    local called, count = functions[R(#functions)], R(0, 6)
    local given = {}
    for place = 1, count do given[place] = values[R(#values)] end
    if R(3) == 1 then given[1] = names[R(#names)] end
    if R(3) == 1 then
        local format = ''
        for _ = 1, R(0, 5) do format = format .. letters[R(#letters)] end
        given[1] = format
    end
    if R(40) == 1 then count = 300 end
    local function try() return called(unpack(given, 1, count)) end
    local way = R(3)
    if way == 1 then
        look(pcall(try))
    elseif way == 2 then
        look(xpcall(try, look))
    else
        look(coroutine.resume(coroutine.create(try)))
    end
end
return found
"""


@pytest.mark.parametrize("seed", range(3))
def test_no_script_sees_an_object_of_python(children: Children, seed: int) -> None:
    child = children.current()
    child.eval(["ACL", "SETUSER", "restricted", "on", "nopass", "~mine:*", "+@all", "-@dangerous"])
    child.eval(["AUTH", "restricted", "x"])
    assert child.eval(ANY_CALL.replace("SEED", str(seed))) == "*0\r\n"
    child.eval(["AUTH", "default", ""])


def test_a_script_that_had_an_object_of_python_could_do_nothing_with_it() -> None:
    bench = Bench()
    scripting = bench.engine.scripting
    script = scripting.load(
        b"local object, out = KEYS[1], {} out[1] = tostring(getmetatable(object))"
        b" for i, try in ipairs({function() return object.append end, function() object.x = 1 end,"
        b" function() return object() end, function() return object[1] end, function() return #object end,"
        b" function() return setmetatable(object, {}) end, function() return rawset(object, 1, 1) end}) do"
        b" out[i + 1] = tostring(pcall(try)) end return table.concat(out, ' ')"
    )
    lua = scripting.lua
    ok, reply, _ = lua.run(script.function, script.sha, lua.table([[]]), lua.table([]), 2)
    assert (ok, reply) == (True, b"$47\r\nfalse false false false false false false false\r\n")


def test_an_exception_of_python_is_an_error_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Scripting, "_find", find)
    answer = Bench().eval("return {pcall(redis.acl_check_cmd, 'get', 'x')}")
    assert answer == b"*2\r\n$-1\r\n$41\r\nERR internal error: RuntimeError('a bug')\r\n"


def test_code_that_one_user_has_loaded_takes_no_memory_from_the_scripts_of_others(children: Children) -> None:
    child = children.current()
    for name in ("a", "b"):
        child.eval(["SCRIPT", "LOAD", f"local {name} " + f"{name}=1 " * 3_000_000])
    assert child.eval("return #string.rep('x', 5e6)") == ":5000000\r\n"
    assert "not enough memory" in child.eval("return #string.rep('x', 7e7)")
    child.eval(["SCRIPT", "FLUSH"])
    assert child.eval("return #string.rep('x', 5e6)") == ":5000000\r\n"


SLOWEST_ORDER = """
local count, value, chosen, candidate = tonumber(ARGV[1]), {}, 0, 0
local items = {}
for i = 1, count do items[i], value[i] = i, count end
table.sort(items, function(one, other)
    if value[one] == count and value[other] == count then
        value[one == candidate and one or other] = chosen
        chosen = chosen + 1
    end
    if value[one] == count then candidate = one elseif value[other] == count then candidate = other end
    return value[one] < value[other]
end)
return value
"""
"""Numbers in the order for which Lua's sort takes longest: they are chosen while it compares them (McIlroy 1999)."""


def test_the_order_of_elements_cannot_make_a_sort_slow() -> None:
    """It took 70 times as long for the slowest order of these."""
    count = 5000
    bench = Bench()
    slowest = bench.eval(SLOWEST_ORDER.encode(), str(count))
    numbers = slowest.replace(b":", b"").split(b"\r\n")[1:-1]
    assert len(numbers) == count
    took = []
    for order in (numbers, [b"%d" % (n * 7919 % 5003) for n in range(count)]):
        text = b",".join(order)
        source = b"local t = {%b} for i = 1, 20 do local u = {} for j = 1, #t do u[j] = t[j] end table.sort(u) end"
        bench.eval(source % text)
        began = time.thread_time()
        bench.eval(source % text)
        took.append(time.thread_time() - began)
    assert took[0] < 5 * took[1]


@pytest.mark.parametrize("text", ["'1'", "1"])
def test_copies_that_would_not_fit_are_not_begun(text: str) -> None:
    """Lua made copies of a number until its memory was full, for two seconds in which it called no hook."""
    reply = Bench().eval(b"pcall(string.rep, %b, 2147483647) return collectgarbage('count')" % text.encode())
    assert int(reply.strip(b":\r\n")) < 50_000, "kilobytes"
