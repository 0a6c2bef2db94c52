"""Streams of Redis (XADD) as a Spark source, in batches and as a stream: for programs that move over, one at a time.

A place is the id of the last entry that was read. Ids grow, so a batch that is run again reads the same entries:
Spark's checkpoint is the only place that says what was read, and no consumer group is used. Ids have gaps, so a stream
is read by one task, and entries that were trimmed before they were read cannot be told from ids that never were.

This works on Redis, Valkey and Penstock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, MapType, StringType, StructType, TimestampType

from penstock.spark.column_types import is_simple
from penstock.spark.executor_setup import freeze_imports
from penstock.spark.keys import cast_text
from penstock.spark.options import OptionError, Options, Places
from penstock.spark.rows import BadEntry
from penstock.spark.source import DataLoss
from penstock.spark.stream_connection import StreamConnection

ENTRIES_A_READ = 1000
LAST_NUMBER = 2**64 - 1
"""The largest number that an id can have beside its time."""
_OWN = {
    "stream": (StringType(),),
    "id": (StringType(),),
    "time": (TimestampType(), LongType()),
    "fields": (MapType(StringType(), StringType()),),
}
"""What an entry has, and as which types."""


class Id(NamedTuple):
    """The id of an entry; ids compare as these do."""

    ms: int
    number: int

    @classmethod
    def of(cls, text: str) -> Id:
        ms, _, number = text.partition("-")
        return cls(int(ms), int(number or 0))

    @property
    def next(self) -> Id:
        return Id(self.ms, self.number + 1) if self.number < LAST_NUMBER else Id(self.ms + 1, 0)

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"


NOTHING = Id(0, 0)
"""No entry has this id: a stream that was not read is at it."""


def entry_schema(options: Options) -> StructType:
    """The columns of entries, if the query names none."""
    schema = StructType()
    for name, kinds in _OWN.items():
        schema.add(name, kinds[0])
    return schema


def check_entries(schema: StructType) -> None:
    """Raise OptionError if a column has a type that it cannot have."""
    for column in schema:
        kinds = _OWN.get(column.name)
        if kinds is not None and column.dataType not in kinds:
            wanted = " or ".join(kind.simpleString() for kind in kinds)
            raise OptionError(
                f"column {column.name} is {column.dataType.simpleString()}, and an entry has it as {wanted}"
            )
        if kinds is None and not is_simple(column.dataType):
            raise OptionError(f"column {column.name} is {column.dataType.simpleString()}; read the field as a string")


@dataclass
class EntryRange(InputPartition):
    """The entries of a stream after one id, up to another."""

    stream: str
    after: str
    last: str

    def __init__(self, stream: str, after: Id, last: Id) -> None:
        super().__init__((stream, str(after), str(last)))
        self.stream, self.after, self.last = stream, str(after), str(last)


def read_entries(options: Options, schema: StructType, wanted: EntryRange) -> Iterator[pa.RecordBatch]:
    """The entries of a range, as the query wants them."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    at = Id.of(wanted.after).next
    with StreamConnection(options) as connection:
        while at <= Id.of(wanted.last):
            found = connection.entries(wanted.stream, str(at), wanted.last, ENTRIES_A_READ)
            if not found:
                return
            columns = [_column(field, wanted.stream, found, options) for field in arrow]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow)
            at = Id.of(found[-1][0]).next


def _column(field: pa.Field, stream: str, entries: list[tuple[str, dict[bytes, bytes]]], options: Options) -> pa.Array:
    if field.name == "stream":
        return pa.repeat(pa.scalar(stream, field.type), len(entries))
    if field.name == "id":
        return pa.array([id_ for id_, _ in entries], field.type)
    if field.name == "time":
        times = pa.array([Id.of(id_).ms for id_, _ in entries], pa.int64())
        is_time = pa.types.is_timestamp(field.type)
        return times.cast(pa.timestamp("ms", tz="UTC")).cast(field.type) if is_time else times
    if field.name == "fields":
        return pa.array([[(_text(k), _text(v)) for k, v in fields.items()] for _, fields in entries], field.type)
    name = field.name.encode()
    values = [fields.get(name) for _, fields in entries]
    if pa.types.is_binary(field.type):
        return pa.array(values, field.type)
    try:
        return cast_text(pa.array(values, pa.binary()), field.type)
    except pa.ArrowInvalid:
        return pa.array(
            [_value(field, value, stream, id_, options) for value, (id_, _) in zip(values, entries, strict=True)],
            field.type,
        )


