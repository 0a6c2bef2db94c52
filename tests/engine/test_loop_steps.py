"""Long commands in steps on the loop. Each turn of the loop does one step here, and the test counts the turns."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.engine.lock_world import Client, World

from penstock.engine.concurrency import loop_steps
from penstock.engine.concurrency.loop_steps import LONGEST, PATIENCE, SLICE, InSteps, LoopSteps
from penstock.engine.session import Session
from penstock.protocol.resp import RawPieces
from penstock.storage.replay import Replay
from penstock.types.kernels import Steps
from penstock.types.list import List

OK = b"+OK\r\n"
COUNT = 2000  # four chunks


@pytest.fixture(autouse=True)
def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_steps, "SLICE", 0)
    monkeypatch.setattr(loop_steps, "LONGEST", 0)


@pytest.fixture
def owner(world: World) -> Client:
    """A client, and a list of numbers and one of the same numbers."""
    world.configure("worker-threshold", "1")
    numbers = " ".join(map(str, range(COUNT)))
    return world.client(f"RPUSH list {numbers}", f"RPUSH same {numbers}")


def end(world: World, client: Client) -> int:
    """Go on until a client has its reply; how many turns of the loop that took."""
    for turn in itertools.count():
        if not client.waits:
            return turn
        world.step()
    raise AssertionError


def contents(world: World, name: bytes = b"list") -> list[bytes]:
    return list(world.engine.keyspace[0].data[name])


def test_others_are_served_between_the_steps_and_the_key_is_locked(world: World, owner: Client) -> None:
    owner.run("LREM list 0 1999")
    reader, writer = world.client("LINDEX list -1"), world.client("RPUSH list new")
    other = world.client()
    for _ in range(3):
        world.step()
        assert owner.waits and reader.waits and writer.waits
        assert other.run("SET free 1", "LINDEX same -1") == [OK, b"$4\r\n1999\r\n"]
    assert world.engine.workers.load == (1, 0)
    assert len(contents(world)) == COUNT, "it changes nothing before its commit"
    end(world, writer)
    assert (owner.sent[-1], reader.sent, writer.sent) == (b":1\r\n", [b"$4\r\n1998\r\n"], [b":2000\r\n"])
    assert [argv[0] for argv in world.logged[-2:]] == [b"LREM", b"RPUSH"]
    assert (world.engine.workers.load, world.engine.workers.done) == ((0, 0), 1)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("LPOS list none", b"$-1\r\n"),
        ("LPOS list 1999 COUNT 0", b"*1\r\n:1999\r\n"),
        ("LINSERT list BEFORE 1999 new", b":2001\r\n"),
        ("LINSERT list BEFORE none new", b":-1\r\n"),
        ("LREM list 0 1000", b":1\r\n"),
        ("LTRIM list 1999 -1", OK),
        ("LPOP list 1500", b"*1500\r\n$1\r\n0\r\n$1\r\n1\r\n"),
        ("RPOP list 1500", b"*1500\r\n$4\r\n1999\r\n"),
        ("LMPOP 1 list LEFT COUNT 1500", b"*2\r\n$4\r\nlist\r\n*1500\r\n$1\r\n0\r\n"),
        ("ZRANK board 1999", b":1999\r\n"),
        ("ZRANGE board -1 -1", b"*1\r\n$4\r\n1999\r\n"),
        ("ZRANGE board 0 1999", b"*2000\r\n$1\r\n0\r\n"),
        ("ZRANDMEMBER board 3000", b"*2000\r\n$4\r\n1999\r\n"),
    ],
)
def test_they_take_several_turns_of_the_loop(world: World, owner: Client, line: str, reply: bytes) -> None:
    owner.run("ZADD board " + " ".join(f"{number} {number}" for number in range(COUNT)))
    owner.sent.clear()
    owner.run(line)
    assert end(world, owner) >= 3
    sent = owner.sent[0]
    assert (b"".join(sent.pieces) if isinstance(sent, RawPieces) else sent).startswith(reply)


def test_two_of_them_take_turns(world: World, owner: Client) -> None:
    other = world.client("LPOS same none")
    owner.run("LPOS list none")
    turns = end(world, other)
    assert turns >= 6, "both had their steps"
    assert end(world, owner) <= 2


def test_a_flush_between_the_steps_stays_a_flush(world: World, owner: Client) -> None:
    owner.run("LTRIM list 1500 -1")
    world.step()
    assert world.client("FLUSHALL").sent == [OK]
    end(world, owner)
    assert owner.sent[-1] == OK and not world.engine.keyspace[0].data
    assert world.logged[-1] == [b"FLUSHALL"]


def test_a_client_that_left_does_not_stop_a_write(world: World, owner: Client) -> None:
    owner.run("LTRIM list 1999 -1")
    owner.leave()
    writer = world.client("RPUSH list new")
    end(world, writer)
    assert contents(world) == [b"1999", b"new"]


def test_steps_that_fail_are_an_error_reply_and_free_the_key(
    world: World, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(items: List, start: int, stop: int) -> Steps[List]:
        yield
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(List, "part", broken)
    owner.run("LTRIM list 1999 -1")
    end(world, owner)
    assert owner.sent[-1] == b"-ERR internal error: ZeroDivisionError('a bug')\r\n"
    assert owner.run("LLEN list") == [b":2000\r\n"]


def test_the_end_of_the_server_abandons_them(world: World, owner: Client) -> None:
    owner.run("LTRIM list 1999 -1")
    world.step()
    world.engine.workers.stop()
    assert b"shutting down" in owner.sent[-1]
    world.step()
    assert len(contents(world)) == COUNT
    assert world.logged[-1][0] == b"RPUSH"


def test_what_lazy_queued_is_finished_by_a_command_that_cannot_wait(world: World, owner: Client) -> None:
    world.client("LAZY LTRIM list 1999 -1")
    world.pass_time(20)
    assert len(world.engine.workers.jobs) == 1
    world.step()
    assert owner.run("EVAL return{redis.call('LLEN','list')} 0") == [b"*1\r\n:1\r\n"]
    assert contents(world) == [b"1999"]
    world.step()
    assert contents(world) == [b"1999"] and not world.engine.workers.jobs


@pytest.mark.parametrize("lines", [["RENAME board other", "ZINCRBY other 3000 5"], ["ZINCRBY board 3000 5"] * 2])
def test_the_feed_of_a_replica_leaves_what_is_read_as_it_is(world: World, owner: Client, lines: list[str]) -> None:
    owner.run("ZADD board " + " ".join(f"{number} {number}" for number in range(COUNT)))
    owner.sent.clear()
    replay = Replay(world.engine)
    commands = [line.encode().split() for line in lines]
    owner.run("ZRANGE board 0 -1")
    for _ in range(2):
        world.step()
        assert replay.meets_locks(Path("feed"), 0, commands)
        assert not replay.meets_locks(Path("feed"), 0, [[b"SELECT", b"1"], *commands])
    replay.run(Path("feed"), 0, commands)
    board = world.engine.keyspace[0].data[commands[-1][1]]
    replay.run(Path("feed"), 0, [commands[-1]])
    assert world.engine.keyspace[0].data[commands[-1][1]] is board, "one copy is enough"
    end(world, owner)
    assert isinstance(owner.sent[0], RawPieces)
    read = b"".join(owner.sent[0].pieces)
    assert read.count(b"$") == COUNT and read.endswith(b"$4\r\n1999\r\n"), "what was there when the command began"
    board.check()
    assert board.rank(b"5") == COUNT - 1
    board.check()
    assert not replay.failed and not replay.meets_locks(Path("feed"), 0, commands)


def test_a_session_that_may_not_wait_has_all_steps_at_once(owner: Client) -> None:
    assert owner.run("MULTI", "LTRIM list 1999 -1", "LLEN list", "EXEC")[-1] == b"*2\r\n+OK\r\n:1\r\n"


def test_all_steps_at_once_give_the_result(owner: Client) -> None:
    def count() -> Steps[int]:
        yield
        return 7

    assert Session.aside(owner.session, 0, InSteps(count)) == 7


class Work:
    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.slices: list[int] = []

    def advance(self, until: int) -> bool:
        self.slices.append(until)
        return len(self.slices) == self.turns


def test_a_slice_is_a_share_of_what_others_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    used = 0
    clock = SimpleNamespace(perf_counter_ns=lambda: 0, thread_time_ns=lambda: used)
    monkeypatch.setattr(loop_steps, "time", clock)
    soon, done = [], []
    steps = LoopSteps[Work](lambda work: True, done.append, lambda work: False)
    work = Work(4)
    steps.add(work, soon.append)
    for others in (SLICE, 8 * SLICE, 99 * SLICE, 0):
        used += others
        soon.pop(0)()
    assert work.slices == [SLICE, 2 * SLICE, LONGEST, SLICE]
    assert not done, "its end has a turn of its own"
    soon.pop(0)()
    assert done == [work] and not soon


class Busy:
    """A clock, and a work that does a slice of a millisecond whenever it may."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        return self.now

    thread_time_ns = perf_counter_ns

    def advance(self, until: int) -> bool:
        self.now += LONGEST
        return False


