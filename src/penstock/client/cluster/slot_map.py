"""The owner of each slot: a snapshot that never changes and is replaced whole.

Every thread and every pipeline plans with the snapshot it took; none sees one half-updated. What a node answers to
CLUSTER SLOTS makes one; what MOVED says makes the next from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.slots import SLOTS

Address = tuple[str, int]
Remap = Callable[[Address], Address]


@dataclass(frozen=True, slots=True)
class SlotMap:
    """`owners[slot]` is the master's address, or None for a slot that no node serves. A look-up costs one index."""

    owners: tuple[Address | None, ...] = field(default=(None,) * SLOTS, repr=False)
    replicas: Mapping[Address, tuple[Address, ...]] = field(default_factory=dict)
    epoch: int = 0
    """How many questions to the cluster came before this answer; what MOVED adds to it does not count."""
    is_covered: bool = False
    """Every slot has an owner."""
    _masters: list[Address] = field(
        default_factory=list, init=False, repr=False, compare=False
    )  # worked out when asked for

    @property
    def masters(self) -> tuple[Address, ...]:
        """In the order of their first slots."""
        if not self._masters:
            self._masters[:] = [owner for owner in dict.fromkeys(self.owners) if owner is not None]
        return tuple(self._masters)

    @property
    def nodes(self) -> tuple[Address, ...]:
        """Masters first."""
        masters = self.masters
        return tuple(dict.fromkeys((*masters, *(node for master in masters for node in self.replicas.get(master, ())))))

    def with_moves(self, moves: Mapping[int, Address]) -> SlotMap:
        """The next snapshot: these slots belong to others now. O(slots), so one call for many moves."""
        owners = list(self.owners)
        for slot, address in moves.items():
            owners[slot] = address
        return SlotMap(tuple(owners), self.replicas, self.epoch, self.is_covered)


def parse_slots(reply: Any, asked: Address, remap: Remap | None = None, epoch: int = 0) -> SlotMap:
    """The snapshot that a node's answer to CLUSTER SLOTS describes.

    A node that does not know its own host name leaves it empty: it is the one that was asked.

    >>> parse_slots([[0, 16383, [b"", 7000, b"id"], [b"10.0.0.2", 7001, b"id"]]], ("10.0.0.1", 7000)).nodes
    (('10.0.0.1', 7000), ('10.0.0.2', 7001))
    """
    owners: list[Address | None] = [None] * SLOTS
    replicas: dict[Address, tuple[Address, ...]] = {}
    try:
        for first, last, master, *others in reply:
            owner = address_of(master[0], int(master[1]), asked, remap)
            replicas[owner] = tuple(_addresses(others, asked, remap))
            owners[first : last + 1] = [owner] * (last + 1 - first)
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{asked[0]}:{asked[1]} answered CLUSTER SLOTS with what is no slot map: {reply!r}") from error
    if len(owners) != SLOTS:
        raise ValueError(f"{asked[0]}:{asked[1]} answered CLUSTER SLOTS with slots beyond {SLOTS - 1}")
    return SlotMap(tuple(owners), replicas, epoch, is_covered=None not in owners)


def _addresses(rows: Iterable[Any], asked: Address, remap: Remap | None) -> Iterable[Address]:
    return (address_of(row[0], int(row[1]), asked, remap) for row in rows)


def address_of(host: bytes | str | None, port: int, asked: Address, remap: Remap | None) -> Address:
    """Where to connect to a node that another one named: an empty host is the host of the node that was asked.

    One address is one object, so that a pipeline can group by identity; two would only cost it a second connection.
    """
    name = host.decode() if isinstance(host, bytes) else host
    address = (name if name and name != "?" else asked[0], port)
    if remap is not None:
        address = remap(address)
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    return _known.setdefault(address, address)


_known: dict[Address, Address] = {}
_MOST_KNOWN = 4096  # a server that makes up addresses must not fill the memory with them


def shown(address: Address) -> str:
    """An address as people write it."""
    return f"{address[0]}:{address[1]}"
