"""Lists: a deque, so both ends are O(1) and the middle is reached 64 elements a step."""

from __future__ import annotations

from collections import deque
from typing import Self

from penstock.types.packing import pack_many, unpack_many


class List(deque[bytes]):
    """A list value."""

    __slots__ = ()

    def dump(self) -> bytes:
        return pack_many(self)

    @classmethod
    def load(cls, data: bytes) -> Self:
        return cls(unpack_many(data))

    def size(self) -> int:
        return self.__sizeof__() + sum(map(len, self)) + 33 * len(self)

    def check(self) -> None:
        assert all(type(item) is bytes for item in self), list(self)
