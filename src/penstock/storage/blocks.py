"""The blocks of a snapshot, as they are written; snapshot.py says what is in them.

There are two versions of `write_database` with one set of tests: the one here, and `_blocks.pyx`, which Cython compiles
where a C compiler is at hand when the package is installed. The compiled one is used if it is there and PENSTOCK_PURE
is not set. They write the same bytes.

The reason is memory, not time. A forked child shares its memory with the server until one of them writes to it, and
Python writes to each object that it touches, because it counts references: the pure one copies nearly all of the data
by reading it. The compiled one reads by borrowed pointers, and copies next to nothing. Measured:
docs/design/0014-snapshots-without-copies.md.
"""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import compress, islice, repeat
from typing import BinaryIO

from penstock.compiled import use_compiled
from penstock.engine.keyspace.databases import Database, Value
from penstock.types import codec
from penstock.types.packing import pack_many

BLOCK = struct.Struct("<BHIQI")
_CHECKSUM = struct.Struct("<I")
END, STRINGS, VALUES, ONCE, SEGMENTS, STANDING = 0, 1, 2, 3, 4, 5
TIMED = 16
KEYS_A_BLOCK = 8192
BYTES_A_BLOCK = 4 << 20
LARGEST_VALUE = (1 << 32) - (16 << 20)
"""Bytes of a packed value: its length, and that of all values of its block, are written with 32 bits."""


def block_checksum(kind: int, database: int, count: int, body: bytes) -> int:
    """The checksum in the header of a block."""
    return zlib.crc32(body, zlib.crc32(BLOCK.pack(kind, database, count, len(body), 0)))


class BlockWriter:
    """Writes blocks to a file, a piece of a body at a time, and counts what the last block has to say of them."""

    def __init__(self, file: BinaryIO, go_on: Callable[[], None]) -> None:
        self._file = file
        self._go_on = go_on  # called after each block; may raise to give up
        self.most_keys, self.most_bytes = KEYS_A_BLOCK, BYTES_A_BLOCK  # of a block; its last value may go beyond
        self.largest_value = LARGEST_VALUE
        self.blocks = 0
        self.keys = 0
        self.chain = 0  # the checksum of all checksums
        self.left_out: list[str] = []  # what cannot be packed, because a module put it there
        self._begun = 0  # where the block is that was begun, and where it is to end
        self._end = 0
        self._checksum = 0

    def begin(self, plain: bool, timed: bool, database: int, count: int, size: int) -> None:
        """Begin a block of so many keys, whose body has `size` bytes."""
        self._begin((STRINGS if plain else VALUES) | (TIMED if timed else 0), database, count, size)

    def _begin(self, kind: int, database: int, count: int, size: int) -> None:
        header = BLOCK.pack(kind, database, count, size, 0)
        self._checksum = zlib.crc32(header)
        self._begun = self._file.tell()
        self._end = self._begun + len(header) + size
        self._file.write(header)
        self.keys += count

    def checked(self, key: bytes, dump: bytes) -> bytes:
        """A packed value, if it is not too large."""
        if len(dump) > self.largest_value:
            raise self.too_large(key, len(dump))
        return dump

    def packed(self, key: bytes, value: Value) -> bytes | None:
        """A value packed. What of it cannot be packed is left out, so that it keeps nothing else from being saved.

        None if that is all of it.
        """
        try:
            return self.checked(key, codec.dump_for_snapshot(value))
        except (MemoryError, OSError):
            raise
        except Exception:
            part = codec.sound_part(value)
            if part is value and type(value) in codec.BUILT_IN:
                raise  # an error of ours: what follows it would be taken for all of the data
            if part is value or not part:
                self.leave_out(key, type(value).__name__)
                return None
            self.leave_out(key, "some elements")
            return self.checked(key, codec.dump(part))

    def leave_out(self, key: object, what: str) -> None:
        """Note that a value, or part of one, is not written."""
        self.left_out.append(f"{key!r:.100} ({what})")

    def is_name(self, key: object) -> bool:
        """Whether a key can be written; noted if not."""
        if type(key) is not bytes:
            self.leave_out(key, "the key is not bytes")
        return type(key) is bytes

    @staticmethod
    def too_large(key: bytes, size: int) -> OSError:
        """The error about a value that no block can hold. What handles a full disk handles it too."""
        problem = f"the value of key {key[:100]!r} has {size} bytes when packed, more than a snapshot can hold"
        return OSError(errno.EFBIG, problem)

    def put(self, piece: bytes | memoryview) -> None:
        """The next bytes of the body. They are not used after this returns."""
        self._checksum = zlib.crc32(piece, self._checksum)
        self._file.write(piece)

    def end(self) -> None:
        """The body is complete: put its checksum in the header."""
        file, end = self._file, self._end
        at = file.tell()
        if at != end:
            raise RuntimeError(f"a block that should end at byte {end} ends at byte {at}")
        checksum = _CHECKSUM.pack(self._checksum)
        file.seek(self._begun + BLOCK.size - _CHECKSUM.size)
        file.write(checksum)
        file.seek(end)
        self.blocks += 1
        self.chain = zlib.crc32(checksum, self.chain)
        self._go_on()

    def write(self, kind: int, database: int, count: int, body: bytes) -> None:
        """A whole block."""
        self._begin(kind, database, count, len(body))
        self.put(body)
        self.end()


def write_database(blocks: BlockWriter, database: Database) -> None:
    """Write all blocks of a database."""
    keys, values = iter(database.data), iter(database.data.values())
    while chunk := list(islice(keys, blocks.most_keys)):
        contents = list(islice(values, blocks.most_keys))
        if set(map(type, chunk)) != {bytes}:
            named = list(map(blocks.is_name, chunk))
            chunk, contents = list(compress(chunk, named)), list(compress(contents, named))
        plain = set(map(type, contents)) == {bytes}
        dumps = contents if plain else map(blocks.packed, chunk, contents)
        for some_keys, some_values in limited(chunk, dumps, blocks.most_bytes):
            times = list(map(database.expires.get, some_keys, repeat(0))) if database.expires else []
            body = pack_many([pack_many(some_keys), pack_many(some_values)])
            timed = any(times)
            if timed:
                body = struct.pack(f"<{len(times)}q", *times) + body
            blocks.begin(plain, timed, database.index, len(some_keys), len(body))
            blocks.put(body)
            blocks.end()


def limited(
    keys: list[bytes], values: list[bytes] | Iterator[bytes | None], most: int = BYTES_A_BLOCK
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """The same in parts of about so many bytes, without keys whose value is None.

    A value is dumped only when its part is made.
    """
    if isinstance(values, list) and sum(map(len, values)) + sum(map(len, keys)) <= most:
        yield keys, values
        return
    some_keys: list[bytes] = []
    some_values: list[bytes] = []
    size = 0
    for key, value in zip(keys, values, strict=True):
        if value is None:
            continue
        some_keys.append(key)
        some_values.append(value)
        size += len(key) + len(value)
        if size > most:
            yield some_keys, some_values
            some_keys, some_values, size = [], [], 0
    if some_keys:
        yield some_keys, some_values


COMPILED = use_compiled(globals(), "penstock.storage._blocks", "write_database")

__all__ = [
    "BLOCK", "COMPILED", "END", "ONCE", "SEGMENTS", "STANDING", "STRINGS", "TIMED", "VALUES", "BlockWriter",
    "block_checksum", "limited", "write_database",
]  # fmt: skip
