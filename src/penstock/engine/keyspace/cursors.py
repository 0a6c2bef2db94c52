"""The cursors of SCAN, HSCAN, SSCAN and ZSCAN.

A name's place in an iteration is the CRC-32 of the name, and a cursor says "every place before this one is done". So
what was promised does not depend on anything the server remembers: a name that is present from the start of an
iteration to its end keeps its place, and the iteration passes that place once, whatever comes and goes meanwhile.
An iteration moves forward at every call, so it ends. Cursors outlive a restart, and no client can make one leak.

Finding the names of a stretch of places takes a pass over the whole collection. A pass therefore fetches a window of
thousands of names in order of place, and the calls that follow are served from it. Windows are only a cache: when
one was dropped, the next call makes a new one from the cursor's place on. A cursor carries the number of its window
because a window must not serve an iteration that began after it was made: it lacks the names added in between. That
numbers are used again does no harm, as the table then holds the newer window of the two.

    cursor = place * 2**20 + window number     52 bits: exact in a double too, which is what some clients read it into

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
from zlib import crc32

from penstock.engine.arguments import to_integer
from penstock.engine.declarations import Argv
from penstock.engine.globs import Predicate, compile_glob
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.types.kernels import sort

PLACES = 1 << 32
WINDOW_NUMBERS = 1 << 20
MAX_CURSOR = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Window:
    """The names of the places from `start` up to, not including, `end`, in order of place."""

    owner: Hashable
    start: int
    end: int
    names: list[bytes]


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
    at_once: bool = False  # the answer is all names, in any order
    window: Window | None = None  # None if a pass is needed
    number: int = 0

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

    def __init__(self, max_windows: int = 64, max_names: int = 1 << 20, window_size: int = 1 << 16) -> None:
        self.max_windows = max_windows  # kept, the least recently used is dropped first
        self.max_names = max_names  # in all windows kept, unless a single one is larger
        self.window_size = window_size  # names a pass should fetch; an eighth of the collection if that is more
        self.names_kept = 0
        self._windows: OrderedDict[int, Window] = OrderedDict()  # by number, the least recently used first
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._windows)

    def scan(
        self, owner: Hashable, cursor: int, count: int, names: Callable[[], Iterable[bytes]], size: int
    ) -> tuple[int, list[bytes]]:
        """The next cursor, 0 at the end, and about `count` names that are or were there a short while ago.

        O(count) from a window, O(N) for each pass over the collection: one in 65,536 names, at most nine an iteration
        of a collection that does not grow. `owner` tells collections apart: (database number, key), or the database
        number alone. `names()` gives all names now; it is called when a pass is needed. `size` is about their number.

        >>> Cursors().scan("pets", 0, 10, lambda: [b"cat", b"dog"], size=2)
        (0, [b'cat', b'dog'])
        """
        step = self.begin(owner, cursor, count, size)
        found = step.find(names)
        return self.end(step, found), list(found.names)

    def begin(self, owner: Hashable, cursor: int, count: int, size: int) -> Step:
        """What the next answer of an iteration takes."""
        place, number = divmod(cursor, WINDOW_NUMBERS)
        place = min(place, PLACES)
        # A sixteenth more than a large COUNT is answered at once too: to leave a few out would take a sort of all
        # places.
        if cursor == 0 and count >= (size if count < self.window_size else size - size // 16):
            return Step(owner, 0, PLACES, count, size, at_once=True)
        window = self._windows.get(number) if place else None
        if window is not None and window.owner == owner and window.start <= place < window.end:
            self._windows.move_to_end(number)
            return Step(owner, place, window.end, count, min(count, size), window=window, number=number)
        wanted = max(count, self.window_size, size // 8)
        end = PLACES if wanted >= size else min(PLACES, place + PLACES * wanted // size)
        return Step(owner, place, end, count, size)

    def end(self, step: Step, found: Found) -> int:
        """The cursor for the next call, 0 at the end; its window is kept."""
        if found.window is None:
            return 0
        number = step.number if step.window is not None else self._open(found.window)
        if found.last < len(found.window.names):
            return found.place * WINDOW_NUMBERS + number
        if self._windows.get(number) is found.window:
            self._drop(number)
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

    def _open(self, window: Window) -> int:
        """Keep a window, and drop others to make room for it; its number."""
        number = self._last_number = (self._last_number + 1) % WINDOW_NUMBERS
        self._drop(number)
        self._windows[number] = window
        self.names_kept += len(window.names)
        while len(self._windows) > self.max_windows or (self.names_kept > self.max_names and len(self._windows) > 1):
            self._drop(next(iter(self._windows)))
        return number

    def _drop(self, number: int) -> None:
        window = self._windows.pop(number, None)
        if window is not None:
            self.names_kept -= len(window.names)


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
