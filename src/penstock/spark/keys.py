"""Keys as tables: hashes (a column a field) and strings, read and written by the slots of their keys.

A key's slot says which node of a cluster has it. With one node, slots are just a way to divide the keys. A reading task
scans the keys of one node and takes those of its slots. A writing task sends its rows in batches that the client packs
for each node. So if a frame was partitioned by slot first (`by_slot`), each task talks to one node.

The rows of a writing task never become Python objects: commands are made of Arrow's columns (protocol/columns.py).

Rejected: having the driver list all keys. It would be the one task that does not get shorter with more executors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, MapType, StringType, StructType, VariantType

from penstock.client.engine.encoding import Encoded
from penstock.protocol.columns import Column, column_slots, pack_rows
from penstock.protocol.slots import SLOTS, key_slot
from penstock.spark.column_types import is_simple
from penstock.spark.executor_setup import freeze_imports
from penstock.spark.key_servers import KeyServers
from penstock.spark.options import OptionError, Options
from penstock.spark.rows import BadEntry

KEYS_A_READ = 1000
ROWS_A_WRITE = 5000
SAMPLE = 100


# -- reading --------------------------------------------------------------------------------------------------


@dataclass
class SlotPartition(InputPartition):
    """The keys of some slots."""

    first: int
    end: int

    def __init__(self, first: int, end: int) -> None:
        super().__init__((first, end))
        self.first, self.end = first, end


def infer_schema(options: Options) -> StructType:
    """The columns of keys without a schema: a string's value, or the fields that some of the hashes have."""
    schema = StructType().add(options.keyColumn, StringType(), nullable=options.badEntries == "null")
    if options.type == "string":
        return schema.add(options.valueColumn, StringType() if options.text else BinaryType())
    with KeyServers(options) as servers:
        keys = list(itertools.islice(_keys(servers, SlotPartition(0, SLOTS)), SAMPLE))
        replies = servers.run([("HKEYS", key) for key in keys])
    fields = sorted({name.decode() for reply in replies for name in reply})
    if not fields:
        raise OptionError(
            f"no hashes match {options.keys or options.keySet!r}, so their fields are unknown: give a schema"
        )
    if options.keyColumn in fields:
        raise OptionError(
            f"some hashes have a field {options.keyColumn!r}, which is also the name of the key's column: name that "
            "with .option('keyColumn', ...)"
        )
    for name in fields:
        schema.add(name, StringType())
    return schema


def _keys(servers: KeyServers, part: SlotPartition) -> Iterator[bytes]:
    """The keys of a partition, each once: SCAN may return a key several times."""
    seen: set[bytes] = set()
    for key in servers.scan(part.first, part.end):
        if part.first <= key_slot(key) < part.end and key not in seen:
            seen.add(key)
            yield key


