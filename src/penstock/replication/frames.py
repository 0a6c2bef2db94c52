"""The feed on the wire: the batches of the log as they are in its files, and messages that are not part of the log.

    #SUM ...   a batch (storage/batches.py); its bytes count for the offset
    #OUT ...   the same form; commands that are not logged: PUBLISH, REPLCONF GETACK, PING

No I/O.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from penstock.protocol.errors import ProtocolError
from penstock.protocol.resp import pack
from penstock.storage.batches import framed

LONGEST_HEADER = 64
_LOGGED = ord("S")

_header = re.compile(rb"#(SUM|OUT) (([0-9a-f]{1,12}) ([0-9a-f]{8})) ([0-9a-f]{8})\r\n").match


class Frame(NamedTuple):
    """One whole frame."""

    raw: memoryview  # of what came, so that it is not copied
    payload: bytes
    logged: bool  # a batch of the log


def out_of_band(*words: bytes) -> bytes:
    """A command that is not logged, as a frame."""
    return b"#OUT" + framed(pack(*words))[4:]


class FrameReader:
    """Bytes in, whole frames out. ProtocolError if a frame is not what its checksums say."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # the beginning of a frame
        self._size = 0  # of these
        self._wanted = 0  # bytes without which nothing is whole

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return
        if len(self._pieces) > 1:
            data = b"".join(self._pieces)
        view, at = memoryview(data), 0
        try:
            while (frame := self._next(data, view, at)) is not None:
                at += len(frame.raw)
                yield frame
        finally:
            rest = data[at:]
            self._pieces, self._size = [rest] if rest else [], len(rest)

    def _next(self, data: bytes, view: memoryview, at: int) -> Frame | None:
        found = _header(data, at, at + LONGEST_HEADER)
        if found is None:
            if len(data) - at >= LONGEST_HEADER or b"\n" in data[at:]:
                raise ProtocolError(f"this is not the beginning of a frame: {data[at : at + 20]!r}")
            self._wanted = 0
            return None
        fields, length, checksum, own_checksum = found.group(2, 3, 4, 5)
        if zlib.crc32(fields) != int(own_checksum, 16):
            raise ProtocolError("the checksum of a frame's header does not match")
        start = found.end()
        end = start + int(length, 16)
        if end > len(data):
            self._wanted = end - at
            return None
        payload = data[start:end]
        if zlib.crc32(payload) != int(checksum, 16):
            raise ProtocolError("the checksum of a frame does not match")
        return Frame(view[at:end], payload, data[at + 1] == _LOGGED)
