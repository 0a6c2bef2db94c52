"""What ONCE remembers: for every client, the replies it may not have seen yet.

A client numbers its commands 1, 2, 3 ... and says with each one its floor: every reply below it has arrived. What is
kept is the replies from the floor on, as they go over the wire, in both versions of the protocol where these differ.
A number that is kept was executed; one below the floor was, too, and nobody will ask for it again in good faith.

Invariant: no kept number is below its client's floor or above its top; `bytes` is what the kept replies and the clients cost.

Rejected: keeping the last n replies. A client with more commands under way than n would have some of them run twice,
and a quiet client would hold n replies for ever.
"""

from __future__ import annotations

import struct

from penstock.types.packing import CorruptValue, pack_many, unpack_many

CLIENT_COST = 300
"""About the bytes of memory that a client takes, its replies not counted."""
REPLY_COST = 120
"""About the bytes that a kept reply takes beyond its own."""

_HEADER = struct.Struct("<QQ")


class BelowFloor(ValueError):
    """The client has said that it has this reply; it is gone."""


class UnknownClient(ValueError):
    """A client that was here before, by its floor, and that nothing is known of."""


class Account:
    """One client."""

    __slots__ = ("bytes", "floor", "floor_text", "last_used", "replies", "top")

    def __init__(self, floor: int, last_used: int) -> None:
        self.floor = floor
        self.floor_text = (
            b""  # the floor as the client writes it, if it has said so; saves reading it with each command
        )
        self.last_used = last_used  # milliseconds since 1970
        self.replies: dict[int, tuple[bytes, bytes]] = {}  # by number: as RESP2 and RESP3 show it
        self.bytes = 0  # what the replies cost
        self.top = 0  # no kept number is above it


class Ledger:
    """All clients of ONCE. Pure; `now` is in milliseconds."""

    def __init__(self) -> None:
        self.accounts: dict[bytes, Account] = {}
        self.bytes = 0

    @property
    def replies(self) -> int:
        """How many are kept. O(clients)."""
        return sum(len(account.replies) for account in self.accounts.values())

    def find(self, client: bytes, number: int, floor: int, now: int) -> tuple[bytes, bytes] | None:
        """The reply that was kept for a command, None if it did not run yet. Forgets what is below the floor.

        O(1) amortised: a reply is forgotten once.
        """
        account = self.accounts.get(client)
        if account is None:
            if floor > 1:
                raise UnknownClient
            return None
        account.last_used = now
        if floor > account.floor:
            self._settle(account, floor)
        if number < account.floor:
            raise BelowFloor(f"{number} is below the floor {account.floor}")
        return account.replies.get(number)

    def meet(self, client: bytes, now: int) -> bool:
        """Know a client from now on, before it sends anything; whether it is new."""
        account = self.accounts.get(client)
        if account is not None:
            account.last_used = now
            return False
        self._enter(client, 1, now)
        return True

    def _enter(self, client: bytes, floor: int, now: int) -> Account:
        account = self.accounts[client] = Account(floor, now)
        self.bytes += CLIENT_COST + len(client)
        return account

    def keep(self, client: bytes, number: int, floor: int, reply: tuple[bytes, bytes], now: int) -> None:
        """Keep a reply until the client's floor has passed it."""
        account = self.accounts.get(client)
        if account is None:
            account = self._enter(client, floor, now)
        elif floor > account.floor:
            self._settle(account, floor)
        if number >= account.floor:  # else its client gave up on it while it was under way
            self.keep_in(account, number, reply, now)
        account.last_used = now

    def keep_in(self, account: Account, number: int, reply: tuple[bytes, bytes], now: int) -> None:
        """Keep a reply of a client that was looked up, for a number that is not below its floor and not kept yet."""
        account.last_used = now
        account.replies[number] = reply
        if number > account.top:
            account.top = number
        old, new = reply
        cost = REPLY_COST + len(old) + (len(new) if new is not old else 0)
        account.bytes += cost
        self.bytes += cost

    def raise_floor(self, account: Account, floor: int, text: bytes) -> None:
        """The client has all replies below a floor, which it writes in this way."""
        self._settle(account, floor)
        account.floor_text = text

    def _settle(self, account: Account, floor: int) -> None:
        """Forget every reply below a floor."""
        replies, before, begin = account.replies, account.bytes, account.floor
        if floor == begin:
            return
        account.floor, account.floor_text = floor, b""
        if floor > account.top:  # a pipeline that was answered whole, most often
            replies.clear()
            account.bytes = 0
            self.bytes -= before
            return
        if floor - begin <= len(replies):
            below = [number for number in range(begin, floor) if number in replies]
        else:
            below = [number for number in replies if number < floor]
        for number in below:
            account.bytes -= _cost(replies.pop(number))
        self.bytes += account.bytes - before

    def forget_idle(self, before: int) -> int:
        """Forget clients that sent nothing since `before`; how many they were."""
        idle = [client for client, account in self.accounts.items() if account.last_used < before]
        for client in idle:
            self._forget(client)
        return len(idle)

    def postpone(self, milliseconds: int) -> None:
        """A time passed, by the clock, that is not to count."""
        for account in self.accounts.values():
            account.last_used += milliseconds

    def _forget(self, client: bytes) -> None:
        account = self.accounts.pop(client)
        self.bytes -= CLIENT_COST + len(client) + account.bytes

    # -- snapshots --------------------------------------------------------------------------------------------

    def dump(self, client: bytes) -> bytes:
        """One client as bytes."""
        account = self.accounts[client]
        rows = [
            struct.pack("<Q", number) + pack_many((old,) if old == new else (old, new))
            for number, (old, new) in account.replies.items()
        ]
        return _HEADER.pack(account.floor, account.last_used) + pack_many(rows)

    def load(self, client: bytes, data: bytes) -> None:
        """Add the client that `dump` wrote, in place of what is known of it; CorruptValue for anything else."""
        if len(data) < _HEADER.size:
            raise CorruptValue("a client of ONCE that is cut short")
        floor, last_used = _HEADER.unpack_from(data)
        account = Account(floor, last_used)
        for row in unpack_many(data[_HEADER.size :]):
            if len(row) < 8:
                raise CorruptValue("a kept reply without a number")
            wires = unpack_many(row[8:])
            number = int.from_bytes(row[:8], "little")
            if len(wires) not in (1, 2) or number < floor or number in account.replies:
                raise CorruptValue("a kept reply that is not one")
            account.replies[number] = (wires[0], wires[-1])
        account.bytes = sum(map(_cost, account.replies.values()))
        account.top = max(account.replies, default=0)
        if client in self.accounts:
            self._forget(client)
        self.accounts[client] = account
        self.bytes += CLIENT_COST + len(client) + account.bytes

    def check(self) -> None:
        """Assert every invariant; for tests."""
        total = 0
        for client, account in self.accounts.items():
            assert all(account.top >= number >= account.floor >= 1 for number in account.replies), (
                client,
                account.floor,
            )
            assert account.bytes == sum(map(_cost, account.replies.values())), client
            total += CLIENT_COST + len(client) + account.bytes
        assert self.bytes == total, (self.bytes, total)


def _cost(reply: tuple[bytes, bytes]) -> int:
    old, new = reply
    return REPLY_COST + len(old) + (len(new) if new is not old else 0)
