"""The key object that a dict holds, for a key that is equal to it.

A command brings a copy of its key along. A second dict about the same keys, such as that of expiry times, must not keep
these copies: they take memory, and a child that writes a snapshot would copy each of them (`_blocks.pyx` looks keys up
without counting references, which only works for the same object).

A dict does not hand out its keys. So this looks up an object that is equal to the key, and that sees the stored key
when the two are compared.

Rejected: a third dict from keys to keys (100 bytes a key); taking the key out and putting it back, which moves it to
the end of the dict, where iterations of SCAN have been.

There are two versions with one set of tests: the one here, and `_stored_key.pyx` (a seventh of the time).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.compiled import use_compiled


class _Probe:
    """Equal to a key, and remembers what it was compared with."""

    __slots__ = ("_key", "found")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.found = key

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, bytes) and other == self._key:
            self.found = other
            return True
        return False


def stored_key(table: Mapping[bytes, Any], key: bytes) -> bytes:
    """The key of the dict that is equal to this one; this one if there is none.

    >>> name = b"a name"
    >>> stored_key({name: 1}, b" ".join([b"a", b"name"])) is name
    True
    """
    probe: Any = _Probe(key)
    table.get(probe)
    return probe.found  # type: ignore[no-any-return]


COMPILED = use_compiled(globals(), "penstock.engine.keyspace._stored_key", "stored_key")
