"""Streams as a Spark sink, exactly once: staged by the tasks, made visible by one commit on the driver.

A task puts its rows aside under tokens of its own (TSTAGE), where no reader sees them, and sends the tokens to the
driver. The driver commits all tokens of a batch at once (TCOMMIT), under the query's id and the batch's number: the
server takes each number once, so a driver that died and commits again changes nothing. A commit
never names what a failed task staged; that expires. Only tokens are named, not rows: a task that runs again may get
other rows (SPARK-28650), and that is harmless.

If it is unknown whether a piece arrived, it is staged again under another token: staged twice under one token, it would
be written twice.
Several streams are committed in one transaction: all of them or none.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import redis
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

from penstock.schema.arrow_values import scalar_of
from penstock.schema.columns import column_of
from penstock.spark.executor_setup import freeze_imports, query_of_task
from penstock.spark.options import OptionError, Options, need_target
from penstock.spark.rows import looks_like_kafka
from penstock.spark.stream_connection import Fenced, StreamConnection
from penstock.spark.typed_rows import NOT_FIELDS, RowWriter, check_types, merge_schema, row_writer

BYTES_A_STAGE = 8 << 20
_ENTRIES = pa.schema([("tag", pa.binary()), ("entry", pa.binary())])


@dataclass
class Staged(WriterCommitMessage):
    """The stages of one task: its tokens by stream, in the order of its rows."""

    query: str
    partition: int
    tokens: dict[str, list[str]]


def check_columns(schema: StructType, options: Options) -> None:
    """OptionError unless the rows say what to write and where."""
    names = set(schema.names)
    if not names - {*NOT_FIELDS}:
        raise OptionError(
            "a column 'entry', or columns that are fields of an entry, are needed, and there are only "
            f"{', '.join(schema.names)}"
        )
    if "entry" in names and options.entryFormat != "json":
        raise OptionError(
            f"entryFormat={options.entryFormat} makes entries of typed columns, and a column 'entry' is written as it "
            "is: give one of them"
        )
    if "entry" not in names and options.entryFormat == "json" and looks_like_kafka(schema):
        raise OptionError(
            f"a column 'entry' is needed, and there are {', '.join(schema.names)}, as in Kafka: a message has tag "
            "(Kafka's key), entry (value) and stream (topic). to_json(struct('*')) AS entry writes fields of "
            "these names"
        )
    if "entry" in names and (unknown := names - {*NOT_FIELDS, "entry"}):
        raise OptionError(
            f"columns {', '.join(sorted(unknown))} cannot be written beside the column entry: a message is entry "
            "and, if there are such columns, stream, time, tag. .select('tag', 'entry') copies messages; without "
            "entry, the other columns are the fields of the entry"
        )
    for column in schema:
        if column.name == "time":
            if not isinstance(column.dataType, (TimestampType, LongType)):
                raise OptionError(
                    f"column time is {column.dataType.simpleString()}; write it as a timestamp, or as bigint "
                    f"(milliseconds since 1970). A field time of an entry is the column {column_of('time')}"
                )
        elif column.name in (*NOT_FIELDS, "entry") and not isinstance(column.dataType, (BinaryType, StringType)):
            raise OptionError(
                f"column {column.name} is {column.dataType.simpleString()}; write it as a string or as binary"
            )
    if "stream" not in names:
        need_target(options)
    if "entry" not in names:
        check_types(schema, options)
    if options.mergeSchema and ("entry" in names or "stream" in names):
        raise OptionError(
            "mergeSchema needs typed columns and one stream: it excludes the columns 'entry' and 'stream'"
        )


def widen_and_check_schema(schema: StructType, options: Options) -> None:
    """Before any row is written: widen the stream's schema if mergeSchema says so, and check that typed columns fit it.

    Rows that choose their streams are checked by the tasks, which know them.
    """
    if "entry" in schema.names or "stream" in schema.names:
        return
    with StreamConnection(options) as connection:
        (stream,) = options.stream
        if options.mergeSchema:
            merge_schema(connection, stream, schema)
        row_writer(connection, stream, to_arrow_schema(schema, timezone="UTC"), options)


def stage(options: Options, query: str, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Put a task's rows aside; runs on an executor."""
    freeze_imports()
    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    with StreamConnection(options) as connection:
        stager, entries = _Stager(connection, query), _Entries(connection, options)
        for batch in batches:
            for stream, rows in _by_stream(batch, options):
                stager.add(stream, entries.of(stream, rows))
        stager.flush_all()
    return Staged(query, context.partitionId(), stager.tokens)


class _Stager:
    """Collects the rows of each stream until they are enough for one command."""

    def __init__(self, connection: StreamConnection, query: str) -> None:
        self._connection = connection
        self._prefix = f"{query}/{uuid.uuid4()}"
        self._number = 0
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._sizes: dict[str, int] = {}
        self.tokens: dict[str, list[str]] = {}

    def add(self, stream: str, rows: pa.RecordBatch) -> None:
        self._waiting.setdefault(stream, []).append(rows)
        self._sizes[stream] = self._sizes.get(stream, 0) + rows.nbytes
        if self._sizes[stream] >= BYTES_A_STAGE:
            self._flush(stream)

    def flush_all(self) -> None:
        for stream in list(self._waiting):
            self._flush(stream)

    def _flush(self, stream: str) -> None:
        batches = self._waiting.pop(stream)
        self._sizes.pop(stream)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        payload = sink.getvalue().to_pybytes()
        token = self._connection.repeat(lambda: self._send(stream, payload))
        self.tokens.setdefault(stream, []).append(token)

    def _send(self, stream: str, payload: bytes) -> str:
        self._number += 1
        token = f"{self._prefix}/{self._number}"
        self._connection.stage(stream, token, payload)
        return token