class KeyReader(DataSourceReader):
    """`spark.read.format("penstock").option("keys", "user:*")`."""

    keys_a_read = KEYS_A_READ

    def __init__(self, options: Options, schema: StructType) -> None:
        _check_readable(options, schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with KeyServers(self._options) as servers:
            runs = servers.runs()
        pieces = -(-self._options.minPartitions // len(runs))
        return [
            SlotPartition(first + (end - first) * at // pieces, first + (end - first) * (at + 1) // pieces)
            for first, end in runs
            for at in range(pieces)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlotPartition)
        freeze_imports()
        options, arrow = self._options, to_arrow_schema(self._schema, timezone="UTC")
        fields = [name for name in arrow.names if name != options.keyColumn]
        with KeyServers(options) as servers:
            keys = _keys(servers, partition)
            while chunk := list(itertools.islice(keys, self.keys_a_read)):
                if rows := self.rows(servers, chunk, fields):
                    yield self._batch(arrow, fields, rows)

    def rows(self, servers: KeyServers, keys: Sequence[bytes], fields: Sequence[str]) -> list[tuple[Any, ...]]:
        """The rows of some keys: the key, and its fields."""
        if not fields:
            found: list[Any] = [()] * len(keys)
        elif self._options.type == "string":
            found = [(value,) for value in servers.run([("GET", key) for key in keys])]
        else:
            found = servers.run([("HMGET", key, *fields) for key in keys])
        return [(key, *row) for key, row in _that_exist(servers, list(zip(keys, found, strict=True)))]

    def _batch(self, arrow: pa.Schema, fields: list[str], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        keys, *values = zip(*rows, strict=True)
        found = dict(zip(fields, values, strict=True)) | {self._options.keyColumn: keys}
        return pa.RecordBatch.from_arrays(
            [self._column(field, found[field.name], keys) for field in arrow], schema=arrow
        )

    def _column(self, field: pa.Field, values: Sequence[bytes | None], keys: Sequence[bytes]) -> pa.Array:
        """One field of all rows as its type; text of a number becomes a number."""
        raw = pa.array(values, pa.binary())
        if pa.types.is_binary(field.type):
            return raw
        try:
            return cast_text(raw, field.type)
        except pa.ArrowInvalid:
            return pa.array(
                [self._value(field, value, key) for value, key in zip(values, keys, strict=True)], field.type
            )

    def _value(self, field: pa.Field, value: bytes | None, key: bytes) -> Any:
        try:
            return cast_text(pa.array([value], pa.binary()), field.type)[0].as_py()
        except pa.ArrowInvalid as error:
            if self._options.badEntries == "fail":
                raise BadEntry(
                    f"key {key.decode(errors='replace')}, {field.name}: {error}. Option badEntries=null gives null "
                    "instead"
                ) from None
            return None


def _that_exist(servers: KeyServers, rows: list[tuple[bytes, Any]]) -> list[tuple[bytes, Any]]:
    """The rows of keys that exist: not of keys that were deleted since the scan, or that do not exist.

    A hash that has none of the fields exists.
    """
    empty = [key for key, row in rows if all(value is None for value in row)]
    if not empty:
        return rows
    there_are = servers.run([("EXISTS", key) for key in empty])
    gone = {key for key, exists in zip(empty, there_are, strict=True) if not exists}
    return [(key, row) for key, row in rows if key not in gone]


def _check_readable(options: Options, schema: StructType) -> None:
    for column in schema:
        is_key, is_bytes = column.name == options.keyColumn, isinstance(column.dataType, BinaryType)
        if is_key and not isinstance(column.dataType, (StringType, BinaryType)):
            raise OptionError(f"column {column.name} is the key, which is a string or binary")
        if not is_simple(column.dataType):
            raise OptionError(
                f"column {column.name} is {column.dataType.simpleString()} in the schema; read it as a string, and "
                "convert that"
            )
        if not column.nullable and not (is_key and (is_bytes or options.badEntries == "fail")):
            raise OptionError(f"column {column.name} is NOT NULL in the schema, and may be null; leave NOT NULL out")
    if options.type == "string" and len([name for name in schema.names if name != options.keyColumn]) > 1:
        raise OptionError(
            f"a string is one value, and the schema has {', '.join(schema.names)}: leave the key "
            f"({options.keyColumn}) and one more"
        )


def cast_text(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bytes of text as values of a type; ArrowInvalid if one cannot be converted."""
    text = raw.cast(pa.string())
    return text if kind == pa.string() else text.cast(kind)


# -- writing --------------------------------------------------------------------------------------------------


@dataclass
class Written(WriterCommitMessage):
    rows: int


class _KeyWriting:
    """Rows as hashes or strings. `append` sets fields, `overwrite` replaces each key that a row has as a whole.

    A task that runs again writes the same values to the same keys, which changes nothing.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool = False) -> None:
        _check_writable(options, schema)
        self._options = options
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        freeze_imports()
        written = 0
        with KeyServers(self._options) as servers:
            for batch in iterator:
                for start in range(0, batch.num_rows, ROWS_A_WRITE):
                    part = batch.slice(start, ROWS_A_WRITE)
                    servers.run(self._commands(part))
                    written += part.num_rows
        return Written(written)

    def _commands(self, batch: pa.RecordBatch) -> Encoded:
        """The commands of some rows, in their order: one a row, or several for whole hashes that replace others or
        expire.
        """
        options = self._options
        if batch.column(options.keyColumn).null_count:
            raise ValueError(f"a row has no key (null in the column {options.keyColumn!r})")
        keys = column_of(batch.column(options.keyColumn))
        slots = column_slots(keys)
        names = [name for name in batch.schema.names if name != options.keyColumn]
        if options.type == "string":
            values = batch.column(options.valueColumn)
            expiry = (b"PX", b"%d" % options.ttl) if options.ttl else ()
            written = pack_rows(b"SET", keys, [(None, column_of(values))], expiry)
            deleted = pack_rows(b"DEL", keys) if values.null_count else written
            return Encoded([one or other for one, other in zip(written, deleted, strict=True)], slots)  # type: ignore[misc]
        steps = [pack_rows(b"HSET", keys, [(name.encode(), column_of(batch.column(name))) for name in names])]
        if self._overwrite:
            steps.insert(0, pack_rows(b"DEL", keys))
        if options.ttl:
            expiring = pack_rows(b"PEXPIRE", keys, tail=[b"%d" % options.ttl])
            steps.append([after and before and after for before, after in zip(steps[-1], expiring, strict=True)])
        return _interleaved(steps, slots)


def _interleaved(steps: list[list[bytes | None]], slots: Sequence[int]) -> Encoded:
    """All steps of a row, then those of the next; without those that a row does not need."""
    if len(steps) == 1 and None not in steps[0]:
        return Encoded(steps[0], slots)  # type: ignore[arg-type]
    wire = [
        (command, slot) for slot, row in zip(slots, zip(*steps, strict=True), strict=True) for command in row if command
    ]
    return Encoded([command for command, _ in wire], [slot for _, slot in wire])


class KeyWriter(_KeyWriting, DataSourceArrowWriter):
    """`df.write.format("penstock").option("type", "hash")`."""


class KeyStreamWriter(_KeyWriting, DataSourceStreamArrowWriter):
    """`df.writeStream.format("penstock").option("type", "hash")`."""


def check_keys(options: Options, schema: StructType) -> None:
    """OptionError unless the rows have a key and what is written to it."""
    names = schema.names
    if options.type not in ("hash", "string"):
        raise OptionError(f"type={options.type} can be read, not written; write hashes or strings")
    if options.keyColumn not in names:
        raise OptionError(
            f"column {options.keyColumn!r} (option keyColumn) is the key, and there are {', '.join(names)}"
        )
    if options.type == "string" and set(names) != {options.keyColumn, options.valueColumn}:
        raise OptionError(
            f"strings need the columns {options.keyColumn} and {options.valueColumn}, and there are {', '.join(names)}"
        )
    if len(names) < 2:
        raise OptionError("a hash needs a field: there is no column but the key")


def _check_writable(options: Options, schema: StructType) -> None:
    check_keys(options, schema)
    for column in schema:
        if isinstance(column.dataType, (ArrayType, MapType, StructType, VariantType)):
            raise OptionError(
                f"column {column.name} is {column.dataType.simpleString()}; write it as text, with to_json for example"
            )


def column_of(values: pa.Array) -> Column:
    """Values as the bytes that Redis stores, in Arrow's memory."""
    values = as_binary(values)
    _, table, data = values.buffers()
    rows = slice(values.offset, values.offset + len(values) + 1)
    present = memoryview(values.is_valid().cast(pa.uint8()).buffers()[1]).cast("B") if values.null_count else None
    return Column(
        memoryview(table).cast("i")[rows], memoryview(data).cast("B") if data is not None else memoryview(b""), present
    )


def as_binary(values: pa.Array) -> pa.Array:
    """Values as bytes, or as the bytes of their text."""
    if pa.types.is_binary(values.type):
        return values
    return (values if pa.types.is_large_binary(values.type) else values.cast(pa.string())).cast(pa.binary())


# -- partitioning ---------------------------------------------------------------------------------------------


def by_slot(frame: DataFrame, partitions: int, key: str = "key") -> DataFrame:
    """The same rows, partitioned by the slots of their keys: each task then writes to one node, or to few.

    by_slot(users, 12).write.format("penstock").option("url", ...).mode("append").save()
    """

    def partitions_of(keys: pa.Array) -> pa.Array:
        slots = pa.array(column_slots(column_of(keys)), pa.int32())
        return pc.divide(pc.multiply(slots, partitions), SLOTS).cast(pa.int32())

    partition_of: Any = arrow_udf(partitions_of, IntegerType())  # type: ignore[call-overload]
    return frame.repartitionById(partitions, partition_of(f.col(key)))
