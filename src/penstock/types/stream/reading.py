"""Reading a stream: runs of offsets, encoded bytes, Arrow, or one message after the other.

A read finds blocks by arithmetic and takes slices of them. MAXBYTES counts the costs of messages.py. A read may decode
cold nodes; messages.py keeps the few that were read last.

Rejected: methods of Messages, because reading and storing change for different reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.types.stream.arrow import LEASED_SCHEMA
from penstock.types.stream.encoding import Encoding
from penstock.types.stream.ipc import ArrowPart, Piece, stream_of
from penstock.types.stream.lease_chunk import Lease
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, OVERHEAD, Range


class Message(NamedTuple):
    """One message, for the slow paths."""

    offset: int
    time: int
    tag: bytes
    entry: bytes


class Taken(NamedTuple):
    """The messages for a group read: runs, where to go on, how many of the offsets were evicted, the cost."""

    runs: list[Range]
    next: int
    evicted: int
    cost: int


def take(messages: Messages, start: int, count: int, max_bytes: int | None = None, stop: int | None = None) -> Taken:
    """Runs of up to `count` messages from an offset, before `stop`; the message that reaches max_bytes is the last."""
    last, at = messages.last, start
    if stop is None or stop > last:
        stop = last + 1
    if count <= 0 or start >= stop:
        return Taken([], start, 0, 0)
    if at < messages.first:
        at = min(messages.first, stop)
    evicted = at - start
    if max_bytes is None and messages.complete:
        end = at + count
        if end > stop:
            end = stop
        return Taken([(at, end)] if at < end else [], end, evicted, 0)
    runs: list[Range] = []
    left, cost = count, 0
    for block, a, b in messages.runs(at, stop):
        end = min(b, a + left)
        if max_bytes is not None:
            end, spent = block.fit(a, end, max_bytes - cost)
            cost += spent
        left -= end - a
        if runs and runs[-1][1] == a:
            a = runs.pop()[0]
        runs.append((a, end))
        if not left or (max_bytes is not None and cost >= max_bytes):
            return Taken(runs, end, evicted, cost)
    return Taken(runs, stop, evicted, cost)


def read(
    messages: Messages, offset: int, count: int, encoding: Encoding, null: bytes, max_bytes: int | None = None
) -> tuple[list[Piece], int]:
    """The messages of offset, offset + 1, ..., in pieces to be joined, and how many they are.

    `null` stands for each evicted message. Stops at the last offset.
    """
    stop = offset + count
    if stop > messages.last:
        stop = messages.last + 1
    pieces: list[Piece] = []
    if offset >= stop:
        return pieces, 0
    at = offset
    # The most frequent read, if messages.complete: none is missing.
    if max_bytes is None and offset >= messages.first and messages.sealed_rows == NODE * messages.sealed_nodes:
        while at < stop:
            number = (at - 1) // NODE
            end = (number + 1) * NODE + 1
            if end > stop:
                end = stop
            pieces.append(messages.used_block(number).encoded_slice(at, end, encoding))
            at = end
        return pieces, stop - offset
    left = max_bytes
    for block, a, b in messages.runs(offset, stop):
        if at < a:
            gone, left = _affordable(a - at, left)
            pieces.append(null * gone)
            at += gone
            if at < a or left == 0:
                return pieces, at - offset
        if left is not None:
            end, cost = block.fit(a, b, left)
            pieces.append(block.encoded_slice(a, end, encoding))
            at, left = end, max(left - cost, 0)
            if left == 0:
                return pieces, at - offset
        else:
            pieces.append(block.encoded_slice(a, b, encoding))
            at = b
    if at < stop:
        gone, _ = _affordable(stop - at, left)
        pieces.append(null * gone)
        at += gone
    return pieces, at - offset


def read_runs(messages: Messages, runs: Iterable[Range], encoding: Encoding) -> list[Piece]:
    """Runs of available messages, as `take` found them, in pieces to be joined."""
    return [block.encoded_slice(a, b, encoding) for run in runs for block, a, b in messages.blocks(*run)]


def read_leases(messages: Messages, leases: Iterable[Lease], encoding: Encoding) -> list[Piece]:
    """The messages of leases with their times and attempts, in pieces to be joined."""
    return [
        block.leased(a, b, lease.attempts, encoding)
        for lease in leases
        for block, a, b in messages.blocks(lease.start, lease.end)
    ]


def each(messages: Messages, offset: int, count: int, max_bytes: int | None = None) -> Iterator[Message]:
    """Up to `count` available messages from an offset on, one by one."""
    for run in take(messages, offset, count, max_bytes).runs:
        for block, a, b in messages.blocks(*run):
            yield from map(Message, *block.rows(a, b))


def read_arrow(
    messages: Messages,
    offset: int,
    count: int,
    max_bytes: int | None = None,
    compressed: bool = False,
    with_bounds: bool = False,
    fields: str | None = None,
) -> ArrowPart:
    """An Arrow stream of (offset, time, tag, entry) without evicted messages, one record batch for each node.

    As in `read`, count is a number of offsets, evicted ones included. `compressed` allows nodes to be sent as they are
    stored; `with_bounds` puts the first and last offset, and `fields` if given, in the schema's metadata.
    """
    stop = min(offset + count, messages.last + 1)
    runs: list[Range] = [(max(offset, messages.first), stop)]
    if max_bytes is not None:
        runs = take(messages, offset, count, max_bytes, stop).runs
    return read_arrow_runs(messages, runs, compressed, with_bounds, fields)


def read_arrow_runs(
    messages: Messages,
    runs: Iterable[Range],
    compressed: bool = False,
    with_bounds: bool = False,
    fields: str | None = None,
) -> ArrowPart:
    """As read_runs, in Arrow. Its pieces may be made later, whatever happens to the messages until then."""
    parts = (block.arrow(a, b, compressed) for run in runs for block, a, b in messages.blocks(*run))
    return stream_of(parts, (messages.first, messages.last) if with_bounds else None, fields)


def read_arrow_leases(
    messages: Messages, leases: Iterable[Lease], token: int, with_bounds: bool = False, fields: str | None = None
) -> ArrowPart:
    """The messages of leases in Arrow, with a column of their attempts, and the token in the metadata."""
    parts = (
        block.arrow(a, b, more=lease.attempts)
        for lease in leases
        for block, a, b in messages.blocks(lease.start, lease.end)
    )
    return stream_of(parts, (messages.first, messages.last) if with_bounds else None, fields, LEASED_SCHEMA, token)


def _affordable(items: int, budget: int | None) -> tuple[int, int | None]:
    """How many nulls a budget of bytes pays for, and what is left of it."""
    if budget is None:
        return items, None
    items = min(items, -(-budget // OVERHEAD))
    return items, max(budget - items * OVERHEAD, 0)
