"""Clients and locked keys: which wait, which pass, and when they continue. DEBUG LOCK stands for a thread."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.engine.lock_world import World

from penstock import commands
from penstock.commands.locks import locks
from penstock.engine.pause import Purpose

OK = b"+OK\r\n"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def test_reads_pass_a_read_lock_and_writes_wait(world: World) -> None:
    world.client("SET k 1", "DEBUG LOCK 100 READ k")
    other = world.client()
    assert other.run("GET k", "STRLEN k", "SET free 1") == [b"$1\r\n1\r\n", b":1\r\n", OK]
    assert other.run("INCR k") == []
    assert other.waits
    world.pass_time(100)
    assert other.sent[-1] == b":2\r\n"
    assert not other.waits and not world.engine.busy_names.table


def test_reads_and_writes_wait_for_a_write_lock(world: World) -> None:
    holder = world.client("DEBUG LOCK 100 WRITE k")
    reader, writer = world.client("GET k"), world.client("SET k 1")
    assert holder.waits and reader.waits and writer.waits
    world.pass_time(100)
    assert (holder.sent, reader.sent, writer.sent) == ([OK], [b"$-1\r\n"], [OK])


def test_waiting_commands_go_on_in_the_order_in_which_they_came(world: World) -> None:
    world.client("DEBUG LOCK 100 WRITE k")
    clients = [world.client(f"RPUSH k {number}") for number in range(10)]
    world.pass_time(100)
    assert [client.sent for client in clients] == [[b":%d\r\n" % (number + 1)] for number in range(10)]
    assert list(world.engine.keyspace[0].data[b"k"]) == [b"%d" % number for number in range(10)]


def test_a_command_with_several_keys_runs_when_the_last_of_them_is_free(world: World) -> None:
    for delay, name in ((100, "a"), (300, "b"), (200, "c")):
        world.client(f"DEBUG LOCK {delay} WRITE {name}")
    client = world.client("MSET a 1 b 1 c 1")
    world.pass_time(200)
    assert client.waits
    world.pass_time(100)
    assert client.sent == [OK]


def test_two_that_want_each_others_keys_do_not_wait_for_ever(world: World) -> None:
    """ardb#336."""
    holder = world.client("DEBUG LOCK 50 READ c")
    one, two = world.client("DEBUG LOCK 100 WRITE a b"), world.client("DEBUG LOCK 100 WRITE b a")
    three = world.client("DEBUG LOCK 100 WRITE c a b")
    for _ in range(4):
        world.pass_time(100)
    assert holder.sent == one.sent == two.sent == three.sent == [OK]
    assert not world.engine.busy_names.table


def test_threaded_readers_that_keep_coming_do_not_starve_a_writer(world: World) -> None:
    world.client("DEBUG LOCK 100 READ k")
    writer = world.client("SET k 1")
    world.pass_time(50)
    late = world.client("DEBUG LOCK 100 READ k")
    assert late.waits and not late.sent
    assert len(world.engine.lock_gate.locks.waiting) == 2
    world.pass_time(50)
    assert writer.sent == [OK]
    assert late.waits, "it has its lock now"
    world.pass_time(100)
    assert late.sent == [OK]


def test_a_client_that_goes_away_is_forgotten_by_every_queue(world: World) -> None:
    """redis#15594: a waiter that was freed while it stood in a queue was used again from there."""
    world.client("DEBUG LOCK 100 WRITE a b")
    gone, other = world.client("MSET a 1 b 1"), world.client("GET a")
    gone.leave()
    world.check()
    assert [wait.who for wait in world.engine.lock_gate.locks.waiting] == [other.session]
    world.pass_time(100)
    assert gone.sent == [] and other.sent == [b"$-1\r\n"]


def test_a_reader_goes_on_when_the_writer_before_it_goes_away(world: World) -> None:
    world.client("DEBUG LOCK 100 READ k")
    writer = world.client("SET k 1")
    reader = world.client("DEBUG LOCK 10 READ k")
    writer.leave()
    world.go_on()
    world.pass_time(10)
    assert reader.sent == [OK]


def test_a_lock_outlives_the_client_that_has_it(world: World) -> None:
    world.client("DEBUG LOCK 100 WRITE k").leave()
    other = world.client("GET k")
    assert other.waits
    world.pass_time(100)
    assert other.sent == [b"$-1\r\n"]


