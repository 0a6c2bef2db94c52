"""Hashes: a dict in insertion order, and a sampler after the first random read.

Fields are set as in any dict and removed only through `remove_all`. The sampler is not told about new fields: a dict
puts them at its end, so the next use of the sampler finds those that it lacks there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Self

from penstock.freeing import GIANT, dispose
from penstock.types.packing import AN_OBJECT, CorruptValue, packed_pieces, total_length, unpacked_chunks
from penstock.types.registry import value_type
from penstock.types.sampling import Sampler


@value_type("hash", tag=3, collection=True, item_cost=112, items=2)
class Hash(dict[bytes, bytes]):
    """Fields and their values."""

    __slots__ = ("sampler",)

    def __init__(self, fields: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(fields)
        self.sampler: Sampler | None = None  # made by the first random read; most hashes never need one

    def remove_all(self, fields: Iterable[bytes]) -> int:
        """Remove fields; answer how many there were."""
        before = len(self)
        sampler = self._sampled() if self.sampler is not None else None
        for field in fields:
            if self.pop(field, None) is not None and sampler is not None:
                sampler.remove(field)
        return before - len(self)

    # -- random fields: O(1) each, plus O(N) the first time ----------------------------------------------------

    def _sampled(self) -> Sampler:
        """The sampler, updated with every field."""
        sampler = self.sampler
        if sampler is None:
            sampler = self.sampler = Sampler(self)
        else:
            for field in islice(reversed(self), len(self) - len(sampler)):
                sampler.add(field)
        return sampler

    def random_field(self) -> bytes:
        """One of the fields; there must be one."""
        return self._sampled().one()

    def random_fields(self, count: int) -> list[bytes]:
        """So many different fields, or all of them if there are fewer."""
        return list(self) if count >= len(self) else self._sampled().several(count)

    # -- what every type has ----------------------------------------------------------------------------------

    def __del__(self) -> None:
        if len(self) > GIANT:
            dispose(self)

    def __copy__(self) -> Self:
        return type(self)(self)  # without the sampler, which belongs to one hash

    def dump(self) -> bytes:
        return b"".join(self.dump_pieces())

    def dump_pieces(self) -> list[bytes]:
        return packed_pieces(chain.from_iterable(self.items()))

    @classmethod
    def load(cls, data: bytes) -> Self:
        value = cls()
        for parts in unpacked_chunks(data):
            if len(parts) % 2:
                raise CorruptValue("a hash with a field and no value")
            value.update(zip(parts[::2], parts[1::2], strict=True))
        return value

    def size(self) -> int:
        sampled = 8 * len(self) if self.sampler is not None else 0
        return (
            self.__sizeof__() + total_length(self) + total_length(self.values()) + 2 * AN_OBJECT * len(self) + sampled
        )

    def check(self) -> None:
        assert all(type(field) is bytes and type(value) is bytes for field, value in self.items()), dict(self)
        if self.sampler is not None:
            self._sampled().check(self)
