"""Changes of a group in absolute terms, as the log and dumps hold them.

A change says what is so afterwards: the position, the counters, leases with their times and tokens. So a replay gives
the same group at another time. A dump of a group is the change that makes it from nothing.

The size of its header tells the format. The first one had no tokens, no limits and no count of acknowledged messages; a
change of it leaves the group's counters as they are.

Rejected: a version number in front, which the first format has no place for.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

from penstock.types.packing import CorruptValue, pack_many, unpack_many
from penstock.types.stream.lease_chunk import MOST_LIMIT, Lease
from penstock.types.stream.messages import MOST
from penstock.types.stream.nodes import Range

_HEAD = struct.Struct("<qqIqq")  # position, lost, how many ranges are removed, token, acknowledged
_LEASE = struct.Struct("<qqqqqIIqI")  # the numbers of a Lease; the name and what the lease is, as below
_OLD_HEAD = struct.Struct("<qqI")
_OLD_LEASE = struct.Struct("<qqqqqII")
_COUNT = struct.Struct("<16xI")  # of the ranges, in both
_NO_DEAD_LETTER = 0xFFFFFFFF
_RESERVED = 1 << 31  # in the limit
MOST_TOKEN = 1 << 62  # far from where 64 bits end


class Change(NamedTuple):
    """A change of a group: drop `removed` from pending, add `leases`, set the position and the counters.

    Leases that are `delayed` are of messages that are not visible yet.
    """

    position: int
    lost: int
    removed: tuple[Range, ...] = ()
    leases: tuple[Lease, ...] = ()
    token: int = 0  # the last one that was given out
    acknowledged: int | None = None  # None leaves it as it is

    def encode(self) -> bytes:
        """The change as bytes, for the log.

        >>> change = Change(7, 0, ((1, 3),), (Lease(3, 7, 50, 0, 40, 1, b"dead", 12),), 12, 5)
        >>> Change.decode(change.encode()) == change
        True
        """
        places: dict[bytes, int] = {}  # of dead letter keys
        rows: list[bytes] = []
        for start, end, retry_at, expire_at, delivered, attempts, letter, token, limit, reserved in self.leases:
            place = _NO_DEAD_LETTER if letter is None else places.setdefault(letter, len(places))
            terms = limit | _RESERVED if reserved else limit
            rows.append(_LEASE.pack(start, end, retry_at, expire_at, delivered, attempts, place, token, terms))
        # A group that is moved back often loses the same messages each time. What is written must be loadable.
        acknowledged = -1 if self.acknowledged is None else min(self.acknowledged, MOST)
        head = _HEAD.pack(self.position, min(self.lost, MOST), len(self.removed), self.token, acknowledged)
        if self.removed:
            head += struct.pack(f"<{2 * len(self.removed)}q", *(bound for pair in self.removed for bound in pair))
        return pack_many([head, b"".join(rows), *places])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What `encode` wrote, or the version before it; CorruptValue for anything else."""
        try:
            head, rows, *names = unpack_many(data)
            size = len(head) - 16 * _COUNT.unpack_from(head)[0]
            if size not in (_HEAD.size, _OLD_HEAD.size):
                raise CorruptValue("a group change's ranges do not fit its header")
            if size == _HEAD.size:
                position, lost, _, token, acknowledged = _HEAD.unpack_from(head)
                leases = tuple(_lease(row, names) for row in _LEASE.iter_unpack(rows))
            else:
                (position, lost, _), token, acknowledged = _OLD_HEAD.unpack_from(head), 0, -1
                leases = tuple(_lease((*row, 0, 0), names) for row in _OLD_LEASE.iter_unpack(rows))
            removed = tuple(struct.iter_unpack("<qq", head[size:]))
        except (struct.error, ValueError, IndexError) as error:
            raise CorruptValue(f"a group change is damaged: {error}") from error
        if position < 1 or not 0 <= lost <= MOST or acknowledged > MOST:
            raise CorruptValue("a group change leads to an offset that there cannot be")
        if any(not 1 <= lease.start < lease.end for lease in leases):
            raise CorruptValue("a group change has a lease of no offsets")
        if not all(0 <= number <= MOST_TOKEN for number in (token, *[lease.token for lease in leases])):
            raise CorruptValue("a group change has a token that there cannot be")
        if any(lease.limit > MOST_LIMIT or (lease.expire_at < 0 and lease.attempts) for lease in leases):
            raise CorruptValue("a group change has a lease on terms that there cannot be")
        return cls(position, lost, removed, leases, token, acknowledged if acknowledged >= 0 else None)

    def dead_letter_keys(self) -> set[bytes]:
        """The keys that get the messages of its leases when they expire."""
        return {lease.dead_letter for lease in self.leases if lease.dead_letter is not None}

    def fits(self, last: int) -> bool:
        """Whether a stream with this last offset can have delivered the messages of its leases."""
        return all(lease.end <= last + 1 and (lease.attempts or lease.reserved) for lease in self.leases)


def _lease(row: tuple[int, ...], names: list[bytes]) -> Lease:
    *numbers, name, token, limit = row
    dead_letter = None if name == _NO_DEAD_LETTER else names[name]
    return Lease._make((*numbers, dead_letter, token, limit & ~_RESERVED, limit >= _RESERVED))
