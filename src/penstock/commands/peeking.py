"""PEEK: a part of a value for people to look at, with every element cut.

Other commands answer elements whole, and one of them may have half a gigabyte. The answer to PEEK has a bound whatever
the value holds: so many elements, and so many bytes of each. The console reads values with it.

Rejected: a script that cuts the elements. Users who may only read may seldom run scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from penstock.engine.arguments import to_integer
from penstock.engine.concurrency.long_work import LONG, sort_first
from penstock.engine.declarations import Access, Argv, Flag, Reply, command, key
from penstock.engine.keyspace.cursors import to_cursor
from penstock.engine.keyspace.scanning import scan_elements
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, WrongType, syntax_error
from penstock.protocol.resp import format_float
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.set import Set
from penstock.types.stream.stream import Stream
from penstock.types.xstream import FIRST_ID, LAST_ID, XStream
from penstock.types.zset import SortedSet

MOST_ELEMENTS = 1000
MOST_BYTES = 1 << 20
MOST_FIELDS = 100
"""Fields of an entry of a Redis stream that are looked at for its text."""

Cut = Callable[[bytes], bytes]


@command(
    "PEEK",
    arity=-3,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="generic",
    syntax="key cursor [COUNT count] [BYTES bytes]",
    cost="O(count), for a list O(S) with S elements up to the nearer end, for a type of a module O(size)",
)
def peek(session: Session, argv: Argv) -> Reply:
    """Answer the next cursor, 0 at the end, and some elements of a value of any type but stream, cut for display.

    Each element is an array: the field of a hash, the index in a list, the score in a sorted set or the id in a Redis
    stream, null for others; then its first `bytes` bytes (4096, at most 1,048,576); then its whole length. Fields are
    cut too. `count` is 10, at most 1000; small hashes and sets are answered in one piece. A Redis stream begins with
    the newest entries, and its cursor is always 0. A value of a module's type is one element: its dump. Start with
    cursor 0.
    """
    cursor = to_cursor(argv[2])
    count, size = _options(argv)
    value = session.db.get(argv[1])

    def cut(element: bytes) -> bytes:
        return element[:size]

    if value is None:
        return [b"0", []]
    if isinstance(value, Hash):
        fields: Hash = value
        return _scan(session, argv, cursor, count, fields, lambda name: [cut(name), *_cut(fields[name], cut)])
    if isinstance(value, Set):
        return _scan(session, argv, cursor, count, value, lambda name: [None, *_cut(name, cut)])
    if isinstance(value, List):
        found = value.slice(min(cursor, len(value)), min(cursor + count, len(value)))
        rows: list[Reply] = [[cursor + at, *_cut(element, cut)] for at, element in enumerate(found)]
        return [_next(cursor + count, len(value)), rows]
    if isinstance(value, SortedSet):
        if value.disorder > LONG:
            return sort_first(session, value, lambda: peek(session, argv))
        span = value.rows(min(cursor, len(value)), min(cursor + count, len(value)))
        rows = [[format_float(score), *_cut(member, cut)] for score, member in span]
        return [_next(cursor + count, len(value)), rows]
    if isinstance(value, XStream):
        return [b"0", [_entry(row, size) for row in value.range(FIRST_ID, LAST_ID, count, backwards=True)]]
    if isinstance(value, bytes | bytearray | int):
        text = b"%d" % value if isinstance(value, int) else value
        return [b"0", [[None, bytes(text[:size]), len(text)]]]
    if isinstance(value, Stream):
        raise WrongType
    data: bytes = value.dump()  # a type of a module, of which nothing else is known
    return [b"0", [[None, *_cut(data, cut)]]]


def _options(argv: Argv) -> tuple[int, int]:
    count, size = 10, 4096
    for at in range(3, len(argv), 2):
        name = argv[at].upper()
        if name not in (b"COUNT", b"BYTES") or at + 1 == len(argv):
            raise syntax_error()
        number, most = to_integer(argv[at + 1]), MOST_ELEMENTS if name == b"COUNT" else MOST_BYTES
        if not 1 <= number <= most:
            raise ReplyError(f"{name.decode()} must be between 1 and {most}")
        if name == b"COUNT":
            count = number
        else:
            size = number
    return count, size


def _cut(element: bytes, cut: Cut) -> list[Reply]:
    return [cut(element), len(element)]


def _next(reached: int, length: int) -> bytes:
    return b"%d" % reached if reached < length else b"0"


def _scan(
    session: Session, argv: Argv, cursor: int, count: int, elements: Hash | Set, row: Callable[[bytes], Reply]
) -> Reply:
    def rows(names: Iterable[bytes]) -> Iterable[Reply]:
        return map(row, names)

    words = [argv[0], argv[1], argv[2], b"COUNT", b"%d" % count]
    return scan_elements(session, words, cursor, elements, rows)


def _entry(row: tuple[tuple[int, int], tuple[bytes, ...]], size: int) -> Reply:
    (milliseconds, sequence), fields = row
    text = b" ".join(field[:size] for field in islice(fields, MOST_FIELDS))[:size]
    return [b"%d-%d" % (milliseconds, sequence), text, sum(map(len, fields)) + len(fields) - 1]
