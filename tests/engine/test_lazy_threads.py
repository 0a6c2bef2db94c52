"""A long command that LAZY queued runs in a thread when the server is idle, and clients still cannot tell."""

from __future__ import annotations

import pytest
from tests.support.engine.lock_world import Slow, World

from penstock.commands.locks import locks
from penstock.engine.concurrency import lazy
from penstock.engine.observe.statistics import CALLS, NANOSECONDS
from penstock.types.set import Set

ENQUEUED = b"+LAZY-ENQUEUED\r\n"
OK, ZERO, ONE, TWO = b"+OK\r\n", b":0\r\n", b":1\r\n", b":2\r\n"
QUIET = 20  # milliseconds in which the queue is looked at, more than once


def status(world: World, name: str) -> int | str:
    world.engine.lazy.check()
    return world.engine.lazy.status()[name]


def begin(world: World, *lines: str) -> None:
    """Have a thread begin with the first of these, the others queued behind it."""
    assert world.client(*(f"LAZY {line}" for line in lines)).sent == [ENQUEUED] * len(lines)
    world.pass_time(QUIET)
    assert status(world, "in_thread") == 1


def test_others_are_served_while_a_thread_works_on_what_is_queued(world: World, slow: Slow) -> None:
    client = world.client("SADD a x y")
    begin(world, "SLOW.STORE r a")
    dirty, logged = world.engine.keyspace.dirty, list(world.logged)
    assert client.run("SCARD a", "SET free 1", "PING") == [TWO, OK, b"+PONG\r\n"]
    waiting = world.client("SCARD r")
    assert waiting.waits
    rows = {lock[b"key"]: lock for lock in locks(waiting.session, [b"LOCKS"])}
    assert {key: row[b"type"] for key, row in rows.items()} == {b"a": b"read", b"r": b"write"}
    assert rows[b"r"][b"clients"] == [] and rows[b"r"][b"waiting"] == [waiting.session.id]
    slow.go.set()
    world.step()
    assert world.engine.keyspace[0].data[b"r"] == {b"x", b"y"}
    assert (status(world, "queued"), status(world, "in_thread"), status(world, "ran_passively")) == (0, 0, 1)
    assert world.logged == [*logged, [b"SET", b"free", b"1"]], "it was logged when it was enqueued"
    assert world.engine.keyspace.dirty == dirty + 1
    assert not world.engine.busy_names.table


def test_it_counts_and_fails_like_any_other(world: World, slow: Slow) -> None:
    counters = world.engine.stats.calls["SLOW.STORE"]
    world.client("SADD a x")
    slow.go.set()
    begin(world, "SLOW.STORE r a")
    world.step()
    assert counters[CALLS] == 1 and counters[NANOSECONDS] > 0
    begin(world, "SLOW.FAIL r")
    world.step()
    assert (status(world, "failed"), status(world, "queued")) == (1, 0)
    assert "a bug" in str(status(world, "last_error"))
    assert world.client("SADD r more").sent == [ONE], "the keys are free"


def test_a_command_that_needs_a_later_queued_one_waits_too(world: World, slow: Slow) -> None:
    world.client("SADD a x")
    begin(world, "SLOW.STORE r a", "SUNIONSTORE s r", "SADD t x")
    reader, everything = world.client("SCARD s"), world.client("KEYS *")
    transaction = world.client("MULTI", "SCARD s", "EXEC")
    assert reader.waits and everything.waits and transaction.waits
    assert world.client("SCARD t").sent == [ONE], "that comes before nothing"
    slow.go.set()
    world.step()
    assert reader.sent == [ONE]
    assert everything.sent[-1].startswith(b"*4\r\n")
    assert transaction.sent[-1] == b"*1\r\n:1\r\n"


def test_lazy_itself_does_not_wait_for_what_is_queued(world: World, slow: Slow) -> None:
    world.client("SADD a x")
    begin(world, "SLOW.STORE r a")
    assert world.client("LAZY SADD r y", "LAZY SADD a y").sent == [ENQUEUED] * 2
    reader = world.client("SMEMBERS r")
    slow.go.set()
    world.step()
    assert reader.sent[0].startswith(TWO.replace(b":", b"*"))
    assert world.engine.keyspace[0].data[b"r"] == {b"x", b"y"}


# -- keys that a client's thread has locked -------------------------------------------------------------------


