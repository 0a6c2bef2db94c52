"""Values of JSON and types of Spark: what may be written in an entry, and what it may be read as."""

from __future__ import annotations

import math
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

SIMPLE: tuple[DataType, ...] = (
    BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(10, 2),
    DecimalType(38, 18), StringType(), BinaryType(), DateType(), TimestampType(), TimestampNTZType(),
)  # fmt: skip
SCALARS = (
    "null", "true", "false", "0", "-0", "1", "-1", "127", "128", "-128", "-129", "32768", "2147483648", "-2147483648",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1.0", "1.5", "1e3", "1E-2", "1e30", "1e39",
    "1e400", "-1e400", "1e-400", "0.1", "1650852255", "12345678.125", "99999999.995", "99999999.994", "16777217",
    "0.30000000000000004", "NaN", "Infinity", "-Infinity", "100000000000000000000000",
    "441711766194596082395824375185729628956870974218904739530401550323154944",
    "1000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000", "1e70",
    "123456789012345678901234567890.5", "0.005", "-0.0", "01", "+1", ".5", "5.", "--1", "1e", "INF", "tru", '""', '" "',
    '"a"', '"12"', '" 12 "', '"1.5"', '"1,234.5"', '"NaN"', '"+INF"', '"INF"', '"-Infinity"', '"true"', '"0x10"',
    '"1_0"', '"2026-01-02"', '"2026-1-2"', '"2026"', '"2026-01"', '"2026-13-01"', '"2026-02-30"',
    '"9999-12-31T23:59:59.999999Z"', '"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05"', '"2026-01-02 03:04:05.1"',
    '"2026-01-02 03:04"', '"2026-01-02T03"', '"2026-01-02T"', '"2026-01-02T03:04:05.1234567Z"',
    '"2026-01-02T03:04:05+05:30"', '"2026-01-02T03:04:05-0530"', '"2026-01-02T03:04:05+05"',
    '"2026-01-02T03:04:05+19:00"', '"2026-01-02 03:04:05 Europe/Berlin"', '"2026-01-02T24:00:00Z"',
    '"2026-01-02T23:59:60Z"', '"2026-01-01T19:00:00-05:00"', '"2026-01-02x"', '"03:04:05"', '"1700000000"',
    '"20260102"', '"now"', '"2026-01-02T03:04Z"', '"2026-01-02Z"', '" 2026-01-02 "', '"\u0662\u0660\u0662\u0666-01-01"',
    '"YWJj"', '"YWI="', '"YWI"', '"YW Jj"', '"Y"', '"\\ud800"', '"\\ud83d\\ude00"', '"\u00e9"', '"\\u0000"', '"a\\/b"',
    '"\\q"', '"\t"',
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
