"""Bytes that wait in order: input that may not run yet, replies that the socket does not take yet.

Invariant: the memory that is held is about `size`. Each bytes object and its place in a queue cost some fifty bytes, so
small chunks are joined: a client that sends a byte at a time, or is sent one, would otherwise cost fifty times what
is counted.

Rejected: one bytearray for all. Taking from its front moves the rest, and large chunks would be copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

SMALL = 1 << 12
"""Bytes of a chunk below which it is joined to the one before it."""
BLOCK = 1 << 16
"""Bytes that are joined at most, so that what is joined costs little to grow and to take."""


class Pieces:
    """A reply that is made while it is sent: `made` counts the bytes of the pieces so far."""

    __slots__ = ("made", "pieces")

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.pieces: Iterator[bytes | memoryview] = iter(pieces)
        self.made = 0


Chunk = bytes | bytearray | memoryview | Pieces


class Chunks:
    """See the top of this file. False when it is empty.

    >>> chunks = Chunks()
    >>> chunks.add(b"a"), chunks.add(b"bc"), chunks.size
    (None, None, 3)
    >>> chunks.take(), bool(chunks)
    (bytearray(b'abc'), False)
    """

    __slots__ = ("_chunks", "size")

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self.size = 0  # bytes; what is not made yet counts nothing

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, data: bytes | memoryview) -> None:
        self.size += len(data)
        last = self._chunks[-1] if self._chunks else None
        if len(data) >= SMALL:
            self._chunks.append(data)
        elif type(last) is bytearray and len(last) < BLOCK:
            last += data
        else:
            self._chunks.append(bytearray(data))

    def add_unmade(self, pieces: Pieces) -> None:
        self._chunks.append(pieces)

    def take(self) -> Chunk:
        chunk = self._chunks.popleft()
        if not isinstance(chunk, Pieces):
            self.size -= len(chunk)
        return chunk

    def put_back(self, pieces: Pieces) -> None:
        """The next piece was made; the others are still the first to leave."""
        self._chunks.appendleft(pieces)
