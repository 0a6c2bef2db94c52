"""A random key of a database, for RANDOMKEY.

A dict cannot be entered at a random place: the n-th key costs n steps. So a small database is walked, and of a large
one a thousand keys are drawn in one pass and handed out one by one, which makes a draw some microseconds however many
keys there are. A key that is handed out was drawn evenly from the database as it was at the pass; the pool is thrown
away after changes to a sixteenth of the database, so that new keys have their turn soon.

A caller that draws only expired keys gives up after DRAWS of them, and has one pass find the live ones (`draw_of`). To
go on would take a pass for every thousand expired keys: 16 seconds for a million of them.

Rejected: a list of all keys beside the dict. Every SET of a new key and every DEL would pay for it.
"""

from __future__ import annotations

from itertools import islice
from random import choices, randrange, sample
from typing import Any

WALKED = 2048
"""Size up to which every draw walks the database."""
POOL = 1024
DRAWS = 64
"""Expired keys that a caller draws before it looks for the live ones."""


class KeySampler:
    """Draws keys from one database. Owned by the loop thread."""

    __slots__ = ("_none_at", "_pool", "_until")

    def __init__(self) -> None:
        self._pool: list[bytes] = []
        self._until = 0  # the reading of the change counter at which the pool is too old
        self._none_at = -1, 0, 0  # and the one at which no key was alive, with the database's identity and size

    def draw(self, data: dict[bytes, Any], changes: int) -> bytes | None:
        """A random key, None if there is none. `changes` counts all changes ever made to the server's data."""
        if len(data) <= WALKED:
            self._pool.clear()
            return next(islice(data, randrange(len(data)), None)) if data else None
        if self._none_at == (changes, id(data), len(data)):
            return None  # without a change no key comes back to life
        while self._pool and changes < self._until:
            key = self._pool.pop()
            if key in data:
                return key
        return self.draw_of(list(data), data, changes)

    def draw_of(self, keys: list[bytes], data: dict[bytes, Any], changes: int) -> bytes | None:
        """A random one of these keys of a database, None if there is none; so are the next draws."""
        if len(keys) >= POOL:
            self._pool = sample(keys, POOL)
        else:
            self._pool = choices(keys, k=POOL) if keys else []
        self._until = changes + len(data) // 16
        self._none_at = (-1, 0, 0) if keys else (changes, id(data), len(data))
        return self._pool.pop() if self._pool else None
