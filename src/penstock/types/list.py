"""Lists: a deque, so both ends are O(1), and an index in the middle takes one step for 64 elements.

Positions given to these methods are inside the list; the commands handle negative indexes. Methods that visit many
elements do so in steps of a chunk, during which the list must not change.

Rejected: a Python list. Its head is O(n), and most lists are queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Self

from penstock.freeing import GIANT, dispose
from penstock.types.kernels import Steps, chunks, skip, skip_in_steps
from penstock.types.packing import AN_OBJECT, packed_pieces, total_length, unpacked_chunks
from penstock.types.registry import value_type

BLOCK = 64
"""Elements in a block of CPython's deque: indexing jumps from block to block, iterating visits every element."""


@value_type("list", tag=1, collection=True, item_cost=64)
class List(deque[bytes]):
    """A list value."""

    __slots__ = ()

    def slice(self, start: int, stop: int) -> list[bytes]:
        """The elements from `start` up to, not including, `stop`. Near either end it does not walk the list.

        >>> List([b"a", b"b", b"c", b"d"]).slice(1, 3)
        [b'b', b'c']
        """
        length = len(self)
        wanted = stop - start
        if wanted >= length:
            return list(self)
        before, behind = start, length - stop
        if wanted * (min(before, behind) // BLOCK + 1) < min(before, behind):
            return [self[at] for at in range(start, stop)]
        if before <= behind:
            return list(islice(self, start, stop))
        found = list(islice(reversed(self), behind, behind + wanted))
        found.reverse()
        return found

    def walk(self, start: int, stop: int) -> Iterator[bytes]:
        """The elements of `slice` one by one, skipping those before in chunks; the list must not change during that."""
        items = iter(self)
        skip(items, start)
        return islice(items, stop - start)

    def positions(self, element: bytes, limit: int, from_tail: bool = False) -> Iterator[list[int]]:
        """The positions of `element` among the first `limit` elements or, in falling order, among the last.

        There is a list for every chunk, so most are empty.

        >>> list(List([b"a", b"b", b"a"]).positions(b"a", 3, from_tail=True))
        [[2, 0]]
        """
        last = len(self) - 1
        passed = 0
        for chunk in chunks(islice(reversed(self) if from_tail else self, limit)):
            places = [passed + at for at, item in enumerate(chunk) if item == element] if element in chunk else []
            yield [last - at for at in places] if from_tail else places
            passed += len(chunk)

    def part(self, start: int, stop: int) -> Steps[List]:
        """A list of the elements from `start` up to `stop`."""
        result = List()
        items = iter(self)
        yield from skip_in_steps(items, start)
        for chunk in chunks(islice(items, stop - start)):
            result.extend(chunk)
            yield
        return result

    def keep(self, start: int, stop: int) -> None:
        """Drop everything outside `start` up to `stop`, element by element."""
        for _ in range(len(self) - stop):
            self.pop()
        for _ in range(start):
            self.popleft()

    def without(self, element: bytes, count: int) -> Steps[List]:
        """A list without equal elements: without `count` from the head, -count from the tail, or all of them for 0.

        >>> from penstock.types.kernels import finish
        >>> list(finish(List([b"a", b"b", b"a"]).without(b"a", -1)))
        [b'a', b'b']
        """
        result = List()
        going = abs(count) or len(self)
        for chunk in chunks(reversed(self) if count < 0 else self):
            kept: Iterable[bytes] = chunk
            if going and element in chunk:
                gone = set(islice((at for at, item in enumerate(chunk) if item == element), going))
                going -= len(gone)
                kept = (item for at, item in enumerate(chunk) if at not in gone)
            if count < 0:
                result.extendleft(kept)
            else:
                result.extend(kept)
            yield
        return result

    def __del__(self) -> None:
        if len(self) > GIANT:
            dispose(self)

    def dump(self) -> bytes:
        return b"".join(self.dump_pieces())

    def dump_pieces(self) -> list[bytes]:
        return packed_pieces(self)

    @classmethod
    def load(cls, data: bytes) -> Self:
        value = cls()
        for chunk in unpacked_chunks(data):
            value.extend(chunk)
        return value

    def size(self) -> int:
        return self.__sizeof__() + total_length(self) + AN_OBJECT * len(self)

    def check(self) -> None:
        assert all(type(item) is bytes for item in self), list(self)
