"""mode=increment of the keys' sink: rows are added to counters, and each batch counts once.

Adding cannot be repeated as setting can. So the tasks change nothing: each sends the sums of its rows, a key a row, to
the driver. The driver adds all of them in one transaction that also notes the number of the batch at a key of the
query, and does nothing if that key has the number already. A task or a driver that runs again therefore adds nothing
twice, and no reader sees a part of a batch.

A transaction of Redis goes on after a command that fails. The values that are there are therefore looked at first: if
one cannot be added to, the batch fails and nothing of it is counted.

Rejected: adding in the tasks, each guarded by its own number. A task that is run again may get other rows
(SPARK-28650). Rejected: a cluster. It has no transaction over several nodes.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import redis
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import DecimalType, DoubleType, FloatType, IntegralType, StructType

from penstock.spark.executor_setup import freeze_imports, query_of_task
from penstock.spark.keys import as_binary, check_keys
from penstock.spark.options import LARGEST, OptionError, Options
from penstock.spark.stream_connection import GUARD, Fenced, StreamConnection

ROWS_TO_SUM = 100_000
"""A task adds up its rows whenever it has so many."""
GUARD_OF_ONE_WRITE = 86_400_000
"""Milliseconds that the guard of a write without a name is kept: long enough for every repetition of its commit."""
_KEY = "key"


@dataclass
class Sums(WriterCommitMessage):
    """The sums of one task: a table of keys and amounts, as an Arrow stream."""

    query: str
    payload: bytes


def check_counters(options: Options, schema: StructType, overwrite: bool = False) -> None:
    """OptionError unless the rows have keys and amounts."""
    check_keys(options, schema)
    for column in schema:
        kinds = (IntegralType, FloatType, DoubleType, DecimalType)
        if column.name != options.keyColumn and not isinstance(column.dataType, kinds):
            raise OptionError(f"column {column.name} is {column.dataType.simpleString()}; mode=increment adds numbers")
    if overwrite:
        raise OptionError(
            "mode=increment adds to what is there; mode('overwrite') would replace it, and outputMode('complete') add "
            "the same again"
        )


# -- on the executors -----------------------------------------------------------------------------------------


def sum_rows(options: Options, query: str, batches: Iterator[pa.RecordBatch]) -> Sums:
    """The sums of a task's rows."""
    found: pa.Table | None = None
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(_amounts(batch, options))
        rows += batch.num_rows
        if rows >= ROWS_TO_SUM:
            found, waiting, rows = _added(found, waiting), [], 0
    found = _added(found, waiting)
    return Sums(query, _packed(found) if found is not None else b"")


def _amounts(batch: pa.RecordBatch, options: Options) -> pa.RecordBatch:
    """The key and the amounts of each row. Whole numbers become decimals: their sum cannot overflow unseen."""
    keys = batch.column(options.keyColumn)
    if keys.null_count:
        raise ValueError(f"a row has no key (null in the column {options.keyColumn!r})")
    names = [name for name in batch.schema.names if name != options.keyColumn]
    columns = [_widened(batch.column(name)) for name in names]
    return pa.RecordBatch.from_arrays([as_binary(keys), *columns], names=[_KEY, *(f"+{name}" for name in names)])


def _widened(values: pa.Array) -> pa.Array:
    if pa.types.is_integer(values.type):
        return values.cast(pa.int64()).cast(pa.decimal128(38, 0))
    if pa.types.is_decimal(values.type):
        return values.cast(pa.decimal128(38, values.type.scale))
    return values.cast(pa.float64())


def _added(found: pa.Table | None, batches: Sequence[pa.RecordBatch]) -> pa.Table | None:
    tables = [*([found] if found is not None else []), *([pa.Table.from_batches(batches)] if batches else [])]
    if not tables:
        return None
    table = pa.concat_tables(tables)
    names = [name for name in table.column_names if name != _KEY]
    added = table.group_by(_KEY, use_threads=False).aggregate([(name, "sum") for name in names])
    return added.select([_KEY, *(f"{name}_sum" for name in names)]).rename_columns([_KEY, *names])


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


# -- on the driver --------------------------------------------------------------------------------------------