def _by_stream(batch: pa.RecordBatch, options: Options) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A batch's rows for each stream they go to, in the order in which they came."""
    if "stream" not in batch.schema.names:
        if batch.num_rows:
            yield options.stream[0], batch
        return
    targets = batch.column("stream").cast(pa.string())
    if targets.null_count:
        raise ValueError("a row has no stream to go to (null in the column 'stream')")
    for target in pc.unique(targets).to_pylist():
        yield target, batch.filter(pc.equal(targets, target))


class _Entries:
    """Makes tags and entries of rows: of the column entry, or of typed columns."""

    def __init__(self, connection: StreamConnection, options: Options) -> None:
        self._connection = connection
        self._options = options
        self._typed: dict[str, RowWriter] = {}

    def of(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        if "entry" in batch.schema.names:
            entries = _binary(batch.column("entry"))
            if entries.null_count:
                raise ValueError("a row has no entry (null); filter such rows out, or write something in their place")
        else:
            if stream not in self._typed:
                self._typed[stream] = row_writer(self._connection, stream, batch.schema, self._options)
            entries = pa.array(self._typed[stream].entries(batch), pa.binary())
        rows = pa.RecordBatch.from_arrays([_tags(batch), entries], schema=_ENTRIES)
        if "time" in batch.schema.names:
            rows = rows.append_column("time", _times(batch.column("time")))
        return rows


def _tags(batch: pa.RecordBatch) -> pa.Array:
    if "tag" not in batch.schema.names:
        return pa.repeat(scalar_of(b"", pa.binary()), batch.num_rows)
    tags = batch.column("tag")
    return _binary(pc.fill_null(tags, scalar_of(b"", tags.type)))


def _times(column: pa.Array) -> pa.Array:
    """Milliseconds since 1970. A part of one is cut off, as the server has none."""
    if column.null_count:
        raise ValueError(
            "a row has no time (null); leave the column out, and each message has the time at which it is written"
        )
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())


def _binary(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def commit(options: Options, messages: Sequence[Any], producer: str, epoch: int, before: Sequence[Any] = ()) -> None:
    """Make what the tasks staged visible, all of it at once; runs on the driver."""
    commands = [*before, *_commits(messages, producer, epoch)]
    if commands:
        with StreamConnection(options) as connection:
            connection.together(*commands)


def commit_once(options: Options, messages: Sequence[Any], producer: str, epoch: int) -> None:
    """As `commit`, unless the producer has committed this epoch, or a later one, before: then what was staged is taken
    away.
    """
    if commands := _commits(messages, producer, epoch):
        with StreamConnection(options) as connection:
            connection.together_unless_fenced(*commands)
        abort(options, messages)  # what was committed is no longer staged


def _commits(messages: Sequence[Any], producer: str, epoch: int) -> list[tuple[str | int, ...]]:
    staged = sorted((each for each in messages if each is not None), key=lambda each: each.partition)
    tokens: dict[str, list[str]] = {}
    for each in staged:
        for stream, names in each.tokens.items():
            tokens.setdefault(stream, []).extend(names)
    return [("TCOMMIT", stream, producer, epoch, *names) for stream, names in tokens.items()]


def abort(options: Options, messages: Sequence[Any]) -> None:
    """Take away what the tasks staged; what a task staged that failed expires by itself."""
    with StreamConnection(options) as connection:
        for each in messages:
            if each is not None:
                for stream, names in each.tokens.items():
                    connection.call("TUNSTAGE", stream, *names)


class StreamBatchWriter(DataSourceArrowWriter):
    """`df.write.format("penstock")`: rows become messages when all of them are there."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        check_columns(schema, options)
        if options.txnAppId and overwrite:
            raise OptionError(
                "txnAppId and txnVersion make appends happen once; mode('overwrite') cannot be repeated safely"
            )
        widen_and_check_schema(schema, options)
        self._options = options
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self._options, "batch", iterator)

    def commit(self, messages: list[Any]) -> None:
        if self._options.txnAppId:
            assert self._options.txnVersion is not None
            commit_once(self._options, messages, f"txn/{self._options.txnAppId}", self._options.txnVersion)
            return
        emptied = self._evictions(messages) if self._overwrite else []
        commit(self._options, messages, f"batch/{uuid.uuid4()}", 0, emptied)

    def _evictions(self, messages: list[Any]) -> list[Any]:
        """Commands that take away what is there now. Not simply all: repeated, because the reply to a commit was lost,
        that would take away what was committed."""
        targets = {stream for each in messages if each is not None for stream in each.tokens} | {*self._options.stream}
        with StreamConnection(self._options) as connection:
            bounds = connection.bounds(sorted(targets))
        return [
            ("TEVICT", stream, there_is.end - 1)
            for stream, there_is in bounds.items()
            if there_is is not None and there_is.end > 1
        ]

    def abort(self, messages: list[Any]) -> None:
        abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("penstock")`: exactly once, whatever dies in between."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options)
        widen_and_check_schema(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        query = query_of_task()
        if not query:
            raise RuntimeError("Spark did not say which query this is (sql.streaming.queryId)")
        return stage(self._options, query, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        queries = {each.query for each in messages if each is not None}
        if queries:
            (query,) = queries
            try:
                commit(self._options, messages, query, batchId)
            except redis.ResponseError as error:
                if "FENCED" not in str(error):
                    raise
                raise Fenced(batchId, "a batch") from None

    def abort(self, messages: list[Any], batchId: int) -> None:
        abort(self._options, messages)
