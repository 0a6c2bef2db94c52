"""Receives a large reply directly into the bytes that the caller will get.

hiredis keeps what it is fed in a buffer that it enlarges as it goes, and copies a reply out of it when it is whole. For
a reply of a megabyte that is most of the client's work. A bulk string says its size before it comes; so for a large one
the memory is made at once, and drivers receive the rest of it in there (`ConnectionCore.reader.room`).

The memory is a BytesIO's: its `getbuffer` may be written to, and its `getvalue` is the same bytes without a copy if
their number did not change and no view of them is left. That is why the line end behind a bulk string has a place of
its own here, and why the reply is taken when the line end came: drivers have let go of their views by then.

The memory is not zeroed first, as `bytes(size)` would be, which costs half of what copying into it does: CPython is
asked for uninitialised bytes. A reply that does not come whole is never given out.

Rejected: memory made by pyarrow for replies that become tables: a second kind of reply for all other commands.
"""

from __future__ import annotations

import io
from ctypes import PYFUNCTYPE, c_char_p, c_ssize_t, py_object, pythonapi
from typing import Any

import redis

LARGE = 1 << 16
"""Bytes of a bulk string that is worth it."""
LARGEST = 1 << 30
"""A server may announce what it never sends; above this, memory grows with what comes, as hiredis has it."""
HINT = 1 << 10
"""Bytes of a chunk that may be the beginning of a large reply: a smaller one is not looked at."""
_HEAD = 24  # bytes that the line with the size has at most
_BULK = ord("$")

_new_bytes = PYFUNCTYPE(py_object, c_char_p, c_ssize_t)(("PyBytes_FromStringAndSize", pythonapi))


class LargeReply:
    """One bulk string on its way."""

    __slots__ = ("_at", "_bytes", "_end", "_view")

    def __init__(self, size: int) -> None:
        self._bytes = io.BytesIO(_new_bytes(None, size))
        self._view = self._bytes.getbuffer()
        self._at = 0
        self._end = b""  # what has come of the line end behind it

    @classmethod
    def of(cls, data: Any) -> LargeReply | None:
        """For the reply that begins with these bytes, if it is a large bulk string and they are not all of it.

        >>> reply = LargeReply.of(b"$100000\\r\\nabc")
        >>> reply.room().nbytes
        99997
        """
        if data[0] != _BULK:
            return None
        size, line_end, _ = bytes(data[1:_HEAD]).partition(b"\r\n")
        if not line_end or not size.isdigit() or not max(LARGE, len(data)) <= int(size) <= LARGEST:
            return None
        try:
            large = cls(int(size))
        except MemoryError:
            return None
        large.take(memoryview(data)[1 + len(size) + 2 :])
        return large

    @property
    def size(self) -> int:
        return len(self._view)

    def room(self) -> memoryview:
        """The memory for the next bytes."""
        return self._view[self._at :]

    def filled(self, count: int) -> None:
        """So many bytes came there."""
        self._at += count

    def take(self, data: Any) -> Any:
        """Bytes that came elsewhere: take what belongs to this reply; the rest."""
        count = min(len(data), len(self._view) - self._at)
        self._view[self._at : self._at + count] = data[:count]
        self._at += count
        if self._at < len(self._view):
            return b""
        missing = 2 - len(self._end)
        self._end += bytes(data[count : count + missing])
        if not b"\r\n".startswith(self._end):
            raise redis.InvalidResponse(f"{self._end!r} behind a bulk string, where its line ends")
        return data[count + missing :]

    @property
    def is_whole(self) -> bool:
        """Whether the line end, too, has come."""
        return len(self._end) == 2

    def value(self) -> bytes:
        """The reply."""
        self._view.release()
        return self._bytes.getvalue()
