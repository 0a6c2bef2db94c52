"""The form of an increment: RESP commands, in batches that each carry a checksum.

    #SUM 2c 89abcdef\\r\\n          length and CRC-32 of what follows, in hexadecimal
    *3\\r\\n$3\\r\\nSET\\r\\n ...       that many bytes: whole commands

A batch is what was written by one call, so nothing in it was acknowledged before all of it was on disk, and a batch
that a crash cut short is dropped whole. That also keeps together what must stay together: the effects of one
transaction or script are in one batch, between MULTI and EXEC. SELECT precedes commands for another database. Lines
that start with # are comments to Redis, so its tools can read these files.

Rejected: bare RESP, as Redis writes it. A flipped byte in a value goes unnoticed there, and a flipped length may run
the inside of a value as a command.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import hiredis

from penstock.protocol.requests import Argv
from penstock.storage.files import StorageError

_HEADER_SIZE = 64
_header = re.compile(rb"#SUM ([0-9a-f]{1,12}) ([0-9a-f]{8})\r\n").match
_partial_header = re.compile(rb"(#(S(U(M( [0-9a-f]{0,12}( [0-9a-f]{0,8}\r?)?)?)?)?)?)?\Z").match
_TIME = b"#TS:"
_MORE = object()


class TornTail(StorageError):
    """The last batch is not whole: the process or the machine stopped while it was being written."""


def header(payload: bytes) -> bytes:
    """What is written in front of a batch."""
    return b"#SUM %x %08x\r\n" % (len(payload), zlib.crc32(payload))


LENGTHS = [b"$%d" % length for length in range(1024)]
"""The line in front of an argument, ready made."""


def add_lines(lines: list[bytes], argv: Argv) -> None:
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
            yield offset, list(_commands(path, offset, payload))
            offset = payload_at + len(payload)


def _payload(path: Path, file: BinaryIO, offset: int, size: int) -> tuple[int, bytes]:
    file.seek(offset)
    head = file.read(_HEADER_SIZE)
    found = _header(head)
    if found is None:
        if offset + len(head) == size and _partial_header(head):
            raise TornTail(path, offset, "the last batch ends within its header")
        raise _damaged(path, offset, "this is not the beginning of a batch")
    start, length = offset + found.end(), int(found[1], 16)
    if start + length > size:
        file.seek(start)
        if next_batch(file.read()) is not None:
            raise _damaged(path, offset, "a batch's length is wrong")
        raise TornTail(path, offset, f"the last batch lacks {start + length - size} of its {length} bytes")
    file.seek(start)
    payload = file.read(length)
    if zlib.crc32(payload) != int(found[2], 16):
        raise _damaged(path, offset, "the batch's checksum does not match")
    return start, payload


def next_batch(data: bytes) -> int | None:
    """Where the first whole batch in `data` starts. What precedes a whole batch was damaged later, not torn."""
    at = data.find(b"#SUM ")
    while at >= 0:
        found = _header(data, at)
        if found is not None:
            payload = data[found.end() : found.end() + int(found[1], 16)]
            if len(payload) == int(found[1], 16) and zlib.crc32(payload) == int(found[2], 16):
                return at
        at = data.find(b"#SUM ", at + 1)
    return None


def _damaged(path: Path, offset: int, problem: str) -> StorageError:
    return StorageError(path, offset, problem, f"`penstock check --fix {path}` cuts the log before this place")


def _commands(path: Path, offset: int, payload: bytes) -> Iterator[Argv]:
    while payload.startswith(_TIME):  # two, if the disk refused the batch at first
        payload = payload[payload.index(b"\n") + 1 :]
    reader = hiredis.Reader(notEnoughData=_MORE)
    reader.feed(payload)
    while (argv := reader.gets()) is not _MORE:
        yield argv
    if reader.has_data():
        raise _damaged(path, offset, "a batch ends within a command")
