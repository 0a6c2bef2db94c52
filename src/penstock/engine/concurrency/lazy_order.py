"""The queue of LAZY, and which commands in it must run before which.

A command runs after every earlier one that it could tell from: one that writes a key it reads or writes, or reads a key
it writes. Each key has a tail: its last writer and the readers since. A new command comes after the tail of each of its
keys. These edges are all that is kept of the order, and they are enough: what comes before a tail comes before its
members.

Rejected: a list of commands for each key. To run one, all lists it is in must be searched.

Owned by the loop thread.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.engine.concurrency.busy_names import BusyNames
from penstock.engine.declarations import Access, Argv, Command, Reach
from penstock.engine.keyspace.memory import OVERHEAD
from penstock.protocol.errors import ReplyError

if TYPE_CHECKING:
    from penstock.engine.concurrency.workers import Job
    from penstock.engine.keyspace.databases import Database

Place = tuple["Database", bytes]


class Queued:
    """A command that was answered and has not run."""

    __slots__ = (
        "after", "argv", "command", "database", "growth", "job", "keys", "moment", "needed", "number", "running",
        "since",
        "size",
    )  # fmt: skip

    def __init__(self, number: int, database: Database, command: Command, argv: Argv, keys: dict[bytes, bool]) -> None:
        self.number = number  # in the order of enqueueing
        self.database = database
        self.command = command
        self.argv = argv
        self.keys = keys  # whether it writes each
        self.moment = database.clock.now  # milliseconds since 1970: the time that it will see
        self.since = database.clock.lease_time()  # its age must not follow a clock that is set
        self.after: list[Queued] = []  # those that must run before; some may have run
        self.running = False  # on the loop, at this moment
        self.job: Job | None = None  # what a thread does for it
        self.needed = False  # a client's command began it, not an idle moment
        self.size = sum(map(len, argv)) + OVERHEAD * len(argv)
        self.growth = 0  # bytes that are reserved for what it makes


class Tail:
    """The end of a key's queue: its last writer and the readers since, as far as they have not run."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer: Queued | None = None
        self.readers: dict[Queued, None] = {}


class Order:
    """See the top of this file."""

    def __init__(self, names: BusyNames) -> None:
        self.pending: OrderedDict[int, Queued] = OrderedDict()  # by number, the oldest first
        self.hurried: dict[Queued, None] = {}  # a blocked client waits for these
        self.bytes = 0
        self._names = names  # has the name of every key of what is pending
        self._tails: dict[Place, Tail] = {}
        self._last_number = 0

    def add(self, database: Database, command: Command, argv: Argv, keys: dict[bytes, bool]) -> Queued:
        self._last_number += 1
        queued = Queued(self._last_number, database, command, argv, keys)
        self.pending[queued.number] = queued
        self.bytes += queued.size
        after = queued.after
        for key, writes in keys.items():
            self._names.add(key)
            place = (database, key)
            tail = self._tails.get(place)
            if tail is None:
                tail = self._tails[place] = Tail()
            if tail.writer is not None:
                after.append(tail.writer)
            if writes:
                after.extend(tail.readers)
                tail.writer, tail.readers = queued, {}
            else:
                tail.readers[queued] = None
        return queued

    def remove(self, queued: Queued) -> None:
        del self.pending[queued.number]
        self.hurried.pop(queued, None)
        self.bytes -= queued.size
        queued.after.clear()  # or each would keep all that ever came before it
        for key in queued.keys:
            self._names.remove(key)
            place = (queued.database, key)
            tail = self._tails[place]  # it is in it, or comes before one that is
            if tail.writer is queued:
                tail.writer = None
            tail.readers.pop(queued, None)
            if tail.writer is None and not tail.readers:
                del self._tails[place]

    # -- asking -----------------------------------------------------------------------------------------------

    def writer_of(self, database: Database, key: bytes) -> Queued | None:
        """The last that writes a key."""
        tail = self._tails.get((database, key))
        return None if tail is None else tail.writer

    def last_of(self, database: Database, key: bytes, to_write: bool) -> list[Queued]:
        """The last that writes a key and, if it is to be written, those that read it since."""
        tail = self._tails.get((database, key))
        if tail is None:
            return []
        last = [] if tail.writer is None else [tail.writer]
        return [*last, *tail.readers] if to_write else last

    def of(self, database: Database | None) -> list[Queued]:
        """Everything, or everything in one database."""
        return [each for each in self.pending.values() if database is None or each.database is database]

    def needed_by(self, database: Database, command: Command, argv: Argv) -> list[Queued]:
        """What must run before a client's command, but for what must run before these."""
        reach = command.reach(argv)
        if reach is not Reach.KEYS:
            return self.of(database if reach is Reach.DATABASE else None)
        found: list[Queued] = []
        with suppress(ReplyError):  # its handler will refuse it
            for position, access in command.key_positions(argv):
                found += self.last_of(database, argv[position], to_write=access is not Access.READ)
        return found

    def with_those_before(self, last: list[Queued]) -> list[Queued]:
        """These and all that must run before them, in the order in which they came."""
        wanted: dict[int, Queued] = {}
        stack = list(last)
        while stack:
            queued = stack.pop()
            if queued.number not in wanted and queued.number in self.pending and not queued.running:
                wanted[queued.number] = queued
                stack += queued.after
        return [wanted[number] for number in sorted(wanted)]

    def is_next(self, queued: Queued) -> bool:
        """Whether nothing must run before it any more."""
        return not any(each.number in self.pending for each in queued.after)

    def check(self) -> None:
        """Assert every invariant; for tests."""
        assert list(self.pending) == sorted(self.pending)
        assert all(each.number in self.pending for each in self.hurried)
        assert self.bytes == sum(each.size for each in self.pending.values())
        for (database, key), tail in self._tails.items():
            members = [*([tail.writer] if tail.writer is not None else []), *tail.readers]
            assert members, key
            for each in members:
                assert self.pending[each.number] is each and each.database is database
                assert each.keys[key] == (each is tail.writer)
        for each in self.pending.values():
            assert all(earlier.number < each.number for earlier in each.after)
            assert all((each.database, key) in self._tails for key in each.keys)
            assert all(key in self._names.table for key in each.keys), "commands could pass by"
