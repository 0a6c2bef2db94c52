"""Scripts that run too long: the replies that others get, and how the scripts end. On
ours, and some on a real Redis.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.server_process import Process

from penstock import Server
from penstock.engine import scripting as scripting_module
from penstock.engine.lua import interpreter, native
from penstock.engine.scripting import Scripting
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import pack
from penstock.server.app import App
from penstock.testing.redis import RedisServer, find_redis, free_port

WORDS_OF_7 = find_redis().version >= (7, 0)


@pytest.fixture(params=["penstock", "redis"])
def slow(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server that calls a script busy after 50 ms."""
    directive = "busy_reply_threshold" if WORDS_OF_7 else "lua_time_limit"
    server: Any = RedisServer(**{directive: "50"}) if request.param == "redis" else Server(busy_reply_threshold=50)
    with server:
        yield server.url


def patient(url: str) -> redis.Redis:
    """A client that waits for a slow machine, and sends nothing twice. By default it gives up after five seconds."""
    return redis.Redis.from_url(url, socket_timeout=100, retry=None)


class Runaway:
    """A script in a thread of its own."""

    def __init__(self, url: str, source: str) -> None:
        self.answer: Any = None
        self._client = patient(url)
        self._thread = threading.Thread(target=self._run, args=(source,))
        self._thread.start()

    def _run(self, source: str) -> None:
        try:
            self.answer = self._client.eval(source, 0)
        except redis.RedisError as error:
            self.answer = error

    def end(self) -> Any:
        self._thread.join(100)
        self._client.close()
        return self.answer


