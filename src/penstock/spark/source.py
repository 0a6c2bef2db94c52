"""Streams as a Spark source, in batches and as a stream.

Reads name explicit offsets, never a group: Spark's checkpoint is the only place that says what was read, so a batch
that is run again reads the same messages. Progress is published to a group, if one is named, for people to see the lag;
nothing is read from it.

A range that is no longer whole (evicted, or the stream was deleted and begins anew) is data loss: offsets are exact,
so it is always noticed. Messages that compaction removed are not loss: their tags have newer ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.protocol.address import without_secrets
from penstock.spark.dead_letters import DeadLetters
from penstock.spark.executor_setup import freeze_imports, query_of_task
from penstock.spark.filters import Wanted, narrow
from penstock.spark.options import OptionError, Options, Place, Places
from penstock.spark.ranges import METRICS, Bounds, Range, cut, limited
from penstock.spark.rows import OWN_COLUMNS, Converter
from penstock.spark.stream_connection import StreamConnection
from penstock.spark.stream_schema import defaults_for, schema_of

NOTHING = Bounds(1, 1)
EVERYTHING = Wanted()


class DataLoss(RuntimeError):
    """Messages that were to be read are gone."""


@dataclass
class StreamPartition(InputPartition):
    """The range that one task reads. A batch has no name: its plan gets one, for the dead letters of its tasks."""

    range: Range
    plan: str = ""
    defaults: dict[str, str] = field(default_factory=dict)  # of the stream's schema, by field

    def __init__(self, range: Range, plan: str = "", defaults: dict[str, str] | None = None) -> None:
        super().__init__(range)
        self.range, self.plan, self.defaults = range, plan, defaults or {}


def read_partition(
    options: Options, schema: StructType, partition: StreamPartition, query: str, filters: Wanted = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """The messages of a range, as the query wants them."""
    freeze_imports()
    wanted = partition.range
    with StreamConnection(options) as connection:
        letters = DeadLetters(connection, options, schema, query, wanted) if options.deadLetterStream else None
        converter = Converter(schema, options, letters, partition.defaults)
        expected = wanted.start
        for batch in connection.read(wanted.stream, wanted.start, wanted.end):
            first = batch.column("offset")[0].as_py()
            if first > expected:
                _look_for_loss(connection, options, Range(wanted.stream, expected, first))
            expected = batch.column("offset")[-1].as_py() + 1
            if (left := filters.of_tags(batch)).num_rows:
                yield converter.convert(wanted.stream, left)
        if expected < wanted.end:
            _look_for_loss(connection, options, Range(wanted.stream, expected, wanted.end))


def _look_for_loss(connection: StreamConnection, options: Options, missing: Range) -> None:
    """Find out why messages are missing: compaction, eviction, or another stream of the same name."""
    bounds = connection.bounds([missing.stream])[missing.stream]
    if bounds is None:
        problem = "the stream no longer exists"
    elif bounds.first > missing.start:
        problem = f"messages up to {bounds.first - 1} were evicted"
    elif bounds.end < missing.end:
        problem = _ends_early(bounds)
    else:
        return
    if options.failOnDataLoss:
        raise DataLoss(
            f"stream {missing.stream}: offsets {missing.start} to {missing.end - 1} cannot be read, {problem}. Keep "
            "messages longer (TRETAIN), or set failOnDataLoss=false to go on with what there is"
        )


def _ends_early(bounds: Bounds) -> str:
    if bounds == NOTHING:
        return "the stream is no longer there"
    return f"the stream ends at {bounds.end - 1}: it was deleted and begun anew, or its server lost messages"


class _Size(NamedTuple):
    """About how large the messages of a stream were when the server was asked."""

    bytes: int
    asked_at: int  # the end of the stream then
    holds_to: int  # the end at which as many messages are new as there were then


class _Planner:
    """Finds the streams of a query, and the offsets at which it begins and ends in them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.connection = StreamConnection(options)
        self._defaults: dict[str, dict[str, str]] = {}
        self._sizes: dict[str, _Size] = {}

    def defaults(self, stream: str, columns: StructType) -> dict[str, str]:
        """The defaults of the fields that a query asks for, of the schema that a stream had when this was first asked.

        OptionError if the query asks for something that contradicts that schema.
        """
        options = self._options
        if not options.typed or options.entryFormat != "json" or all(name in OWN_COLUMNS for name in columns.names):
            return {}
        if stream not in self._defaults:
            schema = schema_of(self.connection, stream, options)
            self._defaults[stream] = defaults_for(columns, stream, schema) if schema is not None else {}
        return self._defaults[stream]

    def bounds(self) -> dict[str, Bounds]:
        """Every stream that is to be read; one that is named and does not exist is empty."""
        names = list(self._options.stream) or self.connection.streams(self._options.pattern)
        return {stream: there_is or NOTHING for stream, there_is in self.connection.bounds(names).items()}

    def bytes_a_message(self, stream: str, bounds: Bounds) -> int:
        """About how large the messages of a stream are. The server is not asked for each batch."""
        size = self._sizes.get(stream)
        if size is None or not size.asked_at <= bounds.end <= size.holds_to:
            length = bounds.end - bounds.first
            size = _Size(self.connection.bytes_a_message(stream), bounds.end, bounds.end + length)
            self._sizes[stream] = size
        return size.bytes

    def need_existing(self) -> None:
        """A batch query of a stream that does not exist is a mistake."""
        for stream, there_is in self.connection.bounds(list(self._options.stream)).items():
            if there_is is None:
                raise OptionError(f"there is no stream {stream!r} at {without_secrets(self._options.url)}")

    def starts(self, bounds: dict[str, Bounds]) -> dict[str, int]:
        options = self._options
        return self._places(bounds, options.startingOffsets, options.startingTimestamp, "earliest")

    def ends(self, bounds: dict[str, Bounds]) -> dict[str, int]:
        options = self._options
        return self._places(bounds, options.endingOffsets, options.endingTimestamp, "latest")

    def _places(
        self, bounds: dict[str, Bounds], places: Places, moment: int | None, otherwise: Place
    ) -> dict[str, int]:
        if moment is not None:
            return {stream: self.connection.place_at(stream, moment) for stream in bounds}
        return {
            stream: _place(places.get(stream, otherwise) if isinstance(places, dict) else places, there_is)
            for stream, there_is in bounds.items()
        }

    def need_whole(self, reached: dict[str, int], bounds: dict[str, Bounds]) -> None:
        """DataLoss if a stream ends before a place that the query has reached in it: what is written next would get
        offsets that the query has read already. A stream of a pattern may be deleted."""
        for stream, there_is in bounds.items():
            place = reached.get(stream, 1)
            if place > there_is.end and self._options.failOnDataLoss:
                raise DataLoss(
                    f"stream {stream} was read up to offset {place - 1}, and {_ends_early(there_is)}. To read it from "
                    "its beginning start anew, with another checkpoint, or set failOnDataLoss=false"
                )