def test_lazy_is_answered_at_once_and_a_thread_that_writes_comes_after_it(world: World, slow: Slow) -> None:
    owner = world.client("SADD a x", "SLOW.STORE r a")
    assert world.client("LAZY SADD a y").sent == [ENQUEUED]
    reader = world.client("SMEMBERS a")
    assert reader.waits, "it must see y, and the thread still reads the set"
    slow.go.set()
    world.step()
    world.step()
    assert reader.sent[0].startswith(b"*2\r\n")
    assert owner.sent[-1] == TWO, "it was run again"
    assert [argv[0] for argv in world.logged] == [b"SADD", b"SADD", b"SLOW.STORE"]
    assert world.engine.keyspace[0].data[b"r"] == {b"x", b"y"}


def test_a_thread_that_reads_answers_what_it_read_and_what_was_queued_runs_after_it(world: World, slow: Slow) -> None:
    owner = world.client("SADD a x", "SLOW.READ a")
    assert world.client("LAZY SADD a y").sent == [ENQUEUED]
    world.pass_time(QUIET)
    assert status(world, "queued") == 1, "not while the thread reads"
    slow.go.set()
    world.step()
    world.pass_time(QUIET)
    assert owner.sent[-1] == b"*1\r\n$1\r\nx\r\n"
    assert world.engine.keyspace[0].data[b"a"] == {b"x", b"y"}


def test_a_thread_is_made_to_run_again_once_and_then_lazy_waits(world: World, slow: Slow) -> None:
    owner = world.client("SADD a x", "SLOW.STORE r a", "LAZY SADD a other")
    assert world.client("LAZY SADD a y").sent == [ENQUEUED]
    slow.go.set()
    world.step()
    slow.go.clear()
    assert owner.waits
    lazy = world.client("LAZY SADD a z")
    assert lazy.waits
    slow.go.set()
    world.step()
    assert lazy.sent == [ENQUEUED]


def test_a_client_that_left_has_its_write_carried_out_after_what_was_queued(world: World, slow: Slow) -> None:
    world.client("SADD a x", "SLOW.STORE r a").leave()
    world.client("LAZY SADD a y")
    slow.go.set()
    world.step()
    assert world.engine.keyspace[0].data[b"r"] == {b"x", b"y"}
    assert [argv[0] for argv in world.logged] == [b"SADD", b"SADD", b"SLOW.STORE"]


def test_what_cannot_wait_has_a_queued_command_work_on_a_copy(world: World, slow: Slow) -> None:
    owner = world.client("SADD a x", "SLOW.WALK a")
    assert slow.begun.get(timeout=60) == "walk"
    assert world.client("LAZY SADD a y").sent == [ENQUEUED]
    world.engine.lazy.drain()
    assert world.engine.keyspace[0].data[b"a"] == {b"x", b"y"}
    slow.go.set()
    world.step()
    assert owner.sent[-1] == b"*1\r\n$1\r\nx\r\n"


def test_a_blocked_client_is_served_when_the_lock_goes(world: World, slow: Slow) -> None:
    waiting = world.client("BLPOP l 0")
    owner = world.client("SADD a x", "SLOW.STORE l a")
    assert world.client("LAZY RPUSH m 1", "LAZY LMOVE m l LEFT LEFT").sent == [ENQUEUED] * 2
    assert waiting.waits and status(world, "queued") == 1
    slow.go.set()
    world.step()
    world.step()
    assert owner.sent[-1] == ONE
    assert waiting.sent == [b"*2\r\n$1\r\nl\r\n$1\r\n1\r\n"]


def test_a_full_queue_makes_lazy_wait_for_locks(world: World, slow: Slow) -> None:
    world.configure("lazy-max-queued", "0")
    world.client("SADD a x", "SLOW.READ a")
    lazy = world.client("LAZY SADD a y")
    assert lazy.waits, "it would run at once"
    slow.go.set()
    world.step()
    assert lazy.sent == [ENQUEUED]