def _until_busy(client: redis.Redis) -> str:
    """Ask until the server says that it is busy; what it says."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            client.get("a")
        except redis.RedisError as error:
            return f"{type(error).__name__} {error}"
    return "never busy"


@pytest.mark.parametrize(
    "source",
    [
        "while true do end",
        "coroutine.wrap(function() while true do end end)()",
        "while true do redis.call('get', 'a') end",
    ],
)
def test_a_runaway_script_is_killed_by_a_new_client(slow: str, source: str) -> None:
    with patient(slow) as early:
        early.set("a", "1")
        runaway = Runaway(slow, source)
        assert "busy running a script" in _until_busy(early).lower()
        with patient(slow) as late:
            assert "busy running a script" in _until_busy(late).lower()
            assert late.script_kill()
            assert "Script killed by user with SCRIPT KILL" in str(runaway.end())
            assert late.get("a") == b"1", "a client that came during the script stays connected"
            assert late.client_id() != early.client_id()
        assert early.get("a") == b"1"
        assert early.eval("return 7", 0) == 7


def test_a_script_cannot_catch_its_own_end() -> None:
    with Server(busy_reply_threshold=50) as server, patient(server.url) as other:
        runaway = Runaway(server.url, "while true do pcall(function() while true do end end) end")
        assert "busy" in _until_busy(other).lower()
        assert other.script_kill()
        assert "Script killed by user with SCRIPT KILL" in str(runaway.end())


def test_a_script_that_has_written_cannot_be_killed(slow: str) -> None:
    with patient(slow) as other:
        runaway = Runaway(slow, "redis.call('set', 'a', 1) for i = 1, 1.5e8 do end return 'done'")
        assert "busy" in _until_busy(other).lower()
        with pytest.raises(redis.ResponseError, match="Sorry the script already executed write commands"):
            other.script_kill()
        with other.pipeline(transaction=False) as pipe:
            pipe.get("a")
            pipe.ping()
            assert all(isinstance(reply, redis.ResponseError) for reply in pipe.execute(raise_on_error=False))
        assert runaway.end() == b"done"
        assert other.get("a") == b"1"


def test_a_long_sort_can_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "LONG_SORT", 1000)
    monkeypatch.setattr(Scripting, "_tick", lambda scripting: b"sorting" in scripting._session.db.data)
    script = (
        "local t = {} for i = 1, 100000 do t[i] = -i end "
        "redis.call('set', 'sorting', 1) table.sort(t) redis.call('set', 'sorted', 1)"
    )
    with Server() as server, patient(server.url) as client:
        with pytest.raises(redis.ResponseError, match="Script killed by user"):
            client.eval(script, 0)
        assert client.exists("sorting", "sorted") == 1


@pytest.mark.parametrize(
    "items",
    [
        "(i * 7919) % 100003",
        "'s' .. i",
        "i == 7 and 'x' or i",
        "{}",
        "setmetatable({}, {__lt = function() error('x') end})",
    ],
)
def test_a_long_sort_gives_what_a_short_one_does(monkeypatch: pytest.MonkeyPatch, items: str) -> None:
    script = f"""
        local t = {{}} for i = 1, 500 do t[i] = {items} end
        local ok, problem = pcall(function() table.sort(t) end)
        return {{tostring(ok), problem, type(t[1]) ~= 'table' and t[1], type(t[1]) ~= 'table' and t[500]}}
    """
    with Server() as server, patient(server.url) as client:
        answer = client.eval(script, 0)
    monkeypatch.setattr(interpreter, "LONG_SORT", 0)
    with Server() as server, patient(server.url) as client:
        assert client.eval(script, 0) == answer


@pytest.mark.parametrize(
    ("begin", "complaint"), [("", "running a script"), ("redis.call('set', 'a', 1)", "script already executed write")]
)
def test_a_busy_script_is_no_function_to_kill(begin: str, complaint: str) -> None:
    with Server(busy_reply_threshold=20) as server, patient(server.url) as other:
        runaway = Runaway(server.url, f"{begin} for i = 1, 1e9 do end")
        assert "busy" in _until_busy(other).lower()
        with pytest.raises(redis.ResponseError, match=complaint):
            other.execute_command("FUNCTION KILL")
        with pytest.raises(redis.ResponseError, match="running a script"):
            other.execute_command("FUNCTION STATS")
        other.shutdown(nosave=True)
        runaway.end()


def test_shutdown_without_saving_ends_a_busy_script() -> None:
    with Server(busy_reply_threshold=50) as server:
        runaway = Runaway(server.url, "redis.call('set', 'a', 1) while true do end")
        with patient(server.url) as other:
            assert "busy" in _until_busy(other).lower()
            other.shutdown(nosave=True)
        assert isinstance(runaway.end(), redis.RedisError)


@pytest.mark.parametrize("words", ["SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN SAVE NOW FORCE"])
def test_shutdown_with_saving_is_refused_while_a_script_is_busy(slow: str, words: str) -> None:
    with patient(slow) as other:
        runaway = Runaway(slow, "while redis.call('get', 'end') == false do end return 'done'")
        assert "busy" in _until_busy(other).lower()
        with pytest.raises(redis.ResponseError, match="Redis is busy running a script"):
            other.execute_command(words)
        assert other.script_kill()
        assert "Script killed by user" in str(runaway.end())


@pytest.mark.parametrize("in_transaction", [False, True])
def test_nothing_is_kept_of_a_script_that_shutdown_ends(tmp_path: Path, in_transaction: bool) -> None:
    settings = {"dir": str(tmp_path), "appendonly": "yes", "busy_reply_threshold": 50}
    script = b"redis.call('incr', 'a') redis.call('rpush', 'l', 1) for i = 1, 1e9 do end"
    with Server(**settings) as server, socket.create_connection(("127.0.0.1", server.port), 60) as busy:
        with patient(server.url) as other, other.client() as reader:
            other.set("a", 1)
            reader.connection.send_command("BLPOP", "l", 0)
            words = [[b"EVAL", script, b"0"]]
            if in_transaction:
                words = [[b"MULTI"], [b"INCR", b"a"], *words, [b"INCR", b"a"], [b"EXEC"]]
            busy.sendall(b"".join([pack(*each) for each in words]))
            assert "busy" in _until_busy(other).lower()
            other.shutdown(nosave=True)
            with pytest.raises(redis.ConnectionError):
                reader.connection.read_response()
        answers = b"".join(iter(lambda: _received(busy), b""))
    assert set(answers.split()) <= {b"+OK", b"+QUEUED"}, "of MULTI and behind it, if they left"
    with Server(**settings) as server, patient(server.url) as client:
        assert client.get("a") == b"1"
        assert client.keys() == [b"a"]


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


def _killed(server: Server, source: str) -> str:
    """What a runaway script answers when another client has killed it."""
    with patient(server.url) as other:
        runaway = Runaway(server.url, source)
        assert "busy" in _until_busy(other).lower()
        assert other.script_kill()
        return str(runaway.end())


@pytest.mark.parametrize(
    "source",
    [
        "return loadstring('while true do pcall(function() while true do end end) end', '=x')()",
        "return loadstring('while true do pcall(function() while true do end end) end', '=sandbox.lua')()",
        "return loadstring('while true do pcall(function() while true do end end) end', '=sandbox.lua\\0x')()",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "coroutine.wrap(function() while 1 do"
        " xpcall(function() while 1 do end end, function() while 1 do end end) end end)()",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "while true do pcall(coroutine.wrap(function() while true do pcall(string.rep, 'x', 10) end end)) end",
        "local t = setmetatable({}, {__index = function() while true do end end})"
        " while true do pcall(function() return t.x end) end",
        "while true do pcall(string.gsub, 'aaaa', 'a', function() while true do end end) end",
        "while true do pcall(table.sort, {3, 2, 1}, function() while true do end end) end",
        "local function f() while true do pcall(f) end end f()",
        "local function f() while true do xpcall(f, f) end end f()",
        "return #string.gsub(string.rep('1', 5e7), '.', math.randomseed)",
        "local t = setmetatable({}, {__index = rawequal}) return #string.gsub(string.rep('1', 5e7), '.', t)",
        "local function deep(n) if n == 0 then for i = 1, 40000 do end return 1 end local r = deep(n - 1) return r end"
        " for n = 16360, 16384 do xpcall(function() return deep(n) end, function() while true do end end) end",
        "local function nested(n) if n == 0 then for i = 1, 40000 do end return 1 end"
        " local ok, e = pcall(nested, n - 1) if not ok then error(e, 0) end return e end"
        " for n = 180, 202 do xpcall(function() return nested(n) end, function() while true do end end) end",
        "local function f() while true do coroutine.resume(coroutine.create(f)) end end f()",
        "local function f() if pcall(f) then return end while true do end end while true do pcall(f) end",
        "local a, b, t = string.rep('a', 5e6) .. 'x', string.rep('a', 5e6) .. 'y', {}"
        " for i = 1, 4000 do t[i] = i % 2 == 0 and a or b end while true do table.sort(t) end",
    ],
)
def test_no_script_outlives_a_kill(source: str) -> None:
    with Server(busy_reply_threshold=20) as server:
        assert "Script killed by user with SCRIPT KILL" in _killed(server, source)


FEW_INSTRUCTIONS = {
    "long copies": "for i = 1, 100 do local s = string.rep('x', 1e6) end",
    "short strings made longer": "local s = string.rep('x', 1e4) for i = 1, 2000 do local t = s .. i end",
    "upper case": "local s = string.rep('x', 1e5) for i = 1, 500 do local t = s:upper() end",
    "a search": "local s = string.rep('x', 1e5) for i = 1, 200 do s:find('y', 1, true) end",
    "a hash": "local s = string.rep('x', 1e5) for i = 1, 200 do redis.sha1hex(s) end",
    "packing": "local s = string.rep('x', 1e5) for i = 1, 200 do struct.pack('s', s) end",
    "JSON of blanks": "local s = string.rep(' ', 1e5) for i = 1, 50 do pcall(cjson.decode, s) end",
    "joined elements": (
        "local t = {} for i = 1, 100 do t[i] = string.rep('x', 1000) end for i = 1, 600 do table.concat(t) end"
    ),
    "garbage collection": "for i = 1, 10 do collectgarbage() end",
}


@pytest.mark.parametrize("source", FEW_INSTRUCTIONS.values(), ids=FEW_INSTRUCTIONS)
def test_much_work_in_few_instructions_is_ended(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(Scripting, "_tick", lambda scripting: b"begun" in scripting._session.db.data)
    with Server() as server, patient(server.url) as client:
        with pytest.raises(redis.ResponseError, match="Script killed by user"):
            client.eval(f"redis.call('set', 'begun', 1) {source} redis.call('set', 'ended', 1)", 0)
        assert client.exists("ended") == 0


ONE_LONG_CALL = {
    "replacements by nothing": "string.gsub(string.rep('a', 1e5), '(x*)', string.rep('%1', 6000))",
    "patterns that try much": "local s = string.rep('a', 3000) for i = 1, 60 do string.find(s, 'a*b') end",
    "a sort by a function of C": (
        "local t = {} for i = 1, 30000 do t[i] = i end redis.call('incr', 'begun') table.sort(t, rawequal)"
    ),
    "a sort of tables that a function of C compares": (
        "local t, m = {}, {__lt = rawequal} for i = 1, 30000 do t[i] = setmetatable({}, m) end"
        " redis.call('incr', 'begun') table.sort(t)"
    ),
    "a function of C for each element": (
        "local t = {} for i = 1, 5e5 do t[i] = i end redis.call('incr', 'begun') table.foreach(t, math.randomseed)"
    ),
    "a function of C for each index": (
        "local t = {} for i = 1, 5e5 do t[i] = i end redis.call('incr', 'begun') table.foreachi(t, math.randomseed)"
    ),
    "JSON of a long string": "cjson.encode(string.rep('x', 2e7))",
    "short coroutines": "for i = 1, 300 do coroutine.wrap(function() end)() end",
    "coroutines that are resumed": (
        "local yield = coroutine.yield local c = coroutine.create(function() while true do yield() end end)"
        " for i = 1, 300 do coroutine.resume(c) end"
    ),
    "a status of line breaks": "return {ok = string.rep('\\n', 3e7)}",
}
"""Calls in which nothing looked at the clock."""


@pytest.mark.parametrize("source", ONE_LONG_CALL.values(), ids=ONE_LONG_CALL)
def test_the_clock_is_looked_at_often_in_one_long_call(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    looks: list[str] = []

    def look(scripting: Scripting) -> bool | int:
        begun = str(scripting._session.db.data.get(b"begun"))
        looks[:] = [*(each for each in looks if each == begun), begun]
        return begun != "None" and len(looks) > 25

    monkeypatch.setattr(Scripting, "_tick", look)
    with (
        Server() as server,
        patient(server.url) as client,
        pytest.raises(redis.ResponseError, match="Script killed by user"),
    ):
        client.eval(f"redis.call('set', 'begun', 1) {source}", 0)


def test_the_clock_is_looked_at_when_instructions_become_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lua's memory says how slow they may become. Here 1,500 read 30 MB each."""
    monkeypatch.setattr(Scripting, "_tick", lambda scripting: b"begun" in scripting._session.db.data)
    source = (
        "local s = string.rep(' ', 3e7) for i = 1, 1e5 do end redis.call('set', 'begun', 1)"
        " for i = 1, 1500 do tonumber(s) end redis.call('set', 'ended', 1)"
    )
    with Server() as server, patient(server.url) as client:
        with pytest.raises(redis.ResponseError, match="Script killed by user"):
            client.eval(source, 0)
        assert client.exists("ended") == 0


