"""The types of Spark that a column of `format("penstock")` can have: those that text or JSON can express."""

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
    """Whether a field of JSON can be read as this type."""
    if isinstance(kind, ArrayType):
        return can_read(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and can_read(kind.valueType)
    if isinstance(kind, StructType):
        return all(can_read(field.dataType) for field in kind)
    return is_simple(kind)


def is_simple(kind: DataType) -> bool:
    """Whether a value of this type can be written as plain text (no array, struct or map)."""
    return type(kind) in _SIMPLE
