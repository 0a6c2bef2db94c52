"""Locks by themselves: which client gets them, which waits, and in which order they are called."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.engine.concurrency.busy_names import BusyNames
from penstock.engine.concurrency.locks import Kind, Locks, Table, Wait, Want


class World:
    """Locks and one table; owners and waiters are names."""

    def __init__(self) -> None:
        self.names = BusyNames()
        self.locks = Locks(self.names)
        self.table: Table = {}

    def wants(self, text: str) -> list[Want]:
        """Lower case is read, upper case is written: "aB" reads a and writes b."""
        return [Want(self.table, letter.lower().encode(), letter.isupper()) for letter in text]

    def take(self, who: str, keys: str, ticket: int | None = None) -> bool:
        return self.locks.take(who, self.wants(keys), 1, ticket)

    def wait(self, who: str, keys: str, takes: bool = False, ticket: int | None = None) -> Wait:
        return self.locks.wait(who, self.wants(keys), takes, 1, ticket)

    def release(self, who: str) -> list[object]:
        called = [wait.who for wait in self.locks.release(who)]
        self.check()
        return called

    def check(self) -> None:
        self.locks.check([self.table])
        assert self.names.table == dict.fromkeys(self.table, 1)


@pytest.fixture
def world() -> World:
    return World()


def test_readers_share_and_a_writer_is_alone(world: World) -> None:
    assert world.take("first", "a")
    assert world.take("second", "a")
    assert not world.take("writer", "A")
    assert not world.locks.blocked(world.wants("a"))
    assert world.locks.blocked(world.wants("A"))
    assert world.table[b"a"].kind is Kind.READ
    world.release("first")
    world.release("second")
    assert world.take("writer", "A")
    assert world.locks.blocked(world.wants("a"))
    assert (world.locks.read_locks, world.locks.write_locks) == (0, 1)


def test_all_locks_are_taken_or_none(world: World) -> None:
    assert world.take("holder", "B")
    assert not world.take("other", "Abc")
    assert set(world.table) == {b"b"}
    world.check()


def test_no_lock_is_left_when_all_commands_are_done(world: World) -> None:
    world.take("holder", "aB")
    wait = world.wait("waiter", "Ab")
    assert world.release("holder") == ["waiter"]
    assert (world.table, world.names.table, world.locks.waiting) == ({}, {}, {})
    assert wait.places == []


def test_two_that_want_each_others_keys_both_get_them() -> None:
    """ardb#336: A then B, and B then A, one lock at a time, waited for each other for ever."""
    for first, second in (("AB", "BA"), ("BA", "AB")):
        world = World()
        assert world.take("one", first)
        assert not world.take("two", second)
        world.wait("two", second, takes=True)
        assert world.release("one") == ["two"]
        assert world.take("two", second)
        assert world.release("two") == []


def test_waiters_are_called_in_the_order_in_which_they_came(world: World) -> None:
    world.take("holder", "Ab")
    for number in range(5):
        world.wait(str(number), "AaB"[number % 3])
        world.wait(f"writes {number}", "B")
    called = world.release("holder")
    assert called == [name for number in range(5) for name in (str(number), f"writes {number}")]


def test_a_command_that_waits_for_several_keys_is_called_when_all_are_free(world: World) -> None:
    for key in "ABC":
        world.take(key, key)
    world.wait("waiter", "ABC")
    assert [world.release(key) for key in "BAC"] == [[], [], ["waiter"]]


def test_a_key_that_is_locked_while_one_waits_for_another_counts_too(world: World) -> None:
    world.take("first", "A")
    world.wait("waiter", "AB")
    world.take("second", "B")
    assert world.release("first") == []
    assert world.release("second") == ["waiter"]


def test_new_threaded_readers_queue_behind_a_waiting_writer_and_plain_reads_pass(world: World) -> None:
    world.take("reader", "a")
    world.wait("writer", "A")
    assert not world.take("late reader", "a")
    assert not world.locks.blocked(world.wants("a"))
    world.wait("late reader", "a", takes=True)
    assert world.release("reader") == ["writer", "late reader"]


def test_a_reader_behind_a_writer_that_goes_away_is_called(world: World) -> None:
    world.take("reader", "a")
    writer = world.wait("writer", "A")
    world.wait("late reader", "a", takes=True)
    assert [wait.who for wait in world.locks.leave(writer)] == ["late reader"]
    assert world.locks.leave(writer) == []
    world.check()


def test_a_command_that_has_to_wait_again_keeps_its_place(world: World) -> None:
    world.take("holder", "A")
    first = world.wait("first", "A")
    world.wait("second", "A")
    assert world.release("holder") == ["first", "second"]
    world.take("third", "A")  # quicker than either
    world.wait("second", "A", ticket=first.ticket + 1)
    world.wait("first", "A", ticket=first.ticket)
    assert world.release("third") == ["first", "second"]


