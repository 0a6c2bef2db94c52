"""The feed on the wire: the batches of the log as they are in its files, and messages that are not part of the log.

    #SUM ...   a batch (storage/batches.py); its bytes count for the offset
    #OUT ...   the same form; commands that are not logged: PUBLISH, REPLCONF GETACK, PING

No I/O.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import NamedTuple

from penstock.compiled import use_compiled
from penstock.protocol.errors import ProtocolError
from penstock.protocol.grammar import Argv
from penstock.protocol.resp import pack
from penstock.storage.batches import commands_of, framed

LONGEST_HEADER = 64
FEED = Path("feed")
"""Stands for the file in errors about the feed."""

_header = re.compile(rb"#(SUM|OUT) (([0-9a-f]{1,12}) ([0-9a-f]{8})) ([0-9a-f]{8})\r\n").match


class Frame(NamedTuple):
    """One whole frame."""

    raw: memoryview  # of what came, so that it is not copied
    commands: list[Argv]
    logged: bool  # a batch of the log


def out_of_band(*words: bytes) -> bytes:
    """A command that is not logged, as a frame."""
    return b"#OUT" + framed(pack(*words))[4:]


class FrameReader:
    """Bytes in, whole frames out. ProtocolError if a frame is not what its checksums say.

    A frame that came in several pieces is put together; all others stay where they came.
    """

    def __init__(self) -> None:
        self._begun: list[bytes] = []  # the pieces of a frame that is not whole yet
        self._size = 0  # of these
        self._whole = 0  # the size of that frame; 0 until its header is whole

    def feed_whole(self, data: bytes) -> list[Frame] | None:
        """The frames of this, if it is whole ones behind whole ones; None if not, and then nothing was fed."""
        found: list[Frame] = []
        return found if not self._begun and frames_in(data, 0, found)[0] == len(data) else None

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now."""
        found: list[Frame] = []
        at = 0
        if self._begun:
            if not self._whole:
                header = header_at(b"".join([*self._begun, data[:LONGEST_HEADER]]), 0)
                self._whole = header.end if header is not None else 0
            if not self._whole or self._size + len(data) < self._whole:
                self._keep(data, self._whole)
                return found
            at = self._whole - self._size
            frames_in(b"".join([*self._begun, data[:at]]), 0, found)
            self._begun, self._size = [], 0
        at, whole = frames_in(data, at, found)
        if at < len(data):
            self._keep(data[at:], whole)
        return found

    def _keep(self, piece: bytes, whole: int) -> None:
        self._begun.append(piece)
        self._size += len(piece)
        self._whole = whole


class Header(NamedTuple):
    """The header of a frame."""

    start: int  # of the payload
    end: int
    checksum: int
    logged: bool


def header_at(data: bytes, at: int) -> Header | None:
    """The header of the frame that begins here; None if it is not whole."""
    found = _header(data, at, at + LONGEST_HEADER)
    if found is None:
        if len(data) - at >= LONGEST_HEADER or data.find(b"\n", at) >= 0:
            raise ProtocolError(f"this is not the beginning of a frame: {data[at : at + 20]!r}")
        return None
    kind, fields, length, checksum, own_checksum = found.groups()
    if zlib.crc32(fields) != int(own_checksum, 16):
        raise ProtocolError("the checksum of a frame's header does not match")
    start = found.end()
    return Header(start, start + int(length, 16), int(checksum, 16), kind == b"SUM")


def damaged() -> ProtocolError:
    """A frame whose payload is not what its header says."""
    return ProtocolError("the checksum of a frame does not match")


def frames_in(data: bytes, at: int, found: list[Frame]) -> tuple[int, int]:
    """Add the whole frames from here on to `found`.

    The place where they end, and the size of the frame that follows; 0 if its header is not whole.
    """
    view = memoryview(data)
    while (header := header_at(data, at)) is not None:
        if header.end > len(data):
            return at, header.end - at
        payload = data[header.start : header.end]
        if zlib.crc32(payload) != header.checksum:
            raise damaged()
        found.append(Frame(view[at : header.end], commands_of(FEED, 0, payload), header.logged))
        at = header.end
    return at, 0


COMPILED = use_compiled(globals(), "penstock.replication._frames", "frames_in")
