"""The buffers of Arrow columns, made from Python values without one Arrow object for each value.

The functions below have two versions with one set of tests: these, and `_column_buffers.pyx`, which Cython compiles if
there is a C compiler when the package is installed. The compiled ones are used unless PENSTOCK_PURE is set.
Measurements are in docs/design/0005-compiled-wire.md.

Rejected: pyarrow's own conversion of lists. It takes half of the time of sealing a node.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import cast

import pyarrow.compute as pc

from penstock.compiled import use_compiled
from penstock.types.stream.arrow import int64s
from penstock.types.stream.encoding import Column


def column_of(values: list[bytes], wide: bool) -> Column:
    """The buffers of a column; OverflowError if it needs a wide table."""
    if sum(map(len, values)) >= 1 << 31 and not wide:
        raise OverflowError("32 bits are not enough for so many bytes")
    return array("q" if wide else "i", accumulate(map(len, values), initial=0)), b"".join(values)


def counted(start: int, count: int) -> bytes:
    """The numbers start, start + 1, ... as an Arrow column stores them.

    >>> counted(7, 2)
    b'\\x07\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x08\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    """
    return array("q", range(start, start + count)).tobytes()


def latest(times: array[int]) -> int:
    """The latest of some times."""
    return cast(int, pc.max(int64s(times)).as_py())


COMPILED = use_compiled(globals(), "penstock.types.stream._column_buffers", "column_of", "counted", "latest")

__all__ = ["COMPILED", "column_of", "counted", "latest"]
