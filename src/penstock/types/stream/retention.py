"""Which messages a stream keeps, and how the others are found.

A node is freed as a whole. So retention by count keeps at least the count, retention by age frees a node when its
newest message is too old, and retention by bytes keeps at most the bytes. Messages are freed one by one only if a
single node of them would exceed the limit of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, OVERHEAD


@dataclass(frozen=True, slots=True)
class Retention:
    """What a stream keeps; 0 is no limit. `compact` keeps the newest message of every tag."""

    count: int = 0
    age_ms: int = 0
    bytes: int = 0
    compact: bool = False


def keep_nodes(messages: Messages, count: int) -> int:
    """Evict whole nodes from the front as long as `count` messages remain; answer how many messages were evicted."""
    before = len(messages)
    while messages.history and len(messages) - _rows_of_oldest_segment(messages) >= count:
        messages.evict_through(messages.history[0].end * NODE)
    length = len(messages)
    while messages.lowest < messages.active.number:
        front = messages.node(messages.lowest)
        available = front.count - front.row(messages.first)
        if length - available < count:
            break
        length -= available
        messages.evict_through((messages.lowest + 1) * NODE)
    return before - length


def _rows_of_oldest_segment(messages: Messages) -> int:
    """Messages up to the end of the first segment that can be read, those in memory before it included."""
    segment = messages.history[0]
    return len(messages) - messages.count_from(segment.end * NODE + 1)


def keep_last(messages: Messages, count: int) -> int:
    """Evict all but the last `count` messages; answer how many were evicted."""
    removed = keep_nodes(messages, count)
    spare = len(messages) - count
    if spare > 0:
        front = messages.block(messages.lowest)
        removed += messages.evict_through(front.offset_at(front.row(messages.first) + spare) - 1)
    return removed


def apply_retention(messages: Messages, retention: Retention, now: int) -> int:
    """Evict the whole nodes that a retention does not cover; answer how many messages were evicted.

    At least `count` messages stay. A node is evicted by age when its newest message is too old, the active one too. At
    most `bytes` stay, but always the newest message. Messages so large that a node of them would exceed the limit are
    evicted one by one.
    """
    removed = keep_nodes(messages, retention.count) if retention.count else 0
    removed += _drop_segments(messages, retention, now)
    active = messages.active.raw if retention.bytes and messages.sealed_nodes else 0
    while messages.lowest < messages.active.number:
        too_old = retention.age_ms and messages.node(messages.lowest).newest < now - retention.age_ms
        too_large = retention.bytes and messages.sealed_raw + active > retention.bytes
        if not (too_old or too_large):
            break
        through = (messages.lowest + 1) * NODE
        if through == messages.last and not too_old:
            removed += messages.evict_through(through - 1)
            break
        removed += messages.evict_through(through)
    if retention.bytes and not messages.sealed_nodes:
        removed += _keep_bytes(messages, retention.bytes)
    if retention.age_ms and not messages.sealed_nodes:
        oldest, times = now - retention.age_ms, messages.active.times
        if times and times[-1] < oldest and max(times) < oldest:
            removed += messages.evict_through(messages.last)
    return removed


def _drop_segments(messages: Messages, retention: Retention, now: int) -> int:
    """Evict whole segments that are too old or too much, which takes less than node by node; how many messages."""
    removed = 0
    while messages.history and messages.history[0].first <= messages.lowest:
        oldest = messages.history[0]
        too_old = retention.age_ms and max(oldest.newest) < now - retention.age_ms
        rest = messages.sealed_raw - oldest.raw
        if not too_old and not (retention.bytes and rest > retention.bytes):
            break
        removed += messages.evict_through(oldest.end * NODE)
    return removed


def _keep_bytes(messages: Messages, limit: int) -> int:
    """Evict what the active node has beyond a number of bytes; answer how many messages
    were evicted. O(its messages).
    """
    active = messages.active
    if active.raw <= limit:
        return 0
    left, row = limit, len(active.entries)
    while row and (left := left - len(active.tags[row - 1]) - len(active.entries[row - 1]) - OVERHEAD) >= 0:
        row -= 1
    removed = messages.evict_through(min(active.offset_at(row), messages.last) - 1)
    if messages.active.start < messages.first:
        messages.shed(messages.first - messages.active.start)
    return removed


def outgrows(messages: Messages, limit: int, offset: int) -> bool:
    """Whether a node of messages like those from an offset on would have more than so many bytes. O(those)."""
    active, count = messages.active, messages.last + 1 - offset
    size = sum(map(len, active.tags[-count:])) + sum(map(len, active.entries[-count:])) + OVERHEAD * count
    return size * NODE > limit * count
