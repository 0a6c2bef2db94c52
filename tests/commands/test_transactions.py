"""MULTI, EXEC and WATCH, on ours and on a real Redis."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.support.commands.bench import Bench
from tests.support.commands.line import Line
from tests.support.comparison import clients, with_servers

from penstock.engine.directives import DIRECTIVES
from penstock.engine.session import Session
from penstock.protocol.errors import ExecAbort, OutOfMemory, ReplyError
from penstock.protocol.resp import NULL_ARRAY, OK, QUEUED
from penstock.testing.redis import find_redis


@pytest.fixture
def line(r: redis.Redis) -> Any:
    line = Line(r)
    yield line
    line.close()


def test_queued_commands_run_at_exec_and_not_before(r: redis.Redis, line: Line) -> None:
    assert line("MULTI") == b"OK"
    assert line("SET", "a", "1") == b"QUEUED"
    assert r.get("a") is None
    assert line("INCR", "a") == b"QUEUED"
    assert line("EXEC") == [b"OK", 2]
    assert line("MULTI") == b"OK"
    assert line("EXEC") == []


def test_a_run_time_error_stops_nothing(line: Line) -> None:
    line("MULTI")
    for argv in (["SET", "s", "x"], ["INCR", "s"], ["LPUSH", "s", "1"], ["GET", "s"]):
        assert line(*argv) == b"QUEUED"
    ok, not_an_integer, wrong_type, value = line("EXEC")
    assert (ok, value) == (b"OK", b"x")
    assert "value is not an integer" in not_an_integer
    assert "WRONGTYPE" in wrong_type


@pytest.mark.parametrize("wrong", [["NOSUCH"], ["GET"], ["SET", "a"], ["WATCH"]])
def test_a_command_that_cannot_be_queued_aborts_exec(r: redis.Redis, line: Line, wrong: list[str]) -> None:
    line("MULTI")
    line("SET", "a", "1")
    assert "ResponseError" in line(*wrong)
    assert line("EXEC") == "ExecAbortError Transaction discarded because of previous errors."
    assert r.get("a") is None
    assert line("EXEC") == "ResponseError EXEC without MULTI"


def test_exec_with_an_argument_is_the_end_of_the_transaction(line: Line) -> None:
    line("MULTI")
    assert line("EXEC", "now").endswith("because of: wrong number of arguments for 'exec' command")
    assert line("EXEC") == "ResponseError EXEC without MULTI"


def test_multi_and_watch_inside_multi_are_refused_and_abort_nothing(line: Line) -> None:
    line("MULTI")
    assert line("MULTI") == "ResponseError MULTI calls can not be nested"
    assert line("WATCH", "a") == "ResponseError WATCH inside MULTI is not allowed"
    assert line("EXEC") == []
    assert line("DISCARD") == "ResponseError DISCARD without MULTI"


def test_discard_forgets_the_queue_and_the_watches(r: redis.Redis, line: Line) -> None:
    line("WATCH", "a")
    line("MULTI")
    line("SET", "a", "1")
    assert line("DISCARD") == b"OK"
    r.set("a", "other")
    line("MULTI")
    line("GET", "a")
    assert line("EXEC") == [b"other"]


@pytest.mark.parametrize(
    "change",
    [
        ["SET", "a", "2"],
        ["DEL", "a"],
        ["APPEND", "a", "x"],
        ["EXPIRE", "a", "100"],
        ["FLUSHALL"],
        ["FLUSHDB"],
        ["SWAPDB", "0", "1"],
    ],
)
def test_a_watched_key_that_changed_makes_exec_answer_null(r: redis.Redis, line: Line, change: list[str]) -> None:
    r.set("a", "1")
    line("WATCH", "b", "a", "a")
    r.execute_command(*change)
    line("MULTI")
    line("SET", "a", "mine")
    assert line("EXEC") is None
    assert r.get("a") != b"mine"
    line("MULTI")
    line("PING")
    assert line("EXEC") == [b"PONG"], "EXEC ends the watch whatever it answers"


@pytest.mark.parametrize("change", [["FLUSHALL"], ["SWAPDB", "0", "1"], ["DEL", "a"], ["SET", "b", "1"], ["GET", "a"]])
def test_what_does_not_touch_a_watched_key_breaks_nothing(r: redis.Redis, line: Line, change: list[str]) -> None:
    line("WATCH", "a")
    r.execute_command(*change)
    line("MULTI")
    line("PING")
    assert line("EXEC") == [b"PONG"]


@pytest.mark.parametrize("held", [["0"], ["1"], ["0", "1"]])
def test_swapping_expired_keys_breaks_no_watch(held: list[str]) -> None:
    bench = Bench()
    for database in held:
        bench.run("SELECT", database)
        bench.run("SET", "a", "1", "PX", "5")
    bench.clock.advance(10)
    bench.run("SELECT", "0")
    bench.run("WATCH", "a")
    bench.run("SWAPDB", "0", "1")
    bench.run("MULTI")
    bench.run("PING")
    assert bench.run("EXEC") != NULL_ARRAY


def test_swapping_a_watched_key_that_expired_breaks_the_watch() -> None:
    bench = Bench()
    bench.run("SET", "a", "1", "PX", "5")
    bench.run("WATCH", "a")
    bench.clock.advance(10)
    bench.run("SWAPDB", "0", "1")
    bench.run("MULTI")
    bench.run("PING")
    assert bench.run("EXEC") == NULL_ARRAY


def test_a_watch_belongs_to_one_database(r: redis.Redis, line: Line) -> None:
    line("WATCH", "a")
    line("SELECT", "1")
    line("SET", "a", "1")
    line("MULTI")
    line("SELECT", "0")
    line("GET", "a")
    assert line("EXEC") == [b"OK", None]


def test_unwatch_forgets_and_is_queued_inside_multi(r: redis.Redis, line: Line) -> None:
    line("WATCH", "a")
    assert line("UNWATCH") == b"OK"
    r.set("a", "1")
    line("MULTI")
    assert line("UNWATCH") == b"QUEUED"
    assert line("EXEC") == [b"OK"]


def test_blocking_commands_do_not_block_inside_multi(line: Line) -> None:
    line("MULTI")
    line("BLPOP", "nothing", "0")
    line("BRPOPLPUSH", "nothing", "other", "0")
    assert line("EXEC") == [None, None]


def test_blocked_clients_are_served_after_exec_only(r: redis.Redis, line: Line) -> None:
    waiting = Line(r)
    waiting._connection.send_command("BLPOP", "list", "5")
    while r.info("clients")["blocked_clients"] != 1:
        pass
    line("MULTI")
    for argv in (["RPUSH", "list", "a"], ["LLEN", "list"], ["LPUSH", "list", "first"], ["LLEN", "list"]):
        line(*argv)
    assert line("EXEC") == [1, 1, 2, 2]
    assert waiting.read() == [b"list", b"first"]
    waiting.close()


def test_subscribing_inside_multi_is_confirmed_inside_exec(line: Line) -> None:
    line("MULTI")
    line("SUBSCRIBE", "a")
    line("PING")
    assert line("EXEC") == [[b"subscribe", b"a", 1], [b"pong", b""]]


def test_resp3_answers_a_broken_watch_with_null(r3: redis.Redis) -> None:
    line = Line(r3)
    line("WATCH", "a")
    line("SET", "a", "1")
    line("MULTI")
    line("HGETALL", "h")
    assert line("EXEC") is None
    line("MULTI")
    line("HGETALL", "h")
    assert line("EXEC") == [{}]
    line.close()


def test_a_redis_py_pipeline_is_a_transaction(r: redis.Redis) -> None:
    with r.pipeline(transaction=True) as pipe:
        pipe.set("a", 1).incr("a").lpush("a", "x").get("a")
        assert [type(reply) for reply in pipe.execute(raise_on_error=False)] == [bool, int, redis.ResponseError, bytes]
    with r.pipeline(transaction=True) as pipe, pytest.raises(redis.ResponseError, match="NOSUCH"):
        pipe.set("a", 5).execute_command("NOSUCH").execute()
    assert r.get("a") == b"2"


def test_a_watch_loop_of_many_threads_loses_no_update(r: redis.Redis) -> None:
    def add(pipe: Any) -> None:
        value = int(pipe.get("total") or 0)
        pipe.multi()
        pipe.set("total", value + 1)

    threads = [threading.Thread(target=lambda: [r.transaction(add, "total") for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert r.get("total") == b"100"


# -- what needs a clock or the log: on the engine itself ----------------------------------------------------------


def test_a_key_that_expires_after_watch_breaks_it() -> None:
    bench = Bench()
    bench.run("SET", "a", "1", "PX", "100")
    bench.run("WATCH", "a")
    bench.clock.advance(101)
    bench.run("MULTI")
    assert bench.run("PING") is QUEUED
    assert bench.run("EXEC") is NULL_ARRAY


def test_a_key_that_had_expired_before_watch_does_not_break_it() -> None:
    bench = Bench()
    bench.run("SET", "a", "1", "PX", "100")
    bench.clock.advance(101)
    bench.run("WATCH", "a")
    bench.run("MULTI")
    assert bench.run("EXISTS", "a") is QUEUED
    assert bench.run("EXEC") == [0]


def test_a_transaction_is_one_entry_of_the_log() -> None:
    bench = Bench()
    bench.run("MULTI")
    for words in (["SET", "a", "1"], ["GET", "a"], ["SELECT", "1"], ["LPUSH", "a", "x"], ["INCR", "a"]):
        bench.run(*words)
    bench.run("EXEC")
    assert bench.logged == [[(0, [b"SET", b"a", b"1"]), (1, [b"LPUSH", b"a", b"x"])]]


def test_going_away_releases_watches() -> None:
    bench = Bench()
    bench.run("WATCH", "a", "b")
    assert bench.engine.keyspace[0].observed
    bench.engine.forget(bench.session)
    assert not bench.engine.keyspace[0].observed


def test_memory_that_ran_out_after_queueing_aborts_exec() -> None:
    bench = Bench()
    bench.run("MULTI")
    bench.run("GET", "a")
    bench.run("SET", "a", "1")
    bench.engine.config.change([(DIRECTIVES["maxmemory"], "1")])
    with pytest.raises(ExecAbort, match="because of: OOM command not allowed"):
        bench.run("EXEC")
    with pytest.raises(ReplyError, match="EXEC without MULTI"):
        bench.run("EXEC")


def test_nothing_is_queued_while_memory_is_full() -> None:
    bench = Bench()
    bench.run("MULTI")
    bench.engine.config.change([(DIRECTIVES["maxmemory"], "1")])
    with pytest.raises(OutOfMemory):
        bench.run("PING")
    with pytest.raises(ExecAbort, match="because of previous errors"):
        bench.run("EXEC")
    bench.run("MULTI")
    assert bench.run("DISCARD") == OK


def test_a_permission_taken_away_after_queueing_refuses_that_command_only() -> None:
    bench = Bench()
    bench.run("ACL", "SETUSER", "bob", "on", "nopass", "+@all", "~*")
    bench.run("AUTH", "bob", "x")
    bench.run("MULTI")
    bench.run("SET", "a", "1")
    bench.run("PING")
    bench.run("ACL", "SETUSER", "bob", "-set", session=Session(bench.engine))
    refused, pong = bench.run("EXEC")
    assert "ACLs rules changed between the moment" in str(refused)
    assert pong == b"PONG"
    assert bench.engine.keyspace[0].get(b"a") is None


def test_execution_leaves_the_session_able_to_block_again() -> None:
    bench = Bench()
    bench.run("MULTI")
    assert bench.run("EXEC") == []
    assert bench.session.may_block
    assert bench.run("MULTI") is OK


# -- compared with a real Redis -----------------------------------------------------------------------------------

_keys = st.sampled_from(["a", "b"])
_values = st.sampled_from(["1", "x", ""])
_control = [["MULTI"], ["EXEC"], ["EXEC"], ["DISCARD"], ["UNWATCH"], ["EXEC", "x"], ["GET"]]
if find_redis().version >= (7, 0):  # an older one words this error otherwise
    _control.append(["NOSUCH"])
_watches = st.lists(_keys, min_size=0, max_size=2).map(lambda names: ["WATCH", *names])
_commands = st.one_of(
    st.sampled_from(_control),
    _watches,
    st.tuples(st.just("SET"), _keys, _values).map(list),
    st.tuples(st.sampled_from(["GET", "INCR", "DEL", "LPOP", "LLEN"]), _keys).map(list),
    st.tuples(st.just("LPUSH"), _keys, _values).map(list),
    st.tuples(st.just("BLPOP"), _keys, st.just("0.01")).map(list),
    st.sampled_from([["SELECT", "0"], ["SELECT", "1"], ["SWAPDB", "0", "1"], ["FLUSHDB"], ["FLUSHALL"], ["PING"]]),
)


class Transactions(RuleBasedStateMachine):
    """The same commands on two connections each of ours and of Redis: transactions on the first, changes on both."""

    @initialize()
    def connect(self) -> None:
        self.history: list[tuple[int, list[str]]] = []
        self.clients = clients()
        for client in self.clients:
            client.flushall()
        self.lines = [[Line(client), Line(client)] for client in self.clients]

    @rule(argv=_commands)
    def on_the_first(self, argv: list[str]) -> None:
        self._compare(0, argv)

    @rule(argv=_commands)
    def on_the_second(self, argv: list[str]) -> None:
        self._compare(1, argv)

    def _compare(self, which: int, argv: list[str]) -> None:
        self.history.append((which, argv))
        ours, theirs = (lines[which](*argv) for lines in self.lines)
        assert ours == theirs, f"after {self.history}: ours {ours!r}, Redis {theirs!r}"

    def teardown(self) -> None:
        for lines in getattr(self, "lines", []):
            for line in lines:
                line.close()
        for client in getattr(self, "clients", []):
            client.close()


TestTransactions = with_servers(Transactions.TestCase)
TestTransactions.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
