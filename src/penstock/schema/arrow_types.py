"""A stream's schema as Arrow has it, and Arrow's types by the names that a schema uses.

Arrow's schemas are what readers go by: they also say NOT NULL of the elements of an array, which a query of Spark may
ask for. The default of a field is in its metadata, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as is_

from penstock.schema.fields import Field, Schema, Type, quoted

DEFAULT = b"default"
"""The key of a field's metadata that has its default."""

_SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES = {kind: name for name, kind in _SIMPLE.items()} | {
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
}


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns that the fields of a schema are read as."""
    return pa.schema(list(map(_arrow_field, schema.fields)))


def _arrow_field(field: Field) -> pa.Field:
    metadata = {DEFAULT: field.default.encode()} if field.default is not None else None
    return pa.field(field.name, _arrow_type(field.type), not field.required, metadata)


def _arrow_type(kind: Type) -> pa.DataType:
    if kind.name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if kind.name == "array":
        return pa.list_(_arrow_type(kind.parts[0]))
    if kind.name == "map":
        return pa.map_(*map(_arrow_type, kind.parts))
    if kind.name == "struct":
        return pa.struct(list(map(_arrow_field, kind.fields)))
    return _SIMPLE[kind.name]


def fields_of(schema: Iterable[pa.Field]) -> str:
    """A pyarrow schema, or the fields of a struct, as the text that TSCHEMA takes.

    >>> fields_of(pa.schema([pa.field("user", pa.string(), nullable=False), ("n", pa.list_(pa.int64()))]))
    'user string NOT NULL, n array<bigint>'
    """
    return ", ".join(
        f"{quoted(field.name)} {type_name(field.type)}{'' if field.nullable else ' NOT NULL'}" for field in schema
    )


def type_name(kind: pa.DataType) -> str:
    """A type of Arrow by the name that a schema uses; by Arrow's name if it is none of a schema's."""
    if is_.is_struct(kind):
        return f"struct<{fields_of(kind)}>"
    if is_.is_map(kind):
        return f"map<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if is_.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if is_.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        return "timestamp"
    return type_name(kind.value_type) if is_.is_dictionary(kind) else _NAMES.get(kind, str(kind))
