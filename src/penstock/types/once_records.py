"""The records of ONCE: for every client, the replies that it may not have seen yet.

A client numbers its commands 1, 2, 3 ... and sends its floor with each: it has every reply below that number. The
replies from the floor on are kept as they go over the wire, in both versions of the protocol if these differ. A number
that is kept was executed. Every number below the floor was executed too, and a correct client does not send it again.

Invariant: no kept number is below its client's floor or above its top; `bytes` is the memory of the kept replies and
the clients.

Rejected: keeping the last n replies. A client with more than n commands under way would have some of them run twice,
and a quiet client would hold n replies for ever.
"""

from __future__ import annotations

import struct

from penstock.types.packing import CorruptValue, pack_many, unpack_many

CLIENT_COST = 300
"""About how many bytes of memory a client takes, without its replies."""
REPLY_COST = 120
"""About how many bytes of memory a kept reply takes beyond its own bytes."""

_HEADER = struct.Struct("<QQ")


class BelowFloor(ValueError):
    """The client has confirmed this reply, and it was forgotten."""


class UnknownClient(ValueError):
    """A client whose floor says that it was here before, but that is not known."""


class ClientRecord:
    """One client."""

    __slots__ = ("bytes", "floor", "floor_text", "last_used", "replies", "top")

    def __init__(self, floor: int, last_used: int) -> None:
        self.floor = floor
        self.floor_text = b""  # the floor as the client writes it, if known; saves parsing it with each command
        self.last_used = last_used  # milliseconds since 1970
        self.replies: dict[int, tuple[bytes, bytes]] = {}  # by number: as RESP2 and RESP3 show it
        self.bytes = 0  # memory of the replies
        self.top = 0  # no kept number is above it


class OnceRecords:
    """All clients of ONCE. Pure; `now` is in milliseconds."""

    def __init__(self) -> None:
        self.clients: dict[bytes, ClientRecord] = {}
        self.bytes = 0

    @property
    def replies(self) -> int:
        """How many replies are kept. O(clients)."""
        return sum(len(record.replies) for record in self.clients.values())

    def find(self, client: bytes, number: int, floor: int, now: int) -> tuple[bytes, bytes] | None:
        """The reply that was kept for a command, None if it did not run yet. Forgets the replies below the floor.

        O(1) amortised: a reply is forgotten once.
        """
        record = self.clients.get(client)
        if record is None:
            if floor > 1:
                raise UnknownClient
            return None
        record.last_used = now
        if floor > record.floor:
            self._drop_below(record, floor)
        if number < record.floor:
            raise BelowFloor(f"{number} is below the floor {record.floor}")
        return record.replies.get(number)

    def meet(self, client: bytes, now: int) -> bool:
        """Register a client before it sends anything; whether it is new."""
        record = self.clients.get(client)
        if record is not None:
            record.last_used = now
            return False
        self._enter(client, 1, now)
        return True

    def _enter(self, client: bytes, floor: int, now: int) -> ClientRecord:
        record = self.clients[client] = ClientRecord(floor, now)
        self.bytes += CLIENT_COST + len(client)
        return record

    def keep(self, client: bytes, number: int, floor: int, reply: tuple[bytes, bytes], now: int) -> None:
        """Keep a reply until the client's floor is above it."""
        record = self.clients.get(client)
        if record is None:
            record = self._enter(client, floor, now)
        elif floor > record.floor:
            self._drop_below(record, floor)
        if number >= record.floor:  # else its client gave up on it while it ran
            self.keep_in(record, number, reply, now)
        record.last_used = now

    def keep_in(self, record: ClientRecord, number: int, reply: tuple[bytes, bytes], now: int) -> None:
        """Keep a reply of a client that was looked up, for a number that is not below its floor and not kept yet."""
        record.last_used = now
        record.replies[number] = reply
        if number > record.top:
            record.top = number
        old, new = reply
        cost = REPLY_COST + len(old) + (len(new) if new is not old else 0)
        record.bytes += cost
        self.bytes += cost

    def raise_floor(self, record: ClientRecord, floor: int, text: bytes) -> None:
        """Set the floor of a client, with the bytes that it writes it in."""
        self._drop_below(record, floor)
        record.floor_text = text

    def _drop_below(self, record: ClientRecord, floor: int) -> None:
        """Forget every reply below a floor."""
        replies, before, begin = record.replies, record.bytes, record.floor
        if floor == begin:
            return
        record.floor, record.floor_text = floor, b""
        if floor > record.top:  # usually a pipeline that was answered completely
            replies.clear()
            record.bytes = 0
            self.bytes -= before
            return
        if floor - begin <= len(replies):
            below = [number for number in range(begin, floor) if number in replies]
        else:
            below = [number for number in replies if number < floor]
        for number in below:
            record.bytes -= _cost(replies.pop(number))
        self.bytes += record.bytes - before

    def forget_idle(self, before: int) -> int:
        """Forget clients that sent nothing since `before`; how many they were."""
        idle = [client for client, record in self.clients.items() if record.last_used < before]
        for client in idle:
            self._forget(client)
        return len(idle)

    def postpone(self, milliseconds: int) -> None:
        """Move the time of all clients: so much of the clock's time is not to count as idle."""
        for record in self.clients.values():
            record.last_used += milliseconds

    def _forget(self, client: bytes) -> None:
        record = self.clients.pop(client)
        self.bytes -= CLIENT_COST + len(client) + record.bytes

    # -- snapshots --------------------------------------------------------------------------------------------

    def dump(self, client: bytes) -> bytes:
        """One client as bytes."""
        record = self.clients[client]
        rows = [
            struct.pack("<Q", number) + pack_many((old,) if old == new else (old, new))
            for number, (old, new) in record.replies.items()
        ]
        return _HEADER.pack(record.floor, record.last_used) + pack_many(rows)

    def load(self, client: bytes, data: bytes) -> None:
        """Add the client that `dump` wrote, replacing the known one; CorruptValue for anything else."""
        if len(data) < _HEADER.size:
            raise CorruptValue("a client of ONCE that is cut short")
        floor, last_used = _HEADER.unpack_from(data)
        record = ClientRecord(floor, last_used)
        for row in unpack_many(data[_HEADER.size :]):
            if len(row) < 8:
                raise CorruptValue("a kept reply without a number")
            wires = unpack_many(row[8:])
            number = int.from_bytes(row[:8], "little")
            if len(wires) not in (1, 2) or number < floor or number in record.replies:
                raise CorruptValue("a kept reply that is not one")
            record.replies[number] = (wires[0], wires[-1])
        record.bytes = sum(map(_cost, record.replies.values()))
        record.top = max(record.replies, default=0)
        if client in self.clients:
            self._forget(client)
        self.clients[client] = record
        self.bytes += CLIENT_COST + len(client) + record.bytes

    def check(self) -> None:
        """Assert every invariant; for tests."""
        total = 0
        for client, record in self.clients.items():
            assert all(record.top >= number >= record.floor >= 1 for number in record.replies), (
                client,
                record.floor,
            )
            assert record.bytes == sum(map(_cost, record.replies.values())), client
            total += CLIENT_COST + len(client) + record.bytes
        assert self.bytes == total, (self.bytes, total)


def _cost(reply: tuple[bytes, bytes]) -> int:
    old, new = reply
    return REPLY_COST + len(old) + (len(new) if new is not old else 0)
