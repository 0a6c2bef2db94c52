"""From what the server sends (offset, time, tag, entry) to the columns a query asked for, batch by batch, in Arrow.

Columns that are named stream, offset, time, tag or entry are those; any other column of the schema is a field of the
entry, which is then JSON. A batch is parsed as a whole. Only if that fails are its entries looked at one by one, to
find those to blame; what happens to them is `badEntries`: the query fails and says where, or the fields are null, or
the fields are null and the entry is also written to a dead-letter stream.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema
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
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.dead_letters import BadMessage, DeadLetters
from penstock.spark.options import OptionError, Options

OWN_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "stream": (StringType,),
    "offset": (LongType,),
    "time": (TimestampType, LongType),
    "tag": (BinaryType, StringType),
    "entry": (BinaryType, StringType),
}
"""What a message has, and as which types it can be had."""


class BadEntry(ValueError):
    """An entry that is not what the schema says; names its stream and offset."""


SIMPLE = (
    BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType, StringType, BinaryType,
    DateType, TimestampType, TimestampNTZType,
)  # fmt: skip
"""What a value can be had as, in JSON also in arrays and structs."""


def default_schema(options: Options) -> StructType:
    """The columns of a query that names none."""
    content = StringType() if options.text else BinaryType()
    kinds = {"stream": StringType(), "offset": LongType(), "time": TimestampType(), "tag": content, "entry": content}
    schema = StructType()
    for name, kind in kinds.items():
        schema.add(name, kind, nullable=_can_be_null(name, kind, options))
    return schema


def check_schema(schema: StructType, options: Options) -> None:
    """OptionError if a column is asked for as something it cannot be."""
    for column in schema:
        name, kind = column.name, column.dataType.simpleString()
        kinds = OWN_COLUMNS.get(name)
        if kinds is not None and not isinstance(column.dataType, kinds):
            wanted = " or ".join(kind().simpleString() for kind in kinds)
            raise OptionError(
                f"column {name} is {kind} in the schema, and a message has it as {wanted}; "
                "a field of a JSON entry needs another name"
            )
        if kinds is None and not _is_of_json(column.dataType):
            raise OptionError(
                f"column {name} is {kind} in the schema, which a field of a JSON entry is not read as; "
                "read 'entry string' and parse it with from_json"
            )
        if not column.nullable and _can_be_null(name, column.dataType, options):
            raise OptionError(
                f"column {name} is NOT NULL in the schema, and badEntries={options.badEntries} gives nulls; leave NOT NULL out"
            )


def _is_of_json(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_of_json(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_of_json(field.dataType) for field in kind)
    return isinstance(kind, SIMPLE)


def _can_be_null(name: str, kind: DataType, options: Options) -> bool:
    """Whether a bad entry makes a column null: a field of JSON, or bytes that should be text."""
    is_parsed = name not in OWN_COLUMNS or (name in ("tag", "entry") and isinstance(kind, StringType))
    return is_parsed and options.badEntries != "fail"


class Converter:
    """One query's way from the server's batches to Spark's."""

    def __init__(self, schema: StructType, options: Options, letters: DeadLetters | None = None) -> None:
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        fields = [field for field in self._wanted if field.name not in OWN_COLUMNS]
        self._fields = pa.schema([field.with_nullable(True) for field in fields])
        self._never_null = [field.name for field in fields if not field.nullable]
        self._options = options
        self._letters = letters
        self._bad_messages: dict[int, BadMessage] = {}  # of the rows at hand, by offset

    def convert(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Some messages as the query wants them; letters about the bad ones are written when this returns."""
        converted = self._convert(stream, batch)
        if self._bad_messages and self._letters is not None:
            self._letters.write(self._bad_messages)
            self._bad_messages.clear()
        return converted

    def _convert(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        parsed = self._parse(stream, batch) if len(self._fields) else None
        if parsed is not None:
            self._check_nulls(stream, batch, parsed)
        columns = []
        for field in self._wanted:
            if field.name == "stream":
                columns.append(pa.repeat(pa.scalar(stream, field.type), batch.num_rows))
            elif field.name == "time" and pa.types.is_timestamp(field.type):
                columns.append(batch.column("time").cast(pa.timestamp("ms", tz="UTC")).cast(field.type))
            elif field.name in ("tag", "entry"):
                columns.append(self._content(stream, batch, field))
            elif field.name in OWN_COLUMNS:
                columns.append(batch.column(field.name))
            else:
                assert parsed is not None
                columns.append(parsed.column(field.name))
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    def _content(self, stream: str, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """Tag or entry, as bytes or as text."""
        column = batch.column(field.name)
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid:
            return self._one_by_one(stream, batch, field.type, lambda at: column[at].as_py().decode())

    def _parse(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The fields of entries that are JSON objects."""
        entries = batch.column("entry")
        try:
            return _parse_json(entries, self._fields)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            kind = pa.struct(list(self._fields))
            rows = self._one_by_one(stream, batch, kind, lambda at: _parse_one(entries[at].as_py(), self._fields))
            return pa.RecordBatch.from_arrays(
                [pc.struct_field(rows, name) for name in self._fields.names], schema=self._fields
            )

    def _check_nulls(self, stream: str, batch: pa.RecordBatch, parsed: pa.RecordBatch) -> None:
        """Spark takes NOT NULL at its word, and what it finds instead is a matter of luck."""
        for name in self._never_null:
            if parsed.column(name).null_count:
                at = parsed.column(name).is_null().index(True).as_py()
                self._bad(stream, batch.slice(at, 1), f"there is no {name}, which is NOT NULL in the schema")

    def _one_by_one(
        self, stream: str, batch: pa.RecordBatch, kind: pa.DataType, parse: Callable[[int], Any]
    ) -> pa.Array:
        """What `parse` makes of each message; null for the bad ones, unless the query is to fail."""
        values = []
        for at in range(batch.num_rows):
            try:
                value = parse(at)
            except ValueError as error:
                self._bad(stream, batch.slice(at, 1), str(error))
                value = None
            values.append(value)
        return pa.array(values, kind)

    def _bad(self, stream: str, message: pa.RecordBatch, why: str) -> None:
        offset, tag, entry = (message.column(name)[0].as_py() for name in ("offset", "tag", "entry"))
        if self._options.badEntries == "fail":
            raise BadEntry(
                f"stream {stream}, offset {offset}: {why}. The entry begins with {entry[:80]!r}. Option badEntries=null gives nulls "
                "instead, badEntries=deadletter also writes it to deadLetterStream"
            )
        if self._letters is not None:
            self._bad_messages.setdefault(offset, BadMessage(tag, entry, why))  # a message is bad once


def _parse_json(entries: pa.Array, fields: pa.Schema) -> pa.RecordBatch:
    """All entries at once; ArrowInvalid if any of them is not one JSON object that fits."""
    text = b"\n".join(entries.to_pylist())
    as_read = pa.schema([field.with_type(_as_read(field.type)) for field in fields])
    options = pyarrow.json.ParseOptions(
        explicit_schema=as_read, newlines_in_values=True, unexpected_field_behavior="ignore"
    )
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 16))
    table = pyarrow.json.read_json(io.BytesIO(text), read_options=reading, parse_options=options)
    if table.num_rows != len(entries):
        raise pa.ArrowInvalid("an entry is not one JSON object")
    table = table.cast(fields) if as_read != fields else table
    return table.combine_chunks().to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], fields)


def _as_read(kind: pa.DataType) -> pa.DataType:
    """As what pyarrow has to read a type of JSON: dates, which it has as numbers only, as times."""
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_read(field.type)) for field in kind])
    return kind


def _parse_one(entry: bytes, fields: pa.Schema) -> dict[str, Any]:
    """The fields of one entry; ValueError if it is not a JSON object that fits."""
    try:
        value = json.loads(entry)
    except ValueError as error:
        raise ValueError(f"the entry is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"the entry is not a JSON object but {type(value).__name__}")
    try:
        parsed: dict[str, Any] = _parse_json(pa.array([entry], pa.binary()), fields).to_pylist()[0]
    except pa.ArrowException as error:
        raise ValueError(f"the entry does not fit the schema: {error}") from None
    return parsed
