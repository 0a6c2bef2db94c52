"""Rows with typed columns, as the sink writes them: each is an entry, a JSON object with the columns as fields, or what
`entryFormat` says.

If the stream has a schema, the columns must fit it: a column that the schema does not have, or that has values which
the field does not hold, is refused before a row is written. With `mergeSchema` the schema is made, or widened, to hold
the columns. Whether a row has a null where the schema says NOT NULL is seen when the row is there: Spark calls nearly
every column nullable.

Rejected: to_json of Spark. A data source cannot add an expression to the plan of a query.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.client.api.schemas import entries_of
from penstock.schema.arrow_types import fields_of
from penstock.schema.columns import OWN, column_of, field_of
from penstock.schema.fields import InvalidSchema, Schema, Type
from penstock.schema.fitting import misfit
from penstock.schema.parser import parse
from penstock.schema.widening import holds, merged
from penstock.spark.column_types import can_read
from penstock.spark.entry_formats import writer_of
from penstock.spark.options import OptionError, Options
from penstock.spark.stream_connection import StreamConnection

NOT_FIELDS = ("stream", "time", "tag")
"""Columns that say where a row goes, and what its time and its tag are."""


def check_types(schema: StructType, options: Options) -> None:
    """OptionError if a column cannot be a field of an entry."""
    for column in schema:
        if column.name in NOT_FIELDS:
            continue
        if column.name.lower() in OWN:
            raise OptionError(
                f"column {column.name} cannot be written: the server gives a message its {column.name.lower()}. "
                f"Drop the column, or rename it to {column_of(column.name)} to write a field {column.name}"
            )
        if options.entryFormat == "json" and not can_read(column.dataType):
            raise OptionError(
                f"column {column.name} is {column.dataType.simpleString()}, which is not written as JSON; cast it "
                "to another type"
            )
    if options.entryFormat != "json":
        writer_of(_fields_of_rows(to_arrow_schema(schema, timezone="UTC")), options)


def _fields_of_rows(columns: pa.Schema) -> pa.Schema:
    """The columns that are fields of an entry, by the names that they have there."""
    return pa.schema([column.with_name(field_of(column.name)) for column in columns if column.name not in NOT_FIELDS])


def fields_in(schema: pa.Schema) -> Schema:
    """The schema of a stream that has exactly these columns as fields."""
    try:
        return parse(fields_of(_fields_of_rows(schema)))
    except InvalidSchema as error:
        raise OptionError(f"the columns are no schema of a stream: {error}") from None


def merge_schema(connection: StreamConnection, stream: str, columns: StructType) -> None:
    """Widen a stream's schema so that it holds the columns; OptionError if that would narrow it."""
    found, fields = connection.fields(stream), fields_in(to_arrow_schema(columns, timezone="UTC"))
    if found is None:
        connection.set_fields(stream, str(fields))
        return
    known = parse(found)
    try:
        wider = merged(known, fields)
    except InvalidSchema as error:
        raise OptionError(f"the schema of stream {stream} cannot be widened (option mergeSchema): {error}") from None
    if wider != known:
        connection.set_fields(stream, str(wider))


class RowWriter(Protocol):
    """Makes entries of rows for one stream."""

    def entries(self, rows: pa.RecordBatch) -> list[bytes]:
        """The entries of some rows, in order; ValueError for a row that does not fit."""


def row_writer(connection: StreamConnection, stream: str, columns: pa.Schema, options: Options) -> RowWriter:
    """A function that writes rows with these columns to a stream; OptionError if they cannot be written there."""
    if options.entryFormat == "json":
        return TypedRows(connection, stream, columns)
    if connection.fields(stream) is not None:
        raise OptionError(
            f"stream {stream} has a schema, which is one of JSON, and entryFormat is {options.entryFormat}: remove the "
            f"schema (TSCHEMA DEL {stream}), or write to another stream"
        )
    return EncodedRows(columns, options)


class EncodedRows:
    """Makes entries in another format than JSON, which has its own schema."""

    def __init__(self, columns: pa.Schema, options: Options) -> None:
        self._write = writer_of(_fields_of_rows(columns), options)

    def entries(self, rows: pa.RecordBatch) -> list[bytes]:
        return self._write(_as_fields(rows))


def _as_fields(rows: pa.RecordBatch) -> pa.RecordBatch:
    names = [name for name in rows.schema.names if name not in NOT_FIELDS]
    return rows.select(names).rename_columns(list(map(field_of, names)))


class TypedRows:
    """Makes JSON of rows for one stream."""

    def __init__(self, connection: StreamConnection, stream: str, columns: pa.Schema) -> None:
        """OptionError if the stream has a schema that the columns do not fit."""
        self._stream = stream
        found = connection.fields(stream)
        self._schema = parse(found) if found is not None else None
        if self._schema is not None:
            check_columns_fit(stream, self._schema, fields_in(columns))
        self._required = [field.name for field in self._schema.fields if field.required] if self._schema else []
        self._is_checked = self._schema is not None and any(_has_required(field.type) for field in self._schema.fields)

    def entries(self, rows: pa.RecordBatch) -> list[bytes]:
        """The entries of some rows, in order; ValueError for a null that the schema does not allow."""
        fields = _as_fields(rows)
        for name in self._required:
            if name in fields.schema.names and fields.column(name).null_count:
                raise self._refused(f"{name} must not be null")
        entries = entries_of(fields)
        if self._is_checked:
            assert self._schema is not None
            for entry in entries:
                if why := misfit(self._schema, entry):
                    raise self._refused(why)
        return entries

    def _refused(self, why: str) -> ValueError:
        return ValueError(f"a row does not fit the schema of stream {self._stream}: {why}. Filter such rows out")


def _has_required(kind: Type) -> bool:
    """Whether a forbidden null can be inside a value (a field of a struct), where the column shows none."""
    return any(map(_has_required, kind.parts)) or any(
        field.required or _has_required(field.type) for field in kind.fields
    )


def check_columns_fit(stream: str, schema: Schema, columns: Schema) -> None:
    """OptionError, with the columns, the types and what to do, unless a stream's schema holds the columns."""
    fields = {field.name: field for field in schema.fields}
    for column in columns.fields:
        field = fields.pop(column.name, None)
        if field is None:
            raise OptionError(
                f"column {column.name} is {column.type}, and the schema of stream {stream} has no such field: drop "
                "the column, or add the field with .option('mergeSchema', 'true')"
            )
        if not holds(field.type, _without_nulls(column.type)):
            remedy = f"cast it to {field.type}"
            if holds(column.type, _without_nulls(field.type)):
                remedy += ", or widen the schema with .option('mergeSchema', 'true')"
            raise OptionError(
                f"column {column.name} is {column.type}, and the schema of stream {stream} has it as {field.type}, "
                f"which does not hold all {column.type}: {remedy}"
            )
    for field in fields.values():
        if field.required and field.default is None:
            raise OptionError(
                f"there is no column {column_of(field.name)}, and the schema of stream {stream} has {field}: add "
                "the column"
            )


def _without_nulls(kind: Type) -> Type:
    """A type as if all its inner fields were NOT NULL: whether they are is seen when the rows are there."""
    return replace(
        kind,
        parts=tuple(map(_without_nulls, kind.parts)),
        fields=tuple(replace(field, type=_without_nulls(field.type), required=True) for field in kind.fields),
    )
