"""Consumer groups: which messages were delivered, until when, and which were never acknowledged.

Pending messages are kept as leases, runs of offsets delivered together, so that reading and acknowledging a hundred
costs the same as one: one lease is added and removed. Acknowledging inside a lease splits it. leases.py finds leases by
offset and by time. No call visits all of them: those that expired or were evicted are dropped in slices.

Every delivery has a token, a number that grows and that the group never repeats. Its leases carry it, so that a member
whose messages were delivered to another one since changes nothing that is not its own any more. A message that is
reserved is delivered, but not begun: its attempts and the time to its expiry do not count yet.

Every change is a `Change` in absolute terms (changes.py). `deliver` and `expire` return it to be logged; `apply` makes
it, both then and at a replay, where it must give the same state. So it depends on no clock and no counter.

Ranges exclude their end.

Rejected: one list of pending messages, in which one entry that is not due hides all behind it; a bitmap for each range
(a second structure to keep, and it has no retry times for single messages); heaps of times, from which acknowledged
ones are not removed (with a million leases some call has to sweep a million stale times).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from penstock.types.packing import CorruptValue
from penstock.types.stream.changes import Change
from penstock.types.stream.leases import Leases
from penstock.types.stream.members import Members
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Range
from penstock.types.stream.reading import take
from penstock.types.stream.shelf import LAST_TIME, Lease

SLICE = 200
"""Leases that one call drops because they expired or were evicted, in about a millisecond; more to get below the cap.

