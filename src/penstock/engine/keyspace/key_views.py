"""The keys of a database as threads may see them, while keys come and go.

`names_now` and `copy_now` make copies. That is one call that no other thread can interrupt, some 20 nanoseconds a key.
`lookup_now` copies nothing: it looks at the data as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from penstock.engine.keyspace.databases import NEVER, Database, Value
from penstock.freeing import GIANT, LongList, dispose, take_apart


class KeyTable:
    """The keys and values of a database as they were."""

    __slots__ = ("_data", "_expires", "_now")

    def __init__(self, data: dict[bytes, Value], expires: dict[bytes, int], now: int) -> None:
        self._data, self._expires, self._now = data, expires, now

    def get(self, key: bytes) -> Value | None:
        if self._expires and self._expires.get(key, NEVER) <= self._now:
            return None
        return self._data.get(key)

    def __del__(self) -> None:
        for table in (self._data, self._expires):
            if len(table) > GIANT:
                dispose(table)


def names_now(database: Database) -> Iterable[bytes]:
    """What `live_keys` gives at this moment."""
    names = LongList(database.data)
    if not database.expires or not database.keyspace.expiring:
        return names
    now, expires = database.clock.now, database.expires.copy()

    def live() -> Iterator[bytes]:
        yield from (name for name in names if expires.get(name, NEVER) > now)
        take_apart(expires)

    return live()


def lookup_now(database: Database) -> Callable[[bytes], Value | None]:
    """What `get` does, but that nothing is deleted: any thread may call it, and only look at the type of a value."""
    data, expires, now = database.data, database.expires, database.clock.now
    if not expires or not database.keyspace.expiring:
        return data.get
    return lambda key: data.get(key) if expires.get(key, NEVER) > now else None


def copy_now(database: Database) -> KeyTable:
    """Which value every key has at this moment, for any thread; the values themselves are not copied."""
    expires = database.expires.copy() if database.keyspace.expiring else {}
    return KeyTable(database.data.copy(), expires, database.clock.now)
