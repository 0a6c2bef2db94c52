"""Commands in threads. The threads are real; the test decides when a slow command is done and when the loop learns of
it.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import traceback
import weakref

import pytest
from tests.support.engine.lock_world import Slow, World

from penstock.engine.concurrency import thread_switching, workers
from penstock.engine.concurrency.thread_switching import MANY, SWITCH_INTERVAL
from penstock.engine.concurrency.workers import NEVER, STOP_PATIENCE
from penstock.engine.declarations import REGISTRY, Module
from penstock.engine.observe.statistics import CALLS, FAILED, NANOSECONDS
from penstock.engine.server_commands import ServerCommands

OK = b"+OK\r\n"


def members(*names: str) -> bytes:
    return b"*%d\r\n" % len(names) + b"".join(b"$%d\r\n%b\r\n" % (len(name), name.encode()) for name in names)


def test_others_are_served_while_a_thread_works(world: World, slow: Slow) -> None:
    reader = world.client("SADD s a b", "SLOW.READ s")
    assert slow.begun.get(timeout=60) == "read"
    other = world.client()
    assert other.run("SCARD s", "SET free 1") == [b":2\r\n", OK]
    writer = world.client("SADD s c")
    assert writer.waits
    slow.go.set()
    world.step()
    assert reader.sent[-1] == members("a", "b"), "the moment it began"
    assert writer.sent == [b":1\r\n"]
    assert world.engine.workers.done == 1


def test_a_write_is_logged_when_it_is_committed(world: World, slow: Slow) -> None:
    writer = world.client("SADD s a", "SLOW.STORE d s")
    world.client("SET k 1")
    late = world.client("SADD d x")
    slow.go.set()
    world.step()
    assert writer.sent[-1] == b":1\r\n"
    assert late.sent == [b":1\r\n"]
    assert [argv[0] for argv in world.logged] == [b"SADD", b"SET", b"SLOW.STORE", b"SADD"]
    assert world.engine.keyspace[0].data[b"d"] == {b"a", b"x"}


def test_the_clients_own_next_command_waits_for_the_reply(world: World, slow: Slow) -> None:
    client = world.client("SADD s a", "SLOW.READ s")
    assert client.session.waiter is not None and not client.session.plain
    slow.go.set()
    world.step()
    assert not client.waits


def test_little_work_and_sessions_that_may_not_wait_need_no_thread(world: World, slow: Slow) -> None:
    slow.go.set()
    client = world.client("SADD s a")
    assert client.run("SLOW.STORE d none") == [b":0\r\n"], "nothing to do"
    assert client.run("MULTI", "SLOW.STORE d s", "SLOW.READ d", "EXEC")[-1] == b"*2\r\n:1\r\n" + members("a")
    client._execute([b"EVAL", b"return redis.call('SLOW.READ', KEYS[1])", b"1", b"s"])
    assert client.sent[-1] == members("a")
    world.configure("worker-threads", "0")
    assert client.run("SLOW.READ s") == [members("a")]
    assert world.engine.workers.done == 0


def test_a_part_of_a_unit_is_not_put_off(world: World, slow: Slow) -> None:
    slow.go.set()
    client = world.client("SADD s a")
    with world.engine.unit():
        assert client.run("SLOW.STORE d s") == [b":1\r\n"]
    assert world.engine.workers.done == 0


def test_an_exception_in_a_thread_is_an_error_reply_and_frees_the_keys(
    world: World, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    client = world.client("SADD s a", "SLOW.FAIL s")
    other = world.client("SADD s b")
    slow.go.set()
    with caplog.at_level(logging.ERROR, "penstock.engine"):
        world.step()
    assert client.sent[-1] == b"-ERR internal error: ZeroDivisionError('a bug')\r\n"
    assert other.sent == [b":1\r\n"]
    (record,) = caplog.records
    assert record.exc_info is not None
    functions = [frame.name for frame in traceback.extract_tb(record.exc_info[2])]
    assert functions[-1] == "compute", "with the trace of the thread"


def test_a_write_is_carried_out_although_its_client_went_away(world: World, slow: Slow) -> None:
    client = world.client("SADD s a", "SLOW.STORE d s")
    client.leave()
    other = world.client("SADD s b")
    assert other.waits, "the thread still reads it"
    slow.go.set()
    world.step()
    assert client.sent == [b":1\r\n"]
    assert world.client().run("SCARD d") == [b":1\r\n"]
    assert [argv[0] for argv in world.logged] == [b"SADD", b"SLOW.STORE", b"SADD"]


def test_a_read_whose_client_went_away_is_dropped(world: World, slow: Slow) -> None:
    client = world.client("SADD s a", "SLOW.READ s")
    client.leave()
    slow.go.set()
    world.step()
    assert client.sent == [b":1\r\n"]
    assert world.engine.stats.calls["SLOW.READ"][CALLS] == 0


# -- its moment -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1"])
def test_what_was_computed_before_a_flush_is_not_written_after_it(world: World, slow: Slow, flush: str) -> None:
    """kvrocks#2620: a flush while a writer was under way lost, and old data came back."""
    writer = world.client("SADD s a", "SLOW.STORE d s")
    assert world.client().run(flush) == [OK], "it does not wait"
    slow.go.set()
    world.step()
    assert writer.sent[-1] == b":0\r\n"
    assert not world.engine.keyspace[0].data
    assert [argv[0] for argv in world.logged] == [b"SADD", flush.encode().split()[0]]


