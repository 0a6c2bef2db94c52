"""Consumer groups: who was given what, until when, and what was never acknowledged.

Pending messages are kept as leases, runs of offsets delivered together, so that reading a hundred and acknowledging
them costs the same as one: a lease in, a lease out. Acknowledging inside a lease splits it. Leases are sorted by offset
for acknowledgements and listings, and by retry and by expiry time to find what is due. No call looks at all of them.

Every change is a `Change` in absolute terms (position, leases with their times). `deliver` and `expire` hand it out to
be logged; `apply` makes it, both then and at a replay, where it must give the same state: no clock, no counting on.

Invariant: leases never overlap, and pending_count is the sum of their lengths. Ranges exclude their end.

Rejected: the RCP's list, in which one entry that is not due hides all behind it; a bitmap a range (a second structure
to keep, and per-message retry times do not fit in it); heaps of times, from which what was acknowledged is not taken
(2 to 4 us less a read and its acknowledgement, but with a million leases some call has to sweep a million stale times).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

from sortedcontainers import SortedDict, SortedList

from penstock.types.packing import CorruptValue, pack_many, unpack_many
from penstock.types.stream.log import Log
from penstock.types.stream.nodes import Range

_HEAD = struct.Struct("<qqI")
_LEASE = struct.Struct("<qqqqqII")
_NO_DEAD_LETTER = 0xFFFFFFFF


class Lease(NamedTuple):
    """Messages that were delivered together and wait to be acknowledged."""

    start: int
    end: int
    retry_at: int  # deliver again from then on
    expire_at: int  # give up from then on; 0 is never
    first_delivered: int
    attempts: int
    dead_letter: bytes | None  # the key that gets them when they expire


class Change(NamedTuple):
    """What happened to a group: drop `removed` from pending, put `leases` in, be at `position` with `lost` lost."""

    position: int
    lost: int
    removed: tuple[Range, ...] = ()
    leases: tuple[Lease, ...] = ()

    def encode(self) -> bytes:
        """
        >>> Change.decode(Change(7, 0, ((1, 3),), (Lease(3, 7, 50, 0, 40, 1, b"dead"),)).encode())
        Change(position=7, lost=0, removed=((1, 3),), leases=(Lease(start=3, end=7, retry_at=50, expire_at=0, first_delivered=40, attempts=1, dead_letter=b'dead'),))
        """
        names = list(dict.fromkeys(lease.dead_letter for lease in self.leases if lease.dead_letter is not None))
        places = {name: at for at, name in enumerate(names)}
        rows = b"".join(
            _LEASE.pack(*lease[:6], _NO_DEAD_LETTER if lease.dead_letter is None else places[lease.dead_letter])
            for lease in self.leases
        )
        head = _HEAD.pack(self.position, self.lost, len(self.removed))
        ranges = struct.pack(f"<{2 * len(self.removed)}q", *(bound for pair in self.removed for bound in pair))
        return pack_many([head + ranges, rows, *names])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What `encode` wrote; CorruptValue for anything else."""
        try:
            head, rows, *names = unpack_many(data)
            position, lost, count = _HEAD.unpack_from(head)
            if len(head) != _HEAD.size + 16 * count:
                raise CorruptValue("a group change's ranges do not fit its header")
            removed = tuple(struct.iter_unpack("<qq", head[_HEAD.size :]))
            leases = tuple(
                Lease._make((*row, None if name == _NO_DEAD_LETTER else names[name]))
                for *row, name in _LEASE.iter_unpack(rows)
            )
        except (struct.error, ValueError, IndexError) as error:
            raise CorruptValue(f"a group change is damaged: {error}") from error
        return cls(position, lost, removed, leases)


class Delivery(NamedTuple):
    """The answer to a group read: runs in the order of delivery, leases that expired, and the change to log."""

    runs: list[Range]
    expired: list[Lease]
    change: Change | None  # None when the read changed nothing


