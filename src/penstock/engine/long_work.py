"""Which commands have so much to do that they ask to do it aside, and how a long reply is made there.

A handler looks at lengths, which cost nothing, and does short work at once in plain values: a set of ten members never
hears of any of this. What is longer than LONG goes through `Session.aside`, which decides where it runs, and its reply
is encoded there too: encoding two million members takes longer than finding them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.engine.session import Session
from penstock.engine.spec import Reply
from penstock.protocol.resp import in_pieces
from penstock.types.zset import SortedSet

LONG = 1000
"""Elements. To touch so many takes about as long as the least command of a client."""


def reply_aside(session: Session, kind: type, count: int, values: Callable[[], Iterable[Any]]) -> Reply:
    """A reply of so many values; `values` is called aside. For `kind` see `in_pieces`."""
    protocol = session.protocol
    return session.aside(count, lambda: in_pieces(kind, count, values(), protocol))


def sort_first(session: Session, zset: SortedSet, then: Callable[[], Reply]) -> Reply:
    """Have a sorted set put in order aside, then call `then`, for which the order is no longer work."""
    return session.aside(zset.disorder, zset.put_in_order, lambda _: then())
