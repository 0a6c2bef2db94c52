"""From a time to an offset, and from an offset to its age.

A message counts as late as the latest one before it: if the clock was set back, messages written after that do not hide
those written before it. So every node knows the latest time before it, and the search is one of halves.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE


def seek_time(messages: Messages, ms: int) -> int:
    """The first available offset that is not before a time; last + 1 if all are. O(log nodes)."""
    start = range_at_time(messages, ms)[0]
    for block, a, _ in messages.blocks(start, messages.last + 1):
        row = max(block.row_at_time(ms), block.row(a))
        if row < block.count:
            return block.offset_at(row)
    return messages.last + 1


def range_at_time(messages: Messages, ms: int) -> tuple[int, int]:
    """The offsets of the node that has the first message that is not before a time, from the first available on."""
    number = _first_node_at(messages, ms)
    return max(messages.first, number * NODE + 1), (number + 1) * NODE + 1


def _first_node_at(messages: Messages, ms: int) -> int:
    """The number of the first node that has a message that is not before a time, or of the active one."""
    known = bisect_left(messages.history, ms, key=attrgetter("peak"))
    memory = messages.numbers_in_memory() if messages.history else messages.numbers()
    at = bisect_left(memory, ms, key=lambda number: max(messages.nodes[number].before, messages.nodes[number].newest))
    number = memory[at] if at < len(memory) else messages.active.number
    if known < len(messages.history):
        segment = messages.history[known]
        number = min(number, segment.first + bisect_left(segment.peaks(), ms))
    return max(number, messages.lowest)


def age_of(messages: Messages, offset: int, now: int) -> int:
    """How long ago the first available message from an offset on was written, in milliseconds; 0 if there is none.

    Exact for messages in the node that is being written. For an older one it is estimated from the times at which its
    node began and ended, so that no node has to be decompressed, or read from a file.
    """
    offset = max(offset, messages.first)
    if offset > messages.last:
        return 0
    active = messages.active
    if offset >= active.start:
        return max(now - active.times[offset - active.start], 0)
    number = (offset - 1) // NODE
    node = messages.nodes.get(number)
    if node is not None:
        began, ended = node.before, node.newest
    else:
        segment, place = messages.place(number)
        began, ended = segment.newest[place - 1] if place else segment.before, segment.newest[place]
    share = ((offset - 1) % NODE + 1) / NODE
    return max(now - round(began + (ended - began) * share if began else ended), 0)
