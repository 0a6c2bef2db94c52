"""Locks, threads, LAZY and ONCE together: each keeps its promise, whatever the others do at the moment."""

from __future__ import annotations

from tests.support.engine.lock_world import Slow, World

ENQUEUED = b"+LAZY-ENQUEUED\r\n"
ONE, TWO = b":1\r\n", b":2\r\n"


# -- ONCE and LAZY --------------------------------------------------------------------------------------------


def test_a_command_under_once_that_looks_at_every_key_has_the_queue_run(world: World) -> None:
    client = world.client("RPUSH l 1 2", "MSET w1 1 w2 2", "LAZY MSET w1 2 w2 1")
    client.run("ONCE me 1 1 SORT l BY w* STORE d")
    assert client.run("LRANGE d 0 -1") == [b"*2\r\n$1\r\n2\r\n$1\r\n1\r\n"]


def test_databases_that_once_swaps_have_their_queues_run_before(world: World) -> None:
    client = world.client("LAZY SADD a x")
    client.run("ONCE me 1 1 SWAPDB 0 1")
    assert client.run("SCARD a", "SELECT 1", "SCARD a") == [b":0\r\n", b"+OK\r\n", ONE]


# -- ONCE and threads -----------------------------------------------------------------------------------------


def test_a_copy_under_once_waits_for_the_key_in_the_other_database(world: World) -> None:
    world.client("SELECT 1", "DEBUG LOCK 100 WRITE target")
    client = world.client("SET k 1")
    assert client.run("ONCE me 1 1 COPY k target DB 1") == []
    world.pass_time(100)
    assert client.sent[-1] == ONE


def test_the_error_of_a_thread_is_kept_like_any_other(world: World) -> None:
    world.configure("worker-threshold", "1")
    client = world.client("RPUSH l " + "x " * 2000, "ONCE me 1 1 SORT l STORE d")
    world.step()
    error = client.sent[-1]
    assert b"can't be converted" in error
    assert client.run("DEL l", "ONCE me 1 1 SORT l STORE d")[1] == error


def test_a_repeat_waits_for_the_thread_of_the_first_and_is_answered_as_it(world: World, slow: Slow) -> None:
    first = world.client("SADD s a", "ONCE me 1 1 SLOW.STORE d s")
    again = world.client("ONCE me 1 1 SLOW.STORE d s")
    assert again.waits
    first.leave()
    slow.go.set()
    world.step()
    assert again.sent == [ONE]
    assert world.logged[1:] == [[b"SLOW.STORE", b"d", b"s"], [b"ONCEKEPT", b"me", b"1", b"1", ONE]]


def test_nothing_is_kept_of_a_command_that_its_client_gave_up_on_while_it_was_in_a_thread(
    world: World, slow: Slow
) -> None:
    world.client("SADD s a", "ONCE me 1 1 INCR n", "ONCE me 2 1 SLOW.STORE d s")
    assert world.client("ONCE me 3 3 INCR n").sent == [TWO]
    slow.go.set()
    world.step()
    assert world.engine.keyspace.once_records.replies == 1
    world.engine.keyspace.once_records.check()


# -- LAZY and threads -----------------------------------------------------------------------------------------


def test_what_was_queued_for_a_swapped_database_comes_before_a_write_that_a_thread_worked_on(
    world: World, slow: Slow
) -> None:
    """The locks went to the other database, so LAZY could enqueue for the names; the log has it before the commit."""
    slow.go.set()
    client = world.client()
    world.engine.workers.threshold = 0
    client.run("SLOW.STORE d nothing")
    world.client("SWAPDB 0 1", "LAZY SADD nothing x")
    world.step()
    world.step()
    assert client.sent == [ONE], "it ran again"
    assert [argv[0] for argv in world.logged] == [b"SWAPDB", b"SADD", b"SLOW.STORE"]