class Group:
    """One consumer group.

    >>> log, group = Log(), Group(1)
    >>> log.append_many(0, [b""] * 5, [b"entry"] * 5)
    1
    >>> group.deliver(log, now=1000, count=3, retry=(500, 0)).runs
    [(1, 4)]
    >>> group.ack([(2, 3)]), group.pending_count, group.lag(log), group.next_deadline()
    (1, 2, 2, 1500)
    """

    __slots__ = ("_expiries", "_retries", "leases", "lost", "pending_count", "position")

    def __init__(self, position: int) -> None:
        self.position = position  # the next offset to deliver as new
        self.lost = 0  # offsets that were gone before they could be delivered
        self.leases: SortedDict[int, Lease] = SortedDict()
        self.pending_count = 0
        self._retries: SortedList[tuple[int, int]] = SortedList()  # (retry_at, start) of every lease
        self._expiries: SortedList[tuple[int, int]] = SortedList()  # (expire_at, start) of those that expire

    # Reading.

    def deliver(
        self,
        log: Log,
        now: int,
        count: int,
        retry: tuple[int, int] | None = None,
        cap: int = 1000,
        max_bytes: int | None = None,
        dead_letter: bytes | None = None,
    ) -> Delivery:
        """Give out up to `count` messages: without `retry` new ones, acknowledged by this.

        With retry = (retry_ms, expire_ms, 0 for never): what expired is dropped, due retries come first, then new ones while
        fewer than `cap` are pending. A retry is never due in the millisecond of its delivery. Offsets whose message
        is gone, pending or new, are skipped and counted as lost. O((leases touched) log (leases)).
        """
        if retry is None:
            taken = log.take(self.position, count, max_bytes)
            if taken.next == self.position:
                return Delivery([], [], None)
            self.position = taken.next
            self.lost += taken.skipped
            return Delivery(taken.runs, [], Change(self.position, self.lost))
        before = (self.position, self.lost)
        retry_at = now + max(retry[0], 1)
        expired = self._drop_expired(now)
        removed: list[Range] = [(lease.start, lease.end) for lease in expired]
        self._drop_evicted(log.first, removed)
        leases, left_bytes = self._take_due(log, now, retry_at, count, max_bytes, removed)
        left = count - sum(lease.end - lease.start for lease in leases)
        if left > 0 and (left_bytes is None or left_bytes > 0):
            taken = log.take(self.position, min(left, cap - self.pending_count), left_bytes)
            self.position = taken.next
            self.lost += taken.skipped
            expire_at = now + retry[1] if retry[1] else 0
            for start, end in taken.runs:
                lease = Lease(start, end, retry_at, expire_at, now, 1, dead_letter)
                self._put(lease)
                leases.append(lease)
        if not leases and not removed and before == (self.position, self.lost):
            return Delivery([], [], None)
        change = Change(self.position, self.lost, tuple(removed), tuple(leases))
        return Delivery(_runs(leases), expired, change)

    def has_work(self, log: Log, now: int, retry: bool, cap: int = 1000) -> bool:
        """Whether `deliver` would do anything. O(1) amortised.

        It may only find that what there was is gone; the next time there is nothing then.
        """
        new = self.position <= log.last
        if not retry:
            return new
        deadline = self.next_deadline()
        return (
            (new and self.pending_count < cap)
            or (deadline is not None and deadline <= now)
            or (bool(self.leases) and self.leases.peekitem(0)[0] < log.first)
        )

    def _take_due(
        self, log: Log, now: int, retry_at: int, count: int, max_bytes: int | None, removed: list[Range]
    ) -> tuple[list[Lease], int | None]:
        """Lease again what is due, longest due first; answer the leases and what is left of the bytes."""
        leases: list[Lease] = []
        while count > 0 and self._retries and self._retries[0][0] <= now:
            due = self.leases[self._retries[0][1]]
            taken = log.take(due.start, count, max_bytes, due.end)
            at = due.start
            done = taken.next if taken.runs else due.end
            for start, end in [*taken.runs, (done, done)]:
                if at < start:
                    self.lost += self._drop(at, start)
                    removed.append((at, start))
                at = end
            for start, end in taken.runs:
                lease = due._replace(start=start, end=end, retry_at=retry_at, attempts=due.attempts + 1)
                self._put(lease)
                leases.append(lease)
                count -= end - start
            if max_bytes is not None:
                max_bytes -= taken.cost
                if max_bytes <= 0:
                    break
        return leases, max_bytes

    def _drop_evicted(self, first: int, removed: list[Range]) -> None:
        """Pending messages that were evicted can never be delivered: they must not fill the cap (redis#6199)."""
        if self.leases:
            start, _ = self.leases.peekitem(0)
            if start < first and (lost := self._drop(start, first)):
                self.lost += lost
                removed.append((start, first))

    def expire(self, now: int) -> tuple[list[Lease], Change | None]:
        """Drop what was given up on; answer it, for its dead letter keys, and the change to log. O(expired)."""
        expired = self._drop_expired(now)
        if not expired:
            return expired, None
        return expired, Change(self.position, self.lost, tuple((lease.start, lease.end) for lease in expired))

    def _drop_expired(self, now: int) -> list[Lease]:
        expired: list[Lease] = []
        while self._expiries and self._expiries[0][0] <= now:
            lease = self.leases[self._expiries[0][1]]
            self._drop(lease.start, lease.end)
            expired.append(lease)
        return expired

    # What clients say.

    def ack(self, ranges: Iterable[Range]) -> int:
        """Messages done with: no longer pending. Unknown offsets are ignored; answers how many were pending."""
        return sum([self._drop(start, end) for start, end in ranges])

    def nack(self, ranges: Iterable[Range], at: int) -> int:
        """Pending messages to be delivered again from a time on; answers how many. The ranges must not overlap."""
        count = 0
        for start, end in ranges:
            for lease in self.pending(start, end):
                self._put(lease._replace(retry_at=at))
                count += lease.end - lease.start
        return count

    def set_position(self, offset: int) -> None:
        """Deliver from there on; what is pending stays so."""
        self.position = offset

    def apply(self, change: Change) -> None:
        """Make a change that was logged."""
        for start, end in change.removed:
            self._drop(start, end)
        for lease in change.leases:
            self._put(lease)
        self.position = change.position
        self.lost = change.lost

    # What clients ask.

    def pending(self, start: int, end: int, count: int | None = None) -> list[Lease]:
        """The leases, or parts of them, between two offsets, up to `count` messages."""
        found = []
        for lease in self._overlapping(start, end):
            part = lease._replace(start=max(start, lease.start), end=min(end, lease.end))
            if count is not None:
                if count <= 0:
                    break
                part = part._replace(end=min(part.end, part.start + count))
                count -= part.end - part.start
            found.append(part)
        return found

    def lag(self, log: Log) -> int:
        """Messages not delivered yet, exactly (redis#13337, redis#13957): evicted and compacted ones do not count."""
        return log.count_from(self.position)

    @property
    def ack_floor(self) -> int:
        """Everything below was acknowledged, given up or lost."""
        return min(self.position, self.leases.peekitem(0)[0]) if self.leases else self.position

    def next_retry(self) -> int | None:
        return self._retries[0][0] if self._retries else None

    def next_deadline(self) -> int | None:
        """When next something falls due or expires: a blocked reader waits no longer. O(1)."""
        return min((times[0][0] for times in (self._retries, self._expiries) if times), default=None)

    # Leases.

    def _overlapping(self, start: int, end: int) -> Iterator[Lease]:
        if start >= end:
            return
        leases = self.leases
        at = leases.bisect_right(start) - 1
        if at >= 0:
            lease = leases.peekitem(at)[1]
            if lease.end > start and lease.start < end:
                yield lease
        for later in leases.irange(start, end, inclusive=(False, False)):
            yield leases[later]

    def _drop(self, start: int, end: int) -> int:
        """Take a range out of pending, cutting leases; answer how many messages were pending in it."""
        leases = self.leases
        lease = leases.get(start)
        if lease is not None and lease.end == end:  # as delivered: the common case
            self._remove(lease)
            self.pending_count -= end - start
            return end - start
        dropped = 0
        for lease in list(self._overlapping(start, end)):
            dropped += min(end, lease.end) - max(start, lease.start)
            if lease.start < start:
                leases[lease.start] = lease._replace(end=start)  # same start, same times
            else:
                self._remove(lease)
            if lease.end > end:
                self._insert(lease._replace(start=end))
        self.pending_count -= dropped
        return dropped

    def _put(self, lease: Lease) -> None:
        """Make a lease the only one of its offsets."""
        leases = self.leases
        if leases and lease.start < leases.peekitem(-1)[1].end:
            same = leases.get(lease.start)
            if same is not None and same.end == lease.end:
                self._remove(same)
                self.pending_count -= lease.end - lease.start
            else:
                self._drop(lease.start, lease.end)
        self._insert(lease)
        self.pending_count += lease.end - lease.start

    def _insert(self, lease: Lease) -> None:
        self.leases[lease.start] = lease
        self._retries.add((lease.retry_at, lease.start))
        if lease.expire_at:
            self._expiries.add((lease.expire_at, lease.start))

    def _remove(self, lease: Lease) -> None:
        del self.leases[lease.start]
        self._retries.remove((lease.retry_at, lease.start))
        if lease.expire_at:
            self._expiries.remove((lease.expire_at, lease.start))

    # The whole.

    def dump(self) -> bytes:
        """All of it, as the change that makes it from nothing."""
        return Change(self.position, self.lost, (), tuple(self.leases.values())).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        """What `dump` wrote; CorruptValue for anything else."""
        change = Change.decode(data)
        bounds = [bound for lease in change.leases for bound in (lease.start, lease.end)]
        disjoint = all(a < b for a, b in zip(bounds[::2], bounds[1::2], strict=True)) and bounds == sorted(bounds)
        if change.removed or not disjoint or any(lease.attempts < 1 for lease in change.leases):
            raise CorruptValue("a group's leases are out of order")
        group = cls(change.position)
        group.apply(change)
        return group

    def copy(self) -> Group:
        group = Group(self.position)
        group.apply(Change(self.position, self.lost, (), tuple(self.leases.values())))
        return group

    def size(self) -> int:
        """Bytes of memory, about."""
        return 400 + 450 * len(self.leases) + 70 * (len(self._retries) + len(self._expiries))

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        end = 0
        for start, lease in self.leases.items():
            assert start == lease.start < lease.end
            assert end <= start
            assert lease.attempts >= 1
            end = lease.end
        leases = list(self.leases.values())
        assert self.pending_count == sum(lease.end - lease.start for lease in leases)
        assert sorted((lease.retry_at, lease.start) for lease in leases) == list(self._retries)
        assert sorted((lease.expire_at, lease.start) for lease in leases if lease.expire_at) == list(self._expiries)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in order, each once.

    >>> merged([(5, 7), (1, 3), (2, 4), (4, 5)])
    [(1, 7)]
    """
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def _runs(leases: Iterable[Lease]) -> list[Range]:
    """The leases' ranges in order, neighbours joined."""
    runs: list[Range] = []
    for lease in leases:
        start = lease.start
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, lease.end))
    return runs