@pytest.mark.parametrize(
    "source",
    [
        "while true do local s = string.rep('x', 1e7) end",
        "local i = 0 while true do i = i + 1 local s = string.rep('x', 1e6) .. i end",
        "local s = string.rep('x', 1e6) while true do pcall(function() while true do local t = s .. s end end) end",
    ],
)
def test_a_script_that_copies_long_strings_is_killed(source: str) -> None:
    with Server(busy_reply_threshold=20) as server:
        assert "Script killed by user with SCRIPT KILL" in _killed(server, source)


@pytest.mark.parametrize(("milliseconds", "least", "most"), [(0, 5, 50), (1000, 1000, 100_000)])
def test_looks_at_the_clock_follow_the_time_that_instructions_take(
    monkeypatch: pytest.MonkeyPatch, milliseconds: int, least: int, most: int
) -> None:
    looks: list[int] = []

    def look(scripting: Scripting) -> int:
        looks.append(milliseconds)
        return milliseconds

    monkeypatch.setattr(Scripting, "_tick", look)
    with Server() as server, patient(server.url) as client:
        client.eval("for i = 1, 100000 do end", 0)
    assert least <= len(looks) <= most


def test_json_is_escaped_without_a_call_for_each_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function for each letter would be nearly a million instructions, so many looks at the clock."""
    looks: list[bool] = []
    monkeypatch.setattr(Scripting, "_tick", lambda scripting: looks.append(True) or 0)
    with Server() as server, patient(server.url) as client:
        text = bytes(range(128)) + bytes(range(32)) * 3200
        assert json.loads(client.eval("return cjson.encode(ARGV[1])", 0, text)) == text.decode()
    assert len(looks) <= 30


def test_joining_many_elements_counts_as_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    monkeypatch.setattr(Scripting, "_tick", lambda scripting: looks.append(True) or 5)
    script = "local t = {} for i = 1, 20000 do t[i] = 'x' end for i = 1, ARGV[1] do table.concat(t) end"
    with Server() as server, patient(server.url) as client:
        client.eval(script, 0, 0)
        others = len(looks)
        client.eval(script, 0, 1000)
    assert len(looks) - 2 * others >= 70, "1000 times 320 kB, and a look after 4 MB"


@pytest.mark.parametrize("number", ["1" * 300_000, "-" + "1" * 300_000 + "." + "1" * 300_000 + "e"])
def test_a_long_number_in_json_is_read_once(number: str) -> None:
    with Server(busy_reply_threshold=1000) as server, patient(server.url) as client:
        script = "return tostring(cjson.decode(ARGV[1]) == tonumber(ARGV[2]))"
        if number.endswith("e"):
            with pytest.raises(redis.ResponseError, match="Expected the end but found invalid token"):
                client.eval(script, 0, number, number[:-1])
        else:
            assert client.eval(script, 0, number, number) == b"true"


def test_a_long_format_of_struct_is_refused() -> None:
    with Server() as server, patient(server.url) as client:
        for call in ("pack(f)", "size(f)", "unpack(f, 'x')"):
            with pytest.raises(redis.ResponseError, match="format is longer than 100000 bytes"):
                client.eval(f"local f = string.rep('x', 100001) return struct.{call}", 0)


def test_a_killed_script_calls_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    monkeypatch.setitem(native.STRUCT, "size", lambda text: calls.append(text) or (1,))
    with Server(busy_reply_threshold=20) as server:
        _killed(server, "while true do pcall(function() while true do end end) struct.size('more on this line') end")
    assert not calls


def test_a_slow_command_looks_at_the_clock_although_it_is_one_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripting_module, "LATE", -1.0)
    monkeypatch.setattr(Scripting, "_tick", lambda scripting: True)
    with (
        Server() as server,
        patient(server.url) as client,
        pytest.raises(redis.ResponseError, match="Script killed by user"),
    ):
        client.eval("return redis.call('keys', '*')", 0)


def test_a_killed_script_begins_no_write_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripting, "_tick", lambda scripting: scripting.kill() or False)
    with Server() as server, patient(server.url) as client:
        with pytest.raises(redis.ResponseError, match="Write commands are not allowed"):
            client.eval("string.rep('x', 1e7) redis.call('set', 'a', 1)", 0)
        assert client.exists("a") == 0


def test_a_script_killed_without_memory_does_not_end_the_coroutines_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is killed at its first tick with full memory. Whether Lua then has room for the words of the kill is luck."""
    limit = 1 << 24
    monkeypatch.setattr(interpreter, "MEMORY_LIMIT", limit)
    monkeypatch.setattr(Scripting, "_tick", lambda scripting: scripting.lua.memory_used() > limit // 2)
    greedy = """
        local kept = {}
        for _, size in ipairs({1e5, 1e3, 10}) do
            pcall(function() while true do kept[#kept + 1] = string.rep('x', size) .. #kept end end)
        end
        while true do end"""
    with Server() as server, patient(server.url) as client:
        with pytest.raises(redis.ResponseError, match=r"Script killed by user|not enough memory"):
            client.eval(greedy, 0)
        assert client.eval("return coroutine.wrap(function() return 1 end)()", 0) == 1


def test_a_kill_in_the_middle_of_a_call_has_its_words() -> None:
    with Server(busy_reply_threshold=1) as server:
        for _ in range(20):
            assert "Script killed by user with SCRIPT KILL" in _killed(server, "while 1 do redis.call('ping') end")


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_has_no_connection_yet_is_served(begun: bool) -> None:
    """Whether or not the loop has begun to make its connection when the script starts."""
    with Server(busy_reply_threshold=1) as server, patient(server.url) as late:
        answers: list[str] = []

        def ask() -> None:
            answers.append(_until_busy(late))
            late.script_kill()

        def arrive_and_run(app: App) -> None:
            """In the loop's thread: the client is accepted, and a script runs before anything else does."""
            (listener,) = app.listeners.all
            asking.start()
            assert select.select([listener.socket], [], [], 60)[0]
            app.acceptor._accept_all(listener)
            if begun:
                app.loop.call_soon(run, app)  # behind the first step of the task that makes the connection
            else:
                run(app)

        def run(app: App) -> None:
            with pytest.raises(ReplyError, match="Script killed by user"):
                app.engine.execute(Session(app.engine), [b"EVAL", b"while 1 do end", b"0"])

        asking = threading.Thread(target=ask)
        server.call(arrive_and_run)
        asking.join(60)
        assert not asking.is_alive()
        assert "BUSY" in answers[0] or "busy" in answers[0]
        assert late.ping(), "it stays connected"


def test_stopping_an_embedded_server_ends_a_busy_script() -> None:
    with Server(busy_reply_threshold=1) as server, patient(server.url) as other:
        runaway = Runaway(server.url, "while true do end")
        assert "busy" in _until_busy(other).lower()
    assert isinstance(runaway.end(), redis.RedisError)


def _answer_after_a_signal(folder: Path, script: str, options: str = "") -> Any:
    """What a busy script answers whose server is told to end. `a` is "whole" before."""
    port = free_port()
    process = Process(folder, port, options=f"--busy-reply-threshold 20 {options}")
    try:
        with patient(f"redis://127.0.0.1:{port}") as other:
            other.set("a", "whole")
            runaway = Runaway(f"redis://127.0.0.1:{port}", script)
            assert "busy" in _until_busy(other).lower()
        process.process.terminate()
        assert process.process.wait(60) == 0
        return runaway.end()
    finally:
        process.kill()


def _found_by_a_start(folder: Path, options: str = "") -> Any:
    """The values of `a` and `b`."""
    port = free_port()
    process = Process(folder, port, options=options)
    try:
        with patient(f"redis://127.0.0.1:{port}") as client:
            return client.mget("a", "b")
    finally:
        process.kill()


def test_a_signal_ends_a_busy_script_that_has_written_nothing(tmp_path: Path) -> None:
    assert isinstance(_answer_after_a_signal(tmp_path, "while true do end"), redis.RedisError)


def test_a_signal_ends_a_busy_script_that_has_written_and_the_log_has_none_of_it(tmp_path: Path) -> None:
    script = "redis.call('set', 'a', 'half') redis.call('set', 'b', 'half') while true do end"
    answer = _answer_after_a_signal(tmp_path, script)
    assert isinstance(answer, redis.ConnectionError), "nothing was acknowledged"
    assert _found_by_a_start(tmp_path) == [b"whole", None]


def test_a_signal_waits_for_a_busy_script_that_has_written_if_there_is_no_log(tmp_path: Path) -> None:
    script = "redis.call('set', 'a', 1) for i = 1, 3e8 do end redis.call('set', 'b', 1) return 'done'"
    assert _answer_after_a_signal(tmp_path, script, "--appendonly no") == b"done"
    assert _found_by_a_start(tmp_path, "--appendonly no") == [b"1", b"1"]


def test_others_are_told_of_a_busy_script_that_came_right_after_a_write(tmp_path: Path) -> None:
    with (
        Server(dir=str(tmp_path), appendonly="yes", busy_reply_threshold=50) as server,
        patient(server.url) as other,
        socket.create_connection(("127.0.0.1", server.port), 60) as busy,
    ):
        other.ping()
        busy.sendall(pack(b"SET", b"k", b"v") + pack(b"EVAL", b"while true do end", b"0"))
        assert "busy" in _until_busy(other).lower()
        assert other.script_kill()
        lines = busy.makefile("rb")
        assert lines.readline() == b"+OK\r\n"
        assert b"Script killed" in lines.readline()
        lines.close()
