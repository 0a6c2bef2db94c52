"""What a dead letter looks like: one JSON object, from which the message can be put back as it was.

A letter names the stream and the offset of the message, says why it is bad, and holds the entry. Its tag is the tag of
the message. An entry that is not UTF-8 is there in base64; a letter of Spark has it also as text for people, in which
odd bytes are escaped. The letters that the server writes are read too: those of a group that gave up on a message have
no reason, and those of entries that a stream's schema refused have no offset.

This module needs no pyspark, so that the command line can read letters without it.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that does not fit, where it was, and why."""

    stream: str
    offset: int | None
    why: str
    entry: bytes

    def encode(self) -> bytes:
        fields: dict[str, str | int | None] = {"stream": self.stream, "offset": self.offset, "why": self.why}
        try:
            fields["entry"] = self.entry.decode()
        except UnicodeDecodeError:
            fields["entry"] = self.entry.decode("utf-8", "backslashreplace")
            fields["entry_base64"] = base64.b64encode(self.entry).decode()
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Letter:
        """ValueError if this is no letter.

        >>> Letter.decode(Letter("clicks", 7, "not JSON", bytes([255])).encode()).entry
        b'\\xff'
        """
        fields = json.loads(raw)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        stream, offset, why = fields.get("stream"), fields.get("offset"), fields.get("why", "it was given up")
        text, encoded = fields.get("entry"), fields.get("entry_base64")
        if not isinstance(stream, str) or type(offset) not in (int, type(None)):
            raise ValueError("no stream, or an offset that is no number")
        if isinstance(encoded, str):
            return cls(stream, offset, str(why), base64.b64decode(encoded, validate=True))
        if not isinstance(text, str):
            raise ValueError("no entry")
        return cls(stream, offset, str(why), text.encode())
