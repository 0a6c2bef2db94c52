"""The records of ONCE: for every client, the replies that it may not have seen yet.

A client numbers its commands 1, 2, 3 ... and sends its floor with each: it has every reply below that number. The
replies from the floor on are kept as they go over the wire, in both versions of the protocol if these differ. A number
that is kept was executed. Every number below the floor was executed too, and a correct client does not send it again.

A client is forgotten when it says goodbye, when it was idle for long, and much sooner when it has no connection and
does not come back within its patience. The records do not know what a connection is: they compare it.

Invariant: no kept number is below its client's floor or above its top; `bytes` is the memory of the kept replies and
the clients.

Rejected: keeping the last n replies. A client with more than n commands under way would have some of them run twice,
and a quiet client would hold n replies for ever. Rejected: forgetting the largest client when memory is full. A client
that was cut off and comes back in time must find its replies.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

from penstock.types.packing import CorruptValue, pack_many, unpack_many

CLIENT_COST = 300
"""About how many bytes of memory a client takes, without its replies."""
REPLY_COST = 120
"""About how many bytes of memory a kept reply takes beyond its own bytes."""

MOST_REASONS = 1000
"""Of so many clients that were forgotten, the last ones, it is known why."""

_HEADER = struct.Struct("<QQ")
_PATIENCE = 0
"""In a dump, the row of this number is the client's patience; the numbers of replies begin at 1."""


class BelowFloor(ValueError):
    """The client has confirmed this reply, and it was forgotten."""


class UnknownClient(ValueError):
    """A client whose floor says that it was here before, but that is not known."""


class ClientRecord:
    """One client."""

    __slots__ = ("bytes", "connection", "floor", "floor_text", "last_used", "patience", "replies", "top")

    def __init__(self, floor: int, last_used: int) -> None:
        self.floor = floor
        self.floor_text = b""  # the floor as the client writes it, if known; saves parsing it with each command
        self.last_used = last_used  # milliseconds since 1970; without a connection, when that ended
        self.connection: object = None  # what the client has sent its last command through, while it is open
        self.patience = 0  # milliseconds for which it may be without a connection and come back, as it says
        self.replies: dict[int, tuple[bytes, bytes]] = {}  # by number: as RESP2 and RESP3 show it
        self.bytes = 0  # memory of the replies
        self.top = 0  # no kept number is above it


