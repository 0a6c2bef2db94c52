"""Lists: a deque, so both ends are O(1) and the middle is reached 64 elements a step.

Positions given to these methods are already inside the list; what a negative index means is the commands' business.

Rejected: a Python list. Its head is O(n), and the commonest list of all is a queue.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Self

from penstock.types.disposal import GIANT, dispose
from penstock.types.kernels import skip
from penstock.types.packing import pack_many, unpack_many

BLOCK = 64
"""Elements in a block of CPython's deque: indexing jumps from block to block, iterating visits every element."""


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
        """What `slice` gives, one by one, passing over what comes before in chunks; nobody may change it meanwhile."""
        items = iter(self)
        skip(items, start)
        return islice(items, stop - start)

    def positions(self, element: bytes, limit: int, from_tail: bool = False) -> Iterator[int]:
        """Where `element` is, among the first `limit` elements or, in falling order, among the last.

        >>> list(List([b"a", b"b", b"a"]).positions(b"a", 3, from_tail=True))
        [2, 0]
        """
        if from_tail:
            last = len(self) - 1
            yield from (last - at for at, item in enumerate(islice(reversed(self), limit)) if item == element)
            return
        at = -1
        with contextlib.suppress(ValueError):
            while True:
                at = self.index(element, at + 1, limit)
                yield at

    def keep(self, start: int, stop: int) -> None:
        """Drop everything outside `start` up to `stop`; costs the smaller of what goes and what stays."""
        before, behind = start, len(self) - stop
        if before + behind > stop - start:
            kept = self.slice(start, stop)
            self.clear()
            self.extend(kept)
            return
        for _ in range(before):
            self.popleft()
        for _ in range(behind):
            self.pop()

    def discard(self, element: bytes, count: int) -> int:
        """Remove equal elements and say how many: `count` from the head, -count from the tail, or all for 0.

        >>> items = List([b"a", b"b", b"a"])
        >>> items.discard(b"a", -1), list(items)
        (1, [b'a', b'b'])
        """
        if count < 0:
            self.reverse()
            try:
                return self.discard(element, -count)
            finally:
                self.reverse()
        present = self.count(element)
        going = min(present, count) if count else present
        if going == present:
            if going:
                kept = [item for item in self if item != element]
                self.clear()
                self.extend(kept)
            return going
        for _ in range(len(self)):
            item = self.popleft()
            if going and item == element:
                going -= 1
            else:
                self.append(item)
        return min(present, count)

    def __del__(self) -> None:
        if len(self) > GIANT:
            dispose(self)

    def dump(self) -> bytes:
        return pack_many(self)

    @classmethod
    def load(cls, data: bytes) -> Self:
        return cls(unpack_many(data))

    def size(self) -> int:
        return self.__sizeof__() + sum(map(len, self)) + 33 * len(self)

    def check(self) -> None:
        assert all(type(item) is bytes for item in self), list(self)
