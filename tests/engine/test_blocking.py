"""Waiting for keys, on an engine whose clock and timers move only when told to."""

from __future__ import annotations

import pytest

from penstock import commands
from penstock.engine.declarations import REGISTRY, Argv, Reply
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.observe.statistics import CALLS
from penstock.engine.session import Session
from penstock.protocol.errors import NoReplicas, ReplyError
from penstock.protocol.resp import NO_REPLY
from penstock.testing.clock import ManualClock, ManualTimers

commands.load()

NOTHING = b"*-1\r\n"


class Client:
    """A session, and everything it was sent. It stands for its own output."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.session = Session(engine, self)
        self.sent: list[bytes] = []
        self.resumed = 0

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self, after_reply: bool) -> None:
        self.session.closing = True

    def resume(self) -> None:
        self.resumed += 1

    def run(self, line: str) -> Reply:
        """What a connection does with a command: run it, then serve those it made ready."""
        try:
            return self.engine.execute(self.session, line.encode().split())
        finally:
            self.engine.blocking.serve()

    @property
    def blocked(self) -> bool:
        return self.session.waiter is not None


class World:
    """An engine with its log written down."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.engine = Engine(clock=self.clock, timers=self.timers)
        self.logged: list[LogEntry] = []
        self.engine.log = self.logged.extend
        self.pusher = self.client()

    def client(self, line: str = "") -> Client:
        """A new client, blocked in the command if one is given."""
        client = Client(self.engine)
        if line:
            assert client.run(line) is NO_REPLY
        return client


@pytest.fixture
def world() -> World:
    return World()


def popped(key: str, item: str) -> bytes:
    return f"*2\r\n${len(key)}\r\n{key}\r\n${len(item)}\r\n{item}\r\n".encode()


