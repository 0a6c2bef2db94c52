"""What rows become when they are written as keys: the commands, without a server and without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from penstock.protocol.slots import key_slot
from penstock.spark.keys import KeyWriter
from penstock.spark.options import Options

BATCH = pa.record_batch(
    {
        "key": ["-", "u:1", "u:2", "u:3", "u:1"],
        "n": pa.array([0, 1, None, None, 3], pa.int64()),
        "x": pa.array([0.0, 0.5, 2.0, None, None]),
        "raw": pa.array([b"", b"\xff", None, None, b"z"], pa.binary()),
        "yes": [False, True, None, None, False],
    }
).slice(1)  # Spark's own batches are no slices, but ours are, after the first 5000 rows


def commands(batch: pa.RecordBatch, overwrite: bool = False, **options: Any) -> list[tuple[bytes, ...]]:
    schema = StructType()
    for name in batch.schema.names:
        schema.add(name, "string")
    made = KeyWriter(Options(**options), schema, overwrite)._commands(batch)
    assert list(made.slots) == [key_slot(words[1]) for words in made]
    return [tuple(words) for words in made]


def test_a_row_sets_the_fields_it_has() -> None:
    assert commands(BATCH, type="hash") == [
        (b"HSET", b"u:1", b"n", b"1", b"x", b"0.5", b"raw", b"\xff", b"yes", b"true"),
        (b"HSET", b"u:2", b"x", b"2"),
        (b"HSET", b"u:1", b"n", b"3", b"raw", b"z", b"yes", b"false"),
    ]


def test_bytes_are_written_as_they_are_however_arrow_has_them() -> None:
    some = pa.record_batch({"key": pa.array(["k"], pa.large_string()), "raw": pa.array([b"\xff"], pa.large_binary())})
    assert commands(some, type="hash") == [(b"HSET", b"k", b"raw", b"\xff")]


def test_the_steps_of_a_row_stay_together() -> None:
    some = BATCH.select(["key", "n"])
    assert commands(some, overwrite=True, type="hash", ttl=5) == [
        (b"DEL", b"u:1"), (b"HSET", b"u:1", b"n", b"1"), (b"PEXPIRE", b"u:1", b"5"),
        (b"DEL", b"u:2"), (b"DEL", b"u:3"),
        (b"DEL", b"u:1"), (b"HSET", b"u:1", b"n", b"3"), (b"PEXPIRE", b"u:1", b"5"),
    ]  # fmt: skip


def test_a_string_without_a_value_is_deleted() -> None:
    some = BATCH.select(["key", "n"]).rename_columns(["key", "value"])
    assert commands(some, type="string", ttl=7) == [
        (b"SET", b"u:1", b"1", b"PX", b"7"), (b"DEL", b"u:2"), (b"DEL", b"u:3"), (b"SET", b"u:1", b"3", b"PX", b"7"),
    ]  # fmt: skip


def test_a_row_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a row has no key \(null in the column 'key'\)"):
        commands(pa.record_batch({"key": ["a", None], "n": [1, 2]}), type="hash")
