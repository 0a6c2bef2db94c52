"""Leases: runs of offsets that were delivered together and wait to be acknowledged.

Kept by offset, for acknowledgements and listings (shelves.py), and found by retry and expiry time (shelf_times.py). No
call looks at all of them, and none pays for how many there are. So they lie on shelves of a hundred neighbours, in
arrays of numbers: objects are all over memory, and each takes 100 ns to come.

Ranges exclude their end.

Rejected: a tuple a lease in a dict a shelf, and a sorted set of the times of all leases (380 bytes a lease, here 68; a
TACK of some one offset takes 15 us of a million leases and 7 us of a thousand); one dict of lease objects (at a million
it moves all its entries when it grows, 24 ms, and the collector walks every object, over 100 ms).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain

from penstock.types.stream.nodes import Range
from penstock.types.stream.shelf import DELIVERED, END, NEVER, RETRY, TOKEN, WIDTH, Lease, Shelf
from penstock.types.stream.shelves import Shelves


class Leases:
    """The leases of a group.

    >>> leases = Leases()
    >>> leases.put(Lease(1, 10, 500, 0, 0, 1, None))
    >>> leases.drop(4, 6), leases.messages, [(lease.start, lease.end) for lease in leases]
    (2, 7, [(1, 4), (6, 10)])
    """

    __slots__ = ("_shelves",)

    def __init__(self) -> None:
        self._shelves = Shelves()

    @property
    def count(self) -> int:
        return self._shelves.count

    @property
    def messages(self) -> int:
        """The sum of their lengths."""
        return self._shelves.messages

    def __len__(self) -> int:
        return self._shelves.count

    def __iter__(self) -> Iterator[Lease]:
        return chain.from_iterable(shelf.leases(0, len(shelf.starts)) for shelf in self._shelves.all)

    def dead_letter_keys(self) -> set[bytes]:
        """The keys that get the messages of these leases when they expire. O(shelves) if there are none."""
        return set[bytes]().union(*(shelf.distinct_names() for shelf in self._shelves.all))

    # What is first. O(log (shelves)).

    @property
    def first_offset(self) -> int | None:
        return self._shelves.all[0].starts[0] if self._shelves.count else None

    def next_retry(self) -> int | None:
        return self._shelves.times.next_retry()

    def next_deadline(self) -> int | None:
        """When next something falls due or expires."""
        return self._shelves.times.next_deadline()

    def last_delivery(self) -> int:
        """When the newest of the leases was delivered for the first time, 0 if there are none. O(leases)."""
        return max([max(shelf.column(DELIVERED), default=0) for shelf in self._shelves.all])

    def next_free(self) -> int | None:
        """When the next lease falls due that was given back."""
        return self._shelves.times.next_free()

    def due(self, now: int, held_by: int | None = None) -> Lease | None:
        """The lease that is due for a retry longest. If a delivery holds it, it must be due at `held_by`, if given."""
        times = self._shelves.times
        if (first := times.first_due(now if held_by is None else held_by)) is not None:
            shelf = self._shelves.bound_at(first[1])
            return shelf.lease(shelf.column(RETRY).index(first[0]))
        if held_by is not None and (first := times.first_free(now)) is not None:
            shelf = self._shelves.bound_at(first[1])
            return shelf.lease(shelf.free_at(first[0]))
        return None

    def expired(self, now: int) -> Lease | None:
        """The lease that should have been given up first."""
        first = self._shelves.times.first_expired(now)
        if first is None:
            return None
        shelf = self._shelves.bound_at(first[1])
        return shelf.lease(shelf.ending_at(first[0]))

    def any_due(self, now: int, held_by: int) -> bool:
        """Whether something is due, or has expired at `held_by`."""
        times = self._shelves.times
        return (
            times.first_due(held_by) is not None
            or times.first_free(now) is not None
            or times.first_expired(held_by) is not None
        )

    # Ranges. O(log (leases)), and O(1) a shelf touched.

    def overlapping(self, start: int, end: int) -> Iterator[Lease]:
        """The leases that have offsets in a range; nothing may change while they are asked for."""
        if start >= end:
            return
        shelf, row = self._shelves.last_before(start)
        if shelf is not None and shelf.cells[row * WIDTH + END] > start:
            yield shelf.lease(row)
        for each, first, stop in self._shelves.between(start, end):
            yield from each.leases(first, stop)

    def _as_delivered(self, start: int, end: int, token: int) -> list[Range] | None:
        """The answer if the range is exactly one lease, which is the common case, or empty; None otherwise."""
        found = self._shelves.find(start, end)
        if found is None:
            return None if start < end else []
        at, row = found
        return [(start, end)] if self._shelves.all[at].cells[row * WIDTH + TOKEN] == token else []

    def held(self, start: int, end: int, token: int) -> list[Range]:
        """The parts of a range that are leased under a token, neighbours joined. O(leases in the range)."""
        if (whole := self._as_delivered(start, end, token)) is not None:
            return whole
        shelves = self._shelves
        runs: list[Range] = []
        shelf, row = shelves.last_before(start)
        if shelf is not None:
            stop, cells = shelf.cells[row * WIDTH + END], shelf.cells
            if stop > start and cells[row * WIDTH + TOKEN] == token:
                runs.append((start, min(stop, end)))
        for shelf, first, last in shelves.between(start, end):
            for begin, stop, held in zip(
                shelf.starts[first:last], shelf.column(END, first, last), shelf.column(TOKEN, first, last), strict=True
            ):
                if held == token:
                    if runs and runs[-1][1] == begin:
                        begin = runs.pop()[0]
                    runs.append((begin, min(stop, end)))
        return runs

    def spans(self, start: int, end: int, token: int) -> list[Range]:
        """Ranges with all that is leased under a token in a range, and with no other lease; they may have gaps.

        What is done with them costs the same however many leases there are between two of another delivery. O(1) a
        shelf that has one token, and O(leases) of others.
        """
        if (whole := self._as_delivered(start, end, token)) is not None:
            return whole
        shelves = self._shelves
        spans: list[Range] = []
        is_open = False  # no lease of another delivery came since the last one
        shelf, row = shelves.last_before(start)
        if shelf is not None and (stop := shelf.cells[row * WIDTH + END]) > start:
            is_open = shelf.cells[row * WIDTH + TOKEN] == token
            spans += [(start, min(stop, end))] if is_open else []
        for shelf, first, last in shelves.between(start, end):
            tokens = shelf.column(TOKEN, first, last)
            rows: Iterable[tuple[int, int, int]] = zip(
                shelf.starts[first:last], shelf.column(END, first, last), tokens, strict=True
            )
            if tokens.count(tokens[0]) == len(tokens):
                rows = [(shelf.starts[first], shelf.cells[(last - 1) * WIDTH + END], tokens[0])]
            for begin, stop, held in rows:
                if held == token:
                    spans.append((spans.pop()[0] if is_open else begin, min(stop, end)))
                is_open = held == token
        return spans

    def drop(self, start: int, end: int) -> int:
        """Take a range out, cutting leases; answer how many messages were pending in it."""
        shelves = self._shelves
        found = shelves.find(start, end)
        if found is not None:  # as delivered: the common case
            shelves.remove(*found)
            return end - start
        if start >= end:
            return 0
        shelves.part(start)
        shelves.part(end)
        before = shelves.messages
        shelves.remove_range(start, end)
        return before - shelves.messages

    def drop_before(self, end: int, limit: int) -> tuple[int, int] | None:
        """Take out what is before an offset, of at most so many leases; answer the range that has none any more.

        None if there was nothing before it.
        """
        start = self.first_offset
        if start is None or start >= end:
            return None
        self.drop(start, min(end, self._shelves.start_after(limit)))
        rest = self.first_offset
        return start, end if rest is None else min(rest, end)

    def postpone(self, start: int, end: int, retry_at: int, give_back: bool = False) -> int:
        """Have a range delivered again at a time, cutting leases; answer how many messages were pending in it.

        `give_back` takes it from the delivery that holds it.
        """
        if start >= end:
            return 0
        shelves, times = self._shelves, self._shelves.times
        if (found := shelves.find(start, end)) is not None:  # as delivered: the common case
            at, row = found
            shelf = shelves.all[at]
            times.leave(shelf, row)
            shelf.cells[row * WIDTH + RETRY] = retry_at
            if give_back:
                shelf.cells[row * WIDTH + TOKEN] = 0
            times.come(shelf, shelf.lease(row))
            return end - start
        shelves.part(start)
        shelves.part(end)
        messages = 0
        whole: list[Shelf] = []
        for shelf, first, stop in shelves.between(start, end):
            shelf.cells[first * WIDTH + RETRY : stop * WIDTH : WIDTH] = array("q", (retry_at,)) * (stop - first)
            if give_back:
                shelf.cells[first * WIDTH + TOKEN : stop * WIDTH : WIDTH] = array("q", (0,)) * (stop - first)
            if stop - first == len(shelf.starts) and not shelf.limited:
                whole.append(shelf)
                messages += shelf.messages
            else:
                messages += shelf.length(first, stop)
                expiry = min(shelf.expiry, retry_at) if shelf.limited else shelf.expiry
                free = min(shelf.free, retry_at) if give_back or shelf.free != NEVER else NEVER
                times.set(shelf, min(shelf.retry, retry_at), expiry, free)
                times.mark(shelf)
        times.postpone(whole, retry_at, give_back)
        return messages

    def begin(self, start: int, end: int, now: int) -> None:
        """Count an attempt for what is reserved in a range, cutting leases, and start the time to its expiry."""
        if start >= end:
            return
        shelves = self._shelves
        if (found := shelves.find(start, end)) is not None:  # as delivered: the common case
            at, row = found
            lease = shelves.all[at].lease(row)
            if lease.reserved:
                shelves.replace(at, row, lease.begun(now))
            return
        shelves.part(start)
        shelves.part(end)
        for lease in [lease for lease in self.overlapping(start, end) if lease.reserved]:
            self.put(lease.begun(now))

    def put(self, lease: Lease) -> None:
        """Make a lease the only one of its offsets."""
        shelves = self._shelves
        if lease.start < shelves.end:
            found = shelves.find(lease.start, lease.end)
            if found is not None:  # given out again as it was
                shelves.replace(*found, lease)
                return
            self.drop(lease.start, lease.end)
        shelves.insert(lease)

    # The whole.

    def copy(self) -> Leases:
        """An equal one. A thread may make it while others ask what is first."""
        leases = Leases()
        leases._shelves = self._shelves.copy()
        return leases

    def size(self) -> int:
        """Bytes of memory, about."""
        return 600 + 68 * self._shelves.count + 900 * len(self._shelves.all)

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        self._shelves.check()
