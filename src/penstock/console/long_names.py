"""Names that are too long for an address: a browser gets a short id for them, and the console knows the name.

A name of a key or group may have megabytes. A page of such names would be as large, and no address could hold one. The
id is a digest, so it is the same after a restart, when a list has shown the name again.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from penstock.console.errors import Missing
from penstock.console.json_bytes import NAME, cut, key_id, key_of

LONGEST = 512
"""Bytes of a name that stands in an address."""
MOST_BYTES = 128 << 20
"""Of all names that are remembered; those that were shown longest ago are forgotten first."""

is_digest = re.compile("@[0-9a-f]{64}").fullmatch
"""The id of a long name. The id of another one never begins with @: it is percent-encoded."""


class LongNames:
    """The names behind the ids. Owned by the event loop."""

    def __init__(self) -> None:
        self._names: dict[str, bytes] = {}
        self._bytes = 0

    def id(self, name: bytes) -> str:
        """The id that a browser sends for this name."""
        if len(name) <= LONGEST:
            return key_id(name)
        digest = f"@{hashlib.sha256(name).hexdigest()}"
        known = self._names.pop(digest, None)
        self._names[digest] = known or name
        self._bytes += 0 if known else len(name)
        while self._bytes > MOST_BYTES and len(self._names) > 1:
            self._bytes -= len(self._names.pop(next(iter(self._names))))
        return digest

    def name(self, given: str) -> bytes:
        """The name of an id."""
        if not is_digest(given):
            return key_of(given)
        if given not in self._names:
            raise Missing("The console no longer knows this long name. Open the list that it is in, and try again.")
        return self._names[given]

    def named(self, name: bytes) -> dict[str, Any]:
        """A name for a browser: its id, how it looks, and its size if that is a part of it."""
        shown = cut(name)
        return {"key": self.id(name), "name": shown, **({"name_size": len(name)} if len(shown) > NAME else {})}