def test_a_lock_moves_with_its_table(world: World) -> None:
    world.take("holder", "A")
    world.wait("waiter", "A")
    other: Table = {}
    world.table, other = other, world.table
    assert not world.locks.blocked(world.wants("A"))
    assert [wait.who for wait in world.locks.release("holder")] == ["waiter"]
    assert other == {} and world.names.table == {}


# -- the fork gate ----------------------------------------------------------------------------------------------


def test_while_writes_are_denied_only_they_wait(world: World) -> None:
    world.take("writer", "A")
    world.locks.deny_writes()
    assert world.take("reader", "b")
    assert not world.take("other", "C")
    world.wait("other", "C", takes=True)
    assert world.table[b"c"].kind is Kind.PENDING
    assert not world.locks.blocked(world.wants("C")), "what runs at once passes"
    world.check()


def test_the_fork_queue_is_drained_in_order(world: World) -> None:
    world.locks.deny_writes()
    for who, keys in (("first", "A"), ("second", "Bc"), ("third", "A")):
        assert not world.take(who, keys)
        world.wait(who, keys, takes=True)
    assert [lock.key for lock in world.locks.fork_queue] == [b"a", b"b"]
    assert [wait.who for wait in world.locks.allow_writes()] == ["first", "second", "third"]
    assert world.names.table == {}
    world.check()


def test_a_pending_writer_that_also_waits_for_a_reader_is_called_when_both_are_over(world: World) -> None:
    world.take("reader", "a")
    world.locks.deny_writes()
    world.wait("writer", "A", takes=True)
    assert world.locks.allow_writes() == []
    assert world.release("reader") == ["writer"]


# -- everything at once -----------------------------------------------------------------------------------------


@dataclass
class Modelled:
    """A command of the model: what it touches, and whether it goes to a thread."""

    wants: dict[bytes, bool]
    takes: bool
    ticket: int | None = None
    wait: Wait | None = None
    name: object = field(default_factory=object)


KEYS = st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.booleans(), min_size=1)


class Clients(RuleBasedStateMachine):
    """Commands come, run or wait, take locks, finish and go away; the model is a list of the holders."""

    def __init__(self) -> None:
        super().__init__()
        self.names = BusyNames()
        self.locks = Locks(self.names)
        self.table: Table = {}
        self.holders: list[Modelled] = []
        self.waiters: list[Modelled] = []
        self.called: list[Modelled] = []

    def _wants(self, command: Modelled) -> list[Want]:
        return [Want(self.table, key, exclusive) for key, exclusive in command.wants.items()]

    def _kept_out(self, command: Modelled, others: list[Modelled]) -> bool:
        return any(
            key in other.wants and (exclusive or other.wants[key])
            for other in others
            for key, exclusive in command.wants.items()
        )

    def _try(self, command: Modelled) -> None:
        """Run the command if it may; if not, it waits."""
        held = self._kept_out(command, self.holders)
        assert self.locks.blocked(self._wants(command)) == held, "a plain command waits for holders only"
        if not command.takes and not held:
            return
        if command.takes and self.locks.take(command.name, self._wants(command), 0, command.ticket):
            assert not held
            assert not self.locks.writes_denied or not any(command.wants.values())
            self.holders.append(command)
            return
        command.wait = self.locks.wait(command, self._wants(command), command.takes, 0, command.ticket)
        command.ticket = command.wait.ticket
        self.waiters.append(command)

    def _call(self, waits: list[Wait]) -> None:
        called = [wait.who for wait in waits]
        assert [wait.ticket for wait in waits] == sorted(wait.ticket for wait in waits)
        for command in called:
            assert isinstance(command, Modelled)
            assert not self._kept_out(command, self.holders), "called too early"
            self.waiters.remove(command)
            self.called.append(command)

    @rule(wants=KEYS, takes=st.booleans())
    def come(self, wants: dict[bytes, bool], takes: bool) -> None:
        self._try(Modelled(wants, takes))

    @precondition(lambda self: self.called)
    @rule()
    def try_again(self) -> None:
        self._try(self.called.pop(0))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        command = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self._call(self.locks.release(command.name))

    @precondition(lambda self: self.waiters)
    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        command = self.waiters.pop(data.draw(st.integers(0, len(self.waiters) - 1)))
        assert command.wait is not None
        self._call(self.locks.leave(command.wait))

    @rule()
    def fork(self) -> None:
        if self.locks.writes_denied:
            self._call(self.locks.allow_writes())
        else:
            self.locks.deny_writes()

    @invariant()
    def consistent(self) -> None:
        self.locks.check([self.table])
        assert len(self.locks.waiting) == len(self.waiters)

    def teardown(self) -> None:
        """No client waits for ever: when holders finish and the called ones try again, all are done."""
        if self.locks.writes_denied:
            self._call(self.locks.allow_writes())
        while self.holders or self.called:
            if self.holders:
                self._call(self.locks.release(self.holders.pop(0).name))
            while self.called:
                self._try(self.called.pop(0))
        assert self.waiters == []
        assert self.table == {} and self.names.table == {}


Clients.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestClients = Clients.TestCase