class OnceRecords:
    """All clients of ONCE. Pure; `now` is in milliseconds."""

    def __init__(self) -> None:
        self.clients: dict[bytes, ClientRecord] = {}
        self.bytes = 0
        self._of_user: Counter[bytes] = Counter()  # how many clients each user has
        self._reasons: dict[bytes, str] = {}  # why clients were forgotten, the oldest first

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

    def meet(self, client: bytes, now: int, patience: int = 0) -> bool:
        """Register a client before it sends anything; whether that changes more than its time."""
        record = self.clients.get(client)
        is_new = record is None
        if record is None:
            record = self._enter(client, 1, now)
        record.last_used = now
        is_changed = record.patience != patience
        record.patience = patience
        return is_new or is_changed

    def has_room(self, client: bytes, most: int) -> bool:
        """Whether a command of this client may run: below `most` bytes any, then those of clients within their share.

        Each user has the same share of `most`, and each client of a user the same part of that. So no client is refused
        for what others keep, no user for the clients of others, and all together keep less than twice `most`, and one
        reply each.
        """
        return self.bytes < most or self.kept_for(client) <= self.share(client, most)

    def share(self, client: bytes, most: int) -> int:
        user, is_new = _user(client), client not in self.clients
        users = len(self._of_user) + (user not in self._of_user)
        return most // users // (self._of_user[user] + is_new)

    def kept_for(self, client: bytes) -> int:
        """The memory of a client, or that of a new one."""
        record = self.clients.get(client)
        return CLIENT_COST + len(client) + (0 if record is None else record.bytes)

    def gone(self) -> tuple[int, int]:
        """How many clients have no connection, and their memory. O(clients)."""
        clients = [client for client, record in self.clients.items() if record.connection is None]
        return len(clients), sum(map(self.kept_for, clients))

    def _enter(self, client: bytes, floor: int, now: int) -> ClientRecord:
        record = self.clients[client] = ClientRecord(floor, now)
        self.bytes += CLIENT_COST + len(client)
        self._of_user[_user(client)] += 1
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

    def forget_idle(self, before: int, among: Iterable[bytes] | None = None) -> int:
        """Forget clients, all or some of them, that sent nothing since `before`; how many they were."""
        return self._forget_all(
            [client for client, record in self._some(among) if record.last_used < before],
            "it was idle for longer than once-idle-timeout",
        )

    def forget_gone(self, now: int, timeout: int, among: Iterable[bytes] | None = None) -> int:
        """Forget clients without a connection, after their patience or `timeout`, whichever is longer; how many."""
        return self._forget_all(
            [
                client
                for client, record in self._some(among)
                if record.connection is None and now - record.last_used > max(timeout, record.patience)
            ],
            "its connection had ended, and it did not come back within its patience, nor within once-gone-timeout",
        )

    def _some(self, among: Iterable[bytes] | None) -> Iterable[tuple[bytes, ClientRecord]]:
        if among is None:
            return self.clients.items()
        # No list: so many tuples that stay for a while make the collector of cyclic garbage walk all clients.
        return ((client, record) for client in among if (record := self.clients.get(client)) is not None)

    def _forget_all(self, clients: list[bytes], why: str) -> int:
        for client in clients:
            self._forget(client, why)
        return len(clients)

    def end(self, client: bytes) -> bool:
        """A client says goodbye; whether it was known."""
        is_known = client in self.clients
        if is_known:
            self._forget(client, "it has said goodbye (ONCEEND)")
        return is_known

    def disconnected(self, client: bytes, connection: object, now: int) -> None:
        """A connection has ended that a client has used; it may have another one since."""
        record = self.clients.get(client)
        if record is not None and record.connection is connection:
            record.connection, record.last_used = None, now

    def renew(self, now: int) -> None:
        """The server has just started: the time without it does not count against the clients that it has lost."""
        for record in self.clients.values():
            if record.connection is None:
                record.last_used = now

    def why_unknown(self, client: bytes) -> str:
        """Why a client is not known."""
        return self._reasons.get(client, "it was forgotten long ago, or this is another server")

    def postpone(self, milliseconds: int, now: int) -> None:
        """The clock has moved by so much, which is not to count as idle; now it shows `now`.

        Clients that came since have the new time already. One that was away for longer than the clock was set back
        cannot be told from these: it is kept for longer.
        """
        for record in self.clients.values():
            if milliseconds > 0 or record.last_used > now:
                record.last_used = min(record.last_used + milliseconds, now)

    def _forget(self, client: bytes, why: str) -> None:
        record = self.clients.pop(client)
        self.bytes -= CLIENT_COST + len(client) + record.bytes
        user = _user(client)
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]
        self._reasons.pop(client, None)
        self._reasons[client] = why
        if len(self._reasons) > MOST_REASONS:
            del self._reasons[next(iter(self._reasons))]

    # -- snapshots --------------------------------------------------------------------------------------------

    def dump(self, client: bytes) -> bytes:
        """One client as bytes."""
        record = self.clients[client]
        rows = [
            struct.pack("<Q", number) + pack_many((old,) if old == new else (old, new))
            for number, (old, new) in record.replies.items()
        ]
        if record.patience:
            rows.append(struct.pack("<QQ", _PATIENCE, record.patience))
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
            number = int.from_bytes(row[:8], "little")
            if number == _PATIENCE and len(row) == 16:
                record.patience = int.from_bytes(row[8:], "little")
                continue
            wires = unpack_many(row[8:])
            if len(wires) not in (1, 2) or number < floor or number in record.replies:
                raise CorruptValue("a kept reply that is not one")
            record.replies[number] = (wires[0], wires[-1])
        record.bytes = sum(map(_cost, record.replies.values()))
        record.top = max(record.replies, default=0)
        if client in self.clients:
            self._forget(client, "")
        self._reasons.pop(client, None)
        self.clients[client] = record
        self.bytes += CLIENT_COST + len(client) + record.bytes
        self._of_user[_user(client)] += 1

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
        assert dict(self._of_user) == Counter(map(_user, self.clients))


def _user(client: bytes) -> bytes:
    """The user whose client it is: its name in front of a NUL, nothing for the default user (commands/once.py)."""
    return client.rpartition(b"\0")[0]


def _cost(reply: tuple[bytes, bytes]) -> int:
    old, new = reply
    return REPLY_COST + len(old) + (len(new) if new is not old else 0)
