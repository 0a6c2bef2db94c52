"""Finds the key that holds a stream.

A stream knows the key under which it was last seen, and RENAME, MOVE and SWAPDB change it. So that key is looked at in
each database; only if the stream is not there, all keys are looked through, and all streams learn theirs.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engine.keyspace.databases import Database, Keyspace
from penstock.types.stream.messages import Messages
from penstock.types.stream.stream import Stream

Place = tuple[Database, bytes]


def find(keyspace: Keyspace, messages: Messages) -> Place | None:
    """The key that holds these messages; None if no key does any more."""
    place = _last_seen(keyspace, messages)
    if place is None:
        for _, key, stream in all_streams(keyspace):
            stream.messages.key = key
        place = _last_seen(keyspace, messages)
    return place


def _last_seen(keyspace: Keyspace, messages: Messages) -> Place | None:
    for database in keyspace.databases:
        value = database.data.get(messages.key)
        if type(value) is Stream and value.messages is messages:
            return database, messages.key
    return None


def all_streams(keyspace: Keyspace) -> Iterator[tuple[Database, bytes, Stream]]:
    """Every stream. O(keys)."""
    for database in keyspace.databases:
        for key, value in [item for item in database.data.items() if type(item[1]) is Stream]:
            assert isinstance(value, Stream)
            yield database, key, value