def test_client_unblock_frees_no_client_that_waits_for_a_lock_or_has_one(world: World) -> None:
    holder = world.client("DEBUG LOCK 100 WRITE k")
    waiter = world.client("GET k")
    admin = world.client()
    for client in (holder, waiter):
        assert admin.run(f"CLIENT UNBLOCK {client.session.id}") == [b":0\r\n"]
        assert client.waits
    world.pass_time(100)
    assert (holder.sent, waiter.sent) == ([OK], [b"$-1\r\n"])


def test_a_pause_that_began_during_the_wait_holds_the_command_too(world: World) -> None:
    world.client("DEBUG LOCK 100 WRITE k")
    client = world.client("SET k 1")
    world.client("CLIENT PAUSE 500 WRITE")
    world.pass_time(100)
    assert client.waits and not world.engine.busy_names.table
    world.pass_time(400)
    assert client.sent == [OK]


@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
def test_a_pause_is_as_long_as_it_was_told_whatever_the_clock_is_set_to(world: World, jump: int) -> None:
    world.client("CLIENT PAUSE 500 WRITE")
    client = world.client("SET k 1")
    world.clock.jump(jump)
    world.client("CLIENT PAUSE 400 WRITE")  # no longer than the first one
    world.pass_time(499)
    assert client.waits
    world.pass_time(1)
    assert client.sent == [OK]


def test_a_pause_ends_no_pause_for_another_purpose_and_the_stricter_one_holds(world: World) -> None:
    pause = world.engine.pause
    pause.start(Purpose.FAILOVER, 10_000, everything=False)
    world.client("CLIENT PAUSE 500 ALL")
    writer, reader = world.client("SET k 1"), world.client("GET k")
    world.pass_time(500)
    assert reader.sent == [b"$-1\r\n"] and writer.waits, "the client's pause is over"
    world.client("CLIENT PAUSE 500 WRITE")
    world.client("CLIENT UNPAUSE")
    assert writer.waits
    world.client("CLIENT PAUSE 100000 WRITE")
    pause.end(Purpose.FAILOVER)
    assert writer.waits
    world.client("CLIENT UNPAUSE")
    world.go_on()
    assert writer.sent == [OK]


def test_client_reply_skip_is_about_the_command_also_if_it_waited(world: World) -> None:
    world.client("DEBUG LOCK 100 WRITE k")
    client = world.client("SET k 1")
    assert client.session.waiter is not None
    client.session.waiter.silent = True
    world.pass_time(100)
    assert client.session.skip_next, "the connection swallows the reply of the command that it runs now"


def test_keys_are_locked_in_one_database(world: World) -> None:
    world.client("DEBUG LOCK 100 WRITE k")
    assert world.client().run("SELECT 1", "SET k 1") == [OK, OK]


def test_a_copy_to_another_database_waits_for_the_key_there(world: World) -> None:
    world.client("SELECT 1", "DEBUG LOCK 100 WRITE target")
    client = world.client("SET k 1")
    assert client.run("COPY k target DB 1") == []
    mover = world.client("SET target 1", "MOVE target 1")
    assert mover.waits
    world.pass_time(100)
    assert client.sent[-1] == b":1\r\n"
    assert mover.sent[-1] == b":0\r\n", "the name is taken by now"


def test_a_copy_locks_each_of_its_keys_in_the_one_database_that_it_is_in(world: World) -> None:
    world.configure("worker-threshold", "1")
    client = world.client("SADD s " + " ".join(map(str, range(2000))), "COPY s target DB 1")
    assert client.waits
    rows = locks(client.session, [b"LOCKS"])
    assert [(row[b"db"], row[b"key"], row[b"type"]) for row in rows] == [(0, b"s", b"read"), (1, b"target", b"write")]
    assert world.client("SET target here").sent == [OK], "that is another key"
    world.step()
    assert client.sent[-1] == b":1\r\n" and world.engine.workers.done == 1
    other = world.client("ONCE c 1 1 COPY s another DB 2")
    assert [row[b"db"] for row in locks(client.session, [b"LOCKS"])] == [0, 2]
    world.step()
    assert not other.waits


def test_swapped_databases_take_their_locks_along(world: World) -> None:
    client = world.client("SET k 1", "SELECT 1", "SET k 2")
    world.client("DEBUG LOCK 100 READ k")
    assert client.run("SWAPDB 0 1", "INCR k") == [OK], "what is locked is here now"
    other = world.client("INCR k")
    assert other.sent == [b":3\r\n"]
    world.pass_time(100)
    assert client.sent[-1] == b":2\r\n"


