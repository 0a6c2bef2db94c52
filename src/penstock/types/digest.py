"""A fingerprint of data: equal for equal data in any order of keys and members, and different after any change.

For values that Redis also has it equals Redis's DEBUG DIGEST, so that a test can compare two servers. Redis builds it
in two ways. `_mix` adds something to a digest where order matters: elements of a list, a field and its value. `_xor`
adds it where order does not matter: members of a set, whole pairs of a hash, keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha1
from typing import Any

from penstock.types import codec
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.registry import DECLARED
from penstock.types.set import Set
from penstock.types.stream.reading import each
from penstock.types.stream.stream import Stream
from penstock.types.xstream import XStream
from penstock.types.zset import SortedSet

NOTHING = bytes(20)
_TYPES = {List: 1, Set: 2, SortedSet: 3, Hash: 4, XStream: 6, Stream: 100}  # Redis's numbers; a string is 0
_OTHER = 101


def _sha1(data: bytes) -> bytes:
    return sha1(data, usedforsecurity=False).digest()


def _xor(digest: bytes, data: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(digest, _sha1(data), strict=True))


def _mix(digest: bytes, *parts: bytes) -> bytes:
    for part in parts:
        digest = _sha1(_xor(digest, part))
    return digest


def of_value(value: Any, expires: bool, digest: bytes = NOTHING) -> bytes:
    """Add the digest of a value, and of whether it expires, to `digest`. O(elements)."""
    kind = type(value)
    digest = _mix(digest, _TYPES.get(kind, _OTHER if kind in DECLARED else 0).to_bytes(4, "big"))
    if kind is List:
        digest = _mix(digest, *value)
    elif kind is Set:
        digest = _xor_all(digest, value)
    elif kind is SortedSet:
        digest = _xor_all(digest, (_mix(NOTHING, member, b"%.17g" % score) for member, score in value.scores.items()))
    elif kind is Hash:
        digest = _xor_all(digest, (_mix(NOTHING, *pair) for pair in value.items()))
    elif kind is XStream:
        for (milliseconds, sequence), fields in value:
            digest = _mix(digest, b"%d.%d" % (milliseconds, sequence), *fields)
    elif kind is Stream:
        digest = _of_stream(value, digest)
    else:
        digest = _mix(digest, codec.dump(value)[1:])
    return _xor(digest, b"!!expire!!") if expires else digest


def _xor_all(digest: bytes, parts: Iterable[bytes]) -> bytes:
    for part in parts:
        digest = _xor(digest, part)
    return digest


def _of_stream(stream: Stream, digest: bytes) -> bytes:
    """The state that a reader sees: messages with offsets and times, the groups, the ids of producers and stages."""
    messages = stream.messages
    digest = _mix(digest, b"%d-%d" % (messages.first, messages.last), repr(stream.retention).encode())
    if stream.schemas is not None:
        digest = _mix(digest, stream.schemas.dump())
    for offset, time, tag, entry in each(messages, messages.first, len(messages)):
        digest = _mix(digest, b"%d %d" % (offset, time), tag, entry)
    groups = (_mix(NOTHING, b"group", name, group.dump()) for name, group in stream.groups.items())
    rows = iter(stream.producers.dump())
    producers = (_mix(NOTHING, b"producer", name, next(rows)) for name in rows)
    stages = (_mix(NOTHING, b"stage", part) for part in stream.stages.dump())
    return _xor_all(_xor_all(_xor_all(digest, groups), producers), stages)


def of_databases(databases: Iterable[Iterator[tuple[bytes, Any, bool]]]) -> bytes:
    """The digest of everything: of (key, value, whether it expires) of each database, in the order of their numbers."""
    whole = NOTHING
    for number, rows in enumerate(databases):
        for first, (key, value, expires) in enumerate(rows):
            if not first:
                whole = _mix(whole, number.to_bytes(4, "big"))
            whole = _xor(whole, of_value(value, expires, _mix(NOTHING, key)))
    return whole
