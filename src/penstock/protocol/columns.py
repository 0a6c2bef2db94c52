"""Many commands from columns: one command for each row, encoded, and the slots of their keys.

A table with a million rows becomes a million commands that differ only in their values. As tuples each takes more than
a microsecond before the first byte exists: an object for each value, a tuple, and a walk over it. Here the columns stay
in Arrow's form, a table of positions and the data, and each row becomes its bytes.

The functions below have two versions with one set of tests: these, and `_columns.pyx`, which Cython compiles if there
is a C compiler when the package is installed. The compiled ones are used unless PENSTOCK_PURE is set. A command of a
key and three fields takes 0.07 us compiled, and 4 us here, as long as a tuple through hiredis.

Rejected: one block for all rows. The sender must know where each command ends: which node it is for, and which were
sent when a connection breaks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hiredis import pack_command

from penstock.compiled import use_compiled
from penstock.protocol.slots import key_slot


class Column(NamedTuple):
    """The values of some rows, in the form of Arrow's binary columns."""

    table: memoryview
    """32-bit numbers: where in `data` each value begins, and one more, where the last ends."""
    data: memoryview
    """Bytes."""
    present: memoryview | None = None
    """A byte a row, 0 for a null; None if there are no nulls."""


Field = tuple[bytes | None, Column]
"""A name and its values; without a name only the values."""


def pack_rows(
    name: bytes, keys: Column, fields: Sequence[Field] = (), tail: Sequence[bytes] = ()
) -> list[bytes | None]:
    r"""A command for each row: name, key, each field that is not null, then `tail`. None if all fields of a row are
    null.

    >>> column = lambda *values: Column(memoryview(array("i", [0, 2])), memoryview(values[0]))
    >>> pack_rows(b"SET", column(b"k1"), [(None, column(b"v1"))])
    [b'*3\r\n$3\r\nSET\r\n$2\r\nk1\r\n$2\r\nv1\r\n']
    """
    known = _values(keys)
    named = [((word,) if word is not None else (), _values(column, len(known))) for word, column in fields]
    packed: list[bytes | None] = []
    for row, key in enumerate(known):
        if key is None:
            raise ValueError(f"row {row} has no key")
        words = [
            word for names, values in named if (value := values[row]) is not None for word in (*names, value)
        ]  # fmt: skip
        packed.append(pack_command((name, key, *words, *tail)) if words or not named else None)
    return packed


def column_slots(keys: Column) -> array[int]:
    """The slot of every key; of a null that of an empty one."""
    return array("i", [key_slot(key or b"") for key in _values(keys)])


def _values(column: Column, rows: int | None = None) -> list[bytes | None]:
    table, data, present = column.table.tolist(), column.data.tobytes(), column.present
    if not table or table != sorted(table) or table[0] < 0 or table[-1] > len(data):
        raise ValueError(
            "a table of places goes from 0 on to the end of the data at most, and has one more than there are rows"
        )
    if (rows is not None and rows != len(table) - 1) or (present is not None and len(present) < len(table) - 1):
        raise ValueError("a column has more rows, or fewer, than another")
    values: list[bytes | None] = [data[a:b] for a, b in pairwise(table)]
    return (
        values if present is None else [value if there else None for value, there in zip(values, present, strict=False)]
    )


COMPILED = use_compiled(globals(), "penstock.protocol._columns", "column_slots", "pack_rows")

__all__ = ["COMPILED", "Column", "Field", "column_slots", "pack_rows"]