def test_bad_arguments_get_their_error_whatever_is_locked(world: World) -> None:
    world.client("DEBUG LOCK 100 WRITE k")
    client = world.client()
    assert client.run("SINTERCARD nonsense k")[0].startswith(b"-ERR numkeys")
    assert client.run("EVAL return 9 k")[0].startswith(b"-ERR Number of keys")
    assert client.run("DEBUG LOCK 100 SOMEHOW free")[0].startswith(b"-ERR syntax")
    assert client.run("DEBUG LOCK -1 READ free")[0].startswith(b"-ERR milliseconds")


# -- transactions and scripts -----------------------------------------------------------------------------------


def test_exec_waits_until_none_of_its_keys_is_locked(world: World) -> None:
    world.client("DEBUG LOCK 100 READ a")
    world.client("DEBUG LOCK 200 WRITE b")
    client = world.client()
    assert client.run("MULTI", "SET c 1", "INCR a", "GET b") == [OK, *[b"+QUEUED\r\n"] * 3]
    assert client.run("EXEC") == []
    assert world.client().run("EXISTS c") == [b":0\r\n"], "nothing of it ran"
    world.pass_time(100)
    assert client.waits
    world.pass_time(100)
    assert client.sent[-1] == b"*3\r\n+OK\r\n:1\r\n$-1\r\n"


def test_exec_knows_the_keys_of_another_database(world: World) -> None:
    world.client("SELECT 3", "DEBUG LOCK 100 READ k")
    client = world.client("MULTI", "SELECT 3", "SET k 1", "EXEC")
    assert client.waits
    world.pass_time(100)
    assert client.sent[-1] == b"*2\r\n+OK\r\n+OK\r\n"


def test_exec_waits_for_no_key_of_a_database_in_which_it_does_nothing(world: World) -> None:
    world.client("SELECT 3", "DEBUG LOCK 100 WRITE k")
    assert world.client("MULTI", "SET k 1", "SELECT 3", "GET other", "EXEC").sent[-1].startswith(b"*3\r\n")
    assert world.client("MULTI", "SELECT 3", "SELECT 2", "SET k 1", "EXEC").sent[-1].startswith(b"*3\r\n")


def test_exec_knows_which_database_a_number_means_after_a_swap(world: World) -> None:
    world.client("SELECT 3", "DEBUG LOCK 100 WRITE k")
    client = world.client("MULTI", "SWAPDB 0 3", "SET k 1", "EXEC")
    other = world.client("MULTI", "SWAPDB 0 3", "SELECT 3", "SET k 1", "EXEC")
    assert client.waits and not other.waits
    world.pass_time(100)
    assert client.sent[-1] == b"*2\r\n+OK\r\n+OK\r\n"


def test_a_watch_that_breaks_while_exec_waits_counts(world: World) -> None:
    world.client("DEBUG LOCK 100 READ a")
    client = world.client("WATCH w", "MULTI", "INCR a", "EXEC")
    world.client("SET w 1")
    world.pass_time(100)
    assert client.sent[-1] == b"*-1\r\n"


def script(world: World, source: str, *keys: str) -> bytes | None:
    client = world.client()
    argv = [b"EVAL", source.encode(), b"%d" % len(keys), *(name.encode() for name in keys)]
    client._execute(argv)
    return client.sent[-1] if client.sent else None


def test_a_script_waits_for_the_keys_it_declares(world: World) -> None:
    world.client("DEBUG LOCK 100 READ k")
    client = world.client()
    client._execute([b"EVAL", b"return redis.call('INCR', KEYS[1])", b"1", b"k"])
    assert client.waits
    world.pass_time(100)
    assert client.sent == [b":1\r\n"]


def test_a_script_that_touches_another_locked_key_gets_locked(world: World) -> None:
    world.client("SET k 1", "DEBUG LOCK 100 READ k")
    answer = script(world, "return redis.call('INCR', 'k')")
    assert answer is not None and answer.startswith(b"-LOCKED the key 'k' is locked"), answer
    assert script(world, "return redis.call('GET', 'k')") == b"$1\r\n1\r\n", "a read passes a read lock"
    assert script(world, "return redis.pcall('INCR', 'k').err") is not None
    world.pass_time(100)
    assert script(world, "return redis.call('INCR', 'k')") == b":2\r\n"


# -- blocked clients --------------------------------------------------------------------------------------------


def test_a_blocked_client_is_served_when_the_lock_goes(world: World) -> None:
    blocked = world.client("BLPOP k 0")
    world.client("RPUSH other x")
    world.client("DEBUG LOCK 100 READ other")
    mover = world.client("BLMOVE source other LEFT LEFT 0")
    world.client("RPUSH source y")
    assert mover.sent == [], "where it would put it is locked"
    world.client("RPUSH k a")
    assert blocked.sent == [b"*2\r\n$1\r\nk\r\n$1\r\na\r\n"], "locks of others are none of its business"
    world.pass_time(100)
    assert mover.sent == [b"$1\r\ny\r\n"]


