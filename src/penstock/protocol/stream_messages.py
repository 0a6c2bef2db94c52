"""Messages of a stream as RESP, each an array of offset, tag and entry, with a table of where each begins.

A stream holds them in two forms: lists while a node is written, Arrow's buffers after it is sealed. types/stream knows
no RESP. It gets this module as its `Encoding` (types/stream/encoding.py), and keeps the encoded bytes for the next
reader.

The functions below have two versions with one set of tests: these, and `_stream_messages.pyx`, which Cython compiles if
there is a C compiler when the package is installed. The compiled ones make no Python object of a message. They are used
unless PENSTOCK_PURE is set. Measurements are in docs/design/0005-compiled-wire.md.

Rejected: writing messages straight into a connection's output. Readers that follow a stream read a message more than
once, and then it is cheaper to format it once and to copy it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any

from penstock.compiled import use_compiled

NULL2 = b"$-1\r\n"
"""An evicted message, in RESP2."""
NULL3 = b"_\r\n"
"""The same in RESP3."""

_LEASED = b"*5\r\n:%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n:%d\r\n:%d\r\n"
_MESSAGE = b"*3\r\n:%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"

Encoded = tuple[bytes, "array[int]"]
"""Messages, and where each begins (one more: the end)."""
Column = tuple[Any, Any]
"""Arrow's two buffers of a binary column that is no slice: the table, and the data."""


def encode_more(
    encoded: bytearray, begins: array[int], start: int, tags: list[bytes], entries: list[bytes], end: int
) -> None:
    """Add the messages that are not encoded yet, up to row `end`; row 0 has the offset `start`.

    >>> encoded, begins = bytearray(), array("Q", [0])
    >>> encode_more(encoded, begins, 7, [b"tag"], [b""], 1)
    >>> encoded, begins
    (bytearray(b'*3\\r\\n:7\\r\\n$3\\r\\ntag\\r\\n$0\\r\\n\\r\\n'), array('Q', [0, 23]))
    """
    first = len(begins) - 1
    if end > first:
        added, places = _encode(range(start + first, start + end), tags[first:end], entries[first:end], len(encoded))
        encoded += added
        begins += places[1:]


def encode_columns(
    start: int, offsets: array[int] | None, tags: Column, entries: Column, first: int, end: int, wide: bool
) -> Encoded:
    """The rows from `first` to before `end` of two columns; row n has offsets[n], or start + n if there are none.

    The columns' tables have 64 bits a place if `wide`, else 32.
    """
    places = range(start + first, start + end) if offsets is None else offsets[first:end]
    return _encode(places, _values(tags, first, end, wide), _values(entries, first, end, wide))


def encode_leased(
    start: int, times: array[int], tags: list[bytes], entries: list[bytes], first: int, end: int, more: int
) -> bytes:
    """The rows from `first` to before `end`, each with its time and one more number, which is the same for all; row 0
    has the offset `start`.

    >>> encode_leased(7, array("q", [1000]), [b"tag"], [b""], 0, 1, 2)
    b'*5\\r\\n:7\\r\\n$3\\r\\ntag\\r\\n$0\\r\\n\\r\\n:1000\\r\\n:2\\r\\n'
    """
    return _leased(range(start + first, start + end), times[first:end], tags[first:end], entries[first:end], more)


def encode_leased_columns(
    start: int,
    offsets: array[int] | None,
    times: Any,
    tags: Column,
    entries: Column,
    first: int,
    end: int,
    wide: bool,
    more: int,
) -> bytes:
    """The same of columns as encode_columns takes them; `times` is a buffer of 64 bits a number."""
    if end <= first:
        return b""
    places = range(start + first, start + end) if offsets is None else offsets[first:end]
    written = memoryview(times).cast("B").cast("q")[first:end]
    return _leased(places, written, _values(tags, first, end, wide), _values(entries, first, end, wide), more)


def _leased(offsets: Sequence[int], times: Sequence[int], tags: list[bytes], entries: list[bytes], more: int) -> bytes:
    rows = zip(
        offsets, map(len, tags), tags, map(len, entries), entries, times, repeat(more, len(offsets)), strict=True
    )
    return b"".join(map(_LEASED.__mod__, rows))


def _encode(offsets: Sequence[int], tags: list[bytes], entries: list[bytes], base: int = 0) -> Encoded:
    """Messages one by one; the first begins at `base`."""
    rows = zip(offsets, map(len, tags), tags, map(len, entries), entries, strict=True)
    pieces = list(map(_MESSAGE.__mod__, rows))
    return b"".join(pieces), array("Q", accumulate(map(len, pieces), initial=base))


def _values(column: Column, first: int, end: int, wide: bool) -> list[bytes]:
    """Some values of a column."""
    if end <= first:
        return []
    table = memoryview(column[0]).cast("B").cast("q" if wide else "i")
    data = memoryview(column[1]).cast("B")
    if len(table) < end + 1:
        raise ValueError("there are fewer messages than that")
    places = table[first : end + 1].tolist()
    if not 0 <= places[0] <= places[-1] <= len(data) or any(a > b for a, b in pairwise(places)):
        raise ValueError("a table points outside its data")
    return [bytes(data[a:b]) for a, b in pairwise(places)]


COMPILED = use_compiled(
    globals(),
    "penstock.protocol._stream_messages",
    "encode_columns",
    "encode_leased",
    "encode_leased_columns",
    "encode_more",
)

__all__ = [
    "COMPILED",
    "NULL2",
    "NULL3",
    "Column",
    "Encoded",
    "encode_columns",
    "encode_leased",
    "encode_leased_columns",
    "encode_more",
]
