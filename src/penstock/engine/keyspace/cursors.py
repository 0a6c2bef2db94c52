"""The cursors of SCAN, HSCAN, SSCAN and ZSCAN.

A name's place in an iteration is the CRC-32 of the name, and a cursor says "every place before this one is done". So
what was promised does not depend on anything the server remembers: a name that is present from the start of an
iteration to its end keeps its place, and the iteration passes that place once, whatever comes and goes meanwhile.
An iteration moves forward at every call, so it ends. Cursors outlive a restart, and no client can make one leak.

Finding the names of a stretch of places takes a pass over the whole collection. A pass therefore fetches a window of
thousands of names in order of place, and the calls that follow are served from it. Windows are only a cache: when
one was dropped, the next call makes a new one from the cursor's place on.

A window must not serve an iteration that began after its pass did: it lacks the names added in between. So passes are
numbered as they begin, and a cursor carries the number of the window that it came from. That window serves it, and any
newer one of the same collection, which has all names that were there when the iteration began. So many iterations of
one collection share their windows.

    cursor = place * 2**20 + number % 2**20     52 bits: exact in a double too, which is what some clients read it into

Of the numbers that a cursor may mean the last one that was given counts: that is the window it came from, or a newer
one. Numbers begin anywhere and cursors of old ones get a pass of their own, because a cursor may come from a server
whose place this one has taken: windows here may be older than its iteration.

Windows share a number of names. When it is reached, the largest is halved, so that iterations side by side get shorter
windows instead of a pass for each call. The first windows of an iteration are small, so that clients that only begin
iterations take little from those that go on.

What comes back are names that were there when the window was made; the caller looks each up and passes over the dead.

A pass over a million names takes longer than others should wait. So a call has three parts: `begin` says what there is
to do, `Step.find` does it in any thread, and `end` keeps the window and gives the next cursor. `scan` is all three.

Rejected: positions in a snapshot of the names. It is quicker to take, but once snapshots are dropped under pressure
their iterations start over, and enough clients that scan at once would start each other over for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from random import randrange
from zlib import crc32

from penstock.engine.arguments import to_integer
from penstock.engine.declarations import Argv
from penstock.engine.globs import Predicate, compile_glob
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.types.kernels import sort

PLACES = 1 << 32
WINDOW_NUMBERS = 1 << 20
RECENT = 1 << 16  # numbers of windows that a cursor may name
STALE = 1 << 12  # calls after which a window that none of them used is dropped, if room is needed
MAX_CURSOR = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class Window:
    """The names of the places from `start` up to, not including, `end`, in order of place.

    Threads read these four, which do not change. The loop thread owns the others.
    """

    owner: Hashable
    start: int
    end: int
    names: list[bytes]
    reached: int = 0  # the place behind the last answer
    used: int = 0  # the number of the last call
    users: int = 1  # iterations whose cursors carry its number

    def covers(self, owner: Hashable, place: int) -> bool:
        return self.start <= place < self.end and self.owner == owner

    def half(self) -> Window | None:
        """Half of its names, from the place that was reached on; None if that is nothing."""
        first = bisect_left(self.names, self.reached, key=crc32)
        last, end = first + len(self.names) // 2, self.end
        if last < len(self.names):
            end = crc32(self.names[last])
            last = bisect_left(self.names, end, key=crc32)  # names that share a place stay together
        if last <= first:
            return None
        return Window(self.owner, self.reached, end, self.names[first:last], self.reached, self.used, self.users)


@dataclass(frozen=True, slots=True)
class Found:
    """What a step found: the names, which are those of a window up to number `last`, and the place behind them.

    There is no window if they are all there are, and they are those of the collection itself then.
    """

    names: Iterable[bytes]
    window: Window | None = None
    last: int = 0
    place: int = PLACES


@dataclass(frozen=True, slots=True)
class Step:
    """One call of an iteration; it does not depend on what else the server does."""

    owner: Hashable
    place: int
    stop: int  # the end of the window
    count: int
    work: int  # about how many names it looks at
    number: int = 0  # of the window
    at_once: bool = False  # the answer is all names, in any order
    window: Window | None = None  # None if a pass is needed

    def find(self, names: Callable[[], Iterable[bytes]]) -> Found:
        """The names of the answer. `names` gives all that are there, which must not change while a thread does this."""
        if self.at_once:
            return Found(names())
        window = self.window or Window(self.owner, self.place, self.stop, self._pass(names()))
        inside = window.names
        first = bisect_left(inside, self.place, key=crc32)
        last = first + self.count
        place = self.stop
        if last < len(inside):
            # Names that share a place cannot be told apart by a cursor: they go together.
            place = crc32(inside[last - 1]) + 1
            last = bisect_left(inside, place, last, key=crc32)
        return Found(inside[first:last], window, last, place)

    def _pass(self, names: Iterable[bytes]) -> list[bytes]:
        """The names of the window, in order of place."""
        start, stop = self.place, self.stop
        rows = ((at, name) for name in names if start <= (at := crc32(name)) < stop)
        return [name for run in sort(rows, hint=itemgetter(0)) for _, name in run]


class Cursors:
    """All iterations under way. Owned by the loop thread."""

    def __init__(self, max_windows: int = 256, max_names: int = 1 << 20, window_size: int = 1 << 16) -> None:
        self.max_windows = max_windows  # kept, the least recently used is dropped first
        self.max_names = max_names  # in all windows kept, unless a single one is larger
        self.window_size = window_size  # names a pass should fetch; an eighth of the collection if that is more
        self.names_kept = 0
        self._windows: OrderedDict[int, Window] = OrderedDict()  # by number, the least recently used first
        self._last_number = randrange(WINDOW_NUMBERS)
        self._calls = 0

    def __len__(self) -> int:
        return len(self._windows)

    def scan(
        self, owner: Hashable, cursor: int, count: int, names: Callable[[], Iterable[bytes]], size: int
    ) -> tuple[int, list[bytes]]:
        """The next cursor, 0 at the end, and about `count` names that are or were there a short while ago.

        O(count) from a window, O(N) for each pass over the collection. A pass fetches 65,536 names, the first three
        fewer, so an iteration of a collection that does not grow takes twelve passes at most. Iterations side by side
        over different collections share the names kept: with 60 of them a pass fetches 17,000 names at least, with 256
        4096. `owner` tells collections apart: (database number, key), or the database number alone. `names()` gives
        all names now; it is called when a pass is needed. `size` is about their number.

        >>> Cursors().scan("pets", 0, 10, lambda: [b"cat", b"dog"], size=2)
        (0, [b'cat', b'dog'])
        """
        step = self.begin(owner, cursor, count, size)
        found = step.find(names)
        return self.end(step, found), list(found.names)

    def begin(self, owner: Hashable, cursor: int, count: int, size: int) -> Step:
        """What the next answer of an iteration takes."""
        # A sixteenth more than a large COUNT is answered at once too: to leave a few out would take a sort of all
        # places.
        if cursor == 0 and count >= (size if count < self.window_size else size - size // 16):
            return Step(owner, 0, PLACES, count, size, at_once=True)
        self._calls += 1
        place, number = divmod(cursor, WINDOW_NUMBERS)
        place = min(place, PLACES)
        age = (self._last_number - number) % WINDOW_NUMBERS
        serving = self._serving(owner, place, self._last_number - age) if place and age < RECENT else None
        if serving is not None:
            window = self._windows[serving]
            window.used = self._calls
            self._windows.move_to_end(serving)
            return Step(owner, place, window.end, count, min(count, size), serving, window=window)
        most = max(self.window_size, size // 8)
        first = max(self.window_size // 32, 32 * count)
        wanted = max(count, self._granted(min(most, max(first, 3 * size * place // PLACES))))
        end = PLACES if wanted >= size else min(PLACES, place + PLACES * wanted // size)
        self._last_number += 1
        return Step(owner, place, end, count, size, self._last_number)

    def end(self, step: Step, found: Found) -> int:
        """The cursor for the next call, 0 at the end; its window is kept."""
        window = found.window
        if window is None:
            return 0
        number = step.number % WINDOW_NUMBERS
        if found.last < len(window.names):
            window.reached = found.place
            if step.window is None:
                self._keep(step.number, window)
            return found.place * WINDOW_NUMBERS + number
        kept = self._windows.get(step.number)
        if kept is not None:
            kept.users -= 1
            if kept.users == 0:
                self._drop(step.number)
        return step.stop * WINDOW_NUMBERS + number if step.stop < PLACES else 0

    def check(self) -> None:
        """Assert every invariant; for tests."""
        assert self.names_kept == sum(len(window.names) for window in self._windows.values())
        assert len(self._windows) <= self.max_windows
        assert self.names_kept <= self.max_names or len(self._windows) == 1
        for window in self._windows.values():
            places = [crc32(name) for name in window.names]
            assert places == sorted(places), window
            assert all(window.start <= place < window.end for place in places), window

    def _serving(self, owner: Hashable, place: int, number: int) -> int | None:
        """The number of the window for a cursor that carries `number`: this one, or a newer one that reaches far."""
        window = self._windows.get(number)
        if window is not None and window.covers(owner, place):
            return number
        newer = [
            (window.end, other)
            for other, window in self._windows.items()
            if other > number and window.covers(owner, place)
        ]
        if not newer:
            return None
        _, found = max(newer)
        self._windows[found].users += 1
        return found

    def _granted(self, wanted: int) -> int:
        """How many names a new window may have: what is free, or an equal share of all."""
        while self._windows and self.names_kept + wanted > self.max_names:
            number, window = next(iter(self._windows.items()))
            if self._calls - window.used <= STALE:
                return min(wanted, max(self.max_names - self.names_kept, self.max_names // (len(self._windows) + 1)))
            self._drop(number)
        return wanted

    def _keep(self, number: int, window: Window) -> None:
        """Keep a window, and make room for it."""
        window.used = self._calls
        self._windows[number] = window
        self.names_kept += len(window.names)
        while len(self._windows) > self.max_windows:
            self._drop(next(iter(self._windows)))
        while self.names_kept > self.max_names and len(self._windows) > 1:
            number, largest = max(self._windows.items(), key=lambda item: len(item[1].names))
            half = largest.half()
            if half is None:
                self._drop(number)
            else:
                self._windows[number] = half
                self.names_kept -= len(largest.names) - len(half.names)

    def _drop(self, number: int) -> None:
        self.names_kept -= len(self._windows.pop(number).names)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """`[MATCH pattern] [COUNT count] [TYPE type]`, the last one for SCAN only."""

    matches: Predicate | None = None  # None: every name does
    count: int = 10
    type_name: bytes | None = None

    @classmethod
    def parse(cls, argv: Argv, first: int, with_type: bool = False) -> ScanOptions:
        """The options in argv from number `first` on."""
        matches: Predicate | None = None
        count = 10
        type_name: bytes | None = None
        for at in range(first, len(argv), 2):
            option = argv[at].upper()
            if at + 1 == len(argv):
                raise syntax_error()
            value = argv[at + 1]
            if option == b"COUNT":
                count = to_integer(value)
                if count < 1:
                    raise syntax_error()
            elif option == b"MATCH":
                matches = compile_glob(value) if value != b"*" else None
            elif option == b"TYPE" and with_type:
                type_name = value.lower()
            else:
                raise syntax_error()
        return cls(matches, count, type_name)


def to_cursor(raw: bytes) -> int:
    """A cursor a client sent; any number that fits 64 bits is one.

    >>> to_cursor(b"42")
    42
    """
    digits = raw[1:] if raw[:1] in (b"+", b"-") else raw
    if not digits.isdigit() or len(digits) > 20 or int(digits) > MAX_CURSOR:
        if not raw:
            return 0
        raise ReplyError("invalid cursor")
    return int(raw) & MAX_CURSOR
