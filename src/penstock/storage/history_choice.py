"""Chooses the nodes for the next file: those of one large stream, or of several small ones together.

Each file has to be synced, so a file for each small stream would take most of the time of a server that has many.

Owned by the loop thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from penstock.engine.dispatch import Engine
from penstock.storage.stream_places import find
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Node
from penstock.types.stream.stored_nodes import coldest

CANDIDATES = 256
"""Streams that take most memory, of which one goes to a file, or several small ones together."""
LARGEST_SHARED = 4 << 20
"""Bytes of a file that streams share. It stays as long as one of them needs it."""

Chosen = list[tuple[Messages, list[Node]]]
"""Streams, and nodes of each that go to one file."""


class Wish(NamedTuple):
    """The requirements for a file."""

    size: int  # about how many bytes it should have
    hot: bool  # hot nodes may go too
    pressed: bool  # memory is so short that less will do; a thread compresses nodes that wait for it
    at_once: bool  # the loop waits, and compresses them itself


def choose(engine: Engine, streams: Iterable[Messages], wish: Wish) -> Chosen:
    """The nodes for the next file; none if nothing can go now, or it is better to wait until more can go together.

    Nodes that wait to be compressed cannot go.
    """
    together: Chosen = []
    room = shared = min(wish.size, LARGEST_SHARED)
    more_soon = not wish.hot  # the hot ones are next
    for messages in heapq.nlargest(CANDIDATES, streams, key=size_in_memory):
        nodes = _ready(engine, messages, wish._replace(size=room) if together else wish)
        more_soon = more_soon or (messages.cooling.has_deferred and not wish.at_once)
        if not nodes or _is_locked(engine, messages):
            continue
        if 4 * _stored_size(nodes) >= wish.size:
            return [(messages, nodes)]
        if wish.pressed and (not together or nodes[0].large == together[0][1][0].large):
            together.append((messages, nodes))
            room -= _stored_size(nodes)
            if room <= 0:
                break
    return together if 2 * room <= shared or not more_soon else []


def _ready(engine: Engine, messages: Messages, wish: Wish) -> list[Node]:
    """The nodes of a stream that can go. If these are few, more are compressed, or will be soon."""
    if wish.hot:
        messages.cooling.cool_all(messages.active.number)
    nodes = coldest(messages, wish.size, wish.hot)
    if 4 * _stored_size(nodes) < wish.size and wish.pressed and messages.cooling.has_deferred:
        engine.compression.hurry(messages, wish.size if wish.at_once else 0)
        nodes = coldest(messages, wish.size, wish.hot)
    return nodes


def _is_locked(engine: Engine, messages: Messages) -> bool:
    """Whether a thread works on the stream, or no key holds it any more: nodes of it cannot go now."""
    place = find(engine.keyspace, messages)
    return place is None or place[1] in place[0].locked


def _stored_size(nodes: list[Node]) -> int:
    return sum(len(node.payload) for node in nodes)


def size_in_memory(messages: Messages) -> int:
    """Bytes of the messages of sealed nodes that are in memory."""
    return messages.sealed_raw - messages.stored_raw
