"""The snapshot file: a whole keyspace in one file, every byte of it under a checksum.

    magic  version                                    12 bytes
    block  kind (1), database (2), keys (4), size (8), checksum (4), then `size` bytes of body
    ...
    block  END: blocks, keys, and the checksum of all checksums

    STRINGS   pack_many(keys), pack_many(values)      what most keys are: no tags, no codec
    VALUES    pack_many(keys), pack_many(codec.dump(value) for each)
    either, with TIMED added: 8 bytes a key in front, when it expires (0 = never)
    ONCE      pack_many(clients), pack_many(records.dump(client) for each): the replies that ONCE keeps
    SEGMENTS  pack_many(names), and as many empty values: the files of history that streams refer to
    STANDING  pack_many(["log"]), pack_many([words]): how new it is beside the log (log_or_snapshot.py); the first block

A block's checksum covers its header too, and the last block counts the others, so a flipped byte, a cut end, a lost
or a repeated block are all found, and the block they are in is known. Blocks hold some thousand keys: the work a key
is a few calls into C, and a million small keys take about a second. Numbers are little endian.

Rejected: Redis's RDB format. Nothing but Redis reads it, its one checksum comes at the very end, and it has no place
for the stream type. Rejected: compressing; it would be the slowest part, and file systems do it.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock.engine.keyspace.databases import Keyspace, Value
from penstock.storage.blocks import (
    BLOCK,
    END,
    ONCE,
    SEGMENTS,
    STANDING,
    STRINGS,
    TIMED,
    VALUES,
    BlockWriter,
    block_checksum,
    limited,
    write_database,
)  # fmt: skip
from penstock.storage.files import StorageError, replace_file
from penstock.types import codec
from penstock.types.packing import CorruptValue, EmptyValue, pack_many, unpack_many
from penstock.types.stream.nodes import Storage

logger = logging.getLogger("penstock.storage")

MAGIC = b"PENSTOCK"
VERSION = 1
_PREFIX = struct.Struct("<8sI")
_END = struct.Struct("<QQI")
REMEDY = "Put a good copy in its place, or move it away to start without it"


@dataclass(frozen=True, slots=True)
class Block:
    """One checked block: the keys (or clients) of it and, as bytes, their values."""

    offset: int
    kind: int
    database: int
    keys: list[bytes]
    values: list[bytes]
    times: tuple[int, ...]  # as many as keys, or none

    def decoded(self, storage: Storage | None = None) -> list[Value]:
        """The values; None for a collection without elements, which a module may have left by mistake."""
        return self.values if self.kind == STRINGS else [_load_unless_empty(value, storage) for value in self.values]


def _load_unless_empty(data: bytes, storage: Storage | None) -> Value | None:
    try:
        return codec.load(data, storage=storage)
    except EmptyValue:
        return None


# -- writing --------------------------------------------------------------------------------------------------


def save(path: Path, keyspace: Keyspace, standing: bytes = b"") -> str:
    """Write the keyspace to `path`, replacing it atomically; what is left out, as `write` answers it."""
    left_out = ""

    def write_all(file: BinaryIO) -> None:
        nonlocal left_out
        left_out = write(file, keyspace, standing=standing)

    replace_file(path, write_all)
    return left_out


def write(file: BinaryIO, keyspace: Keyspace, go_on: Callable[[], None] = lambda: None, standing: bytes = b"") -> str:
    """Write the keyspace to an open file; `go_on` is called between blocks and may raise to give up.

    Answers which keys are left out, or elements of their values, because a module put there what is no value.
    """
    file.write(_PREFIX.pack(MAGIC, VERSION))
    blocks = BlockWriter(file, go_on)
    if standing:
        blocks.write(STANDING, 0, 1, pack_many([pack_many([b"log"]), pack_many([standing])]))
    for database in keyspace.databases:
        write_database(blocks, database)
    clients = list(keyspace.once_records.clients)
    for some_clients, dumps in limited(clients, map(keyspace.once_records.dump, clients)):
        blocks.write(ONCE, 0, len(some_clients), pack_many([pack_many(some_clients), pack_many(dumps)]))
    files = keyspace.stream_storage.files
    names = [name.encode() for name in files.names()] if files is not None else []
    if names:
        blocks.write(SEGMENTS, 0, len(names), pack_many([pack_many(names), pack_many([b""] * len(names))]))
    blocks.write(END, 0, 0, _END.pack(blocks.blocks, blocks.keys, blocks.chain))
    return ", ".join(blocks.left_out)


# -- reading --------------------------------------------------------------------------------------------------


def read(path: Path) -> Iterator[Block]:
    """Every block of a snapshot, each checked before it is given out; StorageError where the file is damaged."""
    with path.open("rb") as file:
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
            raise StorageError(path, 0, "not a snapshot of Penstock", REMEDY)
        (_, version) = _PREFIX.unpack(prefix)
        if version != VERSION:
            raise StorageError(path, 8, f"format version {version}, and only {VERSION} is known here", REMEDY)
        blocks = keys = chain = 0
        while True:
            offset = file.tell()
            kind, database, count, body, checksum = _next_block(path, file, offset)
            if kind == END:
                if body != _END.pack(blocks, keys, chain):
                    raise StorageError(path, offset, "blocks are missing, repeated or out of order", REMEDY)
                if file.read(1):
                    raise StorageError(path, file.tell() - 1, "something follows the end", REMEDY)
                return
            chain = zlib.crc32(checksum.to_bytes(4, "little"), chain)
            blocks, keys = blocks + 1, keys + count
            yield _parse(path, offset, kind, database, count, body)


def verify(path: Path, databases: int) -> None:
    """StorageError if a snapshot is damaged, or has keys in more databases than these. For any thread."""
    for block in read(path):
        _check_database(path, block, databases)


def _check_database(path: Path, block: Block, databases: int) -> None:
    if block.database >= databases:
        raise StorageError(path, block.offset, f"database {block.database}: raise `databases` to load this", "")


def segment_names(path: Path) -> list[str]:
    """The files of history that a snapshot refers to, without reading the rest of it."""
    with path.open("rb") as file:
        file.seek(_PREFIX.size)
        while header := file.read(BLOCK.size):
            if len(header) < BLOCK.size:
                raise StorageError(path, file.tell(), "the file ends too early", REMEDY)
            kind, database, count, size, _ = BLOCK.unpack(header)
            if kind == SEGMENTS:
                offset = file.tell() - BLOCK.size
                file.seek(offset)
                _, _, _, body, _ = _next_block(path, file, offset)
                return [name.decode() for name in _parse(path, offset, kind, database, count, body).keys]
            file.seek(size, 1)
    return []


def standing(path: Path) -> bytes:
    """The standing that a snapshot records; empty if it records none."""
    for block in read(path):
        return block.values[0] if block.kind == STANDING else b""
    return b""


def _next_block(path: Path, file: BinaryIO, offset: int) -> tuple[int, int, int, bytes, int]:
    header = file.read(BLOCK.size)
    if len(header) < BLOCK.size:
        raise StorageError(path, offset, "the file ends too early", REMEDY)
    kind, database, count, size, checksum = BLOCK.unpack(header)
    if size > path.stat().st_size - file.tell():
        raise StorageError(path, offset, "the file ends too early, or a block's size is wrong", REMEDY)
    body = file.read(size)
    if block_checksum(kind, database, count, body) != checksum:
        raise StorageError(path, offset, "the block's checksum does not match", REMEDY)
    return kind, database, count, body, checksum


def _parse(path: Path, offset: int, kind: int, database: int, count: int, body: bytes) -> Block:
    """The checksum is right, so the block was written wrong: by another program, or by a bug."""
    times: tuple[int, ...] = ()
    try:
        if kind & TIMED:
            times = struct.unpack_from(f"<{count}q", body)
            body = body[8 * count :]
        keys, values = map(unpack_many, unpack_many(body))
        known = kind & ~TIMED in (STRINGS, VALUES, ONCE, SEGMENTS, STANDING)
        if len(keys) != count or len(values) != count or not known:
            raise CorruptValue("a block that does not hold what its header says")
    except (ValueError, struct.error) as error:
        raise StorageError(path, offset, str(error), REMEDY) from error
    return Block(offset, kind & ~TIMED, database, keys, values, times)


def load(path: Path, keyspace: Keyspace, expired_before: int = 0) -> Iterator[int]:
    """Add the contents of a snapshot to the keyspace; yields the number of keys after each block.

    Keys that expired by `expired_before` are left out. The base of a log is loaded with all of them: the log that
    follows may still use a key before it says that it expired.
    """
    for block in read(path):
        if block.kind == ONCE:
            _load_once_records(path, block, keyspace)
            continue
        if block.kind in (SEGMENTS, STANDING):  # the streams themselves refer to the files too
            continue
        _check_database(path, block, len(keyspace))
        database = keyspace[block.database]
        try:
            values = block.decoded(keyspace.stream_storage)
        except CorruptValue as error:
            raise StorageError(path, block.offset, str(error), REMEDY) from error
        rows = zip(block.keys, values, strict=True)
        empty = sum(value is None for value in values) if block.kind != STRINGS else 0
        if empty:
            logger.warning("%s: %d keys with empty values are left out (block at byte %d)", path, empty, block.offset)
        if not block.times and not empty:
            database.data.update(rows)
        else:
            for (key, value), when in zip(rows, block.times or [0] * len(values), strict=True):
                if value is not None and (when == 0 or when > expired_before):
                    database.data[key] = value
                    if when:
                        database.expire_at(key, when)
        yield len(block.keys)


def _load_once_records(path: Path, block: Block, keyspace: Keyspace) -> None:
    try:
        for client, dump in zip(block.keys, block.values, strict=True):
            keyspace.once_records.load(client, dump)
    except CorruptValue as error:
        raise StorageError(path, block.offset, str(error), REMEDY) from error
