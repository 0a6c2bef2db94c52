"""Files of messages that other programs read and write: Arrow IPC and Parquet.

The columns are offset, time, tag, entry, and visible_at: when groups get a message that was delayed, null if they do
already. A file that is read needs only tag and entry; offsets in it are passed over, because a stream gives its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_TIME = pa.timestamp("ms", "UTC")
_COLUMNS = pa.schema(
    [("offset", pa.int64()), ("time", _TIME), ("tag", pa.binary()), ("entry", pa.binary()), ("visible_at", _TIME)]
)
KINDS = (".arrow", ".parquet")
PORTION_ROWS = 50_000
PORTION_BYTES = 4 << 20
FORMAT = 1
"""Changes when files are cut into other portions, so that no import goes on where it was not."""


class UnusableFile(Exception):
    """A file that has no messages in a form that is known; the text says why."""


def kind_of(path: Path) -> str:
    """Its ending, which says how it is written."""
    if path.suffix not in KINDS:
        raise UnusableFile(f"{path} must end in {' or '.join(KINDS)}")
    return path.suffix


class Portion(NamedTuple):
    """Some messages of a file, and when groups get them, in milliseconds since 1970; None if at once."""

    batches: list[Any]
    visible_at: int | None = None

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @property
    def is_full(self) -> bool:
        return self.rows >= PORTION_ROWS or sum(batch.nbytes for batch in self.batches) >= PORTION_BYTES


class MessageWriter:
    """Writes tables of a stream to a file."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, table: Any) -> None:
        """A table as TREAD ... WITHTIME has it: times are numbers, and visible_at may be 0."""
        delayed = pc.greater(table.column("visible_at"), 0)
        times = {
            "time": table.column("time").cast(_TIME),
            "visible_at": pc.if_else(delayed, table.column("visible_at"), None).cast(_TIME),
        }
        for name, column in times.items():
            table = table.set_column(table.schema.get_field_index(name), name, column)
        self._writer.write_table(table.replace_schema_metadata(None).combine_chunks())


@contextmanager
def writing(file: BinaryIO, kind: str) -> Iterator[MessageWriter]:
    if kind == ".parquet":
        opened = pq.ParquetWriter(file, _COLUMNS, compression="zstd")
    else:
        opened = pa.ipc.new_file(file, _COLUMNS, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    with opened as writer:
        yield MessageWriter(writer)


def portions(file: BinaryIO, path: Path) -> Iterator[Portion]:
    """The messages of a file, as record batches of time, if there is one, tag and entry.

    A portion has a bounded size, and its messages have one delay. The same file is always cut into the same portions.
    """
    portion = Portion([])
    for piece, visible_at in _pieces(file, path):
        if portion.batches and portion.visible_at != visible_at:
            yield portion
            portion = Portion([])
        portion = Portion([*portion.batches, piece], visible_at)
        if portion.is_full:
            yield portion
            portion = Portion([])
    if portion.batches:
        yield portion


def _pieces(file: BinaryIO, path: Path) -> Iterator[tuple[Any, int | None]]:
    try:
        if kind_of(path) == ".parquet":
            reader = pq.ParquetFile(file)
            names = _wanted(reader.schema_arrow.names, path)
            batches = reader.iter_batches(batch_size=PORTION_ROWS, columns=names)
        else:
            reader = pa.ipc.open_file(file)
            names = _wanted(reader.schema.names, path)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        for batch in batches:
            for part, visible_at in _with_one_delay(batch.select(names)):
                yield from ((piece, visible_at) for piece in _cut(part))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        said = str(error).splitlines()[0] if str(error) else repr(error)
        raise UnusableFile(f"{path} cannot be read: {said}") from error


def _wanted(names: list[str], path: Path) -> list[str]:
    for name in names:
        if name not in _COLUMNS.names:
            raise UnusableFile(
                f"{path} has a column '{name}', which messages do not have; they have time, tag, entry and visible_at"
            )
        if names.count(name) > 1:
            raise UnusableFile(f"{path} has the column '{name}' twice")
    for name in ("tag", "entry"):
        if name not in names:
            raise UnusableFile(f"{path} has no column '{name}'")
    return [name for name in ("time", "tag", "entry", "visible_at") if name in names]


def _with_one_delay(batch: Any) -> Iterator[tuple[Any, int | None]]:
    """The parts of a batch whose messages have one delay, without the column that says so."""
    at = batch.schema.get_field_index("visible_at")
    if at < 0 or not batch.num_rows:
        yield batch, None
        return
    times, batch = batch.column(at), batch.select([name for name in batch.schema.names if name != "visible_at"])
    if pa.types.is_timestamp(times.type):
        times = times.cast(_TIME)
    ends = pc.run_end_encode(times.cast(pa.int64()), run_end_type=pa.int64())
    start = 0
    for end, time in zip(ends.run_ends.to_pylist(), ends.values.to_pylist(), strict=True):
        yield batch.slice(start, end - start), time or None
        start = end


def _cut(batch: Any) -> Iterator[Any]:
    """A batch, or halves of it until each fits a portion or is one message."""
    if batch.num_rows > 1 and (batch.num_rows > PORTION_ROWS or batch.nbytes > PORTION_BYTES):
        half = batch.num_rows // 2
        yield from _cut(batch.slice(0, half))
        yield from _cut(batch.slice(half))
    elif batch.num_rows:
        yield batch


def payload_of(portion: Portion) -> Any:
    """A portion as TWRITE takes it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, portion.batches[0].schema) as writer:
        for batch in portion.batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()
