"""The databases: names to values, their expiry times, and who waits for a change.

Handlers change data only through `set`, `delete` and, after changing a value in place, `changed`. These three are
where WATCH, blocked clients, the save rules and the log learn that something happened; a fourth way in would be
a bug in all of them.

A string is plain `bytes`, a `bytearray` once it was edited in place, or an `int` once it was counted with: a wrapper
object would cost 56 bytes a key and a call a read. Everything else is a class of types/.

All of this is owned by the loop thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.engine.clock import Clock
from penstock.protocol.errors import WrongType

if TYPE_CHECKING:
    from penstock.engine.blocking import Waiter
    from penstock.engine.session import Session

Value = Any  # bytes, bytearray, int, or an instance of a class in types/
T = TypeVar("T")


class Observers:
    """Who wants to know that one key changed."""

    __slots__ = ("waiters", "watchers")

    def __init__(self) -> None:
        self.watchers: set[Session] = set()  # sessions that WATCH the key
        self.waiters: dict[Waiter, None] = {}  # blocked commands, first come first

    def __bool__(self) -> bool:
        return bool(self.watchers or self.waiters)


class Keyspace:
    """All databases of a server, and what they share."""

    def __init__(self, count: int = 16, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.dirty = 0  # changes ever made; save rules and dispatch compare it with an earlier reading
        self.ready: list[tuple[Database, bytes]] = []  # changed keys that blocked commands wait for
        self.expiring = True  # off while loading: the log itself says what expired, and when
        self.on_expired: Callable[[Database, bytes], None] = lambda database, key: None
        self.expired_count = 0
        self.databases = [Database(self, index) for index in range(count)]

    def __getitem__(self, index: int) -> Database:
        return self.databases[index]

    def __len__(self) -> int:
        return len(self.databases)

    def swap(self, one: int, other: int) -> None:
        """Exchange the contents of two databases; sessions stay on the number they chose."""
        a, b = self.databases[one], self.databases[other]
        a.data, b.data = b.data, a.data
        a.expires, b.expires = b.expires, a.expires
        a._deadlines, b._deadlines = b._deadlines, a._deadlines
        self.dirty += 1
        for database in (a, b):
            database._choose_get()
            database.touch_observed()

    def expire_cycle(self, limit: int) -> int:
        """Delete up to `limit` keys whose time has come, over all databases; how many went."""
        gone = 0
        for database in self.databases:
            if gone >= limit:
                break
            gone += database.expire_due(limit - gone)
        return gone


class Database:
    """One numbered database."""

    __slots__ = ("_deadlines", "clock", "data", "expires", "get", "index", "keyspace", "observed")

    get: Callable[[bytes], Value | None]
    """The live value at a key, or None. It is `data.get` itself while nothing here expires."""

    def __init__(self, keyspace: Keyspace, index: int) -> None:
        self.keyspace = keyspace
        self.clock = keyspace.clock
        self.index = index
        self.data: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}  # milliseconds since 1970; a subset of data's keys
        self._deadlines: list[tuple[int, bytes]] = []  # a heap of (when, key); stale rows are passed over
        self.observed: dict[bytes, Observers] = {}
        self._choose_get()

    # -- reading ----------------------------------------------------------------------------------------------

    def _choose_get(self) -> None:
        self.get = self._get_live if self.expires else self.data.get

    def _get_live(self, key: bytes) -> Value | None:
        value = self.data.get(key)
        if value is not None and self.expires.get(key, 1 << 62) <= self.clock.now and self.expire_now(key):
            return None
        return value

    def find(self, key: bytes, kind: type[T]) -> T | None:
        """The value at `key` if it is a `kind`, None if there is none; any other type is WRONGTYPE."""
        value = self.get(key)
        if value is None or type(value) is kind:
            return value
        raise WrongType

    def find_string(self, key: bytes) -> bytes | bytearray | None:
        """The string at `key`, None if there is none. A counter is kept as an int and shown as its digits."""
        value = self.get(key)
        if value is None or type(value) is bytes or type(value) is bytearray:
            return value
        if type(value) is int:
            return b"%d" % value
        raise WrongType

    def obtain(self, key: bytes, kind: Callable[[], T]) -> T:
        """The `kind` at `key`, made and installed if there is none. The caller says `changed` when it fills it."""
        value = self.get(key)
        if value is None:
            value = self.data[key] = kind()
        elif type(value) is not kind:
            raise WrongType
        return value

    def __contains__(self, key: bytes) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return len(self.data)

    def live_keys(self) -> Iterator[bytes]:
        """Every key that has not expired; deletes nothing, so it is safe while the caller iterates."""
        now = self.clock.now
        expires = self.expires
        return (key for key in self.data if expires.get(key, 1 << 62) > now) if expires else iter(self.data)

    # -- changing ---------------------------------------------------------------------------------------------

    def set(self, key: bytes, value: Value) -> None:
        """Install a value, replacing whatever was there and its expiry time."""
        self.data[key] = value
        if self.expires and key in self.expires:
            self.persist(key)
        self.keyspace.dirty += 1
        if self.observed:
            self._tell(key)

    def replace(self, key: bytes, value: Value) -> None:
        """Install a value and keep the key's expiry time."""
        self.data[key] = value
        self.keyspace.dirty += 1
        if self.observed:
            self._tell(key)

    def changed(self, key: bytes) -> None:
        """Say that the value at `key` was changed in place."""
        self.keyspace.dirty += 1
        if self.observed:
            self._tell(key)

    def delete(self, key: bytes) -> bool:
        """Remove a key; whether it was there (an expired key was not)."""
        if self.get(key) is None:
            return False
        self._drop(key)
        self.keyspace.dirty += 1
        return True

    def emptied(self, key: bytes, value: Any) -> None:
        """Say that `value` was changed in place, and remove the key if nothing is left in it."""
        if value:
            self.changed(key)
        else:
            self.delete(key)

    def _drop(self, key: bytes) -> None:
        del self.data[key]
        if self.expires:
            self.persist(key)
        if self.observed:
            self._tell(key)

    def clear(self) -> None:
        """Forget everything at once; the old values are freed when their last reader lets go."""
        self.keyspace.dirty += len(self.data)
        self.touch_observed(existing_only=True)
        self.data = {}
        self.expires = {}
        self._deadlines = []
        self._choose_get()

    # -- expiry -----------------------------------------------------------------------------------------------

    def expires_at(self, key: bytes) -> int | None:
        """When the key goes, in milliseconds since 1970; None if it stays."""
        return self.expires.get(key)

    def expire_at(self, key: bytes, when: int) -> None:
        """Give an existing key an expiry time. The caller says `changed`."""
        self.expires[key] = when
        heapq.heappush(self._deadlines, (when, key))
        if len(self._deadlines) > 2 * len(self.expires) + 1024:
            self._deadlines = [(at, name) for name, at in self.expires.items()]
            heapq.heapify(self._deadlines)
        self._choose_get()

    def persist(self, key: bytes) -> bool:
        """Take a key's expiry time away; whether it had one. The caller says `changed`."""
        had = self.expires.pop(key, None) is not None
        if had and not self.expires:
            self._deadlines = []
            self._choose_get()
        return had

    def is_expired(self, key: bytes) -> bool:
        return self.keyspace.expiring and self.expires.get(key, 1 << 62) <= self.clock.now

    def expire_now(self, key: bytes) -> bool:
        """Delete a key whose time has come and have that logged; False while loading."""
        keyspace = self.keyspace
        if not keyspace.expiring:
            return False
        self._drop(key)
        keyspace.dirty += 1
        keyspace.expired_count += 1
        keyspace.on_expired(self, key)
        return True

    def expire_due(self, limit: int) -> int:
        """Delete up to `limit` keys whose time has come."""
        gone = 0
        now = self.clock.now
        while gone < limit and self._deadlines and self._deadlines[0][0] <= now:
            when, key = heapq.heappop(self._deadlines)
            if self.expires.get(key) == when and self.expire_now(key):
                gone += 1
        return gone

    # -- observers --------------------------------------------------------------------------------------------

    def observe(self, key: bytes) -> Observers:
        """The observers of a key, made if there are none; drop empty ones with `unobserve`."""
        found = self.observed.get(key)
        if found is None:
            found = self.observed[key] = Observers()
        return found

    def unobserve(self, key: bytes) -> None:
        if key in self.observed and not self.observed[key]:
            del self.observed[key]

    def _tell(self, key: bytes) -> None:
        found = self.observed.get(key)
        if found is None:
            return
        for session in found.watchers:
            session.watch_broken = True
        if found.waiters:
            self.keyspace.ready.append((self, key))

    def touch_observed(self, existing_only: bool = False) -> None:
        """Everything may have changed (FLUSHALL, SWAPDB): tell all observers of keys that are here."""
        for key in self.observed:
            if not existing_only or key in self.data:
                self._tell(key)