def test_a_write_whose_client_went_away_does_not_undo_a_flush_either(world: World, slow: Slow) -> None:
    writer = world.client("SADD s a", "SLOW.STORE d s")
    writer.leave()
    world.client("FLUSHALL", "SADD later x")
    slow.go.set()
    world.step()
    assert list(world.engine.keyspace[0].data) == [b"later"]


def test_a_read_answers_what_it_read_whatever_happened_since(world: World, slow: Slow) -> None:
    reader = world.client("SADD s a", "SLOW.READ s")
    world.client("FLUSHALL")
    slow.go.set()
    world.step()
    assert reader.sent[-1] == members("a")


def test_a_flush_of_another_database_changes_nothing(world: World, slow: Slow) -> None:
    writer = world.client("SADD s a", "SLOW.STORE d s")
    world.client("SELECT 1", "FLUSHDB")
    slow.go.set()
    world.step()
    assert writer.sent[-1] == b":1\r\n"


@pytest.mark.parametrize("found_by", ["the cycle", "a read"])
def test_a_source_that_expires_during_the_work_is_gone_for_the_write_too(
    world: World, slow: Slow, found_by: str
) -> None:
    """The log says DEL, then the command; replayed, it finds no source. So must memory."""
    writer = world.client("SADD s a", "SADD t b", "PEXPIRE s 100", "SLOW.STORE d s t")
    assert slow.begun.get(timeout=60) == "store"
    world.clock.advance(2000)
    if found_by == "a read":
        assert world.client().run("SCARD s") == [b":0\r\n"]
    else:
        world.engine.keyspace.expire_cycle()
    slow.go.set()
    world.step()
    world.step()
    assert writer.sent[-1] == b":1\r\n"
    assert world.engine.keyspace[0].data[b"d"] == {b"b"}
    assert [argv[0] for argv in world.logged[-2:]] == [b"DEL", b"SLOW.STORE"]


def test_expiry_takes_no_value_from_its_reader(world: World, slow: Slow) -> None:
    reader = world.client("SADD s a", "PEXPIRE s 100", "SLOW.READ s")
    world.clock.advance(2000)
    world.engine.keyspace.expire_cycle()
    assert b"s" not in world.engine.keyspace[0].data
    slow.go.set()
    world.step()
    assert reader.sent[-1] == members("a")


