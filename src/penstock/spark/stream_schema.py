"""The schema of a stream, for queries that read it: the columns of a query that names none, and what a query that names
its own may ask for. Entries that are not JSON have the schema that an option gives instead.

A query asks for the schema when it starts, so a wider version is followed when it starts again: the columns that came
later are null, or have their default, in older entries. The schema comes with a read of no messages, so the permission
to read the stream is enough.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.schema.arrow_types import arrow_schema, type_name
from penstock.schema.columns import OWN, column_of, field_of
from penstock.schema.fields import InvalidSchema, Schema
from penstock.schema.parser import parse
from penstock.schema.readable import can_be_read
from penstock.schema.widening import narrowing
from penstock.spark.entry_formats import format_of
from penstock.spark.options import OptionError, Options
from penstock.spark.rows import default_schema
from penstock.spark.stream_connection import StreamConnection

_WAYS_OUT = "give the query columns, .schema('...'), or read raw entries, .option('typed', 'false')"


def columns_of(options: Options) -> StructType:
    """The columns of a query that names none."""
    if not options.typed:
        return default_schema(options)
    if (given := format_of(options)) is not None:
        try:
            return _with_fields(given.fields(), options)
        except InvalidSchema as error:
            raise OptionError(f"entryFormat={options.entryFormat}: {error}") from None
    with StreamConnection(options) as connection:
        streams = list(options.stream) or connection.streams(options.pattern)
        schemas = {stream: schema_of(connection, stream, options) for stream in streams}
    schema = _common(schemas)
    if schema is None:
        return default_schema(options)
    return _with_fields(arrow_schema(schema), options)


def _with_fields(fields: pa.Schema, options: Options) -> StructType:
    """The columns of a message, with the fields of its entry instead of the entry."""
    columns = StructType([column for column in default_schema(options) if column.name != "entry"])
    spelt: dict[str, str] = {}
    for name in fields.names:
        if (other := spelt.setdefault(name.lower(), name)) != name:
            raise OptionError(
                f"the schema has fields {other} and {name}, which are one column to Spark: give the query columns, "
                ".schema('...'), with one of them, or with both and spark.conf.set('spark.sql.caseSensitive', 'true')"
            )
    for field in from_arrow_schema(fields, prefer_timestamp_ntz=True):
        columns.add(column_of(field.name), field.dataType, field.nullable or options.badEntries == "null")
    return columns


def schema_of(connection: StreamConnection, stream: str, options: Options) -> Schema | None:
    """The schema of a stream, or the version of it that the query wants."""
    if options.schemaVersion is None:
        fields = connection.fields(stream)
        return parse(fields) if fields is not None else None
    fields = connection.fields_of_version(stream, options.schemaVersion)
    if fields is None:
        raise OptionError(
            f"stream {stream} has no version {options.schemaVersion} of its schema (option schemaVersion); "
            f"TSCHEMA VERSIONS {stream} lists those it has"
        )
    return parse(fields)


def _common(schemas: Mapping[str, Schema | None]) -> Schema | None:
    """The schema that holds the entries of all streams; None if no stream has one."""
    widest: tuple[str, Schema] | None = None
    for stream, schema in schemas.items():
        if schema is not None and (widest is None or narrowing(widest[1], schema) is None):
            widest = stream, schema
    if widest is None:
        return None
    for stream, schema in schemas.items():
        if schema is None:
            raise OptionError(f"stream {widest[0]} has a schema, and stream {stream} has none: {_WAYS_OUT}")
        if why := narrowing(schema, widest[1]):
            raise OptionError(
                f"streams {widest[0]} and {stream} have different schemas (of {stream} to {widest[0]}: {why}): "
                f"{_WAYS_OUT}"
            )
    return widest[1]


def defaults_for(columns: StructType, stream: str, schema: Schema) -> dict[str, str]:
    """The defaults of the fields that a query asks for. OptionError if a field cannot have the type of its column."""
    fields = {field.name: field for field in schema.fields}
    defaults: dict[str, str] = {}
    for column in to_arrow_schema(columns, timezone="UTC"):
        field = fields.get(field_of(column.name)) if column.name not in OWN else None
        if field is None:
            continue
        if not can_be_read(field.type, column.type):
            raise OptionError(
                f"column {column.name} is {type_name(column.type)} in the query, and the schema of stream {stream} has "
                f"it as {field.type}: ask for {field.type}, or .option('typed', 'false') to read without that schema"
            )
        if field.default is not None:
            defaults[field.name] = field.default
    return defaults