For leases with a dead letter key it counts messages, because each becomes a letter.
"""


class Delivery(NamedTuple):
    """The result of a group read: runs in the order of delivery, leases that expired, and the change to log."""

    runs: list[Range]
    expired: list[Lease]
    change: Change | None  # None when the read changed nothing
    left_bytes: int | None = None  # of the most bytes that it might take, if there was a limit


class Group:
    """One consumer group.

    >>> messages, group = Messages(), Group(1)
    >>> messages.append_many(0, [b""] * 5, [b"entry"] * 5)
    1
    >>> group.deliver(messages, now=1000, count=3, retry=(500, 0)).runs
    [(1, 4)]
    >>> group.ack([(2, 3)]), group.pending_count, group.lag(messages), group.next_deadline()
    (1, 2, 2, 1500)
    """

    __slots__ = ("acknowledged", "leases", "lost", "members", "position", "token")

    def __init__(self, position: int) -> None:
        self.position = position  # the next offset to deliver as new
        self.lost = 0  # offsets that were evicted before they could be delivered
        self.acknowledged = 0  # messages
        self.token = 0  # of the last delivery
        self.leases = Leases()
        self.members = Members()

    @property
    def pending_count(self) -> int:
        return self.leases.messages

    # Reading.

    def deliver(
        self,
        messages: Messages,
        now: int,
        count: int,
        retry: tuple[int, int] | None = None,
        cap: int = 1000,
        max_bytes: int | None = None,
        dead_letter: bytes | None = None,
        limit: int = 0,
        reserve: bool = False,
        token: int = 0,
    ) -> Delivery:
        """Deliver up to `count` messages: due retries first, then new ones while fewer than `cap` are pending.

        With retry = (retry_ms, expire_ms, 0 for never) they are leased; without it this acknowledges them. Expired
        messages are given up, and those that were begun `limit` times (0 is no limit) when they are due. A retry is
        never due in the millisecond of its delivery. Offsets without a message, pending or new, are skipped; those that
        were evicted count as lost. `reserve` begins no message. The token is `token`, or a larger one if that was given
        out before. O((leases touched) log (leases)).
        """
        if retry is None and not self.leases.messages:
            return self._deliver_done(messages, count, max_bytes)
        before = (self.position, self.lost)
        leases: list[Lease] = []
        expired: list[Lease] = []
        removed: list[Range] = []
        terms, left_bytes, room = None, max_bytes, cap
        if retry is not None:
            retry_at = min(now + max(retry[0], 1), LAST_TIME)
            expire_at = -retry[1] if reserve else min(now + retry[1], LAST_TIME) if retry[1] else 0
            token, attempts = max(token, self.token + 1), 0 if reserve else 1
            terms = Lease(0, 0, retry_at, expire_at, now, attempts, dead_letter, token, limit, reserve)
        if self.leases.messages:
            self._make_room(messages, now, cap, expired, removed)
            leases, left_bytes = self._take_due(messages, now, terms, count, max_bytes, expired, removed)
            room = cap - self.pending_count
        left = count - sum([lease.end - lease.start for lease in leases])
        if left > 0 < room and (left_bytes is None or left_bytes > 0):
            taken = take(messages, self.position, min(left, room) if terms is not None else left, left_bytes)
            left_bytes = left_bytes - taken.cost if left_bytes is not None else None
            self.position = taken.next
            self.lost += taken.evicted
            for start, end in taken.runs:
                if terms is not None:
                    lease = Lease(start, end, *terms[2:])
                    self.leases.put(lease)
                else:
                    lease = Lease(start, end, 0, 0, 0, 0, None)
                    self.acknowledged += end - start
                leases.append(lease)
        if not leases and not removed and before == (self.position, self.lost):
            return Delivery([], [], None, left_bytes)
        if terms is None:
            return Delivery(_runs(leases), expired, self.change(removed), left_bytes)
        if leases:
            self.token = token
        return Delivery(_runs(leases), expired, self.change(removed, leases), left_bytes)

    def _deliver_done(self, messages: Messages, count: int, max_bytes: int | None) -> Delivery:
        """Deliver new messages that this acknowledges, while nothing is pending."""
        taken = take(messages, self.position, count, max_bytes)
        if taken.next == self.position:
            return Delivery([], [], None, max_bytes)
        self.position = taken.next
        self.lost += taken.evicted
        self.acknowledged += sum([end - start for start, end in taken.runs])
        change = Change(self.position, self.lost, (), (), self.token, self.acknowledged)
        return Delivery(taken.runs, [], change, max_bytes - taken.cost if max_bytes is not None else None)

    def change(self, removed: Iterable[Range] = (), leases: Iterable[Lease] = ()) -> Change:
        """What leads to this position and these counters, and takes ranges out and puts leases in."""
        return Change(self.position, self.lost, tuple(removed), tuple(leases), self.token, self.acknowledged)

    def has_work(self, messages: Messages, now: int, cap: int = 1000) -> bool:
        """Whether `deliver` would do anything. O(1) amortised.

        It may be wrong once, if the messages were evicted; the next call says no.
        """
        first = self.leases.first_offset
        return (
            (self.position <= messages.last and self.pending_count < cap)
            or self.leases.any_due(now)
            or (first is not None and first < messages.first)
        )

    def _make_room(self, messages: Messages, now: int, cap: int, expired: list[Lease], removed: list[Range]) -> None:
        """Drop a slice of the expired and evicted leases, and as much more as it takes to get below the cap.

        Evicted messages can never be delivered: they must not fill the cap (redis#6199).
        """
        leases = self.leases
        while leases.messages:
            given_up = self._drop_expired(messages, now, SLICE)
            expired += given_up
            removed += [(lease.start, lease.end) for lease in given_up]
            pending = leases.messages
            gone = leases.drop_before(messages.first, SLICE)
            if gone is not None:
                self.lost += pending - leases.messages
                removed.append(gone)
            if leases.messages < cap or not (given_up or gone):
                return

    def _take_due(
        self,
        messages: Messages,
        now: int,
        terms: Lease | None,
        count: int,
        max_bytes: int | None,
        expired: list[Lease],
        removed: list[Range],
    ) -> tuple[list[Lease], int | None]:
        """Lease again what is due, longest due first; answer the leases and the bytes that are left.

        They get the retry time and the token of `terms`. They keep what the first delivery said about their end, but
        for the limit of attempts, and get the dead letter key if they have none. Without `terms` they are done.
        """
        leases: list[Lease] = []
        patience = SLICE
        while count > 0 and patience and (due := self.leases.due(now)) is not None:
            if terms is not None and due.dead_letter is None and terms.dead_letter is not None:
                due = due._replace(dead_letter=terms.dead_letter)
            if 0 < due.end_at <= now or (terms is not None and 0 < terms.limit <= due.attempts):
                given_up = self._give_up(messages, due, patience)
                expired.append(given_up)
                removed.append((given_up.start, given_up.end))
                patience -= _trouble(given_up)
                continue
            taken = take(messages, due.start, count, max_bytes, due.end)
            at = due.start
            done = taken.next if taken.runs else due.end
            for start, end in [*taken.runs, (done, done)]:
                if at < start:
                    self._drop_missing(messages, at, start)
                    removed.append((at, start))
                at = end
            again = _again(due, terms, now) if terms is not None else due
            for start, end in taken.runs:
                lease = again._replace(start=start, end=end)
                if terms is None:
                    self.acknowledged += self.leases.drop(start, end)
                    removed.append((start, end))
                else:
                    self.leases.put(lease)
                leases.append(lease)
                count -= end - start
            patience -= not taken.runs
            if max_bytes is not None:
                max_bytes -= taken.cost
                if max_bytes <= 0:
                    break
        return leases, max_bytes

    def expire(self, messages: Messages, now: int) -> tuple[list[Lease], Change | None]:
        """Drop a slice of the expired leases; answer it, for its dead letter keys, and the change to log."""
        expired = self._drop_expired(messages, now, SLICE)
        if not expired:
            return expired, None
        return expired, self.change([(lease.start, lease.end) for lease in expired])

    def _drop_expired(self, messages: Messages, now: int, limit: int) -> list[Lease]:
        expired: list[Lease] = []
        while limit > 0 and (lease := self.leases.expired(now)) is not None:
            expired.append(self._give_up(messages, lease, limit))
            limit -= _trouble(expired[-1])
        return expired

    def _give_up(self, messages: Messages, lease: Lease, limit: int) -> Lease:
        """Drop a lease, or as much of it as makes so many letters; evicted messages become no letters and count as
        lost.
        """
        reach = max(lease.start, messages.first) + limit
        if lease.dead_letter is not None and reach < min(lease.end, messages.last):
            lease = lease._replace(end=reach)
        self._drop_missing(messages, lease.start, lease.end)
        return lease

    def _drop_missing(self, messages: Messages, start: int, end: int) -> None:
        """Drop a range from pending; those that were evicted are lost, those that were compacted are not."""
        first = min(max(messages.first, start), end)
        self.lost += self.leases.drop(start, first)
        self.leases.drop(first, end)

    # What clients say.

    def ack(self, ranges: Iterable[Range], token: int | None = None) -> int:
        """Acknowledge messages. Unknown offsets are ignored; answers how many were pending.

        With a token, here and below, only what is still leased under it counts.
        """
        count = sum([self.leases.drop(start, end) for start, end in self._held(ranges, token)])
        self.acknowledged += count
        return count

    def nack(self, ranges: Iterable[Range], at: int, token: int | None = None) -> int:
        """Have pending messages delivered again from a time on; answers how many. The ranges must not overlap.

        Their delivery holds them no longer.
        """
        return sum([self.leases.postpone(start, end, at, True) for start, end in self._held(ranges, token)])

    def extend(self, ranges: Iterable[Range], at: int, token: int | None = None) -> int:
        """Deliver pending messages again not before a time; answers how many. The ranges must not overlap."""
        return sum([self.leases.postpone(start, end, at) for start, end in self._held(ranges, token)])

    def begin(self, ranges: Iterable[Range], now: int, token: int | None = None) -> None:
        """Count an attempt for messages that are reserved, and start the time to their expiry. Once a delivery."""
        for start, end in self._held(ranges, token):
            self.leases.begin(start, end, now)

    def _held(self, ranges: Iterable[Range], token: int | None) -> Iterable[Range]:
        if token is None:
            return ranges
        return [run for start, end in ranges for run in self.leases.held(start, end, token)]

    def set_position(self, offset: int) -> None:
        """Deliver from an offset on; pending messages stay pending."""
        self.position = offset

    def apply(self, change: Change) -> None:
        """Apply a logged change."""
        for start, end in change.removed:
            self.leases.drop(start, end)
        for lease in change.leases:
            self.leases.put(lease)
        self.position = change.position
        self.lost = change.lost
        self.token = max(self.token, change.token)
        if change.acknowledged is not None:
            self.acknowledged = change.acknowledged

    # What clients ask.

    def pending(self, start: int, end: int, count: int | None = None) -> list[Lease]:
        """The leases, or parts of them, between two offsets, up to `count` messages."""
        found = []
        for lease in self.leases.overlapping(start, end):
            part = lease._replace(start=max(start, lease.start), end=min(end, lease.end))
            if count is not None:
                if count <= 0:
                    break
                part = part._replace(end=min(part.end, part.start + count))
                count -= part.end - part.start
            found.append(part)
        return found

    def lag(self, messages: Messages) -> int:
        """Messages not delivered yet, exactly (redis#13337, redis#13957): evicted and compacted ones do not count."""
        return messages.count_from(self.position)

    @property
    def done_through(self) -> int:
        """Every message up to it was acknowledged, given up or lost."""
        first = self.leases.first_offset
        return (self.position if first is None else min(self.position, first)) - 1

    def next_retry(self) -> int | None:
        return self.leases.next_retry()

    def next_deadline(self) -> int | None:
        """When the next retry or expiry is: a blocked reader waits no longer than that. O(1)."""
        return self.leases.next_deadline()

    def next_expiry(self) -> int | None:
        """When the next lease is given up."""
        lease = self.leases.expired(LAST_TIME)
        return lease.end_at if lease is not None else None

    # The whole.

    def dump(self) -> bytes:
        """The whole group, as the change that makes it from nothing."""
        return self.change(leases=self.leases).encode()

    @classmethod
    def load(cls, data: bytes, last: int) -> Self:
        """The group that `dump` wrote, of a stream with a last offset; CorruptValue for anything else."""
        change = Change.decode(data)
        bounds = [bound for lease in change.leases for bound in (lease.start, lease.end)]
        disjoint = all(a < b for a, b in zip(bounds[::2], bounds[1::2], strict=True)) and bounds == sorted(bounds)
        if change.removed or not disjoint:
            raise CorruptValue("a group's leases are out of order")
        if not change.fits(last):
            raise CorruptValue("a group's leases are of messages that were never written")
        group = cls(change.position)
        group.apply(change)
        return group

    def copy(self) -> Group:
        group = Group(self.position)
        group.lost, group.acknowledged, group.token = self.lost, self.acknowledged, self.token
        group.leases = self.leases.copy()
        return group

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return 400 + self.leases.size() + self.members.size()

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        self.leases.check()


def _again(due: Lease, terms: Lease, now: int) -> Lease:
    """A lease that is due, for the next delivery."""
    limit = terms.limit or due.limit
    again = due._replace(retry_at=terms.retry_at, token=terms.token, limit=limit, reserved=True)
    return again if terms.reserved else again.begun(now)


def _trouble(given_up: Lease) -> int:
    """How many messages count as dropped when a lease expires."""
    return 1 if given_up.dead_letter is None else given_up.end - given_up.start


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
