"""`format("penstock")`: what Spark asks first, and who answers."""

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
from penstock.spark.rows import check_schema, default_schema
from penstock.spark.sink import StreamBatchWriter, StreamWriter
from penstock.spark.source import StreamBatchReader, StreamReader


class PenstockDataSource(DataSource):
    """Streams, in batches and as streams, in both directions."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def _options(self) -> options_.Options:
        return options_.parse(dict(self.options))

    def schema(self) -> StructType:
        return default_schema(self._options())

    def reader(self, schema: StructType) -> DataSourceReader:
        return StreamBatchReader(self._to_read(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self._to_read(schema), schema)

    def _to_read(self, schema: StructType) -> options_.Options:
        options = self._options()
        options_.need_streams(options)
        check_schema(schema)
        return options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return StreamBatchWriter(self._options(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self._options(), schema)