class Increment(NamedTuple):
    """An amount to be added to a counter: to a string, or to a field of a hash."""

    key: bytes
    field: bytes | None
    amount: str
    whole: bool

    @property
    def command(self) -> tuple[bytes | str, ...]:
        name = "INCRBY" if self.whole else "INCRBYFLOAT"
        return (name, self.key, self.amount) if self.field is None else ("H" + name, self.key, self.field, self.amount)

    @property
    def look(self) -> tuple[bytes | str, ...]:
        return ("GET", self.key) if self.field is None else ("HGET", self.key, self.field)

    @property
    def counter(self) -> str:
        key = self.key.decode(errors="replace")
        return f"key {key!r}" if self.field is None else f"key {key!r}, field {self.field.decode()!r}"


def _increments(messages: Sequence[Any], options: Options) -> list[Increment]:
    tables = [pa.ipc.open_stream(each.payload).read_all() for each in messages if each is not None and each.payload]
    if not tables:
        return []
    table = _added(pa.concat_tables(tables), ())
    assert table is not None
    keys = table.column(_KEY).to_pylist()
    found = []
    for name in table.column_names[1:]:
        amounts = table.column(name)
        field = None if options.type == "string" else name[1:].encode()
        whole = pa.types.is_decimal(amounts.type) and amounts.type.scale == 0
        texts = pc.cast(amounts, pa.string()).to_pylist()
        found += [Increment(key, field, text, whole) for key, text in zip(keys, texts, strict=True) if text is not None]
    return found


def add(options: Options, messages: Sequence[Any], producer: str, number: int, expires: bool = False) -> int:
    """Add what the tasks summed up, unless the producer did that under this number or a later one.

    The last number it has had.

    The answer is `number`, unless it was a later one.
    """
    increments = _increments(messages, options)
    if not increments:
        return number
    with StreamConnection(options) as connection:
        if connection.is_cluster():
            raise OptionError("mode=increment counts each batch as one unit, which a cluster cannot do; use one server")
        commands: list[Sequence[Any]] = [each.command for each in increments]
        if options.ttl:
            commands += [("PEXPIRE", key, options.ttl) for key in dict.fromkeys(each.key for each in increments)]
        guard: tuple[Any, ...] = ("SET", GUARD + producer, number, *(("PX", GUARD_OF_ONE_WRITE) if expires else ()))
        last, replies = connection.once(guard, commands, lambda: _look_at_counters(connection, increments))
    for each, reply in zip(increments, replies, strict=False):
        if isinstance(reply, redis.ResponseError):  # another program changed it since we looked
            raise ValueError(f"{each.counter} cannot be added to: {reply}. The rest of this batch is counted")
    return last


def _look_at_counters(connection: StreamConnection, increments: Sequence[Increment]) -> None:
    """Raise ValueError if an existing value is not a number."""
    for each, reply in zip(increments, connection.many([each.look for each in increments]), strict=True):
        if isinstance(reply, redis.ResponseError):
            raise ValueError(f"{each.counter} cannot be added to: {reply}. Nothing of this batch is counted")
        if not _can_add(reply or b"0", each):
            raise ValueError(
                f"{each.counter} holds {(reply or b'0')[:40].decode(errors='replace')!r}, to which {each.amount} "
                "cannot be added. Nothing of this batch is counted; mend or delete it, and start the query again"
            )


def _can_add(there: bytes, increment: Increment) -> bool:
    number: Callable[[Any], Any] = int if increment.whole else float
    try:
        result = number(there) + number(increment.amount)
    except ValueError:
        return False
    return -LARGEST - 1 <= result <= LARGEST if increment.whole else math.isfinite(result)


# -- what Spark calls -----------------------------------------------------------------------------------------


class IncrementWriter(DataSourceArrowWriter):
    """`df.write.format("penstock").option("type", "hash").option("mode", "increment")`."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        check_counters(options, schema, overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sums:
        freeze_imports()
        return sum_rows(self._options, "batch", iterator)

    def commit(self, messages: list[Any]) -> None:
        options = self._options
        if options.txnVersion is not None:
            add(options, messages, f"txn/{options.txnAppId}", options.txnVersion)
        else:
            add(options, messages, f"batch/{uuid.uuid4()}", 0, expires=True)


class IncrementStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("penstock").option("type", "hash").option("mode", "increment")`."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool = False) -> None:
        check_counters(options, schema, overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sums:
        query = query_of_task()
        if not query:
            raise RuntimeError("Spark did not say which query this is (sql.streaming.queryId)")
        freeze_imports()
        return sum_rows(self._options, query, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        for query in {each.query for each in messages if each is not None}:
            last = add(self._options, messages, query, batchId)
            if last > batchId:
                raise Fenced(batchId, f"batch {last}")
