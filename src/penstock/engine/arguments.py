"""Arguments as values, with Redis's strictness and its error texts.

Python's int() and float() accept spaces, underscores, a plus sign and leading zeros; Redis does not, and a client
that sends "01" to INCR must get an error, not a surprise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from penstock.protocol.errors import ReplyError, not_a_float, not_an_integer

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1

_float = re.compile(
    rb"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf(inity)?|0[xX][0-9a-fA-F]+)\Z", re.I
).match


def to_integer(raw: bytes, error: Callable[[], ReplyError] = not_an_integer) -> int:
    """A signed 64-bit integer in its one canonical spelling.

    >>> to_integer(b"-12")
    -12
    """
    try:
        number = int(raw)
    except ValueError:
        raise error() from None
    if b"%d" % number != raw or not INT64_MIN <= number <= INT64_MAX:
        raise error()
    return number


def to_positive(raw: bytes, name: str = "value") -> int:
    """An integer from 0 up, refused with Redis's `NAME is out of range, must be positive`."""
    number = to_integer(raw, lambda: ReplyError(f"{name} is out of range, must be positive"))
    if number < 0:
        raise ReplyError(f"{name} is out of range, must be positive")
    return number


def to_float(raw: bytes, error: Callable[[], ReplyError] = not_a_float) -> float:
    """A double; inf is one, nan is not.

    >>> to_float(b"1.5e3"), to_float(b"-inf")
    (1500.0, -inf)
    """
    if not _float(raw):
        raise error()
    try:
        number = float(raw)
    except ValueError:
        number = float(int(raw, 16))
    if math.isnan(number):
        raise error()
    return number


def to_timeout(raw: bytes, now: int) -> int:
    """A blocking command's timeout in seconds as an absolute deadline in milliseconds; 0 stays 0, for ever."""
    seconds = to_float(raw, lambda: ReplyError("timeout is not a float or out of range"))
    if seconds < 0:
        raise ReplyError("timeout is negative")
    if seconds * 1000 > INT64_MAX - now:
        raise ReplyError("timeout is out of range")
    return now + math.ceil(seconds * 1000) if seconds else 0