def _place(place: Place, bounds: Bounds) -> int:
    if isinstance(place, int):
        return place
    return bounds.first if place == "earliest" else bounds.end


def _ends(bounds: dict[str, Bounds]) -> dict[str, int]:
    return {stream: there_is.end for stream, there_is in bounds.items()}


def _cut(ranges: list[Range], options: Options) -> list[Range]:
    """The ranges of a batch's tasks. Dead letters want every node read by one task."""
    return cut(ranges, options.minPartitions, whole_nodes=bool(options.deadLetterStream))


class StreamBatchReader(DataSourceReader):
    """`spark.read.format("penstock")`: what is there between two places."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = EVERYTHING

    def partitions(self) -> Sequence[InputPartition]:
        planner = _Planner(self._options)
        planner.need_existing()
        bounds = self._wanted.among(planner.bounds())
        starts, ends = planner.starts(bounds), planner.ends(bounds)
        for stream in bounds:
            planner.defaults(stream, self._schema)  # which also finds contradictions, of empty streams too
        if (since := self._wanted.since) is not None:
            starts = {
                stream: max(start, planner.connection.place_at(stream, since)) for stream, start in starts.items()
            }
        ranges = [
            Range(stream, max(starts[stream], self._wanted.first), min(ends[stream], self._wanted.end))
            for stream in bounds
        ]
        pieces = _cut([each for each in ranges if each.rows > 0], self._options)
        plan = f"batch/{uuid.uuid4()}"
        # Of no partition Spark makes a None.
        return [StreamPartition(each, plan, planner.defaults(each.stream, self._schema)) for each in pieces] or [
            StreamPartition(Range("", 1, 1), plan)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        return read_partition(self._options, self._schema, partition, partition.plan, self._wanted)


class FilteringReader(StreamBatchReader):
    """The same with the option pushFilters: filters make it read less. See filters.py."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted, left = narrow(filters)
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("penstock")`. A Spark offset is {stream: next offset}."""

    def __init__(self, options: Options, schema: StructType, mistake: OptionError | None = None) -> None:
        self._options = options
        self._schema = schema
        self._mistake = mistake
        self._run = f"run/{uuid.uuid4()}"  # names this start of the query, where its id is not known
        self._last: dict[str, int] | None = None  # with the trigger AvailableNow: where to stop
        self._published: dict[str, int] = {}
        self._planned: list[Range] = []  # what the batch reads that was planned last
        self._bounds: dict[str, Bounds] | None = None  # what there was then

    @cached_property
    def _planner(self) -> _Planner:
        """Made where it is needed, on the driver: this object travels to the executors.

        A mistake in options or schema is told here, by the first method that Spark calls. Told by the data source
        instead, when it makes the reader, Spark would lose it: it stops a reader that it does not have
        (UnboundLocalError).
        """
        if self._mistake is not None:
            raise self._mistake
        return _Planner(self._options)

    def initialOffset(self) -> dict[str, int]:
        options, bounds = self._options, self._planner.bounds()
        starts = self._planner.starts(bounds)
        for stream, place in starts.items():
            if place > bounds[stream].end and options.startingTimestamp is None and options.failOnDataLoss:
                raise OptionError(
                    f"option startingOffsets: stream {stream} ends at {bounds[stream].end - 1}, so offset {place} is "
                    "not the next; latest begins with the next message, failOnDataLoss=false waits for that one"
                )
        return starts

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = _ends(self._planner.bounds())

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.maxRowsPerTrigger is not None:
            return ReadMaxRows(options.maxRowsPerTrigger)
        if options.maxBytesPerTrigger is not None:
            return ReadMaxBytes(options.maxBytesPerTrigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self._bounds = bounds = self._planner.bounds()
        self._planner.need_whole(start, bounds)
        for stream in bounds:
            self._planner.defaults(stream, self._schema)  # a query that contradicts a schema fails before it reads
        self._publish(start)
        start = {
            stream: bounds[stream].first if self._is_begun_anew(stream, place, bounds) else place
            for stream, place in start.items()
        }
        ends = self._last if self._last is not None else _ends(bounds)
        # A stream that was deleted must not take the query back.
        ends = {stream: max(ends.get(stream, 1), start.get(stream, 1)) for stream in {**start, **ends}}
        if isinstance(limit, ReadMaxRows):
            ends = limited(start, ends, limit.max_rows)
        if not isinstance(limit, ReadAllAvailable) and self._options.maxBytesPerTrigger is not None:
            ends = limited(start, ends, self._rows_in(self._options.maxBytesPerTrigger, start, ends, bounds))
        self._planned = [Range(stream, start.get(stream, 1), end) for stream, end in ends.items()]
        return ends

    def _is_begun_anew(self, stream: str, place: int, bounds: dict[str, Bounds]) -> bool:
        """Whether a stream ends before a place that was read, and loss is allowed: then it is read from its beginning.

        A place that the query was told to begin at may be beyond the end; the query waits for it.
        """
        places = self._options.startingOffsets
        is_start = isinstance(places, dict) and places.get(stream) == place
        return stream in bounds and place > bounds[stream].end and not is_start

    def _rows_in(self, size: int, start: dict[str, int], ends: dict[str, int], bounds: dict[str, Bounds]) -> int:
        """About how many of the next messages have so many bytes."""
        waiting = {stream: end - start.get(stream, 1) for stream, end in ends.items() if end > start.get(stream, 1)}
        if not waiting:
            return 1
        total = sum(
            rows * self._planner.bytes_a_message(stream, bounds.get(stream, NOTHING))
            for stream, rows in waiting.items()
        )
        return max(sum(waiting.values()) * size // total, 1)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the streams end, and the metrics of the batch that was just planned.

        Spark shows this in the progress of the query and uses it for nothing else, so it is a place for metrics. It
        asks right after the batch was planned, so what the plan saw is not asked for again.
        """
        bounds = self._bounds if self._bounds is not None else self._planner.bounds()
        ends = _ends(bounds)
        metrics = {
            each.stream: {
                "rows": each.rows,
                "bytes": each.rows * self._planner.bytes_a_message(each.stream, bounds.get(each.stream, NOTHING))
                if each.rows
                else 0,
                "lag": max(ends.get(each.stream, each.end) - each.end, 0),
            }
            for each in self._planned
        }
        return {**ends, METRICS: metrics}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        ranges = [
            # An end before the start is of a stream that was begun anew.
            Range(stream, start[stream], stop)
            if start.get(stream, stop + 1) <= stop
            else self._without_what_never_was(Range(stream, 1, stop))
            for stream, stop in end.items()
        ]
        pieces = _cut([each for each in ranges if each.rows > 0], self._options)
        return [StreamPartition(each, defaults=self._planner.defaults(each.stream, self._schema)) for each in pieces]

    def _without_what_never_was(self, new: Range) -> Range:
        """Leave out what a new stream evicted before the query saw it: that is no data loss of this query."""
        bounds = self._planner.connection.bounds([new.stream])[new.stream]
        return Range(new.stream, max(new.start, bounds.first), new.end) if bounds is not None else new

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        return read_partition(self._options, self._schema, partition, query_of_task() or self._run)

    def commit(self, end: dict[str, int]) -> None:
        self._publish(end)

    def _publish(self, done: dict[str, int]) -> None:
        """Publish how far this query has read. Spark asks for the next batch only when the last one is done."""
        if not self._options.group:
            return
        for stream, place in done.items():
            if self._published.get(stream) != place and place > 1:
                self._planner.connection.place_group(stream, self._options.group, place)
                self._published[stream] = place

    def stop(self) -> None:
        if "_planner" in self.__dict__:
            self._planner.connection.__exit__()