# -- a client needs what is long ------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["SCARD r", "SADD a y", "KEYS *", "DBSIZE", "EVAL return(1) 1 r", "RENAME r s"])
def test_a_client_that_needs_it_waits_for_a_thread_and_others_do_not(world: World, slow: Slow, line: str) -> None:
    world.client("SADD a x", "LAZY SLOW.STORE r a", "LAZY SADD r y")
    needy = world.client(line)
    assert slow.begun.get(timeout=60) == "store"
    assert needy.waits and status(world, "in_thread") == 1
    assert world.client("SET free 1", "GET free").sent == [OK, b"$1\r\n1\r\n"]
    slow.go.set()
    world.step()
    assert len(needy.sent) == 1 and not needy.waits
    assert (status(world, "ran_passively"), status(world, "in_thread")) == (0, 0)
    assert [argv[0] for argv in world.logged][:3] == [b"SADD", b"SLOW.STORE", b"SADD"]


def test_a_transaction_that_needs_it_waits_at_exec(world: World, slow: Slow) -> None:
    client = world.client("SADD a x", "LAZY SLOW.STORE r a", "MULTI", "SCARD r", "EXEC")
    assert client.waits
    slow.go.set()
    world.step()
    assert client.sent[-1] == b"*1\r\n:1\r\n"


def test_two_long_ones_have_a_thread_each_if_both_are_needed(world: World, slow: Slow) -> None:
    world.client("SADD a x", "LAZY SLOW.STORE r a", "LAZY SLOW.STORE s a", "LAZY SUNIONSTORE t r s")
    client = world.client("SCARD t")
    assert status(world, "in_thread") == 2
    slow.go.set()
    world.step(2)
    assert client.sent == [ONE]


def test_a_client_does_not_wait_for_ever_for_what_is_queued_anew(world: World, slow: Slow) -> None:
    world.client("SADD a x", "LAZY SLOW.STORE r a")
    client = world.client("SCARD r")
    world.clock.jump(-3_600_000)  # a clock that is set back does not make it longer
    world.clock.advance(lazy.PATIENCE)
    world.client("LAZY SLOW.STORE r a")
    slow.go.set()
    world.step()
    assert client.sent == [ONE]
    assert status(world, "queued") == 0


def test_a_client_that_left_waits_for_nothing(world: World, slow: Slow) -> None:
    world.client("SADD a x", "LAZY SLOW.STORE r a", "LAZY SADD s 1")
    client = world.client("KEYS *")
    client.leave()
    slow.go.set()
    world.step()
    assert client.sent == [] and status(world, "queued") == 0


def test_one_that_had_to_be_finished_at_once_is_counted(world: World, slow: Slow) -> None:
    world.client("SADD a x", "LAZY SLOW.STORE r a")
    client = world.client("SCARD r")
    assert client.waits and status(world, "in_thread") == 1
    slow.go.set()
    world.engine.lazy.drain()
    assert (status(world, "queued"), status(world, "ran_actively")) == (0, 1)


def test_a_fork_waits_until_what_is_queued_has_run_in_threads(world: World, slow: Slow) -> None:
    forks: list[bool] = []
    world.engine.lock_gate.on_quiet = lambda: forks.append(world.engine.lock_gate.may_fork())
    world.client("SADD a x", "LAZY SLOW.STORE r a", "LAZY SLOW.STORE s r")
    assert not world.engine.lock_gate.may_fork()
    assert status(world, "in_thread") == 1
    slow.go.set()
    world.step(2)
    assert forks[-1] and status(world, "queued") == 0
    world.engine.lock_gate.reopen()


def test_a_script_that_cannot_wait_has_it_finished(world: World, slow: Slow) -> None:
    client = world.client("SADD a x")
    begin(world, "SLOW.STORE r a")
    slow.go.set()
    assert client.run("EVAL return{redis.call('SADD','a','y'),redis.call('SCARD','r')} 0") == [b"*2\r\n:1\r\n:1\r\n"]
    world.step()  # the thread is done, and its result is not needed
    assert (status(world, "ran_actively"), status(world, "ran_passively")) == (0, 1)
    assert not world.engine.busy_names.table


def test_a_command_that_cannot_wait_does_not_wait_for_a_free_thread(slow: Slow) -> None:
    world = World(threads=1)
    busy = world.client("SADD b x", "SLOW.READ b")
    assert slow.begun.get(timeout=60) == "read"
    client = world.client("SADD a " + " ".join(map(str, range(2000))))
    world.configure("worker-threshold", "1")
    begin(world, "SUNIONSTORE r a")
    assert client.run("EVAL return{redis.call('SCARD','r')} 0") == [b"*1\r\n:2000\r\n"]
    slow.go.set()
    world.step(2)
    assert busy.sent[-1] == b"*1\r\n$1\r\nx\r\n"
    world.close()