def test_a_watched_destination_is_broken_by_the_commit(world: World, slow: Slow) -> None:
    world.client("SADD s a", "SLOW.STORE d s")
    watcher = world.client("MULTI", "DISCARD")
    watcher.session.db.observed.of(b"d").watchers.add(watcher.session)
    watcher.session.watching.append((watcher.session.db, b"d"))
    assert not watcher.session.watch_broken
    slow.go.set()
    world.step()
    assert watcher.session.watch_broken


def test_a_transaction_waits_for_the_threads_of_others(world: World, slow: Slow) -> None:
    world.client("SADD s a", "SLOW.STORE d s")
    client = world.client("MULTI", "SCARD d", "SADD d z", "EXEC")
    assert client.waits
    slow.go.set()
    world.step()
    assert client.sent[-1] == b"*2\r\n:1\r\n:1\r\n"


@pytest.mark.parametrize("make, reads", [
    ("SADD k", ["SRANDMEMBER k", "SRANDMEMBER k 3", "SSCAN k 0", "SMEMBERS k", "SORT k", "SINTER k k"]),
    ("ZADD k 3 three 2 two 1", ["ZRANGE k 0 -1", "ZRANK k one", "ZRANDMEMBER k 2", "ZCOUNT k 1 2", "ZSCAN k 0"]),
    ("HSET k a b c d e", ["HRANDFIELD k", "HRANDFIELD k 2", "HGETALL k", "HSCAN k 0"]),
    ("RPUSH k b a", ["LRANGE k 0 -1", "LPOS k a RANK -1", "LINDEX k 1", "SORT k ALPHA"]),
])  # fmt: skip
def test_reads_that_keep_something_for_later_do_not_change_what_a_thread_reads(
    world: World, slow: Slow, make: str, reads: list[str]
) -> None:
    """valkey#4604: a read that reorganised the value on access crashed the thread that was reading it."""
    client = world.client(f"{make} 1 2 3" if make.startswith("SADD") else f"{make} one")
    expected = sorted(world.engine.keyspace[0].data[b"k"])
    client.run("SLOW.WALK k")
    assert slow.begun.get(timeout=60) == "walk"
    other = world.client()
    for line in [*reads, "DUMP k", "OBJECT ENCODING k", "MEMORY USAGE k", "TYPE k", "TTL k"]:
        assert other.run(line), f"{line} should pass a read lock"
        assert not other.sent[-1].startswith(b"-"), other.sent[-1]
    slow.go.set()
    world.step()
    assert client.sent[-1] == members(*(element.decode() for element in expected))
    world.engine.keyspace[0].data[b"k"].check()


# -- how it is counted ------------------------------------------------------------------------------------------


def test_a_threaded_command_is_counted_timed_and_monitored_once(world: World, slow: Slow) -> None:
    monitor = world.client("MONITOR")
    counters = world.engine.stats.calls["SLOW.STORE"]
    world.client("DEBUG LOCK 100 WRITE d")
    commands = world.engine.stats.commands
    world.client("SADD s a", "SLOW.STORE d s")  # waits, is run again, and goes to a thread
    assert world.engine.stats.commands == commands + 1
    slow.go.set()
    world.pass_time(100)
    assert counters[CALLS] == 0
    world.step()
    assert counters[CALLS] == 1
    assert world.engine.stats.commands == commands + 3
    assert sum(b'"SLOW.STORE" "d" "s"' in line for line in monitor.sent) == 1
    world.configure("slowlog-log-slower-than", "0")
    world.client("SLOW.STORE d s")
    world.step()
    assert world.engine.slow_log.rows[0].argv[0] == b"SLOW.STORE"
    assert counters[NANOSECONDS] // 1000 >= world.engine.slow_log.rows[0].microseconds


