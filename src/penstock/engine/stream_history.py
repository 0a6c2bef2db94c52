"""Reading messages that lie in files: a thread fetches them, then the command runs as if they were in memory.

The client waits, others do not. `with_history` does this for a command by itself. The commands of a transaction or a
script cannot wait in its middle. So EXEC asks the declarations of its commands what they will read (`foresees`), and a
script that has changed nothing yet stops at its first read of a file. Scripts inside a transaction or ONCE are
rehearsed before it begins, up to the first read of a file or the first write. Then a thread fetches, and EXEC, ONCE or
the script is run from the start, gates included, with what was fetched (`Prefetched`). The streams may have changed by
then, so it may have to wait again, ROUNDS times at most, for MOST bytes at most, and until MOST_SPENT is used up by
what it does before it waits. What was not foreseen is fetched in place.

What was fetched is known by its file and its place there: a stream that was deleted, copied or evicted in between finds
what is still its own, and nothing else.

Owned by the loop thread, except `_fetch` and `fetch_what_is_there`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from operator import itemgetter
from time import monotonic
from typing import NamedTuple

from penstock.engine.declarations import Argv, Command, Reply
from penstock.engine.keyspace.databases import Database
from penstock.engine.keyspace.transaction_databases import TransactionDatabases
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.types.stream.messages import Messages, Place
from penstock.types.stream.nodes import Range
from penstock.types.stream.segments import Identity, MissingHistory
from penstock.types.stream.stored_nodes import wanted_places, with_fetched

MOST = 1 << 30
"""Bytes of messages that are fetched for one command."""
ROUNDS = 8
"""How often an EXEC or a script waits for what it will read, before it reads the rest in place."""
REHEARSALS = 0.02
"""Seconds for all scripts of an EXEC that are rehearsed, each time; what the others read is read in place."""
MOST_SPENT = 0.05
"""Seconds that an EXEC or a script may take up to its reads of files, all times together; then it reads in place."""
_ALWAYS = 1 << 62
"""More work than any threshold, so that a thread does it."""

Fetched = list[tuple[Place, bytes]]


class Foreseen(NamedTuple):
    """Offsets of streams that a command will probably read, and the most bytes of messages, if it says so.

    A script says which nodes instead (`Scripting.rehearse`).
    """

    ranges: list[tuple[Messages, Range]]
    max_bytes: int | None = None
    places: Sequence[Place] = ()


class Prefetched:
    """What was fetched for a command that runs others, until it has run. None for what is lost."""

    __slots__ = ("argv", "payloads", "room", "rounds", "spent")

    def __init__(self, argv: Argv) -> None:
        self.argv = argv
        self.payloads: dict[Identity, bytes | None] = {}
        self.room = MOST
        self.rounds = 0
        self.spent = 0.0  # seconds that it ran until it had to wait, of the loop

    @property
    def is_over(self) -> bool:
        """Whether the command may not wait once more."""
        return self.rounds >= ROUNDS or self.room <= 0 or self.spent >= MOST_SPENT

    def has(self, place: Place) -> bool:
        return _identity(place) in self.payloads


def with_history(session: Session, foreseen: Foreseen, read: Callable[[], Reply]) -> Reply:
    """Run a read of these offsets of streams, after the nodes that lie in files were fetched."""
    wanted = _wanted(foreseen)
    if not wanted:
        return read()
    begun = False
    payloads = session.fetched.payloads if session.fetched is not None else {}

    def commit(fetched: list[Fetched]) -> Reply:
        may_block = session.may_block
        with ExitStack() as stack:
            if begun:  # in the thread's wake; if what was there is gone by now, this answers as a timeout does
                session.may_block = False
                stack.callback(setattr, session, "may_block", may_block)
            for messages, found in zip(wanted, fetched, strict=True):
                stack.enter_context(with_fetched(messages, found))
            return read()

    reply = session.aside(_ALWAYS, lambda: [_fetch(places, payloads) for places in wanted.values()], commit, lock=False)
    begun = True
    return reply


def _wanted(foreseen: Foreseen, most: int = MOST) -> dict[Messages, list[Place]]:
    budget = most if foreseen.max_bytes is None else min(foreseen.max_bytes, most)
    wanted: dict[Messages, list[Place]] = {}
    for messages, (start, end) in foreseen.ranges:
        places = wanted_places(messages, start, end, budget)
        if places:
            wanted.setdefault(messages, []).extend(places)
    return wanted


def _identity(place: Place) -> Identity:
    segment, at = place
    return segment.identity(at)


def _fetch(places: Iterable[Place], payloads: dict[Identity, bytes | None]) -> Fetched:
    """Also in a thread: files never change. Those that were fetched before are not fetched again."""
    fetched: Fetched = []
    missing: list[Place] = []
    for place in places:
        payload = payloads.get(_identity(place))
        if payload is None:
            missing.append(place)
        else:
            fetched.append((place, payload))
    for segment, group in groupby(missing, key=itemgetter(0)):
        numbers = [place for _, place in group]
        fetched += zip([(segment, place) for place in numbers], segment.fetch(numbers), strict=True)
    return fetched


# -- EXEC and scripts -----------------------------------------------------------------------------------------


def may_fetch_first(session: Session, argv: Argv) -> bool:
    """Whether the command that runs can wait for a thread and be run again, and has not done so too often."""
    workers = session.engine.workers
    known = session.fetched
    return (
        workers.threshold <= _ALWAYS  # there are threads
        and session.may_block
        and session.waiter is None
        and session.later is None
        and session.current is not None
        and session.current[1] is argv  # else it is inside another one, which knows nothing of this
        and not session.engine.in_unit
        and (known is None or known.argv is not argv or not known.is_over)
    )


def read_from_files(session: Session, argv: Argv, commands: Iterable[tuple[Command, Argv]]) -> list[Place]:
    """The nodes in files that these commands will probably read, and that were not fetched yet for the one around them.

    `argv` are the words of that one.
    """
    engine = session.engine
    known = session.fetched if session.fetched is not None and session.fetched.argv is argv else Prefetched(argv)
    room = known.room
    if engine.keyspace.stream_storage.files is None:
        return []
    databases = TransactionDatabases(engine.keyspace, session.db)
    found: dict[Identity, Place] = {}
    until = monotonic() + REHEARSALS
    for command, words in commands:
        called, at = command.inside(words) or (command, 0)
        may_take_long = called.group == "scripting"
        if called.foresees is not None and room > 0 and not (may_take_long and monotonic() >= until):
            for place in _places(session, databases.current, called, words[at:], room):
                if not known.has(place) and _identity(place) not in found:
                    found[_identity(place)] = place
                    room -= place[0].raws[place[1]]
        databases.after(called.name, words[at:])
    return [*found.values()]


def _places(session: Session, database: Database, command: Command, argv: Argv, room: int) -> Iterable[Place]:
    assert command.foresees is not None
    with suppress(ReplyError):  # its handler will say what is wrong
        foreseen = command.foresees(session, database, argv)
        return [*foreseen.places, *(place for places in _wanted(foreseen, room).values() for place in places)]
    return []


def fetch_first(session: Session, argv: Argv, places: list[Place], began: float) -> Reply:
    """Have a thread fetch these, and then run the current command from the start.

    `began` says when it found out what it needs, by `monotonic`.
    """
    fetched = session.fetched
    if fetched is None or fetched.argv is not argv:
        fetched = session.fetched = Prefetched(argv)
    fetched.rounds += 1
    fetched.spent += monotonic() - began
    fetched.room -= sum(segment.raws[at] for segment, at in places)

    def keep(found: dict[Identity, bytes | None]) -> None:
        fetched.payloads.update(found)

    return session.engine.workers.prepare(session, lambda: fetch_what_is_there(places), keep)


def fetch_what_is_there(places: list[Place]) -> dict[Identity, bytes | None]:
    """In a thread. A file that is lost concerns the command that reads it, and no other."""
    found: dict[Identity, bytes | None] = dict.fromkeys(map(_identity, places))
    for _, group in groupby(places, key=itemgetter(0)):
        with suppress(MissingHistory):
            found.update((_identity(place), payload) for place, payload in _fetch(group, {}))
    return found
