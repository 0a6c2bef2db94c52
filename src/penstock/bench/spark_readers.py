"""The readers that the Spark rows compare our source with: the same reader fed from memory, and redis-py.

A module of its own, because Spark's workers import it by name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import redis
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.bench.messages import KEY, TAG, entry, redis_id
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.options import Options
from penstock.spark.ranges import NODE, Range, cut
from penstock.spark.rows import Converter, default_schema
from penstock.spark.source import StreamPartition
from penstock.spark.stream_connection import BYTES_A_READ

XRANGE_ROWS = 10_000


class MemorySource(PenstockDataSource):
    """Our reader without a server: the rows are prepared in Arrow, in batches as large as our windows."""

    @classmethod
    def name(cls) -> str:
        return "bench_memory"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _MemoryReader(self._options(), schema)


class _MemoryReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        places = self._options.endingOffsets
        assert isinstance(places, dict)
        ((stream, end),) = places.items()
        assert isinstance(end, int)
        return [StreamPartition(each) for each in cut([Range(stream, 1, end)], self._options.minPartitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        wanted = partition.range
        converter = Converter(self._schema, self._options)
        window = _window()
        for start in range(wanted.start, wanted.end, window.num_rows):
            batch = window.slice(0, min(window.num_rows, wanted.end - start))
            batch = batch.set_column(0, "offset", pc.add(batch.column("offset"), start))
            yield converter.convert(wanted.stream, batch)


@functools.cache
def _window() -> pa.RecordBatch:
    """As many rows as the server sends at a time, made once in each worker."""
    size = BYTES_A_READ // (len(entry(0)) + len(TAG) + 16)
    names = ["offset", "time", "tag", "entry"]
    entries = pa.array([entry(number) for number in range(NODE)] * (size // NODE), pa.binary())
    rows = len(entries)
    tags, times = pa.array([TAG] * rows, pa.binary()), pa.array([1_700_000_000_000] * rows, pa.int64())
    return pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int64()), times, tags, entries], names=names)


class RedisStreamSource(DataSource):
    """A usual reader of Redis Streams: XRANGE with redis-py in each task, then Arrow."""

    @classmethod
    def name(cls) -> str:
        return "bench_redis_streams"

    def schema(self) -> StructType:
        return default_schema(Options())

    def reader(self, schema: StructType) -> DataSourceReader:
        return _RedisStreamReader(int(self.options["port"]), int(self.options["rows"]), int(self.options["tasks"]))


class _RedisStreamReader(DataSourceReader):
    def __init__(self, port: int, rows: int, tasks: int) -> None:
        self._port, self._rows, self._tasks = port, rows, tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [StreamPartition(each) for each in cut([Range(KEY.decode(), 1, self._rows + 1)], self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        import datetime

        assert isinstance(partition, StreamPartition)
        at, end = partition.range.start, partition.range.end
        with redis.Redis(port=self._port) as client:
            while at < end:
                count = min(XRANGE_ROWS, end - at)
                found = client.xrange(KEY, redis_id(at), redis_id(end - 1), count=count)
                for identity, fields in found:
                    ((tag, value),) = fields.items()
                    moment = int(identity.partition(b"-")[0])
                    time = datetime.datetime.fromtimestamp(moment / 1000, datetime.UTC)
                    yield KEY.decode(), moment, time, tag, value
                at += len(found)
