"""Files of messages that other programs read and write: Arrow IPC and Parquet.

The columns are offset, time, tag and entry. A file that is read needs only tag and entry; offsets in it are passed
over, because a stream gives its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

_COLUMNS = pa.schema(
    [("offset", pa.int64()), ("time", pa.timestamp("ms", "UTC")), ("tag", pa.binary()), ("entry", pa.binary())]
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


class MessageWriter:
    """Writes tables of a stream to a file."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, table: Any) -> None:
        """A table as TREAD has it: its time is a number."""
        times = table.column("time").cast(_COLUMNS.field("time").type)
        table = table.set_column(table.schema.get_field_index("time"), "time", times)
        self._writer.write_table(table.replace_schema_metadata(None).combine_chunks())


@contextmanager
def writing(file: BinaryIO, kind: str) -> Iterator[MessageWriter]:
    if kind == ".parquet":
        opened = pq.ParquetWriter(file, _COLUMNS, compression="zstd")
    else:
        opened = pa.ipc.new_file(file, _COLUMNS, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    with opened as writer:
        yield MessageWriter(writer)


def portions(file: BinaryIO, path: Path) -> Iterator[list[Any]]:
    """The messages of a file, as record batches of time, if there is one, tag and entry.

    A portion has a bounded size. The same file is always cut into the same portions.
    """
    portion: list[Any] = []
    for piece in _pieces(file, path):
        portion.append(piece)
        if sum(part.num_rows for part in portion) >= PORTION_ROWS or sum(part.nbytes for part in portion) >= (
            PORTION_BYTES
        ):
            yield portion
            portion = []
    if portion:
        yield portion


def _pieces(file: BinaryIO, path: Path) -> Iterator[Any]:
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
            yield from _cut(batch.select(names))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        said = str(error).splitlines()[0] if str(error) else repr(error)
        raise UnusableFile(f"{path} cannot be read: {said}") from error


def _wanted(names: list[str], path: Path) -> list[str]:
    for name in names:
        if name not in _COLUMNS.names:
            raise UnusableFile(
                f"{path} has a column '{name}', which messages do not have; they have time, tag and entry"
            )
        if names.count(name) > 1:
            raise UnusableFile(f"{path} has the column '{name}' twice")
    for name in ("tag", "entry"):
        if name not in names:
            raise UnusableFile(f"{path} has no column '{name}'")
    return [name for name in ("time", "tag", "entry") if name in names]


def _cut(batch: Any) -> Iterator[Any]:
    """A batch, or halves of it until each fits a portion or is one message."""
    if batch.num_rows > 1 and (batch.num_rows > PORTION_ROWS or batch.nbytes > PORTION_BYTES):
        half = batch.num_rows // 2
        yield from _cut(batch.slice(0, half))
        yield from _cut(batch.slice(half))
    elif batch.num_rows:
        yield batch


def payload_of(portion: list[Any]) -> Any:
    """A portion as TWRITE takes it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, portion[0].schema) as writer:
        for batch in portion:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()
