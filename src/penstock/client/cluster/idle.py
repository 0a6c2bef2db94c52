"""Connections that wait for their next use: the part of it that blocking and asyncio connections share."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from penstock.client.cluster.effects import Batch, Outcome
from penstock.client.cluster.slot_map import Address

MOST_IDLE = 64
"""Connections that are kept for a node after a crowd of threads or tasks has gone."""


class Closable(Protocol):
    def close(self) -> None: ...


L = TypeVar("L", bound=Closable)


class IdleLinks(Generic[L]):
    """By node, and by whether they were opened to read from a replica."""

    def __init__(self) -> None:
        self._idle: dict[tuple[Address, bool], list[L]] = {}
        self._closed = False

    def give_back(self, batch: Batch, outcome: Outcome, link: L) -> None:
        """A batch is done with its link: its lane keeps it, or it is kept for others, or it is closed."""
        if batch.lane is not None:
            batch.lane.link = link if outcome.error is None else None
            batch.lane.address = batch.address
        if outcome.error is not None or self._closed:
            link.close()
        elif batch.lane is None:
            idle = self._idle.setdefault((batch.address, batch.from_replica), [])
            if len(idle) < MOST_IDLE:
                idle.append(link)
            else:
                link.close()

    def release(self, link: L | None) -> None:
        """Close a link that a lane held: what it remembers (WATCH) ends with it."""
        if link is not None:
            link.close()
