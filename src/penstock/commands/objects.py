"""OBJECT: how Redis would store a value.

Values are not stored in Redis's encodings, but programs and their tests ask for them, so the answer is derived from the
value and Redis's limits. History is not considered: Redis keeps a large encoding when a value shrinks, and does not
return to `int` or `embstr` after APPEND; the answer here is the encoding of a value that was just written.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engine.arguments import to_integer
from penstock.engine.config import Config
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, key
from penstock.engine.keyspace.databases import Value
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.types import codec
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.set import Set, in_integer_order
from penstock.types.zset import SortedSet

EMBEDDED = 44
"""Bytes of the longest string Redis keeps in one piece with its header."""
SHARED_INTEGERS = 10_000
SHARED = (1 << 31) - 1
"""The reference count Redis shows for the integers it made beforehand."""


def _is_integer(text: bytes | bytearray) -> bool:
    if len(text) > 20:
        return False
    try:
        to_integer(bytes(text))
    except ReplyError:
        return False
    return True


def _fits(items: Iterable[bytes], limit: int) -> bool:
    return all(len(item) <= limit for item in items)


def encoding(value: Value, config: Config) -> bytes:
    """The name of the encoding Redis 7.0 would have chosen."""
    kind = type(value)
    if kind is int:
        return b"int"
    if kind is bytearray:
        return b"raw"
    if kind is bytes:
        return b"int" if _is_integer(value) else b"embstr" if len(value) <= EMBEDDED else b"raw"
    if kind is List:
        return b"quicklist"
    if kind is Set:
        return b"hashtable" if in_integer_order(value, config.set_max_intset_entries) is None else b"intset"
    if kind is Hash:
        limit = config.hash_max_listpack_value
        small = len(value) <= config.hash_max_listpack_entries and _fits(value, limit)
        return b"listpack" if small and _fits(value.values(), limit) else b"hashtable"
    if kind is SortedSet:
        small = len(value) <= config.zset_max_listpack_entries and _fits(value.scores, config.zset_max_listpack_value)
        return b"listpack" if small else b"skiplist"
    return codec.type_name(value).encode()


@command(
    "OBJECT ENCODING",
    arity=3,
    flags=Flag.READONLY,
    keys=key(2, Access.READ, Effect.SIGHT),
    group="generic",
    syntax="key",
    cost="O(N) with N elements up to the limit of a small encoding",
)
def object_encoding(session: Session, argv: Argv) -> Reply:
    """Answer the encoding Redis 7.0 would store the value in, null if there is no such key."""
    value = session.db.get(argv[2])
    return encoding(value, session.engine.config) if value is not None else None


@command(
    "OBJECT REFCOUNT",
    arity=3,
    flags=Flag.READONLY,
    keys=key(2, Access.READ, Effect.SIGHT),
    group="generic",
    syntax="key",
)
def object_refcount(session: Session, argv: Argv) -> Reply:
    """Answer how many references Redis would count: 1, or 2147483647 for an integer below 10,000."""
    value = session.db.get(argv[2])
    if value is None:
        return None
    shared = type(value) in (bytes, int) and encoding(value, session.engine.config) == b"int"
    return SHARED if shared and 0 <= int(value) < SHARED_INTEGERS else 1


@command(
    "OBJECT IDLETIME",
    arity=3,
    flags=Flag.READONLY,
    keys=key(2, Access.READ, Effect.SIGHT),
    group="generic",
    syntax="key",
)
def object_idletime(session: Session, argv: Argv) -> Reply:
    """Answer with an error: the time of a key's last use is not tracked, because that would cost every read."""
    if session.db.get(argv[2]) is None:
        return None
    raise ReplyError("Keys are never evicted here, idle time not tracked.")


@command(
    "OBJECT FREQ", arity=3, flags=Flag.READONLY, keys=key(2, Access.READ, Effect.SIGHT), group="generic", syntax="key"
)
def object_freq(session: Session, argv: Argv) -> Reply:
    """Answer with an error, as Redis does without an LFU policy: how often a key is used is not tracked."""
    if session.db.get(argv[2]) is None:
        return None
    raise ReplyError(
        "An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
        "between policies at runtime LRU and LFU data will take some time to adjust."
    )