def test_a_flush_forgets_it_and_frees_its_keys(world: World, slow: Slow) -> None:
    client = world.client("SADD a x")
    begin(world, "SLOW.STORE r a", "SADD s x")
    assert client.run("FLUSHALL", "EXISTS r", "SADD a y", "EVAL return{redis.call('SADD','r',1)} 0")[1:3] == [ZERO, ONE]
    assert not world.engine.busy_names.table
    slow.go.set()
    world.step()
    assert world.engine.keyspace[0].data == {b"a": {b"y"}, b"r": {b"1"}}
    assert status(world, "discarded") == 2


def test_a_source_that_expires_during_the_work_is_seen_and_gone_afterwards(world: World, slow: Slow) -> None:
    client = world.client("SADD a x", "PEXPIRE a 100")
    begin(world, "SLOW.STORE r a")
    slow.go.set()
    world.pass_time(200)
    world.engine.keyspace.expire_cycle()
    assert world.engine.keyspace[0].data == {b"r": {b"x"}}
    assert client.run("SCARD r") == [ONE]
    assert world.logged[-2:] == [[b"SLOW.STORE", b"r", b"a"], [b"DEL", b"a"]]


def test_an_outdated_computation_starts_again(world: World, slow: Slow) -> None:
    """No case is known in which a value is removed without running the queue first; this checks the fallback."""
    world.client("SADD a x")
    begin(world, "SLOW.STORE r a")
    world.engine.keyspace[0].data[b"a"] = Set({b"y"})
    slow.go.set()
    world.step()
    assert status(world, "queued") == 1
    world.pass_time(QUIET)
    world.step()
    assert world.engine.keyspace[0].data[b"r"] == {b"y"}


def test_no_child_is_forked_in_the_middle_of_a_command_that_has_it_finished(world: World, slow: Slow) -> None:
    forks: list[bool] = []
    world.engine.lock_gate.on_quiet = lambda: forks.append(world.engine.in_unit)
    client = world.client("SADD a x")
    begin(world, "SLOW.STORE r a")
    assert not world.engine.lock_gate.may_fork()
    slow.go.set()
    client.run("MULTI", "SET k 1", "EVAL return{redis.call('SCARD','r')} 0", "EXEC")
    assert client.sent[-1] == b"*2\r\n+OK\r\n*1\r\n:1\r\n"
    assert forks == []
    assert world.engine.lock_gate.may_fork()


def test_while_a_fork_is_waited_for_nothing_long_begins(world: World, slow: Slow) -> None:
    world.client("SADD a x", "SLOW.STORE b a")
    assert not world.engine.lock_gate.may_fork()
    world.client("LAZY SLOW.STORE r a")
    world.pass_time(QUIET)
    assert (status(world, "queued"), status(world, "in_thread")) == (1, 0)
    slow.go.set()
    world.step()
    world.engine.lock_gate.reopen()
    world.pass_time(QUIET)
    world.step()
    assert world.engine.keyspace[0].data[b"r"] == {b"x"}


def test_at_the_end_it_is_run_whatever_became_of_its_thread(world: World, slow: Slow) -> None:
    world.client("SADD a x")
    begin(world, "SLOW.STORE r a")
    world.engine.workers.stop()
    slow.go.set()
    world.engine.lazy.drain()
    assert world.engine.keyspace[0].data[b"r"] == {b"x"}


def test_a_client_that_watches_its_outcome_learns_of_it(world: World, slow: Slow) -> None:
    client = world.client("SADD a x", "WATCH r", "MULTI", "PING")
    begin(world, "SLOW.STORE r a")
    client.run("EXEC")
    assert client.waits
    slow.go.set()
    world.step()
    assert client.sent[-1] == b"*-1\r\n"


def test_what_locks_held_back_begins_in_no_thread_when_the_server_stops(world: World, slow: Slow) -> None:
    world.client("SADD s x")
    first = world.client("SLOW.STORE s s")
    waiting = world.client("BLPOP r 0")
    assert world.client("LAZY SLOW.STORE r s").sent == [ENQUEUED], "it waits for the first one's lock"
    assert first.waits and waiting.waits
    slow.go.set()
    world.close()
    assert not world.engine.workers.jobs, "no thread would ever end it"
    assert world.engine.keyspace[0].data[b"r"] == {b"x"}