@pytest.mark.parametrize(
    ("others", "has_threads", "goes"), [(LONGEST, True, False), (50 * LONGEST, True, True), (50 * LONGEST, False, True)]
)
def test_a_work_that_gets_less_than_its_share_goes_to_a_thread_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, others: int, has_threads: bool, goes: bool
) -> None:
    monkeypatch.undo()
    clock = Busy()
    monkeypatch.setattr(loop_steps, "time", clock)
    soon, asked = [], []

    def to_thread(work: Busy) -> bool:
        asked.append(clock.now)
        return has_threads

    steps = LoopSteps[Busy](lambda work: True, lambda work: None, to_thread)
    steps.add(clock, soon.append)
    while soon and clock.now < 4 * PATIENCE:
        clock.now += others
        soon.pop(0)()
    assert bool(asked) == goes
    assert bool(soon) == (not goes or not has_threads), "it has turns as long as no thread has it"
    assert not asked or asked[0] >= PATIENCE


def test_a_thread_ends_what_the_loop_has_no_time_for(
    world: World, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_steps, "PATIENCE", -(1 << 62))
    owner.run("LREM list 0 1999")
    world.step()
    assert world.engine.workers.load == (1, 0)
    end(world, owner)
    assert owner.sent[-1] == b":1\r\n"
    assert len(contents(world)) == COUNT - 1


def test_a_work_that_is_no_longer_wanted_has_no_turn() -> None:
    soon, done = [], []
    wanted = [Work(1), Work(1)]
    dropped = Work(1)
    steps = LoopSteps[Work](wanted.__contains__, done.append, lambda work: False)
    for work in (wanted[0], dropped, wanted[1]):
        steps.add(work, soon.append)
    while soon:
        soon.pop(0)()
    assert done == wanted and not dropped.slices
