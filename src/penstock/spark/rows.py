"""From what the server sends (offset, time, tag, entry) to the columns a query asked for, batch by batch, in Arrow.

Columns that are named stream, offset, time, tag or entry are those; any other column of the schema is a field of the
entry, which is JSON (`schema/json_entries.py`) or what `entryFormat` says (`entry_formats.py`). `entry_time` is the
field time of an entry (`schema/columns.py`).
`badEntries` says what happens to a message that does not fit: the query fails and names the message, or the fields are
null, or the message has no row, or it has a dead letter and no row."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType, TimestampType

from penstock.schema.arrow_types import DEFAULT
from penstock.schema.arrow_values import scalar_of
from penstock.schema.columns import column_of, field_of
from penstock.spark.column_types import can_read
from penstock.spark.dead_letters import BadMessage, DeadLetters
from penstock.spark.entry_formats import reader_of
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


def default_schema(options: Options) -> StructType:
    """The columns of a query that names none."""
    content = StringType() if options.text else BinaryType()
    kinds = {"stream": StringType(), "offset": LongType(), "time": TimestampType(), "tag": content, "entry": content}
    schema = StructType()
    for name, kind in kinds.items():
        schema.add(name, kind, nullable=_can_be_null(name, kind, options))
    return schema


def check_schema(schema: StructType, options: Options) -> None:
    """Raise OptionError if a column has a type that it cannot have."""
    _check_names(schema, options)
    is_json = options.entryFormat == "json"
    if not is_json and (fields := _fields(to_arrow_schema(schema, timezone="UTC"), {})):
        reader_of(pa.schema(fields), options)
    for column in schema:
        name, kind = column.name, column.dataType.simpleString()
        kinds = OWN_COLUMNS.get(name)
        if kinds is not None and not isinstance(column.dataType, kinds):
            wanted = " or ".join(kind().simpleString() for kind in kinds)
            raise OptionError(
                f"column {name} is {kind} in the schema, and a message has it as {wanted}; "
                f"a field {name} of an entry is the column {column_of(name)}"
            )
        if is_json and kinds is None and not can_read(column.dataType):
            raise OptionError(
                f"column {name} is {kind} in the schema, which a field of a JSON entry is not read as; "
                "read 'entry string' and parse it with from_json"
            )
        if not column.nullable and _can_be_null(name, column.dataType, options):
            raise OptionError(
                f"column {name} is NOT NULL in the schema, and badEntries={options.badEntries} gives nulls; leave NOT "
                "NULL out"
            )


_OF_KAFKA = {"key", "value", "topic", "partition", "timestamp", "timestampType", "headers"}


def _check_names(schema: StructType, options: Options) -> None:
    """Raise OptionError for a name that is nearly a column of a message, or one of Kafka: the column would be null."""
    for name in schema.names:
        if name not in OWN_COLUMNS and name.lower() in OWN_COLUMNS:
            raise OptionError(
                f"column {name} in the schema: a message has {name.lower()}, in lower case. A field {name} of an "
                f"entry is the column {column_of(name)}"
            )
    if options.entryFormat == "json" and looks_like_kafka(schema):
        fields = [name for name in schema.names if name not in OWN_COLUMNS]
        raise OptionError(
            f"columns {', '.join(fields)} in the schema are those of Kafka: a message has tag (Kafka's key), entry "
            "(value), stream (topic), offset and time (timestamp). Fields of a JSON entry that have these names can "
            "be read with 'entry string' and from_json"
        )


def looks_like_kafka(schema: StructType) -> bool:
    """Whether columns are named as in Kafka, so that they are probably not fields of JSON."""
    fields = {column.name: column.dataType for column in schema if column.name not in OWN_COLUMNS}
    return isinstance(fields.get("value"), (BinaryType, StringType)) and fields.keys() <= _OF_KAFKA


def _can_be_null(name: str, kind: DataType, options: Options) -> bool:
    """Whether a bad entry makes a column null: a field of an entry, or bytes that should be text."""
    is_parsed = name not in OWN_COLUMNS or (name in ("tag", "entry") and isinstance(kind, StringType))
    return is_parsed and options.badEntries == "null"


class Converter:
    """Converts batches of the server to batches of Spark, for one query."""

    def __init__(
        self,
        schema: StructType,
        options: Options,
        letters: DeadLetters | None = None,
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        fields = _fields(self._wanted, defaults)
        self._entries = reader_of(pa.schema(fields), options) if fields else None
        self._options = options
        self._letters = letters

    def convert(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Some messages as the query wants them; letters about the bad ones are written when this returns."""
        bad: dict[int, str] = {}  # why, by place in the batch; the first reason stands
        parsed: pa.RecordBatch | None = None
        if self._entries is not None:
            parsed, bad = self._entries.read(batch.column("entry"))
        columns = []
        for field in self._wanted:
            if field.name == "stream":
                columns.append(pa.repeat(scalar_of(stream.encode(), field.type), batch.num_rows))
            elif field.name == "time" and pa.types.is_timestamp(field.type):
                columns.append(batch.column("time").cast(pa.timestamp("ms", tz="UTC")).cast(field.type))
            elif field.name in ("tag", "entry"):
                columns.append(_content(batch.column(field.name), field.type, bad))
            elif field.name in OWN_COLUMNS:
                columns.append(batch.column(field.name))
            else:
                assert parsed is not None
                columns.append(parsed.column(field_of(field.name)))
        rows = pa.RecordBatch.from_arrays(columns, schema=self._wanted)
        if bad:
            self._handle(stream, batch, bad)
            if self._options.badEntries != "null":
                return rows.filter(pa.array([place not in bad for place in range(len(rows))], pa.bool_()))
        return rows

    def _handle(self, stream: str, batch: pa.RecordBatch, bad: dict[int, str]) -> None:
        """Fail, or write letters, as the query says."""
        messages = {
            batch.column("offset")[at].as_py(): BadMessage(
                batch.column("tag")[at].as_py(), batch.column("entry")[at].as_py(), bad[at]
            )
            for at in sorted(bad)
        }
        if self._options.badEntries == "fail":
            offset, message = next(iter(messages.items()))
            raise BadEntry(
                f"stream {stream}, offset {offset}: {message.why}. The entry begins with {message.entry[:80]!r}. "
                "Option badEntries says what to do instead: null gives nulls, drop no row, deadletter writes it to "
                "deadLetterStream"
            )
        if self._letters is not None:
            self._letters.write(messages)


def _fields(columns: pa.Schema, defaults: Mapping[str, str]) -> list[pa.Field]:
    """The columns that are fields of an entry, by the names that they have there."""
    return [_as_field(column, defaults) for column in columns if column.name not in OWN_COLUMNS]


def _as_field(column: pa.Field, defaults: Mapping[str, str]) -> pa.Field:
    """A column as the field of an entry that it is."""
    name = field_of(column.name)
    metadata = {DEFAULT: defaults[name].encode()} if name in defaults else None
    return pa.field(name, column.type, column.nullable, metadata)


def _content(column: pa.Array, kind: pa.DataType, bad: dict[int, str]) -> pa.Array:
    """Tag or entry, as bytes or as text; null where bytes are no text."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for place, content in enumerate(column.to_pylist()):
            try:
                texts.append(content.decode())
            except UnicodeDecodeError as error:
                bad.setdefault(place, str(error))
                texts.append(None)
        return pa.array(texts, kind)
