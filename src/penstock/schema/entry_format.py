"""What formats of entries that bring a schema of their own (Avro, Protobuf) have in common.

Such a format has fields, makes a reader of the columns that a query asks for, and makes a writer of the columns that
rows have. Entries are decoded one by one into Python values, and Arrow makes columns of them. Arrow also finds values
that a column does not hold, but does not say in which row; the rows are then halved until it is known.

A reader must never end its process or take memory out of proportion to an entry, whatever the bytes are: each entry
that is no value of the schema is named with a reason, and the others are read.

A column may be wider than its field (a bigint for an int), as in versions of a stream's schema. It may leave out
fields of a record. Rejected: to read values as other types than their own, which a cast in the query says better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as is_

from penstock.schema.arrow_types import type_name
from penstock.schema.arrow_values import python_values
from penstock.schema.fields import InvalidSchema, Type
from penstock.schema.parser import parse
from penstock.schema.widening import holds

Row = dict[str, Any]


class BadDatum(ValueError):
    """The bytes are no value of the schema."""


class EntryReader(Protocol):
    """Reads many entries as columns."""

    def read(self, entries: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        """A row for each entry, of nulls where an entry is bad; and why it is, by place."""


class EntryFormat(Protocol):
    """A format of entries, with its schema. Its methods raise InvalidSchema for columns that do not fit it."""

    def fields(self, names: Iterable[str] | None = None) -> pa.Schema:
        """The fields of an entry as columns: all, or those that are named."""

    def reader(self, columns: pa.Schema) -> EntryReader:
        """What reads entries as some of the fields."""

    def writer(self, columns: pa.Schema) -> Callable[[pa.RecordBatch], list[bytes]]:
        """What makes entries of rows with these columns. It raises ValueError for a row that does not fit."""


class DecodedEntries:
    """Reads entries with a function that decodes one of them, or raises BadDatum."""

    def __init__(self, decode: Callable[[bytes], Row], columns: pa.Schema) -> None:
        self._decode = decode
        self._columns = pa.schema([column.with_nullable(True) for column in columns])

    def read(self, entries: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        rows: list[Row] = []
        refused: dict[int, str] = {}
        for place, entry in enumerate(entries.to_pylist()):
            try:
                rows.append(self._decode(entry))
            except BadDatum as error:
                refused[place] = str(error)
                rows.append({})
        pieces = list(self._pieces(rows, 0, refused))
        if len(pieces) == 1:
            return pieces[0], refused
        return pa.Table.from_batches(pieces).combine_chunks().to_batches()[0], refused

    def _pieces(self, rows: list[Row], start: int, refused: dict[int, str]) -> Iterable[pa.RecordBatch]:
        try:
            yield pa.RecordBatch.from_pylist(rows, self._columns)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            if len(rows) == 1:
                refused[start] = f"a value does not fit its type: {error}"
                yield pa.RecordBatch.from_pylist([{}], self._columns)
                return
            middle = len(rows) // 2
            yield from self._pieces(rows[:middle], start, refused)
            yield from self._pieces(rows[middle:], start + middle, refused)


def check_to_read(columns: pa.Schema, fields: pa.Schema, schema: str) -> None:
    """InvalidSchema unless the columns can be read from the fields, which have the same names in the same order."""
    for column, field in zip(columns, fields, strict=True):
        if not _is_read_as(field.type, column.type):
            kind = type_name(field.type)
            raise InvalidSchema(f"column {column.name} is {type_name(column.type)}, and the {schema} has it as {kind}")
        if field.nullable and not column.nullable:
            raise InvalidSchema(f"column {column.name} is NOT NULL, and in the {schema} it may be null")


def _is_read_as(field: pa.DataType, column: pa.DataType) -> bool:
    """Whether a column holds all values of a field, or of a part of its fields."""
    if is_.is_struct(field) and is_.is_struct(column):
        inner = {each.name: each for each in field}
        return all(each.name in inner and _is_part_read_as(inner[each.name], each) for each in column)
    if is_.is_list(field) and is_.is_list(column):
        return _is_part_read_as(field.value_field, column.value_field)
    if is_.is_map(field) and is_.is_map(column):
        return field.key_type == column.key_type and _is_part_read_as(field.item_field, column.item_field)
    return _is_wider(column, field)


def _is_part_read_as(field: pa.Field, column: pa.Field) -> bool:
    return (column.nullable or not field.nullable) and _is_read_as(field.type, column.type)


def _is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    if wide == narrow:
        return True
    try:
        return holds(_schema_type(wide), _schema_type(narrow))
    except InvalidSchema:
        return False


def _schema_type(kind: pa.DataType) -> Type:
    return parse(f"a {type_name(kind)}").fields[0].type


Prepare = Callable[[Any], Any]


def to_write(columns: pa.Schema, fields: pa.Schema, schema: str) -> Mapping[str, Prepare | None]:
    """What makes the Python value that an encoder takes of a value of each column, which is not null.

    InvalidSchema unless the fields, which have the same names in the same order, hold the columns.
    """
    prepare = {}
    for column, field in zip(columns, fields, strict=True):
        try:
            prepare[column.name] = _prepare(column.type, field.type)
        except InvalidSchema:
            kind = type_name(field.type)
            raise InvalidSchema(
                f"column {column.name} is {type_name(column.type)}, and the {schema} has it as {kind}"
            ) from None
    return prepare


def _prepare(column: pa.DataType, field: pa.DataType) -> Prepare | None:
    """None if a value is taken as Arrow gives it. Arrow gives a map as a list of pairs."""
    if is_.is_struct(field) and is_.is_struct(column):
        inner = {each.name: each for each in field}
        if missing := [each.name for each in column if each.name not in inner]:
            raise InvalidSchema(f"there is no field {missing[0]}")
        parts = {each.name: _prepare_part(each, inner[each.name]) for each in column}
        if not any(parts.values()):
            return None
        return lambda value: {name: _prepared(parts[name], part) for name, part in value.items()}
    if is_.is_list(field) and is_.is_list(column):
        element = _prepare_part(column.value_field, field.value_field)
        return element and (lambda value: [_prepared(element, part) for part in value])
    if is_.is_map(field) and is_.is_map(column) and field.key_type == column.key_type:
        item = _prepare_part(column.item_field, field.item_field)
        return lambda value: {key: _prepared(item, part) for key, part in value}
    if not _is_wider(field, column):
        raise InvalidSchema("a type that does not hold it")
    return Decimal if is_.is_decimal(field) and is_.is_integer(column) else None


def _prepare_part(column: pa.Field, field: pa.Field) -> Prepare | None:
    """Encoders refuse a null inside of a value, but fastavro takes it for a boolean that is false."""
    if is_.is_boolean(field.type) and is_.is_boolean(column.type) and column.nullable and not field.nullable:
        return _given
    return _prepare(column.type, field.type)


def _given(value: Any) -> Any:
    if value is None:
        raise ValueError("a row does not fit the schema: there is a null inside of a value, where it must not be")
    return value


def _prepared(prepare: Prepare | None, value: Any) -> Any:
    return value if prepare is None or (value is None and prepare is not _given) else prepare(value)


def rows_to_write(rows: pa.RecordBatch, prepare: Mapping[str, Prepare | None]) -> list[Row]:
    """Rows as Python values that an encoder takes."""
    names = rows.schema.names
    columns = [python_values(column, name) for name, column in zip(names, rows.columns, strict=True)]
    found: list[Row] = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    for name, change in prepare.items():
        if change is not None:
            for row in found:
                row[name] = _prepared(change, row[name])
    return found
