"""Hashes: a dict, in insertion order."""

from __future__ import annotations

from typing import Self

from penstock.types.packing import CorruptValue, pack_many, unpack_many


class Hash(dict[bytes, bytes]):
    """Fields and their values."""

    __slots__ = ()

    def dump(self) -> bytes:
        return pack_many([part for pair in self.items() for part in pair])

    @classmethod
    def load(cls, data: bytes) -> Self:
        parts = unpack_many(data)
        if len(parts) % 2:
            raise CorruptValue("a hash with a field and no value")
        return cls(zip(parts[::2], parts[1::2], strict=True))

    def size(self) -> int:
        return self.__sizeof__() + sum(map(len, self)) + sum(map(len, self.values())) + 66 * len(self)

    def check(self) -> None:
        assert all(type(field) is bytes and type(value) is bytes for field, value in self.items()), dict(self)
