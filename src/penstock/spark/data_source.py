"""`format("penstock")`: the entry point that Spark calls to get readers and writers.

Spark starts half a dozen Python processes for a first query, and each imports this. The first one only checks that
the format exists. So each method imports what it needs: a client and pyarrow take half a second, and what only tables
of keys need (the cluster's client, pandas) a quarter more.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.spark import options as options_


class PenstockDataSource(DataSource):
    """Streams, in batches and as streams, and keys as tables, in both directions."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def _options(self) -> options_.Options:
        return options_.parse(dict(self.options))

    def schema(self) -> StructType:
        options = self._options()
        options_.need_source(options)
        if options.redisStream:
            from penstock.spark.redis_streams import entry_schema

            return entry_schema(options)
        if options.of_elements:
            from penstock.spark.collection_tables import element_schema

            return element_schema(options)
        if options.of_keys:
            from penstock.spark.keys import infer_schema

            return infer_schema(options)
        from penstock.spark.stream_schema import columns_of

        return columns_of(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options()
        if options.redisStream:
            from penstock.spark.redis_streams import RedisStreamBatchReader

            return RedisStreamBatchReader(options, schema)
        if options.of_keys:
            from penstock.spark.collection_tables import ElementReader
            from penstock.spark.keys import KeyReader

            options_.need_source(options)
            return ElementReader(options, schema) if options.of_elements else KeyReader(options, schema)
        from penstock.spark.source import FilteringReader, StreamBatchReader

        options = self._to_read(schema)
        return FilteringReader(options, schema) if options.pushFilters else StreamBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.source import StreamReader

        try:
            options = self._to_read(schema)
            if options.endingOffsets != "latest" or options.endingTimestamp is not None:
                raise options_.OptionError(
                    "endingOffsets and endingTimestamp are for batches (spark.read): a stream has no end"
                )
            if options.redisStream:
                from penstock.spark.redis_streams import RedisStreamReader

                return RedisStreamReader(options, schema)
        except options_.OptionError as mistake:
            return StreamReader(options_.Options(), schema, mistake)
        return StreamReader(options, schema)

    def _to_read(self, schema: StructType) -> options_.Options:
        options = self._options()
        options_.need_source(options)
        if options.of_keys:
            raise options_.OptionError(
                "keys have no order in time, so they are no streaming source; read them as a batch"
            )
        if not options.redisStream:
            from penstock.spark.rows import check_schema

            check_schema(schema, options)
        return options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = self._options()
        if options.mode == "increment":
            from penstock.spark.increments import IncrementWriter

            return IncrementWriter(options, schema, overwrite)
        if options.of_keys:
            from penstock.spark.keys import KeyWriter

            return KeyWriter(options, schema, overwrite)
        from penstock.spark.sink import StreamBatchWriter

        return StreamBatchWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = self._options()
        if options.mode == "increment":
            from penstock.spark.increments import IncrementStreamWriter

            return IncrementStreamWriter(options, schema, overwrite)
        if options.of_keys:
            from penstock.spark.keys import KeyStreamWriter

            return KeyStreamWriter(options, schema)
        from penstock.spark.sink import StreamWriter

        return StreamWriter(options, schema)
