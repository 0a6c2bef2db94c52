"""A long command that LAZY queued works in a thread when its idle moment comes, and still nobody can tell."""

from __future__ import annotations

from tests.engine.lock_world import Slow, World

from penstock.commands.locks import locks
from penstock.engine.stats import CALLS, NANOSECONDS
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


def test_who_needs_the_outcome_of_one_behind_it_waits_too(world: World, slow: Slow) -> None:
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


def test_lazy_waits_for_the_thread_of_a_client_as_the_log_has_it_later(world: World, slow: Slow) -> None:
    world.client("SADD a x", "SLOW.STORE r a")
    lazy = world.client("LAZY SADD a y")
    assert lazy.waits
    slow.go.set()
    world.step()
    assert lazy.sent == [ENQUEUED]
    assert [argv[0] for argv in world.logged] == [b"SADD", b"SLOW.STORE", b"SADD"]


def test_a_script_that_cannot_wait_has_it_finished(world: World, slow: Slow) -> None:
    client = world.client("SADD a x")
    begin(world, "SLOW.STORE r a")
    slow.go.set()
    assert client.run("EVAL return{redis.call('SADD','a','y'),redis.call('SCARD','r')} 0") == [b"*2\r\n:1\r\n:1\r\n"]
    world.step()  # the thread is done, and nobody wants to know
    assert (status(world, "ran_actively"), status(world, "ran_passively")) == (0, 1)
    assert not world.engine.busy_names.table


def test_who_cannot_wait_does_not_wait_for_a_thread_to_be_free(slow: Slow) -> None:
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


def test_a_source_that_expires_meanwhile_is_seen_and_gone_afterwards(world: World, slow: Slow) -> None:
    client = world.client("SADD a x", "PEXPIRE a 100")
    begin(world, "SLOW.STORE r a")
    slow.go.set()
    world.pass_time(200)
    world.engine.keyspace.expire_cycle()
    assert world.engine.keyspace[0].data == {b"r": {b"x"}}
    assert client.run("SCARD r") == [ONE]
    assert world.logged[-2:] == [[b"SLOW.STORE", b"r", b"a"], [b"DEL", b"a"]]


def test_what_is_out_of_date_is_begun_anew(world: World, slow: Slow) -> None:
    """No way is known in which a value goes without the queue having run; this is the net below."""
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