class CountedRuns:
    """Counts how often a command's handler runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: bytes) -> None:
        self.count = 0
        command = REGISTRY.by_name[name]
        handler = command.handler

        def counting(session: Session, argv: Argv) -> Reply:
            self.count += 1
            return handler(session, argv)

        monkeypatch.setattr(command, "handler", counting)


# -- who is served, and how often -------------------------------------------------------------------------------


def test_one_push_to_a_thousand_waiters_runs_one_of_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [world.client("BLPOP k 0") for _ in range(1000)]
    runs = CountedRuns(monkeypatch, b"BLPOP")
    world.pusher.run("RPUSH k a")
    assert runs.count == 1
    assert [client.sent for client in waiting[:2]] == [[popped("k", "a")], []]
    assert world.engine.blocking.count == 999


def test_a_push_of_k_elements_serves_k_in_the_order_they_came(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [world.client("BLPOP k 0") for _ in range(1000)]
    runs = CountedRuns(monkeypatch, b"BLPOP")
    world.pusher.run("RPUSH k " + " ".join(str(n) for n in range(100)))
    assert runs.count == 100
    assert [client.sent for client in waiting[:100]] == [[popped("k", str(n))] for n in range(100)]
    assert all(client.blocked for client in waiting[100:])


def test_elements_that_no_client_takes_stay(world: World) -> None:
    first, second = world.client("BLPOP k 0"), world.client("BRPOP k 0")
    assert world.pusher.run("RPUSH k a b c") == 3
    assert (first.sent, second.sent) == ([popped("k", "a")], [popped("k", "c")])
    assert world.pusher.run("LRANGE k 0 -1") == [b"b"]


def test_a_client_that_waits_for_several_keys_gets_one_reply(world: World) -> None:
    client = world.client("BLPOP a b a 0")
    world.pusher.run("RPUSH b 1")
    world.pusher.run("RPUSH a 1")
    assert client.sent == [popped("b", "1")]
    assert client.resumed == 1
    assert world.pusher.run("LLEN a") == 1


def test_the_first_client_is_served_first_over_all_keys(world: World) -> None:
    first, second, third = world.client("BLPOP a b 0"), world.client("BLPOP b 0"), world.client("BLPOP a 0")
    world.pusher.run("RPUSH a 1")
    world.pusher.run("RPUSH b 2")
    world.pusher.run("RPUSH a 3")
    assert (first.sent, second.sent, third.sent) == ([popped("a", "1")], [popped("b", "2")], [popped("a", "3")])


def test_a_client_that_found_nothing_keeps_its_place(world: World) -> None:
    first, second = world.client("BLPOP k 0"), world.client("BLPOP k 0")
    world.pusher.run("SET k text")
    world.pusher.run("DEL k")
    world.pusher.run("RPUSH k a b")
    assert (first.sent, second.sent) == ([popped("k", "a")], [popped("k", "b")])


def test_a_client_that_waited_changes_nothing_while_the_disk_refuses(world: World) -> None:
    client = world.client()
    client.run("BLPOP a 0")
    world.engine.write_error = "Errors writing to the AOF file: full"
    world.engine.call(world.pusher.session, REGISTRY.resolve([b"RPUSH", b"a", b"1"]), [b"RPUSH", b"a", b"1"])
    world.engine.blocking.serve()
    assert client.sent == [b"-MISCONF Errors writing to the AOF file: full\r\n"]
    assert b"a" in world.engine.keyspace[0], "the element is still there"


def test_empty_queues_are_forgotten(world: World) -> None:
    world.client("BLPOP a b c 0")
    world.pusher.run("RPUSH c 1")
    assert world.engine.keyspace[0].observed == {}
    assert world.engine.blocking.count == 0


# -- what counts as ready ---------------------------------------------------------------------------------------


def test_another_type_at_the_key_keeps_the_client_waiting(world: World) -> None:
    client = world.client("BLPOP a b 0")
    world.pusher.run("SET a text")
    assert client.blocked
    world.pusher.run("RPUSH b 1")
    assert client.sent == [popped("b", "1")]


@pytest.mark.parametrize("arrival", ["RENAME other k", "COPY other k", "LMOVE other k LEFT LEFT"])
def test_a_list_that_arrives_by_another_command_wakes_its_waiters(world: World, arrival: str) -> None:
    client = world.client("BLPOP k 0")
    world.pusher.run("RPUSH other a")
    world.pusher.run(arrival)
    assert client.sent == [popped("k", "a")]


def test_a_swapped_database_wakes_its_waiters(world: World) -> None:
    client = world.client("BLPOP k 0")
    world.pusher.run("SELECT 1")
    world.pusher.run("RPUSH k a")
    assert client.blocked
    world.pusher.run("SWAPDB 0 1")
    assert client.sent == [popped("k", "a")]


def test_a_transaction_is_over_before_anybody_is_served(world: World) -> None:
    client = world.client("BLPOP a b 0")
    for line in ("MULTI", "RPUSH b 1", "RPUSH a 2", "LLEN b"):
        world.pusher.run(line)
    assert client.blocked
    assert world.pusher.run("EXEC") == [1, 1, 1]
    assert client.sent == [popped("b", "1")], "the key that was pushed to first"


def test_a_list_pushed_and_deleted_in_one_transaction_wakes_no_client(world: World) -> None:
    client = world.client("BLPOP k 0")
    for line in ("MULTI", "RPUSH k 1", "DEL k", "EXEC"):
        world.pusher.run(line)
    assert client.blocked
    assert client.sent == []


def test_waiting_is_not_possible_inside_a_transaction(world: World) -> None:
    for line in ("MULTI", "BLPOP k 0", "BLMOVE k l LEFT LEFT 0", "EXEC"):
        reply = world.pusher.run(line)
    assert not world.pusher.blocked
    assert [repr(item) for item in reply] == ["NULL_ARRAY", "None"]


# -- moves ------------------------------------------------------------------------------------------------------


def test_a_move_that_is_served_makes_the_next_one_ready(world: World) -> None:
    last = world.client("BLPOP c 0")
    middle = world.client("BLMOVE b c LEFT RIGHT 0")
    first = world.client("BRPOPLPUSH a b 0")
    world.pusher.run("RPUSH a x")
    assert (first.sent, middle.sent, last.sent) == ([b"$1\r\nx\r\n"], [b"$1\r\nx\r\n"], [popped("c", "x")])


def test_moves_in_a_circle_end(world: World) -> None:
    there, back = world.client("BLMOVE a b LEFT LEFT 0"), world.client("BLMOVE b a LEFT LEFT 0")
    world.pusher.run("RPUSH a x")
    assert there.sent == back.sent == [b"$1\r\nx\r\n"]
    assert world.pusher.run("LRANGE a 0 -1") == [b"x"]


def test_a_move_to_another_type_is_an_error_and_the_element_stays(world: World) -> None:
    client, behind = world.client("BLMOVE a text LEFT LEFT 0"), world.client("BLPOP a 0")
    world.pusher.run("SET text x")
    world.pusher.run("RPUSH a 1")
    assert client.sent[0].startswith(b"-WRONGTYPE")
    assert behind.sent == [popped("a", "1")]


# -- the log ----------------------------------------------------------------------------------------------------


def test_a_served_command_is_logged_after_the_push_as_what_it_did(world: World) -> None:
    world.client("BLPOP a 0")
    world.client("BLMOVE b c LEFT RIGHT 0")
    world.client("BRPOPLPUSH d e 0")
    world.client("BLMPOP 0 2 x f RIGHT COUNT 5")
    for key in "abdf":
        world.pusher.run(f"RPUSH {key} 1 2")
    assert [b" ".join(argv) for _, argv in world.logged] == [
        b"RPUSH a 1 2", b"LPOP a", b"RPUSH b 1 2", b"LMOVE b c LEFT RIGHT", b"RPUSH d 1 2", b"LMOVE d e RIGHT LEFT",
        b"RPUSH f 1 2", b"RPOP f 2",
    ]  # fmt: skip


def test_a_command_that_only_waited_is_not_logged(world: World) -> None:
    world.client("BLPOP a 1")
    world.timers.advance(1000)
    assert world.logged == []


# -- the end of waiting -----------------------------------------------------------------------------------------


def test_a_timeout_answers_null_at_its_time(world: World) -> None:
    client = world.client("BLPOP k 0.25")
    world.timers.advance(249)
    assert client.blocked
    world.timers.advance(1)
    assert client.sent == [NOTHING]
    assert client.resumed == 1
    world.pusher.run("RPUSH k a")
    assert client.sent == [NOTHING]


def test_the_deadline_is_fixed_once(world: World) -> None:
    client = world.client("BLPOP k 1")
    for _ in range(3):
        world.timers.advance(300)
        world.pusher.run("SET k text")
    world.timers.advance(100)
    assert client.sent == [NOTHING]


def test_zero_waits_for_ever(world: World) -> None:
    client = world.client("BLPOP k 0")
    world.timers.advance(10**12)
    assert client.blocked


def test_the_timer_of_a_served_client_is_cancelled(world: World) -> None:
    world.client("BLPOP k 10")
    assert world.timers.pending == 1
    world.pusher.run("RPUSH k a")
    assert world.timers.pending == 0


def test_a_client_that_went_away_takes_nothing(world: World) -> None:
    gone, there = world.client("BLPOP k 5"), world.client("BLPOP k 0")
    world.engine.forget(gone.session)
    world.pusher.run("RPUSH k a")
    assert (gone.sent, there.sent) == ([], [popped("k", "a")])
    assert (world.timers.pending, world.engine.blocking.count) == (0, 0)


def test_a_client_that_is_being_closed_takes_nothing(world: World) -> None:
    closing, there = world.client("BLPOP k 0"), world.client("BLPOP k 0")
    closing.close(after_reply=False)
    world.pusher.run("RPUSH k a")
    assert (closing.sent, there.sent) == ([], [popped("k", "a")])


def test_unblock_ends_a_wait_as_a_timeout_or_with_an_error(world: World) -> None:
    blocking = world.engine.blocking
    client = world.client("BLPOP k 0")
    assert blocking.unblock(client.session, with_error=False)
    assert not blocking.unblock(client.session, with_error=False)
    client.run("BLPOP k 0")
    assert blocking.unblock(client.session, with_error=True)
    assert client.sent == [NOTHING, b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"]


def test_a_muted_client_is_served_in_silence(world: World) -> None:
    off, skipped = world.client("BLPOP k 0"), world.client("BLPOP k 0")
    off.session.muted = True
    assert skipped.session.waiter is not None
    skipped.session.waiter.silent = True
    world.pusher.run("RPUSH k a b")
    assert (off.sent, skipped.sent) == ([], [])
    assert (off.resumed, skipped.resumed) == (1, 1)


def test_a_bug_in_one_waiter_is_its_own_problem(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    unlucky, there = world.client("BRPOP k 0"), world.client("BLPOP k 0")

    def broken(session: Session, argv: Argv) -> Reply:
        raise KeyError("bug")

    monkeypatch.setattr(REGISTRY.by_name[b"BRPOP"], "handler", broken)
    assert world.pusher.run("RPUSH k a") == 1
    assert unlucky.sent[0].startswith(b"-ERR internal error")
    assert there.sent == [popped("k", "a")]


def test_being_run_again_is_not_counted_as_another_command(world: World) -> None:
    total = world.engine.stats.commands
    world.client("BLPOP k 0")
    world.pusher.run("SET k text")
    world.pusher.run("DEL k")
    world.pusher.run("RPUSH k a")
    assert world.engine.stats.calls["BLPOP"][CALLS] == 1
    assert world.engine.stats.commands == total + 4


@pytest.mark.parametrize(
    ("timeout", "text"),
    [("-1", "timeout is negative"), ("x", "timeout is not a float or out of range"),
        ("nan", "timeout is not a float or out of range"), ("1e30", "timeout is out of range")],
)  # fmt: skip
def test_bad_timeouts_are_refused(world: World, timeout: str, text: str) -> None:
    for line in (f"BLPOP k {timeout}", f"BLMPOP {timeout} 1 k LEFT", f"BLMOVE k l LEFT LEFT {timeout}"):
        with pytest.raises(ReplyError) as refused:
            world.pusher.run(line)
        assert str(refused.value) == text
    assert not world.pusher.blocked


# -- changes that may be lost -----------------------------------------------------------------------------------


def test_a_timeout_does_not_tell_of_a_change_that_may_be_lost(world: World) -> None:
    world.pusher.run("RPUSH k a")
    world.pusher.run("LPOP k")
    waiting = [world.client("BLPOP k 1"), world.client("BLPOP k 0")]
    world.engine.hidden_changes.hide(True)
    world.timers.advance(1000)
    world.engine.blocking.unblock(waiting[1].session, with_error=False)
    assert [client.sent[0][:12] for client in waiting] == [b"-NOREPLICAS "] * 2, "the next leader has the element"


def test_exec_does_not_tell_of_a_change_that_may_be_lost(world: World) -> None:
    client = world.client()
    for line in ("WATCH k", "MULTI", "PING"):
        client.run(line)
    world.pusher.run("SET k 1")
    world.engine.hidden_changes.hide(True)
    with pytest.raises(NoReplicas):
        client.run("EXEC")
    assert client.run("PING") == world.pusher.run("PING"), "the transaction is over"
