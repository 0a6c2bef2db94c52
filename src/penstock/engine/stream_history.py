"""Reading messages that lie in files: a thread fetches them, then the command runs as if they were in memory.

The client waits, others do not. A command that cannot wait, in a script or a transaction, fetches in place, and so does
one that comes upon a node that was not foreseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter

from penstock.engine.declarations import Reply
from penstock.engine.session import Session
from penstock.types.stream.messages import Messages, Place
from penstock.types.stream.nodes import Range
from penstock.types.stream.stored_nodes import wanted_places, with_fetched

MOST = 1 << 30
"""Bytes of messages that are fetched for one command."""
_ALWAYS = 1 << 62
"""More work than any threshold, so that a thread does it."""

Fetched = list[tuple[Place, bytes]]


def with_history(
    session: Session,
    ranges: Iterable[tuple[Messages, Range]],
    read: Callable[[], Reply],
    max_bytes: int | None = None,
) -> Reply:
    """Run a read of these offsets of streams, after the nodes that lie in files were fetched."""
    budget = MOST if max_bytes is None else min(max_bytes, MOST)
    wanted: dict[Messages, list[Place]] = {}
    for messages, (start, end) in ranges:
        places = wanted_places(messages, start, end, budget)
        if places:
            wanted.setdefault(messages, []).extend(places)
    if not wanted:
        return read()
    begun = False

    def commit(fetched: list[Fetched]) -> Reply:
        may_block = session.may_block
        with ExitStack() as stack:
            if begun:  # in the thread's wake; if what was there is gone by now, this answers as a timeout does
                session.may_block = False
                stack.callback(setattr, session, "may_block", may_block)
            for messages, payloads in zip(wanted, fetched, strict=True):
                stack.enter_context(with_fetched(messages, payloads))
            return read()

    reply = session.aside(_ALWAYS, lambda: [*map(_fetch, wanted.values())], commit, lock=False)
    begun = True
    return reply


def _fetch(places: list[Place]) -> Fetched:
    """In a thread: files never change."""
    fetched: Fetched = []
    for segment, group in groupby(places, key=itemgetter(0)):
        numbers = [place for _, place in group]
        fetched += zip([(segment, place) for place in numbers], segment.fetch(numbers), strict=True)
    return fetched
