"""Which commands have so much work that others are served during it, and how a long reply is made then.

A handler looks at lengths, which cost nothing, and does short work at once with plain values. Work longer than LONG
goes through `Session.aside`, which decides where it runs. The reply is encoded there too: encoding two million members
takes longer than finding them.

A reply of random draws may be of any length, however small the collection. It is made while it is sent (`reply_draws`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from penstock.engine.concurrency.loop_steps import InSteps
from penstock.engine.concurrency.workers import LongWay
from penstock.engine.declarations import Reply
from penstock.engine.session import Session
from penstock.freeing import GIANT
from penstock.protocol.resp import RawPieces, StreamedPieces, encode, in_pieces, make_pieces
from penstock.types.kernels import Steps, draw
from penstock.types.zset import SortedSet

LONG = 1000
"""Elements. Touching so many takes about as long as the shortest command of a client."""
BYTES_AN_ELEMENT = 256
"""So many bytes are as much work as one element of a collection."""

SHARE = 16
"""A removal of more than this part of a collection builds a new one of the rest, instead of changing it in place."""


def is_long_removal(going: int, size: int) -> bool:
    """Whether removing so many of so many elements takes long enough to build the rest in a thread.

    A thread changes nothing in place, so it copies the rest. Removing a few of very many is faster on the loop.
    """
    return going > LONG and (going * SHARE > size or going > GIANT)


def reply_maker(session: Session) -> Callable[[type, int, Iterable[Any]], Steps[Reply]]:
    """What makes a long reply aside for a command that writes: kind, count, values. For `kind` see `in_pieces`.

    It encodes the reply, unless ONCE keeps it for clients of both protocols; the inner loop does not say whether it is
    inside ONCE.
    """
    is_kept = session.around is not None or session.current is None
    protocol = session.protocol

    def make(kind: type, count: int, values: Iterable[Any]) -> Steps[Reply]:
        if is_kept:
            return kind(values)
        return (yield from reply_in_steps(kind, count, values, protocol))

    return make


def reply_aside(
    session: Session, kind: type, count: int, values: Callable[[], Iterable[Any]], work: int | None = None
) -> Reply:
    """A reply of so many values; `values` is called aside. For `kind` see `in_pieces`.

    `work` is the number of elements to be touched, if it is not `count`.
    """
    protocol = session.protocol
    return session.aside(count if work is None else work, lambda: in_pieces(kind, count, values(), protocol))


def reply_in_steps(kind: type, count: int, values: Iterable[Any], protocol: int) -> Steps[RawPieces]:
    """`in_pieces` in steps."""
    pieces: list[bytes | memoryview] = []
    for piece in make_pieces(kind, count, values, protocol):
        pieces.append(piece)
        yield
    return RawPieces(pieces)


def with_key(name: bytes, reply: Reply) -> Reply:
    """An array of a key and of a reply that was made by `reply_maker`."""
    if isinstance(reply, RawPieces):
        return RawPieces([b"*2\r\n" + encode(name), *reply.pieces])
    return [name, reply]


def reply_draws(
    session: Session, kind: type, count: int, size: int, copy: Callable[[], tuple[Sequence[Any], ...]]
) -> Reply:
    """A reply of so many independent draws from a collection of `size` rows, made while it is sent.

    `copy` is called aside and gives the columns of the collection, one or two, which nothing changes any more.
    """
    if session.current is None:
        raise LongWay  # the inner loop takes whole replies only
    protocol = session.protocol

    def commit(columns: tuple[Sequence[Any], ...]) -> RawPieces:
        pieces = make_pieces(kind, count, islice(_drawn(columns), count), protocol)
        return StreamedPieces(pieces) if session.may_block else RawPieces(pieces)

    return session.aside(size, copy, commit)


def _drawn(columns: tuple[Sequence[Any], ...]) -> Iterator[Any]:
    if len(columns) == 1:
        return draw(columns[0])
    first, second = columns
    return ((first[at], second[at]) for at in draw(range(len(first))))


def sort_first(session: Session, zset: SortedSet, then: Callable[[], Reply]) -> Reply:
    """Sort a sorted set in steps, then call `then`, which finds it sorted."""
    return session.aside(zset.disorder, InSteps(zset.put_in_order), lambda _: then())
