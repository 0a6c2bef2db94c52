"""Messages as RESP: from the two forms a node has in memory to the bytes a reader gets, with a table of where each begins.

There are two versions of the functions below with one set of tests: these, and `_wire.pyx`, which Cython compiles where
a C compiler is at hand when the package is installed and which makes no Python object of a message. The compiled ones
are used if they are there and PENSTOCK_PURE is not set. Reason, measured: docs/design/0005-compiled-wire.md.

Rejected: writing messages straight into a connection's output. A message is read more often than once by those who
follow a stream, and then formatting once and copying is cheaper.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.types.stream.arrow import int64s

_RESP = b"*3\r\n:%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"

Wire = tuple[bytes, "array[int]"]  # messages, and where each begins (one more: the end)
Column = tuple[Any, Any]  # Arrow's two buffers of a binary column that is no slice: the table, and the data


def extend_wire(
    wire: bytearray, begins: array[int], start: int, tags: list[bytes], entries: list[bytes], end: int
) -> None:
    """Add the messages that are not in a growing wire yet, up to row `end`; row 0 has the offset `start`.

    >>> wire, begins = bytearray(), array("Q", [0])
    >>> extend_wire(wire, begins, 7, [b"tag"], [b""], 1)
    >>> wire, begins
    (bytearray(b'*3\\r\\n:7\\r\\n$3\\r\\ntag\\r\\n$0\\r\\n\\r\\n'), array('Q', [0, 23]))
    """
    first = len(begins) - 1
    if end > first:
        added, places = formatted(range(start + first, start + end), tags[first:end], entries[first:end], len(wire))
        wire += added
        begins += places[1:]


def columns_wire(
    start: int, offsets: array[int] | None, tags: Column, entries: Column, first: int, end: int, wide: bool
) -> Wire:
    """The rows from `first` to before `end` of two columns; row n has offsets[n], or start + n if there are none.

    The columns' tables have 64 bits a place if `wide`, else 32.
    """
    places = range(start + first, start + end) if offsets is None else offsets[first:end]
    return formatted(places, _values(tags, first, end, wide), _values(entries, first, end, wide))


def column_of(values: list[bytes], wide: bool) -> Column:
    """The buffers of a column; OverflowError if it needs a wide table."""
    if sum(map(len, values)) >= 1 << 31 and not wide:
        raise OverflowError("32 bits are not enough for so many bytes")
    return array("q" if wide else "i", accumulate(map(len, values), initial=0)), b"".join(values)


def counted(start: int, count: int) -> bytes:
    """The numbers start, start + 1, ... as Arrow has them in a column.

    >>> counted(7, 2)
    b'\\x07\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x08\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    return array("q", range(start, start + count)).tobytes()


def latest(times: array[int]) -> int:
    """The latest of some times."""
    return cast(int, pc.max(int64s(times)).as_py())


def formatted(offsets: Sequence[int], tags: list[bytes], entries: list[bytes], base: int = 0) -> Wire:
    """Messages one by one, the slow and plain way; the first begins at `base`."""
    rows = zip(offsets, map(len, tags), tags, map(len, entries), entries, strict=True)
    wires = list(map(_RESP.__mod__, rows))
    return b"".join(wires), array("Q", accumulate(map(len, wires), initial=base))


def _values(column: Column, first: int, end: int, wide: bool) -> list[bytes]:
    if end <= first:
        return []
    table, data = map(pa.py_buffer, column)
    if table.size < (end + 1) * (8 if wide else 4):
        raise ValueError("there are fewer messages than that")
    if memoryview(table).cast("B").cast("q" if wide else "i")[end] > data.size:
        raise ValueError("a table points outside its data")
    values = pa.Array.from_buffers(pa.large_binary() if wide else pa.binary(), end, [None, table, data], 0)
    return cast(list[bytes], values.slice(first).to_pylist())


COMPILED = False
if not TYPE_CHECKING and not os.environ.get("PENSTOCK_PURE"):
    try:
        from penstock.types.stream._wire import column_of, columns_wire, counted, extend_wire, latest

        COMPILED = True
    except ImportError:
        pass

__all__ = ["COMPILED", "Column", "Wire", "column_of", "columns_wire", "counted", "extend_wire", "formatted", "latest"]
