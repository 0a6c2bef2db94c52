"""The form of a dead letter: one JSON object, from which the message can be restored.

The server writes letters for messages that a group gave up and for entries that a stream's schema refused, Spark for
entries that a query cannot read; `penstock letters` reads all of them. A letter has what its writer knows: a message
that was never written has no offset. Its tag is the tag of the message. An entry that is not UTF-8 is written as
base64; so is the name of a stream, beside a readable form.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that was given up, or does not fit."""

    stream: bytes  # the key
    entry: bytes
    why: str | None = None
    offset: int | None = None
    group: str | None = None  # the group that gave it up, after so many attempts
    attempts: int | None = None
    version: int | None = None  # of the stream's schema

    def encode(self) -> bytes:
        fields: dict[str, str | int | None] = {
            "stream": name_in_text(self.stream),
            "stream_base64": None if _is_text(self.stream) else base64.b64encode(self.stream).decode(),
            "group": self.group,
            "version": self.version,
            "offset": self.offset,
            "attempts": self.attempts,
            "why": self.why,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        if _is_text(self.entry):
            fields["entry"] = self.entry.decode()
        else:
            fields["entry_base64"] = base64.b64encode(self.entry).decode()
        return json.dumps(fields, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Letter:
        """What a letter says, but for the version of the schema. ValueError if it is not a letter.

        >>> Letter.decode(Letter(b"clicks", bytes([255]), "not JSON").encode()).entry
        b'\\xff'
        """
        try:
            fields = json.loads(raw)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        offset, why = fields.get("offset"), fields.get("why")
        if type(offset) not in (int, type(None)):
            raise ValueError("an offset that is no number")
        group, attempts = fields.get("group"), fields.get("attempts")
        return cls(
            _bytes_of(fields, "stream"),
            _bytes_of(fields, "entry"),
            None if why is None else str(why),
            offset,
            group if isinstance(group, str) else None,
            attempts if type(attempts) is int else None,
        )


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bytes_of(fields: dict[str, object], name: str) -> bytes:
    """A field, which is base64 if it is no text."""
    encoded, text = fields.get(f"{name}_base64"), fields.get(name)
    if isinstance(encoded, str):
        return base64.b64decode(encoded, validate=True)
    if isinstance(text, str):
        return text.encode()
    raise ValueError(f"no {name}")


def name_in_text(name: bytes) -> str:
    """A key or the name of a group as text in a letter."""
    return name.decode("utf-8", "backslashreplace")
