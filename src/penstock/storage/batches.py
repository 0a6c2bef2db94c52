"""The form of an increment: RESP commands, in batches that each carry a checksum.

    #SUM 2c 89abcdef 01234567\\r\\n   length and CRC-32 of what follows, CRC-32 of these two, in hexadecimal
    *3\\r\\n$3\\r\\nSET\\r\\n ...         that many bytes: whole commands

A batch is what was written by one call, so nothing in it was acknowledged before all of it was on disk, and a batch
that a crash cut short is dropped whole. That also keeps together what must stay together: the effects of one
transaction or script are in one batch, between MULTI and EXEC. SELECT precedes commands for another database. Lines
that start with # are comments to Redis, so its tools can read these files.

A batch that is longer than the rest of the file was torn: its header has a checksum of its own, so the length is right.
Zeros up to the end of the file are a torn batch too: some file systems make a file longer before they fill it.

Rejected: bare RESP, as Redis writes it. A flipped byte in a value goes unnoticed there, and a flipped length may run
the inside of a value as a command. Rejected: telling a wrong length from a torn batch by looking for a whole batch in
what follows. It may be inside of a value, where any client can put one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import hiredis

from penstock.protocol.grammar import MORE, Argv
from penstock.protocol.requests import COMPILED, RequestReader
from penstock.storage.files import StorageError

_HEADER_SIZE = 64
_header = re.compile(rb"#SUM (([0-9a-f]{1,12}) ([0-9a-f]{8})) ([0-9a-f]{8})\r\n").match
_partial_header = re.compile(rb"(#(S(U(M( [0-9a-f]{0,12}( [0-9a-f]{0,8}( [0-9a-f]{0,8}\r?)?)?)?)?)?)?)?\Z").match
_CHUNK = 1 << 16
"""Bytes hiredis is fed at a time: it moves all it has left after every kilobyte it has read."""
_TIME = b"#TS:"
_NO_LIMIT = 1 << 62


class TornTail(StorageError):
    """The last batch is incomplete: the process or the machine stopped while it was being written."""


Batch = list[bytes | memoryview]
"""A batch as it is written, in pieces: a small one is one piece."""

LARGE = 1 << 15
"""Bytes from which a piece is not copied only to be joined with others."""


def framed(payload: bytes) -> bytes:
    """A batch as it is written: its header, and the payload."""
    fields = b"%x %08x" % (len(payload), zlib.crc32(payload))
    return b"#SUM %b %08x\r\n%b" % (fields, zlib.crc32(fields), payload)


def framed_in_pieces(lines: Batch) -> Batch:
    """The batch of these lines, joined by line breaks, except that large ones stay as they are."""
    pieces: Batch = []
    small: Batch = []
    for line in lines:
        if len(line) < LARGE:
            small.append(line)
        else:
            pieces += (b"\r\n".join([*small, b""]), line)
            small = [b""]
    pieces.append(b"\r\n".join(small))
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    fields = b"%x %08x" % (sum(map(len, pieces)), checksum)
    return [b"#SUM %b %08x\r\n" % (fields, zlib.crc32(fields)), *pieces]


LENGTHS = [b"$%d" % length for length in range(1024)]
"""The line in front of an argument, ready made."""


def add_lines(lines: Batch, argv: Argv) -> None:
    """Add the lines of a command; a batch is its lines joined by line breaks, which is one call for all of them."""
    lines.append(b"*%d" % len(argv))
    for arg in argv:
        lines.append(b"$%d" % len(arg))
        lines.append(arg)


def read(path: Path, start: int = 0) -> Iterator[tuple[int, list[Argv]]]:
    """(offset of the batch, its commands) for every whole batch; TornTail or StorageError for what is not one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        offset = start
        while offset < size:
            payload_at, payload = _payload(path, file, offset, size)
            yield offset, commands_of(path, offset, payload)
            offset = payload_at + len(payload)


def _payload(path: Path, file: BinaryIO, offset: int, size: int) -> tuple[int, bytes]:
    file.seek(offset)
    head = file.read(_HEADER_SIZE)
    found = _header(head)
    if found is None:
        if offset + len(head) == size and _partial_header(head):
            raise TornTail(path, offset, "the last batch ends within its header")
        if not head.strip(b"\0") and not file.read().strip(b"\0"):
            raise TornTail(path, offset, "nothing but zeros follows")
        raise _damaged(path, offset, "this is not the beginning of a batch")
    if zlib.crc32(found[1]) != int(found[4], 16):
        raise _damaged(path, offset, "the checksum of a batch's header does not match")
    start, length = offset + found.end(), int(found[2], 16)
    if start + length > size:
        raise TornTail(path, offset, f"the last batch lacks {start + length - size} of its {length} bytes")
    file.seek(start)
    payload = file.read(length)
    if zlib.crc32(payload) != int(found[3], 16):
        if start + length == size and payload.endswith(b"\0"):  # whole, it would end with a line break
            raise TornTail(path, offset, "the last batch ends in zeros")
        raise _damaged(path, offset, "the batch's checksum does not match")
    return start, payload


def _damaged(path: Path, offset: int, problem: str) -> StorageError:
    return StorageError(path, offset, problem, f"`penstock check --fix {path}` cuts the log before this place")


def commands_of(path: Path, offset: int, payload: bytes) -> list[Argv]:
    """The commands of a batch, which is at an offset of a file."""
    while payload.startswith(_TIME):  # two, if the disk refused the batch at first
        end = payload.find(b"\n")
        if end < 0:
            raise _damaged(path, offset, "a batch ends within its time")
        payload = payload[end + 1 :]
    reader = RequestReader(_NO_LIMIT, _NO_LIMIT) if COMPILED else _HiredisReader()
    reader.feed(payload)
    commands: list[Argv] = []
    take = reader.take
    while (argv := take()) is not MORE:
        commands.append(argv)
    if reader.backlog:
        raise _damaged(path, offset, "a batch ends within a command")
    return commands


class _HiredisReader:
    """The part of RequestReader that a batch needs, where that is not compiled: no client wrote a batch, so its headers
    need no care, and a client's limits do not hold.
    """

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=MORE)
        self._pieces: list[bytes] = []

    def feed(self, payload: bytes) -> None:
        self._pieces = [payload[at : at + _CHUNK] for at in range(0, len(payload), _CHUNK)][::-1]

    def take(self) -> Any:
        while (argv := self._reader.gets()) is MORE and self._pieces:
            self._reader.feed(self._pieces.pop())
        return argv

    @property
    def backlog(self) -> bool:
        return bool(self._reader.has_data())