def test_an_error_of_a_thread_is_counted_as_an_error(world: World, slow: Slow) -> None:
    world.client("SADD s a", "SET t text", "SLOW.READ t")
    assert world.engine.stats.calls["SLOW.READ"][FAILED] == 1
    assert world.engine.stats.errors["WRONGTYPE"] == 1


def test_more_jobs_than_threads_wait_for_one(world: World, slow: Slow) -> None:
    clients = [world.client(f"SADD s{number} a", f"SLOW.READ s{number}") for number in range(5)]
    assert world.engine.workers.load == (2, 3)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
    assert not gc.isenabled(), "what threads make is large and has no cycles"
    slow.go.set()
    world.step(5)
    assert all(client.sent[-1] == members("a") for client in clients)
    assert gc.isenabled()
    assert sys.getswitchinterval() > SWITCH_INTERVAL


def test_the_last_of_several_servers_restores_what_the_first_one_changed() -> None:
    usual = sys.getswitchinterval()
    thread_switching.begin()  # of one server
    thread_switching.begin()  # of another
    thread_switching.end()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
    thread_switching.end()
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_what_threads_left_is_not_searched_for_cycles_when_they_are_done() -> None:
    class Cyclic:
        itself: Cyclic

    def note(phase: str, info: dict[str, int]) -> None:
        looks.append(phase)

    looks: list[str] = []
    young = gc.get_threshold()[0]
    thread_switching.begin()
    cyclic = Cyclic()
    cyclic.itself = cyclic
    gone = weakref.ref(cyclic)
    del cyclic
    left = [(number, b"row") for number in range((MANY + 1) * young)]
    gc.callbacks.append(note)
    try:
        thread_switching.end()
        more = [[number] for number in range(young // 50)]  # few: other threads of this process make objects too
        assert not looks and gc.isenabled()
    finally:
        gc.callbacks.remove(note)
    gc.collect()
    assert gone() is None and left and more


def test_threads_come_when_they_are_needed_and_go_when_fewer_are_wanted(world: World, slow: Slow) -> None:
    before = set(threading.enumerate())
    slow.go.set()
    for number in range(3):
        world.client(f"SADD s{number} a", f"SLOW.READ s{number}")
    world.step(3)
    started = set(threading.enumerate()) - before
    assert len(started) == 2
    world.configure("worker-threads", "0")
    for thread in started:
        thread.join(10)
    assert not any(thread.is_alive() for thread in started)


def test_a_command_is_carried_out_although_no_thread_can_be_had(
    world: World, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    slow.go.set()
    client = world.client("SADD s a", "SLOW.STORE d s")
    world.step()
    assert client.sent[-1] == b":1\r\n"


def test_a_chore_runs_in_a_thread_and_its_end_on_the_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_processors", lambda: 2)
    ran: list[threading.Thread] = []

    def run() -> None:
        ran.append(threading.current_thread())

    assert world.engine.workers.in_background(run, run)
    assert not world.engine.workers.jobs, "nobody waits for it, SHUTDOWN neither"
    world.step()
    thread, loop = ran
    assert thread is not loop is threading.current_thread()


def test_a_chore_that_fails_ends_like_any_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "_processors", lambda: 2)
    ended: list[bool] = []
    assert world.engine.workers.in_background(lambda: 1 // 0, lambda: ended.append(True))
    world.step()
    assert ended and "ZeroDivisionError" in caplog.text


def test_there_are_no_chores_without_threads_or_a_second_processor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_processors", lambda: 1)
    assert not world.engine.workers.in_background(int, list)
    monkeypatch.setattr(workers, "_processors", lambda: 2)
    world.configure("worker-threads", "0")
    assert not world.engine.workers.in_background(int, list)


def test_a_command_that_needs_no_lock_locks_nothing(world: World, slow: Slow) -> None:
    client = world.client("SADD s a", "SLOW.COPY s")
    assert slow.begun.get(timeout=60) == "copy"
    assert world.client().run("SADD s b") == [b":1\r\n"]
    assert " flags=bW " in client.session.describe()
    slow.go.set()
    world.step()
    assert client.sent[-1] == members("a")


# -- modules ----------------------------------------------------------------------------------------------------


def test_a_built_in_command_does_not_wait_for_the_threads_of_modules(slow: Slow) -> None:
    world = World(threads=1)
    world.configure("worker-threshold", "1")
    REGISTRY.by_name[b"SLOW.READ"].of_module = True
    world.engine.commands = ServerCommands([Module("slow", 1, "slow.py", ("SLOW.READ",))])
    first = world.client("SADD s a", "SLOW.READ s")
    assert slow.begun.get(timeout=60) == "read"
    second = world.client("SLOW.READ s")
    assert world.engine.workers.load == (1, 1)
    built_in = world.client("SADD b " + " ".join(map(str, range(2000))), "SUNIONSTORE d b")
    world.step()
    assert built_in.sent[-1] == b":2000\r\n"
    assert first.waits and second.waits
    slow.go.set()
    world.step(2)
    assert (first.sent[-1], second.sent[-1]) == (members("a"),) * 2
    world.close()


# -- the end ----------------------------------------------------------------------------------------------------


def test_the_end_waits_for_threads_but_not_for_ever(world: World, slow: Slow) -> None:
    stuck = world.client("SADD s a", "SLOW.STORE d s")
    other = world.client("SADD s b")
    ends = world.client()
    ends.session.current = (REGISTRY.by_name[b"PING"], [b"PING"])
    world.engine.workers.wait_until_idle(ends.session)
    assert ends.waits
    assert world.engine.workers.threshold == NEVER, "nothing new goes to a thread"
    world.pass_time(int(STOP_PATIENCE * 1000))
    assert stuck.sent[-1].startswith(b"-ERR the server is shutting down: the command was given up on")
    assert (other.sent, ends.sent) == ([b":1\r\n"], [b"+PONG\r\n"])
    slow.go.set()
    world.step()
    assert b"d" not in world.engine.keyspace[0].data, "nothing of it is written"


def test_the_end_comes_when_the_last_thread_is_done(world: World, slow: Slow) -> None:
    client = world.client("SADD s a", "SLOW.STORE d s")
    ends = world.client()
    ends.session.current = (REGISTRY.by_name[b"PING"], [b"PING"])
    world.engine.workers.wait_until_idle(ends.session)
    slow.go.set()
    world.step()
    assert (client.sent[-1], ends.sent) == (b":1\r\n", [b"+PONG\r\n"])


def test_what_a_thread_has_read_is_not_shown_once_it_may_vanish(world: World, slow: Slow) -> None:
    reader = world.client("SADD s a", "SLOW.READ s")
    writer = world.client("SADD other b", "SLOW.STORE d other")
    logged = len(world.logged)
    world.engine.hidden_changes.hide(True)
    slow.go.set()
    world.step(2)
    assert reader.sent[-1].startswith(b"-NOREPLICAS Not enough good replicas to read")
    assert writer.sent[-1].startswith(b"-NOREPLICAS"), "its client would learn what it stored"
    assert b"d" not in world.engine.keyspace[0].data and len(world.logged) == logged
    world.engine.hidden_changes.hide(False)
    assert reader.run("SADD s c") == [b":1\r\n"], "the locks are free"


def test_a_blocked_read_is_not_served_with_what_may_vanish(world: World) -> None:
    world.client("TWRITE t tag entry", "TREAD t 0 1 GROUP g RETRY 1000 0")
    reader = world.client("TREAD t 0 1 GROUP g BLOCK 0")
    assert reader.waits
    logged = len(world.logged)
    world.engine.hidden_changes.hide(True)
    world.pass_time(2000)  # the message is to be delivered again
    assert reader.sent[-1].startswith(b"-NOREPLICAS") and len(world.logged) == logged
