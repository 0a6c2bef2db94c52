"""Nodes of a stream on their way to files and back: which can go, which are needed, and what a lost file means.

The index of a file is in segments.py, and messages.py finds nodes wherever they are. Who writes the files, and when, is
storage/history.py.

Rejected: methods of Messages, because where nodes lie and what they say change for different reasons.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from operator import attrgetter

from penstock.types.packing import CorruptValue
from penstock.types.stream.messages import Messages, Place
from penstock.types.stream.nodes import NODE, Node, message_batch, node_in, recalled
from penstock.types.stream.segments import Segment

_first = attrgetter("first")


def wanted_places(messages: Messages, start: int, end: int, budget: int) -> list[Place]:
    """The nodes between two offsets that a reader would have to fetch, about so many bytes of messages."""
    places: list[Place] = []
    start, end = max(start, messages.first), min(end, messages.last + 1)
    if start >= end or messages.is_in_memory_from(start):
        return places
    at = max(bisect_right(messages.history, (start - 1) // NODE, key=_first) - 1, 0)
    for segment in messages.history[at:]:
        first = max((start - 1) // NODE - segment.first, 0)
        for place in range(first, min((end - 2) // NODE + 1 - segment.first, len(segment))):
            if budget <= 0:
                return places
            budget -= segment.raws[place]
            known = messages.recent.get(segment.first + place)
            if known is None or not known.payload:
                places.append((segment, place))
    return places


@contextmanager
def with_fetched(messages: Messages, fetched: Iterable[tuple[Place, bytes]]) -> Iterator[None]:
    """During this, reads find these payloads, and fetch others as always.

    While a thread fetched them, nodes may have been evicted, or rewritten and stored again: those are left out.
    """
    for (segment, place), payload in fetched:
        number = segment.first + place
        if number < messages.lowest or number in messages.nodes:
            continue
        now = messages.place(number)
        if now[0].identity(now[1]) == segment.identity(place):
            node = messages.fetched[number] = node_in(*now)
            node.take_fetched(payload)
    try:
        yield
    finally:
        fetched_nodes, messages.fetched = messages.fetched, {}
        for number, node in [*fetched_nodes.items()][-1:]:  # where the reader will go on
            if number >= messages.lowest and number not in messages.nodes and messages.place(number) == node.stored:
                messages.use(node)


def coldest(messages: Messages, size: int, hot: bool = False) -> list[Node]:
    """The oldest neighbouring nodes in memory that can go to a file, about so many bytes; none if there are none.

    Those that wait to be compressed cannot, and those that are hot only if it is said so.
    """
    found: list[Node] = []
    end = messages.active.number - (0 if hot else messages.storage.hot_nodes)
    end = min(end, min(messages.cooling.away, default=messages.cooling.packed))
    for number in messages.numbers_in_memory():
        node = messages.nodes[number]
        if number >= end or size <= 0:
            break
        if found and (number != found[-1].number + 1 or node.large != found[0].large):
            break
        found.append(node)
        size -= len(node.payload)
    return found


def store(messages: Messages, segment: Segment) -> bool:
    """These nodes are in a file: let go of them in memory. False if they are not the ones that memory holds."""
    start = max(segment.first, messages.lowest)
    nodes = [messages.nodes.get(number) for number in range(start, segment.end)]
    at = start - segment.first
    if not nodes or [(node.count, node.raw, node.offsets) if node is not None else None for node in nodes] != [
        (segment.count_at(place), segment.raws[place], segment.sparse.get(place)) for place in range(at, len(segment))
    ]:
        return False
    files = messages.storage.files
    if files is None or not files.is_there(segment):
        return False
    files.adopt(segment)
    for number in range(start, segment.end):
        node = messages.nodes.pop(number)
        messages.stored_raw += node.raw
        messages.recent.pop(number, None)
        messages.cooling.gone(node)
    messages.history.insert(bisect_right(messages.history, segment.first, key=_first), segment)
    return True


def forget_segment(messages: Messages, segment: Segment) -> tuple[int, int]:
    """A file is lost: its messages count as compacted away. Answers their first offset, and the one after."""
    start, end = max(segment.first, messages.lowest), segment.end
    places = range(start - segment.first, len(segment))
    messages.sealed_rows -= sum(map(segment.count_at, places))
    messages.sealed_raw -= sum(segment.raws[place] for place in places)
    messages.stored_raw -= sum(segment.raws[place] for place in places)
    messages.history.remove(segment)
    for place in places:
        number = segment.first + place
        nothing = message_batch(array("q"), [], [])
        messages.nodes[number] = Node.of(number, nothing, segment.before_at(place), segment.newest[place], array("q"))
        messages.recent.pop(number, None)
    compacts = messages.compactor is not None
    messages.set_compaction(False)  # its index knows the lost messages
    messages.set_compaction(compacts)
    return start * NODE + 1, end * NODE + 1


def forget_nodes(messages: Messages, name: str, numbers: Collection[int]) -> None:
    """These nodes of a file are lost, or all of them if none is named."""
    for segment in [each for each in messages.history if each.name == name]:
        cuts = {segment.first, segment.end}
        for number in numbers:
            if segment.first <= number < segment.end:
                cuts |= {number, number + 1}
        parts = [segment.part(a, b) for a, b in pairwise(sorted(cuts)) if b > messages.lowest]
        at = messages.history.index(segment)
        messages.history[at : at + 1] = parts
        for part in parts:
            for number in range(part.first, part.end):
                messages.recent.pop(number, None)  # they knew the segment
            if not numbers or part.first in numbers:
                forget_segment(messages, part)


def load_segments(messages: Messages, segments: Iterable[Segment]) -> None:
    """These segments belong to it, whose `lowest` node is known; the nodes in memory come later."""
    if messages.storage.files is None:
        raise CorruptValue("a stream refers to files of history, and none are kept here")
    for segment in segments:
        if segment.end <= messages.lowest:
            raise CorruptValue("a stream has a segment of evicted messages")
        messages.storage.files.adopt(segment)
        messages.history.append(segment)
        held = segment.part(max(segment.first, messages.lowest), segment.end)
        messages.sealed_nodes += len(held)
        messages.sealed_rows += held.rows
        messages.sealed_raw += held.raw
        messages.stored_raw += held.raw


def numbers_outside_history(messages: Messages, count: int) -> Iterator[int]:
    """The first numbers from `lowest` on that are in no segment, so many."""
    number, rest = messages.lowest, iter([*messages.history])
    segment = next(rest, None)
    while count:
        while segment is not None and number >= segment.first:
            number, segment = max(number, segment.end), next(rest, None)
        yield number
        number, count = number + 1, count - 1


def sealed(messages: Messages, in_memory: bool) -> Iterator[Node]:
    """The sealed nodes in order with their payloads, all of them or those in memory."""
    for number in messages.numbers_in_memory() if in_memory else messages.numbers():
        node = messages.node(number)
        yield node if node.stored is None else recalled(node)


def sealed_size(messages: Messages) -> int:
    """Bytes of memory of the sealed nodes that are in memory. O(those)."""
    return sum(node.size() for node in messages.nodes.values())


def largest_node(messages: Messages) -> int:
    """Bytes of the messages of the largest sealed node that is in memory. O(those)."""
    return max((node.raw for node in messages.nodes.values()), default=0)


def read_back_size(messages: Messages) -> int:
    """Bytes of memory of the nodes that were read from files, and are kept for the next read."""
    return sum(node.size() for node in messages.recent.values() if node.stored is not None)


def forget_read(messages: Messages) -> None:
    """Let go of the nodes that were read from files."""
    for number, node in [*messages.recent.items()]:
        if node.stored is not None:
            messages.recent.pop(number).rest()
