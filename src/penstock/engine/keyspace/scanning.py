"""The replies of SCAN, HSCAN, SSCAN and ZSCAN: which part is made on the loop and which in a thread.

cursors.py says what an answer takes. A short one is made at once. A pass over a large collection, or an answer of many
names, is work for a thread; the loop keeps the window that a pass fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from penstock.engine.concurrency.long_work import LONG
from penstock.engine.declarations import Argv, Reply
from penstock.engine.keyspace.cursors import Found, ScanOptions, Step
from penstock.engine.session import Session
from penstock.protocol.resp import RawPieces, array_of_chunks, encode
from penstock.types.kernels import chunks

SMALL = 128
"""HSCAN, SSCAN and ZSCAN answer a collection of so many elements at once, as Redis does with its packed encodings."""

Rows = Callable[[Iterable[bytes]], Iterable[bytes]]
"""What is answered for names that a step found."""


def answer_step(session: Session, step: Step, names: Callable[[], Iterable[bytes]], rows: Rows) -> Reply:
    """The answer of a step. `names` and `rows` are called aside if it is long."""
    cursors = session.engine.cursors
    if step.work <= LONG:
        found = step.find(names)
        return [b"%d" % cursors.end(step, found), list(rows(found.names))]

    def compute() -> tuple[Found, RawPieces]:
        found = step.find(names)
        answered = (list(rows(some)) for some in chunks(found.names))
        return found, array_of_chunks(answered, protocol=2)  # both protocols write it alike

    def commit(made: tuple[Found, RawPieces]) -> RawPieces:
        found, answered = made
        return RawPieces([b"*2\r\n" + encode(b"%d" % cursors.end(step, found)), *answered.pieces])

    return session.aside(step.work, compute, commit)


def scan_elements(
    session: Session,
    argv: Argv,
    cursor: int,
    elements: Collection[bytes],
    rows: Rows = lambda names: names,
    at_once: bool = False,
) -> Reply:
    """HSCAN, SSCAN and ZSCAN (key cursor [options]).

    `elements` has a length, can be iterated, and knows in O(1) what it contains: a dict, a set. Only if they are
    answered `at_once` it may be anything. `rows` gives what is answered for some of them.
    """
    options = ScanOptions.parse(argv, 3)
    matches = options.matches
    if at_once or len(elements) <= SMALL:
        return [b"0", list(rows(elements if matches is None else filter(matches, elements)))]

    step = session.engine.cursors.begin((session.db.index, argv[1]), cursor, options.count, len(elements))

    def matching(names: Iterable[bytes]) -> Iterable[bytes]:
        live = names if step.window is None else filter(elements.__contains__, names)
        return rows(live if matches is None else filter(matches, live))

    return answer_step(session, step, lambda: elements, matching)