def _value(field: pa.Field, value: bytes | None, stream: str, id_: str, options: Options) -> Any:
    try:
        return cast_text(pa.array([value], pa.binary()), field.type)[0].as_py()
    except pa.ArrowInvalid as error:
        if options.badEntries == "fail":
            raise BadEntry(
                f"stream {stream}, entry {id_}, {field.name}: {error}. Option badEntries=null gives null instead"
            ) from None
        return None


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


class _Ends:
    """Where the streams begin and end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.connection = StreamConnection(options)

    def starts(self) -> dict[str, Id]:
        return self._places(self._options.startingOffsets, self._options.startingTimestamp, "earliest")

    def ends(self) -> dict[str, Id]:
        return self._places(self._options.endingOffsets, self._options.endingTimestamp, "latest")

    def last(self, stream: str) -> Id:
        found = self.connection.last_entry(stream)
        return Id.of(found) if found else NOTHING

    def after(self, stream: str, place: Id, rows: int) -> Id:
        """The last of the next so many entries."""
        found = self.connection.entries(stream, str(place.next), "+", rows)
        return Id.of(found[-1][0]) if found else place

    def _places(self, places: Places, moment: int | None, otherwise: str) -> dict[str, Id]:
        """The last entry before each place: a named entry is the first one to read, or the first one not to read."""
        found = {}
        for stream in self._options.redisStream:
            place = places.get(stream, otherwise) if isinstance(places, dict) else places
            if moment is not None:
                place = str(moment)
            if place == "earliest":
                found[stream] = NOTHING
            elif place == "latest":
                found[stream] = self.last(stream)
            else:
                named = Id.of(str(place))
                before = Id(named.ms - 1, LAST_NUMBER) if named.ms else NOTHING
                found[stream] = Id(named.ms, named.number - 1) if named.number else before
        return found


class RedisStreamBatchReader(DataSourceReader):
    """`spark.read.format("penstock").option("redisStream", "orders")`."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_entries(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        ends = _Ends(self._options)
        starts, last = ends.starts(), ends.ends()
        return [EntryRange(stream, starts[stream], last[stream]) for stream in self._options.redisStream]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EntryRange)
        freeze_imports()
        return read_entries(self._options, self._schema, partition)


class RedisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("penstock").option("redisStream", "orders")`. A Spark offset is {stream: last id}."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_entries(schema)
        self._options = options
        self._schema = schema
        self._last: dict[str, Id] | None = None  # with the trigger AvailableNow: where to stop

    @cached_property
    def _ends(self) -> _Ends:
        """Made where it is needed, on the driver: this object travels to the executors."""
        return _Ends(self._options)

    def initialOffset(self) -> dict[str, str]:
        return _told(self._ends.starts())

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = {stream: self._ends.last(stream) for stream in self._options.redisStream}

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.maxRowsPerTrigger
        return ReadMaxRows(rows) if rows is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        found = {}
        for stream in self._options.redisStream:
            reached = Id.of(start.get(stream, str(NOTHING)))
            last = self._last[stream] if self._last is not None else self._ends.last(stream)
            if last < reached and self._options.failOnDataLoss and self._ends.starts()[stream] != reached:
                self._need_reached(stream, reached)
            if last > reached and isinstance(limit, ReadMaxRows):
                share = max(limit.max_rows // len(self._options.redisStream), 1)
                last = min(last, self._ends.after(stream, reached, share))
            found[stream] = max(last, reached)
        return _told(found)

    def _need_reached(self, stream: str, reached: Id) -> None:
        """DataLoss if a stream that was read is gone or begun anew. One that is only empty keeps its last id."""
        generated = self._ends.connection.last_generated(stream)
        if generated is None or Id.of(generated) < reached:
            raise DataLoss(
                f"stream {stream} was read up to {reached}, and it is gone or begun anew. To read it from its "
                "beginning start anew, with another checkpoint, or set failOnDataLoss=false"
            )

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        ranges = [EntryRange(stream, Id.of(start.get(stream, "0-0")), Id.of(last)) for stream, last in end.items()]
        return [each for each in ranges if each.after != each.last]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EntryRange)
        freeze_imports()
        return read_entries(self._options, self._schema, partition)

    def stop(self) -> None:
        if "_ends" in self.__dict__:
            self._ends.connection.__exit__()


def _told(places: dict[str, Id]) -> dict[str, str]:
    return {stream: str(place) for stream, place in places.items()}
