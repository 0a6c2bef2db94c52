"""Sets of byte strings."""

from __future__ import annotations

from typing import Self

from penstock.types.packing import pack_many, unpack_many


class Set(set[bytes]):
    """Members, in no order."""

    def dump(self) -> bytes:
        return pack_many(self)

    @classmethod
    def load(cls, data: bytes) -> Self:
        return cls(unpack_many(data))

    def size(self) -> int:
        return self.__sizeof__() + sum(map(len, self)) + 33 * len(self)

    def check(self) -> None:
        assert all(type(member) is bytes for member in self), set(self)
