"""Which of Spark's types a column of `format("penstock")` can have: those that a text or JSON can say."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
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
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_SIMPLE = frozenset(
    {
        BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType,
        ShortType, StringType, TimestampNTZType, TimestampType,
    }
)  # fmt: skip


def can_read(kind: DataType) -> bool:
    """Whether a field of JSON can be had as a type."""
    if isinstance(kind, ArrayType):
        return can_read(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and can_read(kind.valueType)
    if isinstance(kind, StructType):
        return all(can_read(field.dataType) for field in kind)
    return is_simple(kind)


def is_simple(kind: DataType) -> bool:
    """Whether a type is a value by itself that a text can say."""
    return type(kind) in _SIMPLE
