"""Sets of byte strings: a Python set, whose operators are the set algebra, and a sampler after the first random read.

Members are changed only through `insert`, `remove_all` and the two `take` methods, which update the sampler. The
inherited methods that change a `set` in place do not update it; they are for sets that were never sampled, such as one
that a command is still building.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Self

from penstock.freeing import GIANT, dispose
from penstock.types.packing import AN_OBJECT, packed_pieces, total_length, unpacked_chunks
from penstock.types.registry import value_type
from penstock.types.sampling import Sampler

_LONGEST = len(b"-9223372036854775808")
_FIRST = frozenset(b"%c" % byte for byte in b"-0123456789")


def in_integer_order(members: AbstractSet[bytes], limit: int) -> list[bytes] | None:
    """The members in the order of Redis's intset, if Redis would use one; else None.

    An intset holds up to `limit` integers of 64 bits, written as Redis writes them, and programs rely on its order.
    Redis does not return to an intset when a set shrinks; the order is undefined then, so this order is correct too.

    >>> in_integer_order({b"10", b"-2", b"9"}, 512), in_integer_order({b"10", b"02"}, 512)
    ([b'-2', b'9', b'10'], None)
    """
    if not 0 < len(members) <= limit or next(iter(members))[:1] not in _FIRST or max(map(len, members)) > _LONGEST:
        return None
    try:
        numbers = sorted(map(int, members))
    except ValueError:
        return None
    if not -(1 << 63) <= numbers[0] <= numbers[-1] < 1 << 63:
        return None
    ordered = [b"%d" % number for number in numbers]
    return ordered if set(ordered) == members else None


def most_bytes(members: int) -> int:
    """The most bytes that a new set of so many members takes, without their names: CPython's table at its emptiest."""
    return members * (128 if members <= 50_000 else 64)


@value_type("set", tag=2, collection=True, item_cost=176, items=1)
class Set(set[bytes]):
    """Members, in no order."""

    __slots__ = ("sampler",)

    def __init__(self, members: Iterable[bytes] = ()) -> None:
        super().__init__(members)
        self.sampler: Sampler | None = None  # made by the first random read; most sets never need one

    def insert(self, members: Iterable[bytes]) -> int:
        """Add members; answer how many are new."""
        before = len(self)
        sampler = self.sampler
        if sampler is None:
            self.update(members)
        else:
            for member in members:
                if member not in self:
                    self.add(member)
                    sampler.add(member)
        return len(self) - before

    def remove_all(self, members: Iterable[bytes]) -> int:
        """Remove members; answer how many there were."""
        before = len(self)
        sampler = self.sampler
        if sampler is None:
            self.difference_update(members)
        else:
            for member in members:
                if member in self:
                    self.remove(member)
                    sampler.remove(member)
        return before - len(self)

    # -- random members: O(1) each, plus O(N) the first time ---------------------------------------------------

    def _sampled(self) -> Sampler:
        if self.sampler is None:
            self.sampler = Sampler(self)
        return self.sampler

    def random_member(self) -> bytes:
        """One of the members; there must be one."""
        return self._sampled().one()

    def random_members(self, count: int) -> list[bytes]:
        """So many different members, or all of them if there are fewer."""
        return list(self) if count >= len(self) else self._sampled().several(count)

    def take_random_member(self) -> bytes:
        """Remove one of the members; there must be one."""
        sampler = self.sampler
        member = (self._sampled() if sampler is None else sampler).take()
        self.remove(member)
        return member

    def take_random_members(self, count: int) -> set[bytes]:
        """Remove so many members; there must be as many."""
        sampler = self._sampled()
        taken = {sampler.take() for _ in range(count)}
        self -= taken
        return taken

    # -- what every type has ----------------------------------------------------------------------------------

    def __del__(self) -> None:
        if len(self) > GIANT:
            dispose(self)

    def __copy__(self) -> Self:
        return type(self)(self)  # without the sampler, which belongs to one set

    def dump(self) -> bytes:
        return b"".join(self.dump_pieces())

    def dump_pieces(self) -> list[bytes]:
        return packed_pieces(self)

    @classmethod
    def load(cls, data: bytes) -> Self:
        value = cls()
        for chunk in unpacked_chunks(data):
            value.update(chunk)
        return value

    def size(self) -> int:
        sampled = 8 * len(self) if self.sampler is not None else 0
        return self.__sizeof__() + total_length(self) + AN_OBJECT * len(self) + sampled

    def check(self) -> None:
        assert all(type(member) is bytes for member in self), set(self)
        if self.sampler is not None:
            self.sampler.check(self)
