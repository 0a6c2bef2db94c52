"""Which keys are locked, by which owner, and what waits for them: the dictionary of locked keys.

It knows neither clients nor threads: owners and waiters are any objects, and the caller informs them (lock_gate.py).
There are two kinds of commands. A command that *takes* locks goes to a thread and holds them until it is done. It takes
all of them at once or none, so an owner of a lock never waits, and there is no deadlock. Any other command runs on the
loop from start to end; it takes no locks and only needs that its keys are not held.

- A read lock excludes writers, a write lock all others.
- A command that finds a lock in its way waits at every such key, in the order of tickets, until it is called. Then it
  tries again from the start; if it has to wait once more, it keeps its ticket.
- A command that takes locks also waits behind older waiters that its locks would exclude. So many threaded readers
  cannot starve a writer. A command that runs at once passes them, because it delays no other.
- While write locks are denied, because a child is to be forked, a command that needs one waits at the key as well, and
  the key is listed in `fork_queue`.

Invariant (`check`): a waiter is in the queue of a key where something is in its way, and is checked again when that
changes; queues are in the order of tickets; no entry is empty. Owned by the loop thread.

Rejected: granting a lock to a waiter in its absence. What it needs is known only when its command runs again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import count
from time import perf_counter_ns
from typing import NamedTuple

from penstock.engine.concurrency.busy_names import BusyNames
from penstock.engine.observe.histograms import Histogram

Table = dict[bytes, "KeyLock"]  # one for each database


class Kind(enum.Enum):
    """What an entry of the dictionary says about its key."""

    READ = "read"
    WRITE = "write"
    PENDING = "pending"  # not locked; a waiter may not lock it yet (LOCKED_KEY_PENDING_FORK)


class Want(NamedTuple):
    """A key that a command touches; `exclusive` if it may change it."""

    table: Table
    key: bytes
    exclusive: bool


class KeyLock:
    """An entry of the dictionary: a key that is locked, or waited for."""

    __slots__ = ("key", "queue", "readers", "since", "table", "writer")

    def __init__(self, table: Table, key: bytes, now: int) -> None:
        self.table = table  # where it is entered; a database's table moves with its contents (SWAPDB)
        self.key = key
        self.since = now  # milliseconds since 1970
        self.readers: dict[object, None] = {}
        self.writer: object | None = None
        self.queue: dict[Wait, bool] = {}  # by ticket; whether it needs the key exclusively

    @property
    def kind(self) -> Kind:
        return Kind.WRITE if self.writer is not None else Kind.READ if self.readers else Kind.PENDING


class Wait:
    """A command that waits."""

    __slots__ = ("began", "places", "since", "takes", "ticket", "wants", "who")

    def __init__(self, who: object, wants: list[Want], takes: bool, now: int, ticket: int) -> None:
        self.who = who
        self.since = now  # milliseconds since 1970
        self.began = perf_counter_ns()
        self.wants = wants
        self.takes = takes
        self.ticket = ticket  # the earlier one has the lower ticket
        self.places: list[KeyLock] = []


def _ticket(wait: Wait) -> int:
    return wait.ticket


class Locks:
    """All locks of a server; see the top of this file."""

    def __init__(self, names: BusyNames) -> None:
        self._names = names  # has the name of every entry, in any database
        self.read_locks = 0
        self.write_locks = 0
        self.waiting: dict[Wait, None] = {}
        self.waits = Histogram()  # those that are over
        self.writes_denied = False
        self.fork_queue: dict[KeyLock, None] = {}  # keys where a command waits for write locks to be allowed again
        self._held: dict[object, list[KeyLock]] = {}  # by owner
        self._tickets = count(1)

    # -- asking -----------------------------------------------------------------------------------------------

    def blocked(self, wants: Iterable[Want], takes: bool = False, ticket: int | None = None) -> bool:
        """Whether a command must wait; one that never waited has no ticket."""
        return any(self._is_obstacle(want, takes, ticket) for want in wants)

    def _is_obstacle(self, want: Want, takes: bool, ticket: int | None) -> bool:
        """Whether this one cannot be had now."""
        if takes and want.exclusive and self.writes_denied:
            return True
        lock = want.table.get(want.key)
        if lock is None:
            return False
        if lock.writer is not None or (want.exclusive and lock.readers):
            return True
        return takes and any(
            (ticket is None or wait.ticket < ticket) and (want.exclusive or exclusive)
            for wait, exclusive in lock.queue.items()
        )

    def _obstacles(self, wait: Wait) -> list[Want]:
        return [want for want in wait.wants if self._is_obstacle(want, wait.takes, wait.ticket)]

    # -- holding ----------------------------------------------------------------------------------------------

    def take(self, owner: object, wants: list[Want], now: int, ticket: int | None = None) -> bool:
        """Lock everything, or nothing if there is anything in the way; whether it was done."""
        if self.blocked(wants, True, ticket):
            return False
        held = self._held[owner] = []
        for want in wants:
            lock = self._entry(want, now)
            if want.exclusive:
                lock.writer = owner
                self.write_locks += 1
            else:
                lock.readers[owner] = None
                self.read_locks += 1
            if len(lock.readers) + (lock.writer is not None) == 1:
                lock.since = now
            held.append(lock)
        return True

    def release(self, owner: object) -> list[Wait]:
        """Unlock everything of an owner, if anything; answers the waiters that may try again, in their order."""
        locks = self._held.pop(owner, [])
        for lock in locks:
            if lock.writer is owner:
                lock.writer = None
                self.write_locks -= 1
            else:
                del lock.readers[owner]
                self.read_locks -= 1
        return self._call(locks)

    def held(self, owner: object) -> list[KeyLock]:
        """The locks of an owner."""
        return self._held.get(owner, [])

    # -- waiting ----------------------------------------------------------------------------------------------

    def wait(self, who: object, wants: list[Want], takes: bool, now: int, ticket: int | None = None) -> Wait:
        """Wait for what is in the way; something must be."""
        wait = Wait(who, wants, takes, now, next(self._tickets) if ticket is None else ticket)
        self.waiting[wait] = None
        self._line_up(wait)
        assert wait.places, "nothing to wait for"
        return wait

    def leave(self, wait: Wait) -> list[Wait]:
        """Stop waiting; those that may try again now that none is before them."""
        if wait not in self.waiting:
            return []
        places = wait.places
        self._forget(wait)
        return self._call(places)

    def deny_writes(self) -> None:
        """Deny new write locks: the server wants to fork."""
        self.writes_denied = True

    def allow_writes(self) -> list[Wait]:
        """Allow write locks again; answers the waiters that may try, in their order."""
        self.writes_denied = False
        pending, self.fork_queue = list(self.fork_queue), {}
        return self._call(pending)

    def _line_up(self, wait: Wait) -> None:
        """Queue up wherever something is in the way and it does not wait already."""
        for want in self._obstacles(wait):
            lock = self._entry(want, wait.since)
            if self.writes_denied and wait.takes and want.exclusive:
                self.fork_queue[lock] = None
            if wait in lock.queue:
                continue
            newest = next(reversed(lock.queue), None)
            lock.queue[wait] = want.exclusive
            if newest is not None and newest.ticket > wait.ticket:
                lock.queue = {wait: lock.queue[wait] for wait in sorted(lock.queue, key=_ticket)}
            wait.places.append(lock)

    def _call(self, locks: list[KeyLock]) -> list[Wait]:
        """Something changed at these keys: take the waiters that may try again out of all queues, the oldest first."""
        called = []
        while locks:
            left: list[KeyLock] = []  # keys at which it was before others
            for wait in sorted({wait for lock in locks for wait in lock.queue}, key=_ticket):
                if self.blocked(wait.wants, wait.takes, wait.ticket):
                    self._line_up(wait)  # perhaps at another key, which was free when it came
                else:
                    left += wait.places
                    self._forget(wait)
                    called.append(wait)
            for lock in locks:
                self._tidy(lock)
            locks = left
        return sorted(called, key=_ticket)

    def _forget(self, wait: Wait) -> None:
        del self.waiting[wait]
        self.waits.observe(perf_counter_ns() - wait.began)
        places, wait.places = wait.places, []
        for lock in places:
            del lock.queue[wait]
            self._tidy(lock)

    # -- entries ----------------------------------------------------------------------------------------------

    def _entry(self, want: Want, now: int) -> KeyLock:
        lock = want.table.get(want.key)
        if lock is None:
            lock = want.table[want.key] = KeyLock(want.table, want.key, now)
            self._names.add(want.key)
        return lock

    def _tidy(self, lock: KeyLock) -> None:
        """Remove an empty entry."""
        if lock.readers or lock.writer is not None or lock.queue or lock.table.get(lock.key) is not lock:
            return
        del lock.table[lock.key]
        self.fork_queue.pop(lock, None)
        self._names.remove(lock.key)

    def check(self, tables: Iterable[Table]) -> None:
        """Assert every invariant; for tests. `tables` are all tables."""
        entries = [lock for table in tables for lock in table.values()]
        assert self.read_locks == sum(len(lock.readers) for lock in entries)
        assert self.write_locks == sum(lock.writer is not None for lock in entries)
        for lock in entries:
            assert lock.table[lock.key] is lock and lock.key in self._names.table
            assert lock.readers or lock.writer is not None or lock.queue, "an empty entry"
            assert not (lock.readers and lock.writer is not None), "a reader beside a writer"
            tickets = [wait.ticket for wait in lock.queue]
            assert tickets == sorted(set(tickets)), "a queue out of order"
            for owner in (*lock.readers, *([lock.writer] if lock.writer is not None else [])):
                assert lock in self._held[owner]
            for wait in lock.queue:
                assert wait in self.waiting and lock in wait.places, "a queue remembers a waiter that left"
        for wait in self.waiting:
            standing = {(id(lock.table), lock.key) for lock in wait.places}
            obstacles = {(id(want.table), want.key) for want in self._obstacles(wait)}
            assert obstacles & standing, "a command waits where nothing is in its way"
            assert all(wait in lock.queue for lock in wait.places)
        assert all(lock in entries for lock in self.fork_queue)
        assert not self.fork_queue or self.writes_denied
