"""Chooses the offsets of a micro-batch, and cuts them into partitions. Pure: no server, no Spark.

A position is the next offset to read, so a range is [start, end) and an empty stream at its beginning stands at 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

NODE = 1000
"""Messages in a node of a stream: a partition that begins where a node does is read without cutting one."""
METRICS = "penstock:metrics"
"""Where the progress of a query has the metrics of a batch, beside the ends of its streams."""


def node_of(offset: int) -> int:
    """The number of the node that an offset is in."""
    return (offset - 1) // NODE


class Bounds(NamedTuple):
    """The range of offsets of a stream."""

    first: int
    end: int  # one past the last


@dataclass(frozen=True, slots=True)
class Range:
    """Some messages of one stream."""

    stream: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


def limited(start: Mapping[str, int], end: Mapping[str, int], rows: int) -> dict[str, int]:
    """Ends for a batch of at most so many rows: one row of each stream that has some, the rest by backlog.

    >>> limited({"a": 1, "b": 1}, {"a": 901, "b": 101}, 100)
    {'a': 90, 'b': 11}
    """
    behind = {stream: max(end[stream] - start.get(stream, 1), 0) for stream in end}
    total = sum(behind.values())
    if total <= rows:
        return dict(end)
    waiting = sorted((stream for stream in behind if behind[stream]), key=behind.__getitem__, reverse=True)
    shares = dict.fromkeys(waiting[:rows], 1)
    rest, more = rows - len(shares), total - len(shares)
    for stream in shares:
        shares[stream] += (behind[stream] - 1) * rest // more
    return {stream: start.get(stream, 1) + shares.get(stream, 0) for stream in end}


def cut(ranges: list[Range], partitions: int, whole_nodes: bool = False) -> list[Range]:
    """The same messages in at least so many ranges, if there are as many messages, cut where nodes begin if they are
    long.

    With `whole_nodes` they are cut nowhere else, and there may be fewer ranges.

    >>> [piece.start for piece in cut([Range("a", 501, 4501)], 4)]
    [501, 1001, 2001, 3001, 4001]
    """
    total = sum(each.rows for each in ranges)
    if not total:
        return []
    size = max(-(-total // max(partitions, 1)), 1)
    step = -(-size // NODE) * NODE if size >= NODE or whole_nodes else size
    pieces = []
    for each in ranges:
        at = each.start
        while at < each.end:
            stop = min((at - 1) // step * step + step + 1 if step >= NODE else at + step, each.end)
            pieces.append(Range(each.stream, at, stop))
            at = stop
    return pieces
