"""Arguments as values, with Redis's strictness and its error texts.

Python's int() and float() accept spaces, underscores, a plus sign and leading zeros. Redis does not, so a client that
sends "01" to INCR must get an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from penstock.protocol.errors import ReplyError, not_a_float, not_an_integer

INT32_MIN = -(1 << 31)
INT32_MAX = (1 << 31) - 1
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


def to_int32(raw: bytes, error: Callable[[], ReplyError] = not_an_integer) -> int:
    """A signed 32-bit integer; one that only 64 bits hold is refused with the range unless an error is given."""
    number = to_integer(raw, error)
    if not INT32_MIN <= number <= INT32_MAX:
        if error is not not_an_integer:
            raise error()
        raise ReplyError(f"value is out of range, value must between {INT32_MIN} and {INT32_MAX}")
    return number


def to_at_least(low: int, raw: bytes, error: str) -> int:
    """An integer from `low` up; anything else is refused with this text."""
    number = to_integer(raw, lambda: ReplyError(error))
    if number < low:
        raise ReplyError(error)
    return number


def to_sample_count(raw: bytes) -> int:
    """How many random elements are requested; negative for elements that may repeat."""
    count = to_integer(raw)
    if count == INT64_MIN:  # its absolute value is no 64-bit integer
        raise ReplyError(f"value is out of range, value must between {-INT64_MAX} and {INT64_MAX}")
    return count


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
        try:
            number = float(int(raw, 16))
        except OverflowError:
            raise error() from None
    if math.isnan(number):
        raise error()
    return number


_strtod = re.compile(
    rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?"
    rb"|0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?\d+)?)\Z",
    re.I,
).match


def strtod(raw: bytes) -> float | None:
    """What C's strtod makes of the whole of raw, which may be too large or too small; None for what is no number.

    >>> strtod(b"0x1.8p1"), strtod(b"1e999"), strtod(b"1_0")
    (3.0, inf, None)
    """
    if not _strtod(raw):
        return None
    if b"x" not in raw.lower():
        return float(raw)
    try:
        return float.fromhex(raw.decode())
    except OverflowError:
        return -math.inf if raw[:1] == b"-" else math.inf


def to_double(raw: bytes, error: Callable[[], ReplyError] = not_a_float) -> float:
    """A score or a weight: like `to_float`, but what a double cannot hold is refused, not rounded to inf or zero.

    >>> to_double(b"2.50"), to_double(b"+inf")
    (2.5, inf)
    """
    if len(raw) < 300 and not raw.translate(None, b"0123456789.-"):  # the plain spellings, which cannot overflow
        try:
            return float(raw)
        except ValueError:
            raise error() from None
    number = strtod(raw)
    if number is None or (math.isinf(number) and b"n" not in raw.lower()):
        raise error()
    if number == 0 and re.match(rb"[+-]?(?:0x[0.]*[1-9a-f]|[0.]*[1-9])", raw, re.I):
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
