"""The form of a dead letter: one JSON object, from which the message can be restored.

The server writes letters for messages that a group gave up and for entries that a stream's schema refused, Spark for
entries that a query cannot read; `penstock letters` reads all of them. A letter has what its writer knows: a message
that was never written has no offset. Its tag is the tag of the message. An entry that is not UTF-8 is written as
base64.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that was given up, or does not fit."""

    stream: str
    entry: bytes
    why: str | None = None
    offset: int | None = None
    group: str | None = None  # the group that gave it up, after so many attempts
    attempts: int | None = None
    version: int | None = None  # of the stream's schema

    def encode(self) -> bytes:
        fields: dict[str, str | int | None] = {
            "stream": self.stream,
            "group": self.group,
            "version": self.version,
            "offset": self.offset,
            "attempts": self.attempts,
            "why": self.why,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        try:
            fields["entry"] = self.entry.decode()
        except UnicodeDecodeError:
            fields["entry_base64"] = base64.b64encode(self.entry).decode()
        return json.dumps(fields, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Letter:
        """The stream, the offset, the reason and the entry of a letter. ValueError if it is not a letter.

        >>> Letter.decode(Letter("clicks", bytes([255]), "not JSON").encode()).entry
        b'\\xff'
        """
        fields = json.loads(raw)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        stream, offset, why = fields.get("stream"), fields.get("offset"), fields.get("why")
        text, encoded = fields.get("entry"), fields.get("entry_base64")
        if not isinstance(stream, str) or type(offset) not in (int, type(None)):
            raise ValueError("no stream, or an offset that is no number")
        if isinstance(encoded, str):
            entry = base64.b64decode(encoded, validate=True)
        elif isinstance(text, str):
            entry = text.encode()
        else:
            raise ValueError("no entry")
        return cls(stream, entry, None if why is None else str(why), offset)


def name_in_text(name: bytes) -> str:
    """A key or the name of a group as text in a letter."""
    return name.decode("utf-8", "backslashreplace")
