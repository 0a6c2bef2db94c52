"""Values and columns of Arrow that are made from bytes, and Python's values of a column.

Given a Python object (`pa.scalar`, `pa.array`, a plain argument of a function), pyarrow imports pandas if that is
installed: 0.2 s of CPU in each process, and each of Spark's workers is one. Given buffers it does not.
"""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa


def scalar_of(value: bytes, kind: pa.DataType) -> pa.Scalar:
    """A value of bytes or text.

    >>> scalar_of(b"tea", pa.string())
    <pyarrow.StringScalar: 'tea'>
    """
    buffers = [None, pa.py_buffer(array("i", (0, len(value)))), pa.py_buffer(value)]
    return pa.Array.from_buffers(pa.binary(), 1, buffers, 0).cast(kind)[0]


def int32s(*values: int) -> pa.Array:
    """A column of numbers.

    >>> int32s(0, 5).to_pylist()
    [0, 5]
    """
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(array("i", values))], 0)


def python_values(column: Any, name: str) -> list[Any]:
    """The values of a column of a table; ValueError, with the column, for a date that Python does not have.

    >>> python_values(pa.array([2**62], pa.timestamp("us")), "at")
    Traceback (most recent call last):
    ValueError: column at has a date or time before the year 1 or after 9999: filter such rows out, or make null of it
    """
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        raise ValueError(
            f"column {name} has a date or time before the year 1 or after 9999: filter such rows out, or make null "
            "of it"
        ) from None
    return values
