"""The databases: names to values, their expiry times, and who waits for a change.

Handlers change data only through these methods of `Database`. WATCH, blocked clients, the save rules and the log learn
from them that something happened:

- `set` and `replace` install a value; `replace` keeps the expiry time
- `delete` and `clear` remove a key, or all of them
- `changed` says that a value was changed in place, or its expiry time; `emptied` and `replace_or_delete` choose between
  these for a collection that may have become empty
- `Keyspace.swap` exchanges the contents of two databases

`obtain` and `obtain_stream` install an empty value without telling anything: the handler that fills it calls `changed`.
Expiry removes a key and tells observers, but does not count as a change. Storage loads into `data` directly, before any
client is served.

A string is plain `bytes`, a `bytearray` once it was edited in place, or an `int` once it was counted with: a wrapper
object would cost 56 bytes a key and a call a read. Everything else is a class of types/.

All of this is owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.engine.clock import Clock
from penstock.engine.keyspace.expiry_times import Deadlines
from penstock.engine.keyspace.observers import ANY_KEY, ObservedKeys
from penstock.engine.keyspace.random_keys import DRAWS, KeySampler
from penstock.engine.keyspace.stored_key import stored_key
from penstock.freeing import GIANT, dispose
from penstock.protocol.errors import WrongType
from penstock.types.once_records import OnceRecords
from penstock.types.stream.nodes import Storage
from penstock.types.stream.stream import Stream

if TYPE_CHECKING:
    from penstock.engine.concurrency.locks import KeyLock

Value = Any  # bytes, bytearray, int, or an instance of a class in types/
T = TypeVar("T")

NEVER = 1 << 63
"""Later than any expiry time can be."""
EXPIRY_SLICE = 1_000_000
"""Nanoseconds that active expiry works before other clients are served."""


class Keyspace:
    """All databases of a server, and what they share."""

    def __init__(self, count: int = 16, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        # Changes ever made, and repeats that acknowledge one which is not safe yet (Session.acknowledge_again). Save
        # rules and dispatch compare it with an earlier reading.
        self.dirty = 0
        self.ready: list[tuple[Database, bytes]] = []  # changed keys that blocked commands wait for; never replaced
        self.expiring = True  # off while loading: the log itself says what expired, and when
        self.frozen = False  # `Engine.changes_nothing`: commands do not find an expired key, but it stays
        self.on_expired: Callable[[Database, bytes], None] = lambda database, key: None
        # Runs commands that may still see an expired key; whether there were any. None while nothing is queued.
        self.before_expiry: Callable[[Database, bytes], bool] | None = None
        self.expired_count = 0
        self.databases = [Database(self, index) for index in range(count)]
        # the replies that ONCE keeps: they belong to no database, and FLUSHALL does not remove them
        self.once_records = OnceRecords()
        self.stream_storage = Storage()  # how the streams of this server are kept; its settings edit it
        self._expiry_turn = 0  # the database that active expiry looks at next

    def __getitem__(self, index: int) -> Database:
        return self.databases[index]

    def __len__(self) -> int:
        return len(self.databases)

    def swap(self, one: int, other: int) -> None:
        """Exchange the contents of two databases; sessions stay on the number they chose."""
        a, b = self.databases[one], self.databases[other]
        for key in {*a.observed, *b.observed}:  # an expired key goes first: coming or going with the others, it is none
            a.get(key)
            b.get(key)
        for database in (a, b):
            database.touch_observed(existing_only=True)
        a.data, b.data = b.data, a.data
        a.expires, b.expires = b.expires, a.expires
        a._deadlines, b._deadlines = b._deadlines, a._deadlines
        a.locked, b.locked = b.locked, a.locked  # a lock is about a value, wherever that is
        self.dirty += 1
        for database in (a, b):
            database._choose_get()
            database.touch_observed(existing_only=True, live_only=True)

    def expire_cycle(self, nanoseconds: int = EXPIRY_SLICE) -> bool:
        """Delete expired keys, for about so long; whether more are due. Not while the keyspace is frozen.

        Databases take turns, so that one in which keys expire all the time does not delay the others.
        """
        if self.frozen:
            return False
        until = perf_counter_ns() + nanoseconds
        for _ in self.databases:
            database = self.databases[self._expiry_turn]
            self._expiry_turn = (self._expiry_turn + 1) % len(self.databases)
            if database.expire_due(until):
                return True
        return False


class Database:
    """One numbered database."""

    __slots__ = ("_deadlines", "_sampler", "clock", "data", "expires", "get", "index", "keyspace", "locked", "observed")

    get: Callable[[bytes], Value | None]
    """The live value at a key, or None. It is `data.get` itself while nothing here expires."""

    def __init__(self, keyspace: Keyspace, index: int) -> None:
        self.keyspace = keyspace
        self.clock = keyspace.clock
        self.index = index
        self.data: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}  # milliseconds since 1970; a subset of data's keys
        self._deadlines = Deadlines()  # the same, by time
        self._sampler = KeySampler()
        self.observed = ObservedKeys()
        self.locked: dict[bytes, KeyLock] = {}  # see locks.py, which keeps it
        self._choose_get()

    # -- reading ----------------------------------------------------------------------------------------------

    def _choose_get(self) -> None:
        self.get = self._get_live if self.expires else self.data.get

    def _get_live(self, key: bytes) -> Value | None:
        value = self.data.get(key)
        if value is not None and self.expires.get(key, NEVER) <= self.clock.now:
            return None if self.expire_now(key) else self.data.get(key)
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
            if self.expires:
                self.persist(key)  # of what a pause keeps there unseen
        elif type(value) is not kind:
            raise WrongType
        return value

    def obtain_stream(self, key: bytes) -> Stream:
        """The same for a stream, which is kept as the settings of this server say."""
        value = self.find(key, Stream)
        if value is None:
            value = self.data[key] = Stream(self.keyspace.stream_storage)
            value.messages.key = key
            if self.expires:
                self.persist(key)
        return value

    def __contains__(self, key: bytes) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return len(self.data)

    def live_keys(self) -> Iterator[bytes]:
        """Every key that has not expired; deletes nothing, so it is safe while the caller iterates."""
        if not self.expires or not self.keyspace.expiring:
            return iter(self.data)
        now = self.clock.now
        expires = self.expires
        return (key for key in self.data if expires.get(key, NEVER) > now)

    def random_key(self) -> bytes | None:
        """A live key, each as likely as any other, or None; random_keys.py says how."""
        for _ in range(DRAWS):
            key = self._sampler.draw(self.data, self.keyspace.dirty)
            if key is None or self.get(key) is not None:
                return key
        return self._sampler.draw_of(list(self.live_keys()), self.data, self.keyspace.dirty)

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
        if self.expires and self.keyspace.frozen and self.is_expired(key):
            self.persist(key)  # it replaces what is there unseen
        self.data[key] = value
        self.keyspace.dirty += 1
        if self.observed:
            self._tell(key)

    def changed(self, key: bytes) -> None:
        """Say that the value at `key` was changed in place."""
        self.keyspace.dirty += 1
        if self.observed:
            self._tell(key)

    def touch(self, key: bytes) -> None:
        """Break the WATCHes of a key although nothing changed, as Redis does in some cases."""
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

    def replace_or_delete(self, key: bytes, value: Any) -> None:
        """Replace a value by what is left of it, and remove the key if that is empty."""
        if value:
            self.replace(key, value)
        else:
            self.delete(key)

    def _drop(self, key: bytes) -> None:
        del self.data[key]
        if self.expires:
            self.persist(key)
        if self.observed:
            self._tell(key)

    def clear(self) -> None:
        """Remove everything at once.

        Each old value is freed after its last reference is gone, large ones in small steps.
        """
        self.keyspace.dirty += len(self.data)
        self.touch_observed(existing_only=True)
        for table in (self.data, self.expires, *self._deadlines.parts()):
            if len(table) > GIANT:
                dispose(table)
        self.data = {}
        self.expires = {}
        self._deadlines = Deadlines()
        self._choose_get()

    # -- expiry -----------------------------------------------------------------------------------------------

    def expires_at(self, key: bytes) -> int | None:
        """When the key expires, in milliseconds since 1970; None if it does not."""
        return self.expires.get(key)

    def expire_at(self, key: bytes, when: int) -> None:
        """Give an existing key an expiry time. The caller says `changed`."""
        expires = self.expires
        key = stored_key(self.data, key)
        before = expires.get(key)
        if before is not None:
            self._deadlines.remove(key, before)
        expires[key] = when
        self._deadlines.add(key, when)
        if len(expires) == 1:
            self._choose_get()

    def persist(self, key: bytes) -> bool:
        """Remove a key's expiry time; whether it had one. The caller calls `changed`."""
        when = self.expires.pop(key, None)
        if when is None:
            return False
        self._deadlines.remove(key, when)
        if not self.expires:
            self._choose_get()
        return True

    def is_expired(self, key: bytes) -> bool:
        """Whether the key has expired; it may still be in `data`, where only this class should look."""
        return self.keyspace.expiring and self.expires.get(key, NEVER) <= self.clock.now

    def expire_now(self, key: bytes) -> bool:
        """Delete an expired key and log that; False while loading, or if it has no expiry time any more.

        While the keyspace is frozen it counts as deleted, and is deleted later. It does not count as a change
        (`dirty`): the command that found the key did not cause it, and must not be logged for it.
        """
        keyspace = self.keyspace
        if not keyspace.expiring:
            return False
        before = keyspace.before_expiry
        if before is not None and before(self, key) and not self.is_expired(key):
            return False
        if keyspace.frozen:
            return True
        self._drop(key)
        keyspace.expired_count += 1
        keyspace.on_expired(self, key)
        return True

    def expire_due(self, until: int) -> bool:
        """Delete expired keys until perf_counter_ns() says `until`; whether more may be due."""
        if not self.expires or not self.keyspace.expiring:
            return False
        now = self.clock.now
        take = self._deadlines.take
        gone = 0
        while (key := take(now)) is not None:
            self.expire_now(key)
            gone += 1
            if gone % 32 == 0 and perf_counter_ns() >= until:
                return True
        return False

    def check(self) -> None:
        """Assert every invariant; for tests."""
        assert self.expires.keys() <= self.data.keys(), self.expires.keys() - self.data.keys()
        assert self.get == (self._get_live if self.expires else self.data.get)
        self._deadlines.check(self.expires)

    # -- observers --------------------------------------------------------------------------------------------

    def _tell(self, key: bytes) -> None:
        if ANY_KEY in self.observed:
            self.observed.note(key)
        found = self.observed.get(key)
        if found is None:
            return
        for session in found.watchers:
            session.watch_broken = True
        if found.waiters:
            self.keyspace.ready.append((self, key))

    def touch_observed(self, existing_only: bool = False, live_only: bool = False) -> None:
        """Everything may have changed (FLUSHALL, SWAPDB): tell all observers, or those of keys that are here.

        `live_only` leaves out keys that came with SWAPDB and have expired: there was no such key, and there is none.
        """
        for key in list(self.observed):
            if not existing_only or (key in self.data and not (live_only and self.is_expired(key))):
                self._tell(key)
