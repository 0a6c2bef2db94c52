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

_header = re.compile(rb"#(SUM|OUT) (([0-9a-f]{1,12}) ([0-9a-f]{8})) ([0-9a-f]{8})\r\n").match


class Frame(NamedTuple):
    """One whole frame."""

    raw: bytes
    payload: bytes
    logged: bool  # a batch of the log


def out_of_band(*words: bytes) -> bytes:
    """A command that is not logged, as a frame."""
    return b"#OUT" + framed(pack(*words))[4:]


class FrameReader:
    """Bytes in, whole frames out. ProtocolError if a frame is not what its checksums say."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        at = 0
        try:
            while (frame := self._next(at)) is not None:
                at += len(frame.raw)
                yield frame
        finally:
            del self._buffer[:at]

    def _next(self, at: int) -> Frame | None:
        buffer = self._buffer
        found = _header(buffer, at, at + LONGEST_HEADER)
        if found is None:
            if len(buffer) - at >= LONGEST_HEADER or b"\n" in buffer[at:]:
                raise ProtocolError(f"this is not the beginning of a frame: {bytes(buffer[at : at + 20])!r}")
            return None
        if zlib.crc32(found[2]) != int(found[5], 16):
            raise ProtocolError("the checksum of a frame's header does not match")
        end = found.end() + int(found[3], 16)
        if end > len(buffer):
            return None
        payload = bytes(buffer[found.end() : end])
        if zlib.crc32(payload) != int(found[4], 16):
            raise ProtocolError("the checksum of a frame does not match")
        return Frame(bytes(buffer[at:end]), payload, found[1] == b"SUM")
