"""Consumer groups: which messages were delivered, until when, and which were never acknowledged.

Pending messages are kept as leases, runs of offsets delivered together, so that reading and acknowledging a hundred
costs the same as one: one lease is added and removed. Acknowledging inside a lease splits it. leases.py finds leases by
offset and by time. No call visits all of them: those that expired or were evicted are dropped in slices.

Every delivery has a token, a number that grows and that the group never repeats. Its leases carry it, so that a member
whose messages were delivered to another one since changes nothing that is not its own any more. A message that is
reserved is delivered, but not begun: its attempts and the time to its expiry do not count yet.

Messages that are not visible yet (delays.py) are kept aside, in `waiting`, from when the group reaches them until their
time. They are not pending, so however many there are, they do not fill the cap.

Every change is a `Change` in absolute terms (changes.py). `deliver` and `expire` return it to be logged; `apply` makes
it, both then and at a replay, where it must give the same state. So it depends on no clock and no counter.

Ranges exclude their end.

Rejected: one list of pending messages, in which one entry that is not due hides all behind it; a bitmap for each range
(a second structure to keep, and it has no retry times for single messages); heaps of times, from which acknowledged
ones are not removed (with a million leases some call has to sweep a million stale times).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple, Self

from penstock.types.packing import CorruptValue
from penstock.types.stream.changes import Change
from penstock.types.stream.delays import Delays
from penstock.types.stream.lease_chunk import LAST_TIME, Lease
from penstock.types.stream.leases import Leases
from penstock.types.stream.members import Members
from penstock.types.stream.messages import MOST, Messages, Place
from penstock.types.stream.nodes import Range
from penstock.types.stream.offset_ranges import runs_of, without
from penstock.types.stream.reading import take
from penstock.types.stream.segments import Identity
from penstock.types.stream.stored_nodes import wanted_places

SLICE = 200
"""Leases that one call drops because they expired or were evicted, in about a millisecond; more to get below the cap.

