"""Ranges of offsets: put together, taken apart, and those of leases. Ranges exclude their end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from penstock.types.stream.lease_chunk import Lease
from penstock.types.stream.nodes import Range


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in order, each once.

    >>> merged([(5, 7), (1, 3), (2, 4), (4, 5)])
    [(1, 7)]
    """
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def without(runs: list[Range], leases: list[Lease]) -> list[Range]:
    """The parts of runs, which are in order, that have no lease among these."""
    if not runs or max([lease.end for lease in leases], default=0) <= runs[0][0]:
        return runs  # all that is leased comes before
    taken = merged([(lease.start, lease.end) for lease in leases])
    rest: list[Range] = []
    for start, end in runs:
        for first, stop in taken[bisect_right(taken, start, key=itemgetter(1)) :]:
            if first >= end:
                break
            if start < first:
                rest.append((start, first))
            start = min(stop, end)
        if start < end:
            rest.append((start, end))
    return rest


def runs_of(leases: Iterable[Lease]) -> list[Range]:
    """The leases' ranges in order, neighbours joined."""
    runs: list[Range] = []
    for lease in leases:
        start = lease.start
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, lease.end))
    return runs
