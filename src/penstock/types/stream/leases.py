"""Leases: runs of offsets that were delivered together and wait to be acknowledged.

Kept by offset, for acknowledgements and listings (lease_chunks.py), and found by retry and expiry time
(lease_due_times.py). No call looks at all of them, and none pays for how many there are. So they lie in chunks of a
hundred neighbours, in arrays of numbers: objects are all over memory, and each takes 100 ns to come.

Ranges exclude their end.

Rejected: a tuple a lease in a dict a chunk, and a sorted set of the times of all leases (380 bytes a lease, here 68; a
TACK of some one offset takes 15 us of a million leases and 7 us of a thousand); one dict of lease objects (at a million
it moves all its entries when it grows, 24 ms, and the collector walks every object, over 100 ms).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain

from penstock.types.stream.lease_chunk import DELIVERED, END, NEVER, RETRY, TOKEN, WIDTH, Lease, LeaseChunk
from penstock.types.stream.lease_chunks import LeaseChunks
from penstock.types.stream.nodes import Range


class Leases:
    """The leases of a group.

    >>> leases = Leases()
    >>> leases.put(Lease(1, 10, 500, 0, 0, 1, None))
    >>> leases.drop(4, 6), leases.messages, [(lease.start, lease.end) for lease in leases]
    (2, 7, [(1, 4), (6, 10)])
    """

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks = LeaseChunks()

    @property
    def count(self) -> int:
        return self._chunks.count

    @property
    def messages(self) -> int:
        """The sum of their lengths."""
        return self._chunks.messages

    def __len__(self) -> int:
        return self._chunks.count

    def __iter__(self) -> Iterator[Lease]:
        return chain.from_iterable(chunk.leases(0, len(chunk.starts)) for chunk in self._chunks.all)

    def dead_letter_keys(self) -> set[bytes]:
        """The keys that get the messages of these leases when they expire. O(chunks) if there are none."""
        return set[bytes]().union(*(chunk.distinct_names() for chunk in self._chunks.all))

    # What is first. O(log (chunks)).

    @property
    def first_offset(self) -> int | None:
        return self._chunks.all[0].starts[0] if self._chunks.count else None

    def next_retry(self) -> int | None:
        return self._chunks.times.next_retry()

    def next_deadline(self) -> int | None:
        """When next something falls due or expires."""
        return self._chunks.times.next_deadline()

    def last_delivery(self) -> int:
        """When the newest of the leases was delivered for the first time, 0 if there are none. O(leases)."""
        return max([max(chunk.column(DELIVERED), default=0) for chunk in self._chunks.all])

    def next_free(self) -> int | None:
        """When the next lease falls due that was given back."""
        return self._chunks.times.next_free()

    def due(self, now: int, held_by: int | None = None) -> Lease | None:
        """The lease that is due for a retry longest. If a delivery holds it, it must be due at `held_by`, if given."""
        times = self._chunks.times
        if (first := times.first_due(now if held_by is None else held_by)) is not None:
            chunk = self._chunks.bound_at(first[1])
            return chunk.lease(chunk.column(RETRY).index(first[0]))
        if held_by is not None and (first := times.first_free(now)) is not None:
            chunk = self._chunks.bound_at(first[1])
            return chunk.lease(chunk.free_at(first[0]))
        return None

    def expired(self, now: int) -> Lease | None:
        """The lease that should have been given up first."""
        first = self._chunks.times.first_expired(now)
        if first is None:
            return None
        chunk = self._chunks.bound_at(first[1])
        return chunk.lease(chunk.ending_at(first[0]))

    def any_due(self, now: int, held_by: int) -> bool:
        """Whether something is due, or has expired at `held_by`."""
        times = self._chunks.times
        return (
            times.first_due(held_by) is not None
            or times.first_free(now) is not None
            or times.first_expired(held_by) is not None
        )

    # Ranges. O(log (leases)), and O(1) a chunk touched.

    def overlapping(self, start: int, end: int) -> Iterator[Lease]:
        """The leases that have offsets in a range; nothing may change while they are asked for."""
        if start >= end:
            return
        chunk, row = self._chunks.last_before(start)
        if chunk is not None and chunk.cells[row * WIDTH + END] > start:
            yield chunk.lease(row)
        for each, first, stop in self._chunks.between(start, end):
            yield from each.leases(first, stop)

    def _as_delivered(self, start: int, end: int, token: int) -> list[Range] | None:
        """The answer if the range is exactly one lease, which is the common case, or empty; None otherwise."""
        found = self._chunks.find(start, end)
        if found is None:
            return None if start < end else []
        at, row = found
        return [(start, end)] if self._chunks.all[at].cells[row * WIDTH + TOKEN] == token else []

    def held(self, start: int, end: int, token: int) -> list[Range]:
        """The parts of a range that are leased under a token, neighbours joined. O(leases in the range)."""
        if (whole := self._as_delivered(start, end, token)) is not None:
            return whole
        chunks = self._chunks
        runs: list[Range] = []
        chunk, row = chunks.last_before(start)
        if chunk is not None:
            stop, cells = chunk.cells[row * WIDTH + END], chunk.cells
            if stop > start and cells[row * WIDTH + TOKEN] == token:
                runs.append((start, min(stop, end)))
        for chunk, first, last in chunks.between(start, end):
            for begin, stop, held in zip(
                chunk.starts[first:last], chunk.column(END, first, last), chunk.column(TOKEN, first, last), strict=True
            ):
                if held == token:
                    if runs and runs[-1][1] == begin:
                        begin = runs.pop()[0]
                    runs.append((begin, min(stop, end)))
        return runs

    def spans(self, start: int, end: int, token: int) -> list[Range]:
        """Ranges with all that is leased under a token in a range, and with no other lease; they may have gaps.

        What is done with them costs the same however many leases there are between two of another delivery. O(1) a
        chunk that has one token, and O(leases) of others.
        """
        if (whole := self._as_delivered(start, end, token)) is not None:
            return whole
        chunks = self._chunks
        spans: list[Range] = []
        is_open = False  # no lease of another delivery came since the last one
        chunk, row = chunks.last_before(start)
        if chunk is not None and (stop := chunk.cells[row * WIDTH + END]) > start:
            is_open = chunk.cells[row * WIDTH + TOKEN] == token
            spans += [(start, min(stop, end))] if is_open else []
        for chunk, first, last in chunks.between(start, end):
            tokens = chunk.column(TOKEN, first, last)
            rows: Iterable[tuple[int, int, int]] = zip(
                chunk.starts[first:last], chunk.column(END, first, last), tokens, strict=True
            )
            if tokens.count(tokens[0]) == len(tokens):
                rows = [(chunk.starts[first], chunk.cells[(last - 1) * WIDTH + END], tokens[0])]
            for begin, stop, held in rows:
                if held == token:
                    spans.append((spans.pop()[0] if is_open else begin, min(stop, end)))
                is_open = held == token
        return spans

    def drop(self, start: int, end: int) -> int:
        """Take a range out, cutting leases; answer how many messages were pending in it."""
        chunks = self._chunks
        found = chunks.find(start, end)
        if found is not None:  # as delivered: the common case
            chunks.remove(*found)
            return end - start
        if start >= end:
            return 0
        chunks.part(start)
        chunks.part(end)
        before = chunks.messages
        chunks.remove_range(start, end)
        return before - chunks.messages

    def drop_before(self, end: int, limit: int) -> tuple[int, int] | None:
        """Take out what is before an offset, of at most so many leases; answer the range that has none any more.

        None if there was nothing before it.
        """
        start = self.first_offset
        if start is None or start >= end:
            return None
        self.drop(start, min(end, self._chunks.start_after(limit)))
        rest = self.first_offset
        return start, end if rest is None else min(rest, end)

    def postpone(self, start: int, end: int, retry_at: int, give_back: bool = False) -> int:
        """Have a range delivered again at a time, cutting leases; answer how many messages were pending in it.

        `give_back` takes it from the delivery that holds it.
        """
        if start >= end:
            return 0
        chunks, times = self._chunks, self._chunks.times
        if (found := chunks.find(start, end)) is not None:  # as delivered: the common case
            at, row = found
            chunk = chunks.all[at]
            times.leave(chunk, row)
            chunk.cells[row * WIDTH + RETRY] = retry_at
            if give_back:
                chunk.cells[row * WIDTH + TOKEN] = 0
            times.come(chunk, chunk.lease(row))
            return end - start
        chunks.part(start)
        chunks.part(end)
        messages = 0
        whole: list[LeaseChunk] = []
        for chunk, first, stop in chunks.between(start, end):
            chunk.cells[first * WIDTH + RETRY : stop * WIDTH : WIDTH] = array("q", (retry_at,)) * (stop - first)
            if give_back:
                chunk.cells[first * WIDTH + TOKEN : stop * WIDTH : WIDTH] = array("q", (0,)) * (stop - first)
            if stop - first == len(chunk.starts) and not chunk.limited:
                whole.append(chunk)
                messages += chunk.messages
            else:
                messages += chunk.length(first, stop)
                expiry = min(chunk.expiry, retry_at) if chunk.limited else chunk.expiry
                free = min(chunk.free, retry_at) if give_back or chunk.free != NEVER else NEVER
                times.set(chunk, min(chunk.retry, retry_at), expiry, free)
                times.mark(chunk)
        times.postpone(whole, retry_at, give_back)
        return messages

    def begin(self, start: int, end: int, now: int) -> None:
        """Count an attempt for what is reserved in a range, cutting leases, and start the time to its expiry."""
        if start >= end:
            return
        chunks = self._chunks
        if (found := chunks.find(start, end)) is not None:  # as delivered: the common case
            at, row = found
            lease = chunks.all[at].lease(row)
            if lease.reserved:
                chunks.replace(at, row, lease.begun(now))
            return
        chunks.part(start)
        chunks.part(end)
        for lease in [lease for lease in self.overlapping(start, end) if lease.reserved]:
            self.put(lease.begun(now))

    def put(self, lease: Lease) -> None:
        """Make a lease the only one of its offsets."""
        chunks = self._chunks
        if lease.start < chunks.end:
            found = chunks.find(lease.start, lease.end)
            if found is not None:  # given out again as it was
                chunks.replace(*found, lease)
                return
            self.drop(lease.start, lease.end)
        chunks.insert(lease)

    # The whole.

    def copy(self) -> Leases:
        """An equal one. A thread may make it while others ask what is first."""
        leases = Leases()
        leases._chunks = self._chunks.copy()
        return leases

    def size(self) -> int:
        """Bytes of memory, about."""
        return 600 + 68 * self._chunks.count + 900 * len(self._chunks.all)

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        self._chunks.check()
