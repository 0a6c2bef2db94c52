"""Payloads that the console does not show: all of them, or the fields of JSON with certain names.

What cannot be looked into is hidden as a whole when fields are named: an entry that is not JSON may hold the same data
in another form. Names of keys, tags and groups are always shown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

HIDDEN = "•••"
EVERYTHING = "*"
LARGEST = 1 << 20
"""Bytes of a payload that is looked into; a larger one is hidden as a whole."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The fields whose payloads are hidden; none by default."""

    fields: frozenset[str] = frozenset()
    """Names of fields in lower case, or `*` for all payloads."""

    @classmethod
    def of(cls, names: list[str]) -> Mask:
        """
        >>> Mask.of(["Email,card"]).apply(b'{"email": "a@b", "n": 1}')
        b'{"email": "\\xe2\\x80\\xa2\\xe2\\x80\\xa2\\xe2\\x80\\xa2", "n": 1}'
        >>> Mask.of(["*"]).apply(b"secret").decode()
        '•••'
        """
        return cls(frozenset(part.strip().lower() for name in names for part in name.split(",") if part.strip()))

    def __bool__(self) -> bool:
        return bool(self.fields)

    @property
    def hides_all(self) -> bool:
        return EVERYTHING in self.fields

    def apply(self, raw: bytes) -> bytes:
        """A payload as it may be shown."""
        if not self.fields:
            return raw
        if not self.hides_all and len(raw) <= LARGEST:
            try:
                return json.dumps(self._shown(json.loads(raw)), ensure_ascii=False).encode()
            except (ValueError, RecursionError):
                pass
        return HIDDEN.encode()

    def reason(self, text: str) -> str:
        """The text of an error. Programs write values into such texts, so it is hidden with all payloads."""
        return HIDDEN if self.hides_all and text else text

    def field(self, name: bytes, raw: bytes) -> bytes:
        """The value of a field of a hash."""
        if name.decode("utf-8", "replace").lower() in self.fields:
            return HIDDEN.encode()
        return self.apply(raw)

    def _shown(self, value: Any) -> Any:
        """The text of a dead letter's entry is a payload of its own."""
        shown = self._walk(value)
        if isinstance(value, dict) and "stream" in value:
            if isinstance(entry := value.get("entry"), str) and shown["entry"] != HIDDEN:
                shown["entry"] = self.apply(entry.encode()).decode()
            if "entry_base64" in value:
                shown["entry_base64"] = HIDDEN
        return shown

    def _walk(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: HIDDEN if name.lower() in self.fields else self._walk(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._walk(each) for each in value]
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"'):  # JSON in JSON
            return self.apply(value.encode()).decode()
        return value