def test_a_blocked_client_that_comes_while_its_key_is_locked_waits_for_the_lock_first(world: World) -> None:
    world.client("RPUSH k a")
    world.client("DEBUG LOCK 100 READ k")
    blocked = world.client("BLPOP k 0")
    assert blocked.sent == []
    world.pass_time(100)
    assert blocked.sent == [b"*2\r\n$1\r\nk\r\n$1\r\na\r\n"]


# -- the fork gate ----------------------------------------------------------------------------------------------


def test_a_fork_waits_for_write_locks_and_no_new_one_is_taken(world: World) -> None:
    gate = world.engine.lock_gate
    quiet: list[bool] = []
    gate.on_quiet = lambda: quiet.append(gate.may_fork())
    world.client("DEBUG LOCK 100 WRITE a")
    assert not gate.may_fork()
    late = world.client("DEBUG LOCK 100 WRITE b")
    reader = world.client("DEBUG LOCK 10 READ c")
    plain = world.client("SET b 1")
    assert plain.sent == [OK], "a command that runs at once passes"
    world.pass_time(10)
    assert reader.sent == [OK], "a read lock is in nobody's way"
    world.pass_time(90)
    assert quiet == [True]
    assert late.waits and gate.locks.write_locks == 0
    gate.reopen()
    world.go_on()
    assert gate.locks.write_locks == 1
    world.pass_time(100)
    assert late.sent == [OK]


def test_those_the_fork_kept_waiting_go_on_in_order(world: World) -> None:
    gate = world.engine.lock_gate
    world.client("DEBUG LOCK 100 WRITE a")
    assert not gate.may_fork()
    clients = [world.client("DEBUG LOCK 100 WRITE k") for _ in range(3)]
    world.pass_time(100)
    gate.reopen()
    world.go_on()
    for number in range(3):
        world.pass_time(100)
        assert [bool(client.sent) for client in clients] == [n <= number for n in range(3)]


@pytest.mark.parametrize("jump", [0, -3_600_000, 3_600_000])
def test_a_fork_does_not_wait_for_ever_however_the_clock_is_set(world: World, jump: int) -> None:
    world.client("DEBUG LOCK 1000000 WRITE a")
    assert not world.engine.lock_gate.may_fork()
    world.clock.jump(jump)
    world.pass_time(4999)
    assert not world.engine.lock_gate.may_fork()
    world.pass_time(1)
    assert world.engine.lock_gate.may_fork()
    world.engine.lock_gate.reopen()
    assert not world.engine.lock_gate.locks.writes_denied


def test_read_locks_do_not_hinder_a_fork(world: World) -> None:
    world.client("DEBUG LOCK 100 READ a")
    assert world.engine.lock_gate.may_fork()


# -- what the server does by itself -----------------------------------------------------------------------------


def test_the_upkeep_of_a_stream_waits_for_threads_that_read_it(world: World) -> None:
    world.client("TWRITE t ENTRIES" + " tag entry" * 1500, "TRETAIN t AGE 1000")
    world.client("DEBUG LOCK 5000 READ t")
    world.pass_time(2000)
    world.engine.streams.tick()
    log = world.engine.keyspace[0].data[b"t"].messages
    assert log.first == 1
    world.pass_time(3000)
    world.engine.streams.tick()
    assert log.first == 1501


def test_dead_letters_do_not_change_a_stream_that_a_thread_reads(world: World) -> None:
    world.client("TWRITE dead tag entry", "TWRITE t tag entry", "TREAD t 0 1 GROUP g RETRY 100 150 DEADLETTER dead")
    read = world.engine.keyspace[0].data[b"dead"]
    world.client("DEBUG LOCK 5000 READ dead")
    world.pass_time(2000)
    world.engine.streams.tick()
    assert len(read.messages) == 1
    assert len(world.engine.keyspace[0].data[b"dead"].messages) == 2


def test_the_gate_knows_every_command_that_moves_clients_between_databases() -> None:
    """SELECT and SWAPDB are known to it by name. RESET ends a transaction, so none comes after it."""
    found = set()
    for path in Path(commands.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                inside = ast.unparse(function)
                if "session.db = " in inside or ".swap(" in inside:
                    found.add(function.name)
    assert found == {"select", "swapdb", "reset"}