For leases with a dead letter key it counts messages, because each becomes a letter.
"""
FETCH = SLICE // 4
"""What it counts if their node lies in a file: to fetch one takes about a fifth of a millisecond, and more if the disk
has to move.
"""

_HIDDEN = 1000
"""Runs of messages that are not visible yet that one call passes by, in about ten milliseconds."""


class Delivery(NamedTuple):
    """The result of a group read: runs in the order of delivery, leases that expired, and the change to log."""

    runs: list[Range]
    expired: list[Lease]
    change: Change | None  # None when the read changed nothing
    left_bytes: int | None = None  # of the most bytes that it might take, if there was a limit
    leases: tuple[Lease, ...] = ()  # of what was delivered, in the same order


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

    __slots__ = (
        "acknowledged", "dead_letters", "leases", "letter_key", "lost", "members", "position", "retries", "surveyed",
        "token", "turns", "waiting",
    )  # fmt: skip

    def __init__(self, position: int) -> None:
        self.position = position  # the next offset to deliver as new
        self.lost = 0  # offsets that were evicted before they could be delivered
        self.acknowledged = 0  # messages
        self.token = 0  # of the last delivery
        self.leases = Leases()
        self.waiting = Leases()  # messages that were passed by because they are not visible yet
        self.members = Members()
        # For this server only, and not dumped:
        self.turns = 0  # reads that began with one stream after the other
        self.retries = 0  # messages that were delivered again
        self.dead_letters = 0  # messages that were given up, and written to a dead letter stream
        self.letter_key: bytes | None = None  # the dead letter stream that the last reader named
        self.surveyed = (0, 0, 0, 0)  # what the survey of /metrics has counted of it

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
        delays: Delays | None = None,
        due_by: int | None = None,
    ) -> Delivery:
        """Deliver up to `count` messages: due retries first, then new ones while fewer than `cap` are pending.

        With retry = (retry_ms, expire_ms, 0 for never) they are leased; without it this acknowledges them. Expired
        messages are given up, and those that were begun `limit` times (0 is no limit) when they are due. A retry is
        never due in the millisecond of its delivery. Offsets without a message, pending or new, are skipped; those that
        were evicted count as lost. A group that was moved back has each message once in a delivery. `reserve` begins no
        message. The token is `token`, or a larger one if that was given out before. What `delays` hides is delivered
        when it is visible. Expiries, and retries of what a delivery holds, are due up to `due_by`, now if it is None.
        O((leases touched) log (leases)).
        """
        terms, left_bytes = None, max_bytes
        due_by = now if due_by is None else due_by
        if retry is not None:
            retry_at = min(now + max(retry[0], 1), LAST_TIME)
            expire_at = -retry[1] if reserve else min(now + retry[1], LAST_TIME) if retry[1] else 0
            token, attempts = max(token, self.token + 1), 0 if reserve else 1
            self.letter_key = dead_letter or self.letter_key
            terms = Lease(0, 0, retry_at, expire_at, now, attempts, dead_letter, token, limit, reserve)
        if delays is None and _is_quiet(self, messages, now, due_by):
            return self._deliver_new(messages, terms, count, cap, max_bytes)
        before = (self.position, self.lost)
        leases: list[Lease] = []
        hidden: list[Lease] = []
        expired: list[Lease] = []
        removed: list[Range] = []
        if self.leases.messages:
            self._make_room(messages, due_by, cap, expired, removed)
            leases, left_bytes = self._take_due(messages, now, due_by, terms, count, max_bytes, expired, removed)
        left = count - sum([lease.end - lease.start for lease in leases]) if leases else count
        waits = self.waiting.messages > 0
        if waits:
            more, left_bytes = self._take_visible(messages, now, terms, left, cap, left_bytes, removed)
            leases += more
            left -= sum([lease.end - lease.start for lease in more])
        patience = _HIDDEN
        again = leases[:]
        while left > 0 and patience and (left_bytes is None or left_bytes > 0) and self.pending_count < cap:
            run = delays.hidden(max(self.position, messages.first), now) if delays is not None else None
            if run is not None and run[0] <= max(self.position, messages.first):
                self.lost += max(messages.first - self.position, 0)
                self.position = max(self.position, messages.first)
                hidden.append(_pass_by(self, run))
                patience -= 1
                continue
            room = min(left, cap - self.leases.messages) if terms is not None else left
            taken = take(messages, self.position, room, left_bytes, run[0] if run is not None else None)
            left_bytes = left_bytes - taken.cost if left_bytes is not None else None
            self.position = taken.next
            self.lost += taken.evicted
            for start, end in taken.runs:
                left -= end - start
            for start, end in without(taken.runs, again) if again else taken.runs:
                if terms is None or waits:
                    leases.append(self._give(start, end, terms, removed))
                else:
                    lease = Lease(start, end, *terms[2:])
                    self.leases.put(lease)
                    leases.append(lease)
            if run is None or self.position < run[0]:
                break
        if not leases and not removed and not hidden and before == (self.position, self.lost):
            return Delivery([], [], None, left_bytes)
        if terms is None:
            return Delivery(runs_of(leases), expired, self.change(removed, hidden), left_bytes)
        if leases:
            self.token = token
        given = tuple(leases)
        change = Change(
            self.position,
            self.lost,
            tuple(removed),
            (*given, *hidden) if hidden else given,
            self.token,
            self.acknowledged,
        )
        return Delivery(runs_of(leases), expired, change, left_bytes, given)

    def _give(self, start: int, end: int, terms: Lease | None, removed: list[Range]) -> Lease:
        """Deliver new messages, or those that became visible."""
        waited = self.waiting.drop(start, end) if self.waiting.messages else 0
        if terms is not None:
            lease = Lease(start, end, *terms[2:])
            self.leases.put(lease)
            return lease
        if waited:
            removed.append((start, end))
        self.acknowledged += end - start
        return Lease(start, end, 0, 0, 0, 0, None)

    def _take_visible(
        self,
        messages: Messages,
        now: int,
        terms: Lease | None,
        count: int,
        cap: int,
        max_bytes: int | None,
        removed: list[Range],
    ) -> tuple[list[Lease], int | None]:
        """Deliver messages that waited until they are visible, while there is room; the leases, and the bytes left."""
        waited = self.waiting.messages
        gone = self.waiting.drop_before(messages.first, SLICE)
        if gone is not None:
            self.lost += waited - self.waiting.messages + self.leases.drop(*gone)  # as a replay does
            removed.append(gone)
        leases: list[Lease] = []
        patience = SLICE
        while count > 0 and patience and self.pending_count < cap and (max_bytes is None or max_bytes > 0):
            due = self.waiting.due(now)
            if due is None:
                break
            room = min(count, cap - self.pending_count) if terms is not None else count
            taken = take(messages, due.start, room, max_bytes, due.end)
            reach = taken.next if taken.runs else due.end
            self.lost += taken.evicted
            for start, end in taken.runs:
                leases.append(self._give(start, end, terms, removed))
                count -= end - start
            if self.waiting.drop(due.start, reach):  # what is not there any more
                removed.append((due.start, reach))
            patience -= not taken.runs
            if max_bytes is not None:
                max_bytes -= taken.cost
        return leases, max_bytes

    def _deliver_new(
        self, messages: Messages, terms: Lease | None, count: int, cap: int, max_bytes: int | None
    ) -> Delivery:
        """Deliver new messages, while there is nothing else to do: the common case."""
        room = cap - self.leases.messages
        if room > count or (terms is None and room > 0):
            room = count
        taken = take(messages, self.position, room, max_bytes)
        if taken.next == self.position:
            return Delivery([], [], None, max_bytes)
        self.position = taken.next
        self.lost += taken.evicted
        leases: tuple[Lease, ...] = ()
        if terms is None:
            self.acknowledged += sum([end - start for start, end in taken.runs])
        elif taken.runs:
            leases = tuple([Lease(start, end, *terms[2:]) for start, end in taken.runs])
            for lease in leases:
                self.leases.put(lease)
            self.token = terms.token
        change = Change(self.position, self.lost, (), leases, self.token, self.acknowledged)
        left_bytes = max_bytes - taken.cost if max_bytes is not None else None
        return Delivery(taken.runs, [], change, left_bytes, leases)

    def change(self, removed: Iterable[Range] = (), leases: Iterable[Lease] = ()) -> Change:
        """What leads to this position and these counters, and takes ranges out and puts leases in."""
        return Change(self.position, self.lost, tuple(removed), tuple(leases), self.token, self.acknowledged)

    def has_work(self, messages: Messages, now: int, cap: int = 1000, due_by: int | None = None) -> bool:
        """Whether `deliver` would do anything. O(1) amortised.

        It may be wrong once, if the messages were evicted; the next call says no.
        """
        first = self.leases.first_offset
        return (
            (self.pending_count < cap and (self.position <= messages.last or self.waiting.due(now) is not None))
            or self.leases.any_due(now, now if due_by is None else due_by)
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
                self.lost += pending - leases.messages + self.waiting.drop(*gone)
                removed.append(gone)
            if leases.messages < cap or not (given_up or gone):
                return

    def _take_due(
        self,
        messages: Messages,
        now: int,
        due_by: int,
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
        while count > 0 and patience and (due := self.leases.due(now, due_by)) is not None:
            over_by = now if due.given_back else due_by
            if terms is not None and due.dead_letter is None and terms.dead_letter is not None:
                due = due._replace(dead_letter=terms.dead_letter)
            if 0 < due.end_at <= over_by or (terms is not None and 0 < terms.limit <= due.attempts):
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
                    _drop_missing(self, messages, at, start)
                    removed.append((at, start))
                at = end
            again = _again(due, terms) if terms is not None else due
            for start, end in taken.runs:
                lease = again._replace(start=start, end=end)
                if terms is None:
                    self.acknowledged += self.leases.drop(start, end)
                    removed.append((start, end))
                else:
                    self.leases.put(lease)
                    self.retries += end - start
                leases.append(lease)
                count -= end - start
            patience -= not taken.runs
            if max_bytes is not None:
                max_bytes -= taken.cost
                if max_bytes <= 0:
                    break
        return leases, max_bytes

    def expire(
        self, messages: Messages, now: int, ready: Container[Identity] | None = None
    ) -> tuple[list[Lease], Change | None]:
        """Drop a slice of the expired leases; answer it, for its dead letter keys, and the change to log.

        With `ready`, it ends before the first whose letters are in files and not among these nodes.
        """
        expired = self._drop_expired(messages, now, SLICE, ready)
        if not expired:
            return expired, None
        return expired, self.change([(lease.start, lease.end) for lease in expired])

    def _drop_expired(
        self, messages: Messages, now: int, limit: int, ready: Container[Identity] | None = None
    ) -> list[Lease]:
        expired: list[Lease] = []
        in_files: set[int] = set()
        while limit > 0 and (lease := self.leases.expired(now)) is not None:
            if ready is not None and unready(messages, part_of(messages, lease, limit), ready):
                break
            given_up = self._give_up(messages, lease, limit)
            expired.append(given_up)
            before = len(in_files)
            if given_up.dead_letter is not None:
                places = wanted_places(messages, given_up.start, given_up.end, MOST)
                in_files.update(segment.first + place for segment, place in places)
            limit -= _trouble(given_up) + FETCH * (len(in_files) - before)
        return expired

    def _give_up(self, messages: Messages, lease: Lease, limit: int) -> Lease:
        """Drop a lease, or as much of it as makes so many letters; evicted messages become no letters and count as
        lost.
        """
        lease = part_of(messages, lease, limit)
        _drop_missing(self, messages, lease.start, lease.end)
        return lease

    # What clients say.

    def ack(self, ranges: Iterable[Range], token: int | None = None) -> int:
        """Acknowledge messages. Unknown offsets are ignored; answers how many were pending.

        With a token, here and below, only what is still leased under it counts.
        """
        count = 0
        for start, end in ranges if token is None else _held(self.leases, ranges, token):
            count += self.leases.drop(start, end)
        self.acknowledged += count
        return count

    def nack(self, ranges: Iterable[Range], at: int, token: int | None = None) -> int:
        """Have pending messages delivered again from a time on; answers how many. The ranges must not overlap.

        Their delivery holds them no longer.
        """
        return sum([self.leases.postpone(start, end, at, True) for start, end in _held(self.leases, ranges, token)])

    def extend(self, ranges: Iterable[Range], at: int, token: int | None = None) -> int:
        """Deliver pending messages again not before a time; answers how many. The ranges must not overlap."""
        return sum([self.leases.postpone(start, end, at) for start, end in _held(self.leases, ranges, token)])

    def begin(self, ranges: Iterable[Range], now: int, token: int | None = None) -> None:
        """Count an attempt for messages that are reserved, and start the time to their expiry. Once a delivery."""
        for start, end in _held(self.leases, ranges, token):
            self.leases.begin(start, end, now)

    def held(self, ranges: Iterable[Range], token: int | None, count: int) -> list[Lease]:
        """The leases in ranges, or parts of them, up to `count` messages."""
        found: list[Lease] = []
        for start, end in _held(self.leases, ranges, token):
            parts = self.pending(start, end, count)
            count -= sum(lease.end - lease.start for lease in parts)
            found += parts
        return found

    def give_up(self, messages: Messages, leases: Iterable[Lease]) -> Change:
        """Deliver these messages no more; answer the change to log. The leases are those of `held`."""
        removed = [(lease.start, lease.end) for lease in leases]
        for start, end in removed:
            _drop_missing(self, messages, start, end)
        return self.change(removed)

    def apply(self, change: Change) -> None:
        """Apply a logged change."""
        for start, end in change.removed:
            self.leases.drop(start, end)
            self.waiting.drop(start, end)
        for lease in change.leases:
            if lease.delayed:
                self.waiting.put(lease)
            else:
                self.leases.put(lease)
                self.waiting.drop(lease.start, lease.end)
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
        firsts = [first for first in (self.leases.first_offset, self.waiting.first_offset) if first is not None]
        return min([self.position, *firsts]) - 1

    def next_deadline(self, cap: int = 1000, not_before: int = 0) -> int | None:
        """When the next retry or expiry is, or `not_before`, or messages become visible that have room. O(1).

        A blocked reader waits no longer than that.
        """
        deadline = self.leases.next_deadline()
        deadline = max(deadline, not_before) if deadline is not None else None
        visible = self.waiting.next_retry() if self.waiting.messages and self.pending_count < cap else None
        times = (deadline, self.leases.next_free() if not_before else None, visible)
        return min([time for time in times if time is not None], default=None)

    def next_expiry(self) -> int | None:
        """When the next lease is given up."""
        lease = self.leases.expired(LAST_TIME)
        return lease.end_at if lease is not None else None

    # The whole.

    def dump(self) -> bytes:
        """The whole group, as the change that makes it from nothing."""
        return self.change(leases=[*self.leases, *self.waiting]).encode()

    @classmethod
    def load(cls, data: bytes, last: int) -> Self:
        """The group that `dump` wrote, of a stream with a last offset; CorruptValue for anything else."""
        change = Change.decode(data)
        for delayed in (False, True):
            kept = [lease for lease in change.leases if lease.delayed == delayed]
            bounds = [bound for lease in kept for bound in (lease.start, lease.end)]
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
        group.leases, group.waiting = self.leases.copy(), self.waiting.copy()
        return group

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return 1000 + self.leases.size() + self.waiting.size() + self.members.size()

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        self.leases.check()
        self.waiting.check()
        assert all(lease.delayed for lease in self.waiting)
        assert not any(lease.delayed for lease in self.leases)


def _is_quiet(group: Group, messages: Messages, now: int, due_by: int) -> bool:
    """Whether there is nothing to do about messages that were delivered or passed by."""
    if group.waiting.messages:
        return False
    first = group.leases.first_offset
    return first is None or (first >= messages.first and not group.leases.any_due(now, due_by))


def _pass_by(group: Group, run: tuple[int, int, int]) -> Lease:
    """Keep messages aside that the group has reached and that are not visible yet."""
    start, end, at = run
    lease = Lease(max(start, group.position), end, at, 0, -1, 0, None, 0, 0, True)
    group.waiting.put(lease)
    group.position = end
    return lease


def _drop_missing(group: Group, messages: Messages, start: int, end: int) -> None:
    """Drop a range from pending; those that were evicted are lost, those that were compacted are not."""
    first = min(max(messages.first, start), end)
    group.lost += group.leases.drop(start, first)
    group.leases.drop(first, end)


def _held(leases: Leases, ranges: Iterable[Range], token: int | None) -> Iterable[Range]:
    if token is None:
        return ranges
    return [span for start, end in ranges for span in leases.spans(start, end, token)]


def _again(due: Lease, terms: Lease) -> Lease:
    """A lease that is due, for the next delivery."""
    limit = terms.limit or due.limit
    again = due._replace(retry_at=terms.retry_at, token=terms.token, limit=limit, reserved=True)
    return again if terms.reserved else again.begun(terms.first_delivered)


def part_of(messages: Messages, lease: Lease, limit: int) -> Lease:
    """A lease, or as much of it as makes so many letters."""
    reach = max(lease.start, messages.first) + limit
    if lease.dead_letter is not None and reach < min(lease.end, messages.last):
        return lease._replace(end=reach)
    return lease


def unready(messages: Messages, lease: Lease, ready: Container[Identity]) -> list[Place]:
    """The nodes in files that the letters of a lease are made of and that are not ready."""
    if lease.dead_letter is None:
        return []
    places = wanted_places(messages, lease.start, lease.end, MOST)
    return [(segment, place) for segment, place in places if segment.identity(place) not in ready]


def _trouble(given_up: Lease) -> int:
    """How many messages count as dropped when a lease expires."""
    return 1 if given_up.dead_letter is None else given_up.end - given_up.start
