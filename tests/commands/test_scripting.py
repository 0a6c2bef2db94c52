"""Scripts, on ours and on a real Redis."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import NoScriptError
from tests.support.commands import scripts
from tests.support.commands.bench import Bench
from tests.support.comparison import reply_of
from tests.support.replies import error_of

from penstock import Server
from penstock.engine.directives import DIRECTIVES
from penstock.engine.lua import interpreter
from penstock.engine.lua.frames import keep_frames
from penstock.engine.observe.statistics import CALLS, FAILED, REJECTED
from penstock.engine.session import Session
from penstock.protocol.errors import OutOfMemory, ReplyError
from penstock.protocol.resp import NO_REPLY
from penstock.testing.redis import RedisServer, find_redis

WORDS_OF_7 = find_redis().version >= (7, 0)
"""Whether the installed Redis words its errors as 7.0 does; an older one must also answer with an error."""

DECODE = """
local value = cjson.decode(ARGV[1])
if type(value) == 'table' then return {'table', cjson.encode(value)} end
return {type(value), tostring(value)}
"""


def _reply(client: redis.Redis, *argv: Any) -> Any:
    reply = reply_of(client, list(argv))
    return "an error" if isinstance(reply, str) and not WORDS_OF_7 else repr(reply)


@pytest.fixture(params=[2, 3])
def both(request: pytest.FixtureRequest, ours: Server, theirs: RedisServer) -> Iterator[list[redis.Redis]]:
    """A client of ours and one of a real Redis, both empty, in RESP2 and in RESP3."""
    clients = [redis.Redis.from_url(server.url, protocol=request.param) for server in (ours, theirs)]
    for client in clients:
        client.flushall()
    yield clients
    for client in clients:
        client.close()


SOURCES = [*scripts.CONVERSIONS, *scripts.MISTAKES, *scripts.LIBRARIES, *(scripts.SINCE_7 if WORDS_OF_7 else [])]


@pytest.mark.parametrize("source", SOURCES)
def test_a_script_answers_what_redis_answers(both: list[redis.Redis], source: str) -> None:
    mine, original = (_reply(client, "EVAL", source, 1, "key", "first", "second") for client in both)
    assert mine == original


@pytest.mark.parametrize("text", scripts.JSON)
def test_json_is_read_as_redis_reads_it(both: list[redis.Redis], text: str) -> None:
    mine, original = (_reply(client, "EVAL", DECODE, 0, text) for client in both)
    assert mine == original


_letters = st.sampled_from(["", "a", "b c", "ERR x", "\r\n", "\0"])
_leaves = st.one_of(
    st.sampled_from(["nil", "true", "false", "0/0", "1/0", "-0", "2^53", "-2^63", "1e19", "{}", "cjson.null", "print"]),
    st.integers(-(2**53), 2**53).map(str),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    _letters.map(lambda text: "'" + text.replace("\r\n", "\\r\\n").replace("\0", "\\0") + "'"),
)


def _tables(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    field = st.sampled_from(["ok", "err", "double", "map", "set", "a"])
    return st.one_of(
        st.lists(children, max_size=4).map(lambda items: "{" + ", ".join(items) + "}"),
        st.tuples(field, children).map(lambda pair: "{" + pair[0] + "=" + pair[1] + "}"),
        st.tuples(children, field, children).map(lambda row: "{" + row[0] + ", " + row[1] + "=" + row[2] + "}"),
        children.map(lambda child: "{map={x=" + child + "}}"),
    )


_literals = st.recursive(_leaves, _tables, max_leaves=8).filter(lambda text: "print" not in text)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(literal=_literals, resp=st.sampled_from(["", "redis.setresp(3) "]))
def test_any_value_becomes_the_reply_that_redis_makes_of_it(both: list[redis.Redis], literal: str, resp: str) -> None:
    if resp and not WORDS_OF_7:
        resp = ""
    mine, original = (_reply(client, "EVAL", resp + "return " + literal, 0) for client in both)
    assert mine == original


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(literal=_literals)
def test_any_value_is_packed_as_redis_packs_it(both: list[redis.Redis], literal: str) -> None:
    for source in (f"return cjson.encode({literal})", f"return cmsgpack.pack({literal})"):
        mine, original = (_reply(client, "EVAL", source, 0) for client in both)
        assert mine == original


# -- commands -----------------------------------------------------------------------------------------------------


def test_scripts_are_found_by_their_sha(r: redis.Redis) -> None:
    r.script_flush()
    sha = r.script_load("return ARGV[1]")
    assert r.evalsha(sha, 0, "x") == b"x"
    assert r.evalsha(sha.upper(), 0, "x") == b"x"
    assert r.script_exists(sha, "f" * 40) == [True, False]
    r.eval("return 5", 0)
    assert r.evalsha(hashlib.sha1(b"return 5").hexdigest(), 0) == 5
    assert r.script_flush("SYNC")
    assert r.script_exists(sha) == [False]
    with pytest.raises(NoScriptError):
        r.evalsha(sha, 0)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["EVAL", "return 1", "a"], "value is not an integer or out of range"),
        (["EVAL", "return 1", "-1"], "Number of keys can't be negative"),
        (["EVAL", "return 1", "2", "a"], "Number of keys can't be greater than number of args"),
        (["EVAL", "return 1"], "wrong number of arguments for 'eval' command"),
        (["EVALSHA", "abc", "0"], "No matching script"),
        (["EVALSHA", "abc", "2", "a"], "No matching script"),
        (["EVALSHA", "f" * 40, "2", "a"], "Number of keys can't be greater than number of args"),
        (["SCRIPT", "FLUSH", "NOW"], r"SCRIPT FLUSH only support SYNC\|ASYNC option"),
        (
            ["SCRIPT", "LOAD", "foo bar"],
            r"Error compiling script \(new function\): user_script:1: '=' expected near 'bar'",
        ),
        (["SCRIPT", "KILL"], "No scripts in execution right now"),
        (["SCRIPT", "DEBUG", "MAYBE"], "Use SCRIPT DEBUG YES/SYNC/NO"),
    ],
)
def test_mistakes_around_scripts_have_the_words_of_redis(r: redis.Redis, argv: list[str], words: str) -> None:
    with pytest.raises(redis.ResponseError, match=words):
        r.execute_command(*argv)


def test_the_debugger_is_not_turned_off_in_a_transaction(r: redis.Redis) -> None:
    assert r.execute_command("SCRIPT DEBUG", "NO") in (b"OK", True)
    with r.pipeline() as pipe:
        pipe.execute_command("SCRIPT DEBUG", "NO")
        with pytest.raises(redis.ResponseError, match="SCRIPT DEBUG must be called outside a pipeline"):
            pipe.execute()


@pytest.mark.since("7.0")
def test_read_only_variants_read_and_do_not_write(r: redis.Redis) -> None:
    r.set("a", "1")
    assert r.execute_command("EVAL_RO", "return redis.call('get', KEYS[1])", 1, "a") == b"1"
    sha = r.script_load("return redis.call('set', KEYS[1], '2')")
    with pytest.raises(redis.ResponseError, match="Write commands are not allowed from read-only scripts"):
        r.execute_command("EVALSHA_RO", sha, 1, "a")
    with pytest.raises(redis.ResponseError, match="Can not execute a script with write flag using"):
        r.execute_command("EVAL_RO", "#!lua\nreturn 1", 0)
    assert r.execute_command("EVAL_RO", "#!lua flags=no-writes\nreturn 1", 0) == 1
    assert r.get("a") == b"1"


@pytest.mark.since("7.0")
@pytest.mark.parametrize("name", ["publish", "spublish"])
def test_a_read_only_script_may_not_publish(r: redis.Redis, name: str) -> None:
    source = f"return redis.call('{name}', 'channel', 'message')"
    assert r.eval(source, 0) == 0
    with pytest.raises(redis.ResponseError, match="Write commands are not allowed from read-only scripts"):
        r.execute_command("EVAL_RO", source, 0)


@pytest.mark.parametrize("version", ["'3'", "3.5"])
def test_the_protocol_of_a_script_is_any_number_in_c(r: redis.Redis, version: str) -> None:
    assert r.eval(f"redis.setresp({version}) return type(redis.call('get', 'nothing'))", 0) == b"nil"


@pytest.mark.since("7.0")
def test_line_breaks_at_the_end_of_a_scripts_error_go(r: redis.Redis) -> None:
    assert error_of(r, "EVAL", "return redis.error_reply('MY a\\nb\\r\\n')", 0) == "MY a b"
    assert error_of(r, "EVAL", "return {err = 'MY a\\r\\n'}", 0) == "MY a"
    assert r.eval("return redis.error_reply('\\r\\na\\r\\n').err", 0) == b"ERR a"


def test_select_in_a_script_stays_in_the_script(r: redis.Redis) -> None:
    with r.client() as one:
        assert one.eval("redis.call('select', 3) redis.call('set', 'a', 1) return redis.call('dbsize')", 0) == 1
        assert one.get("a") is None


def test_a_script_sees_one_time(r: redis.Redis) -> None:
    source = "redis.call('set', 'a', 'x', 'px', 1) for i = 1, 3e6 do end return redis.call('get', 'a')"
    assert r.eval(source, 0) == b"x"


def test_what_a_script_wrote_before_it_failed_stays(r: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="boo"):
        r.eval("redis.call('set', 'a', 1) error('boo')", 0)
    assert r.get("a") == b"1"


@pytest.mark.since("7.0")
def test_nothing_a_script_does_to_its_world_reaches_the_next_one(r: redis.Redis) -> None:
    attempts = [
        "string.rep = nil", "_G.redis = nil", "rawset(_G, 'x', 1)", "setmetatable(_G, nil)", "KEYS = nil",
        "getmetatable('').__index = nil", "table.insert = nil",
    ]  # fmt: skip
    for attempt in attempts:
        with contextlib.suppress(redis.ResponseError):
            r.eval(attempt, 0)
    assert r.eval("return {('x'):rep(2), #KEYS, redis.call('ping').ok, table.concat({'a', 'b'})}", 0) == [
        b"xx", 0, b"PONG", b"ab",
    ]  # fmt: skip


def test_a_redis_py_lock_is_held_extended_and_released(r: redis.Redis) -> None:
    lock = r.lock("resource", timeout=10)
    assert lock.acquire(blocking=False)
    assert not r.lock("resource", timeout=10).acquire(blocking=False)
    assert lock.extend(20)
    assert lock.reacquire()
    assert r.pttl("resource") > 9000
    lock.release()
    assert not r.exists("resource")
    with pytest.raises(redis.exceptions.LockError):
        lock.release()


def test_a_registered_script_runs_inside_a_pipeline(r: redis.Redis) -> None:
    r.script_flush()
    add = r.register_script("return redis.call('incrby', KEYS[1], ARGV[1])")
    assert add(keys=["n"], args=[5]) == 5
    with r.pipeline() as pipe:
        add(keys=["n"], args=[1], client=pipe)
        pipe.get("n")
        assert pipe.execute() == [6, b"6"]


def test_a_script_serves_blocked_clients_after_its_end(r: redis.Redis) -> None:
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(r.blpop("list", 5)))
    waiting.start()
    while r.info("clients")["blocked_clients"] != 1:
        pass
    source = "redis.call('rpush', 'list', 'b') redis.call('lpush', 'list', 'a') return redis.call('llen', 'list')"
    assert r.eval(source, 0) == 2
    waiting.join()
    assert answers == [(b"list", b"a")]


# -- the box ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "return string.rep('x', 2^31 - 1)",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} while true do t[#t + 1] = string.rep('x', 2^20) .. #t end",
    ],
)
def test_memory_runs_out_for_the_script_and_not_for_the_server(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "MEMORY_LIMIT", 1 << 25)
    bench = Bench()
    for _ in range(3):
        with pytest.raises(ReplyError, match="not enough memory"):
            bench.eval(source)
        assert bench.eval("return 1") == b":1\r\n"


@pytest.mark.parametrize(
    "source",
    [
        "local function f() return f() + 1 end return f()",
        "local t = {} t[1] = t return t",
        "local t = setmetatable({}, {}) getmetatable(t).__index = t return t.x",
        "local s = string.rep('(', 300) return loadstring('return ' .. s)",
        "local f = function() end for i = 1, 300 do local g = f f = function() return pcall(g) end end return f()",
        "error({})",
        "error(setmetatable({}, {__index = function() error('again') end}))",
        "error(setmetatable({}, {__tostring = function() error('again') end}))",
        "return loadstring('\\27Lua')",
        "return setmetatable({}, {__gc = 1, __metatable = 2})",
    ],
)
def test_odd_scripts_end_with_an_answer(source: str) -> None:
    bench = Bench()
    with contextlib.suppress(ReplyError):
        bench.eval(source)
    assert bench.eval("return 1") == b":1\r\n"


def test_no_python_object_is_within_reach() -> None:
    bench = Bench()
    source = """
        local seen, found = {}, {}
        local function walk(value, path)
            if type(value) == 'userdata' and value ~= cjson.null then found[#found + 1] = path end
            if type(value) ~= 'table' or seen[value] then return end
            seen[value] = true
            for key, item in pairs(value) do walk(key, path) walk(item, path .. '.' .. tostring(key)) end
            walk(getmetatable(value), path .. '!')
        end
        walk(_G, '_G')
        walk(getmetatable(''), 'string')
        return found
    """
    assert bench.eval(source) == b"*0\r\n"


def test_compiled_chunks_are_refused() -> None:
    bench = Bench()
    with pytest.raises(ReplyError, match="binary chunk"):
        bench.eval(b"\x1bLuaQ\0\1\4\x08\4\x08\0")
    assert bench.eval("return {loadstring(string.dump(function() return 1 end))}") == b"*0\r\n"


def test_a_chunk_of_another_lua_is_left_alone() -> None:
    assert keep_frames(b"\x1bLua\x52\x00") == b"\x1bLua\x52\x00"


def test_tail_recursion_needs_no_stack() -> None:
    source = "local function down(n) if n == 0 then return 'end' end return down(n - 1) end return down(100000)"
    assert Bench().eval(source) == b"$3\r\nend\r\n"


# -- the log ------------------------------------------------------------------------------------------------------


def test_the_effects_of_a_script_are_one_entry_of_the_log() -> None:
    bench = Bench()
    bench.eval("redis.call('SET', 'a', ARGV[1]) redis.call('GET', 'a') redis.call('INCR', 'n') return 1", "x")
    assert bench.logged == [[(0, [b"SET", b"a", b"x"]), (0, [b"INCR", b"n"])]]


def test_a_script_inside_a_transaction_joins_its_entry() -> None:
    bench = Bench()
    bench.run("MULTI")
    bench.run("SET", "a", "1")
    bench.run("EVAL", "return redis.call('INCR', KEYS[1])", "1", "a")
    assert bench.run("EXEC") == [b"OK", b":2\r\n"]
    assert bench.logged == [[(0, [b"SET", b"a", b"1"]), (0, [b"INCR", b"a"])]]


def test_a_script_that_only_reads_is_not_logged() -> None:
    bench = Bench()
    bench.eval("return redis.call('get', 'a')")
    assert bench.logged == []


# -- gates --------------------------------------------------------------------------------------------------------


def test_a_script_may_do_what_its_caller_may() -> None:
    bench = Bench()
    bench.run("ACL", "SETUSER", "bob", "on", "nopass", "+@all", "-set", "~a*", "&c*")
    bench.run("AUTH", "bob", "x")
    with pytest.raises(
        ReplyError, match=r"^ERR The user executing the script can't run this command or subcommand script:"
    ):
        bench.eval("return redis.call('set', 'a', 1)")
    with pytest.raises(ReplyError, match="can't access at least one of the keys"):
        bench.eval("return redis.call('get', 'b')")
    assert (
        bench.eval("return {redis.acl_check_cmd('get', 'a'), redis.acl_check_cmd('get', 'b')}")
        == b"*2\r\n:1\r\n$-1\r\n"
    )


def test_memory_that_is_full_refuses_the_first_write_and_not_the_second() -> None:
    bench = Bench()
    bench.engine.config.change([(DIRECTIVES["maxmemory"], "1")])
    with pytest.raises(ReplyError, match="OOM command not allowed"):
        bench.eval("return redis.call('set', 'a', 1)")
    assert bench.eval("redis.call('del', 'a') return redis.call('set', 'a', 1)") == b"+OK\r\n"
    assert bench.eval("#!lua flags=allow-oom\nreturn redis.call('set', 'a', 1)") == b"+OK\r\n"
    assert bench.eval("#!lua flags=no-writes\nreturn 1") == b":1\r\n"
    with pytest.raises(OutOfMemory):
        bench.eval("#!lua\nreturn 1")


@pytest.mark.parametrize("name", ["insert", "remove", "sort"])
def test_the_table_library_does_not_write_to_read_only_tables(name: str) -> None:
    bench = Bench()
    with pytest.raises(ReplyError, match="Attempt to modify a readonly table"):
        bench.eval(f"return table.{name}(redis, 1)")
    assert bench.eval("return redis[1] == nil") == b":1\r\n"


@pytest.mark.parametrize("count", [199, 200, 201, 7990, 7997])
def test_a_command_takes_as_many_arguments_as_unpack_gives(count: int) -> None:
    bench = Bench()
    assert bench.eval(
        f"local a = {{}} for i = 1, {count} do a[i] = i end return redis.call('lpush', 'l', unpack(a))"
    ) == (b":%d\r\n" % count)


# -- what is counted ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "errors", "command", "counts"),
    [
        ("return redis.error_reply('MY_ERR x')", {"MY_ERR": 1}, "EVAL", (1, 0, 1)),
        ("error('x')", {"ERR": 1}, "EVAL", (1, 0, 1)),
        ("return redis.call('lpush', 'text', 1)", {"WRONGTYPE": 1}, "LPUSH", (1, 0, 1)),
        ("return redis.pcall('lpush', 'text', 1)", {"WRONGTYPE": 1}, "EVAL", (1, 0, 1)),
        ("redis.pcall('lpush', 'text', 1) return 1", {"WRONGTYPE": 1}, "EVAL", (1, 0, 0)),
        ("return redis.call('get')", {"ERR": 1}, "GET", (0, 1, 0)),
        ("return redis.call('nosuch')", {"ERR": 1}, "EVAL", (1, 0, 1)),
    ],
)
def test_an_error_of_a_script_is_counted_once_by_its_name(
    source: str, errors: dict[str, int], command: str, counts: tuple[int, int, int]
) -> None:
    bench = Bench()
    bench.run("SET", "text", "a")
    with contextlib.suppress(ReplyError):
        bench.eval(source)
    stats = bench.engine.stats
    assert dict(stats.errors) == errors
    calls = stats.calls[command]
    assert (calls[CALLS], calls[REJECTED], calls[FAILED]) == counts


def test_a_script_that_finds_memory_full_is_counted_as_such() -> None:
    bench = Bench()
    bench.engine.config.change([(DIRECTIVES["maxmemory"], "1")])
    with pytest.raises(ReplyError, match="OOM"):
        bench.eval("return redis.call('set', 'a', 1)")
    assert dict(bench.engine.stats.errors) == {"OOM": 1}
    calls = bench.engine.stats.calls["SET"]
    assert (calls[CALLS], calls[REJECTED], calls[FAILED]) == (0, 1, 0)


def test_scripts_cannot_make_names_of_errors_without_end() -> None:
    bench = Bench()
    for number in range(300):
        with contextlib.suppress(ReplyError):
            bench.eval(f"return redis.error_reply('E{number} x')")
    assert len(bench.engine.stats.errors) <= 129
    assert bench.engine.stats.errors.total() == 300


def test_a_set_that_is_not_to_be_sorted_has_one_order_in_scripts() -> None:
    bench = Bench()
    bench.run("SADD", "s", *[f"m{number}" for number in range(9, 0, -1)])
    expected = b"*9\r\n" + b"".join(b"$2\r\nm%d\r\n" % number for number in range(1, 10))
    assert bench.eval("return redis.call('sort', 's', 'by', 'nosort')") == expected


def test_no_flags_in_a_shebang_are_no_mistake() -> None:
    assert Bench().eval("#!lua flags=\nreturn 1") == b":1\r\n"


@pytest.mark.since("7.0")
@pytest.mark.parametrize("head", ['#!lua flags="no-writes"', "#!lua  'flags=no-writes'\t"])
def test_words_of_a_shebang_may_be_quoted(r: redis.Redis, head: str) -> None:
    assert r.eval(f"{head}\nreturn 1", 0) == 1
    with pytest.raises(redis.ResponseError, match="Write commands are not allowed from read-only scripts"):
        r.eval(f"{head}\nredis.call('set', 'a', 1)", 0)
    with pytest.raises(redis.ResponseError, match="Invalid engine in script shebang"):
        r.eval(f"{head}'\nreturn 1", 0)


@pytest.mark.since("7.0")
def test_a_shebang_lets_a_script_write_or_be_refused_before_it_runs(r: redis.Redis) -> None:
    r.set("k", "v")
    r.config_set("min-replicas-to-write", 1)
    try:
        assert r.eval("return redis.call('get', KEYS[1])", 1, "k") == b"v"
        assert r.eval("#!lua flags=no-writes\nreturn redis.call('get', KEYS[1])", 1, "k") == b"v"
        assert r.eval("#!lua flags=no-writes,allow-oom\nreturn 1", 0) == 1
        with pytest.raises(redis.ResponseError, match="NOREPLICAS Not enough good replicas to write"):
            r.eval("#!lua\nreturn redis.call('get', KEYS[1])", 1, "k")
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            r.eval("return redis.call('set', KEYS[1], 1)", 1, "k")
        with pytest.raises(redis.ResponseError, match="write flag using \\*_ro"):
            r.eval_ro("#!lua\nreturn 1", 0)
    finally:
        r.config_set("min-replicas-to-write", 0)
    assert r.eval("#!lua\nreturn redis.call('set', KEYS[1], 1)", 1, "k") == b"OK"


def test_a_script_needs_the_flags_that_the_state_of_the_server_asks_for() -> None:
    bench = Bench()
    bench.engine.write_error = "the disk is full"
    assert bench.eval("#!lua flags=no-writes\nreturn 1") == b":1\r\n"
    with pytest.raises(ReplyError, match="the disk is full"):
        bench.eval("#!lua\nreturn 1")
    bench.engine.write_error = None
    bench.engine.following = True
    assert bench.eval("#!lua flags=no-writes\nreturn 1") == b":1\r\n"
    with pytest.raises(ReplyError, match="readonly replica"):
        bench.eval("#!lua\nreturn 1")
    bench.engine.stale = True
    for source in ("return 1", "#!lua flags=no-writes\nreturn 1"):
        with pytest.raises(ReplyError, match="Link with MASTER is down"):
            bench.eval(source)
    assert bench.eval("#!lua flags=no-writes,allow-stale\nreturn 1") == b":1\r\n"


def test_the_metatable_of_globals_can_be_seen() -> None:
    assert Bench().eval("return {type(getmetatable(_G)), type(getmetatable(_G).__index)}") == (
        b"*2\r\n$5\r\ntable\r\n$8\r\nfunction\r\n"
    )


# -- while clients are paused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "held"),
    [
        ("return 12", True),
        ("#!lua\nreturn 12", True),
        ("#!lua flags=no-writes\nreturn 12", False),
        ("#!lua flags=no-such-flag\nreturn 12", True),
    ],
)
def test_a_pause_of_writes_holds_every_script_that_does_not_say_no_writes(source: str, held: bool) -> None:
    bench = Bench()
    with contextlib.suppress(ReplyError):
        bench.run("SCRIPT", "LOAD", source)
    bench.run("CLIENT", "PAUSE", "60000", "WRITE")
    sha = hashlib.sha1(source.encode()).hexdigest()
    for words in (["EVAL", source, "0"], ["EVALSHA", sha, "0"]):
        reply = bench.run(*words, session=Session(bench.engine))
        assert reply is NO_REPLY if held else reply == b":12\r\n"
    assert bench.run("EVAL_RO", "return 12", "0", session=Session(bench.engine)) == b":12\r\n"


NUMBERS = {
    "struct.size('c99999999999999999999999999')": b"integral size overflow",
    "struct.size('c2147483647c2147483647')": b"4294967294",
    "struct.pack('!99999999999999', 1)": b"integral size overflow",
    "struct.pack('f', '0x' .. string.rep('f', 300))": b"\0\0\x80\x7f",
    "struct.pack('f', -1e300)": b"\0\0\x80\xff",
    "struct.pack('b', 0 / 0)": b"\0",
    "struct.pack('l', 1 / 0)": b"\0\0\0\0\0\0\0\0",
    "struct.pack('l', -1 / 0)": b"\0\0\0\0\0\0\0\x80",
    "struct.pack('l', 3 * 2 ^ 65)": b"\0\0\0\0\0\0\0\0",
    "struct.pack('l', 2 ^ 64 - 2 ^ 11)": b"\0\xf8\xff\xff\xff\xff\xff\xff",
    "struct.unpack('b', 'a', '0x' .. string.rep('f', 300))": b"data string too short",
    "struct.unpack('b', 'a', 0 / 0)": b"data string too short",
    "bit.tohex(1, 1 / 0)": b"",
    "bit.tohex(1, 2 ^ 32 + 3)": b"001",
    "bit.tobit('1_0')": b"number expected, got string",
    "bit.tobit('0x1_0')": b"number expected, got string",
    "bit.tobit('1e')": b"number expected, got string",
    "bit.tobit('')": b"number expected, got string",
    "bit.tobit(' 0x10 ')": b"16",
    "bit.tobit('0x1p4')": b"16",
    "bit.tobit('-0x10')": b"-16",
    "bit.tobit('1\\0x')": b"1",
    "bit.tobit('infinity')": b"0",
}


@pytest.mark.parametrize("call", NUMBERS)
def test_numbers_become_integers_as_in_c(r: redis.Redis, call: str) -> None:
    answer = r.eval(f"return tostring(select(2, pcall(function() return {call} end)))", 0)
    assert isinstance(answer, bytes)
    assert answer.removeprefix(b"user_script:1: ").endswith(NUMBERS[call] + b")" * (b"argument" in answer))


TEXTS_OF_NUMBERS = {
    "{cmsgpack.unpack(16)}": [49, 54],
    "{cmsgpack.unpack_one(16)}": [1, 49],
    "{struct.unpack('c2', 3.5)}": [b"3.", 3],
}


@pytest.mark.parametrize("source", TEXTS_OF_NUMBERS)
def test_a_number_is_taken_for_its_text_as_in_c(r: redis.Redis, source: str) -> None:
    assert r.eval(f"return {source}", 0) == TEXTS_OF_NUMBERS[source]


def test_loadstring_answers_a_function_and_nothing_else(r: redis.Redis) -> None:
    assert r.eval("return {select('#', loadstring('return 1')), select('#', loadstring('return ...'))}", 0) == [1, 1]


def test_an_integer_beyond_those_of_redis_is_a_double() -> None:
    lua = Bench().engine.scripting.lua
    assert lua.hand(1 << 70, 2) == float(1 << 70)
    assert lua.hand([1 << 70], 2)[1] == 1 << 70
