"""Arrow that a client writes to a stream. What a reader gets is made in ipc.py.

Bytes from a client are checked once, completely. They leave this file as record batches of (tag, entry) or (time, tag,
entry) with 32-bit offsets and no nulls, and the rest of the package trusts them. Rejected: accepting columns of any
type and casting them when they are read, because one client's mistake would then fail another client's read.

pyarrow never gets Python objects, here or in the rest of the server, only buffers and its own objects: given a list or
a number (`pa.array`, `pa.scalar`, an option of a function) it imports pandas if that is installed, 42 MB and 0.2 s.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.types.packing import CHUNK
from penstock.types.stream.arrow_size import message_size

SCHEMA = pa.schema([("time", pa.int64()), ("tag", pa.binary()), ("entry", pa.binary())])
# Only for a node of more than 2 GiB, which 32-bit offsets cannot describe.
LARGE_SCHEMA = pa.schema([("time", pa.int64()), ("tag", pa.large_binary()), ("entry", pa.large_binary())])
_PLAIN = pa.schema([("tag", pa.binary()), ("entry", pa.binary())])  # what most clients write; SCHEMA comes next
READ_SCHEMA = pa.schema([("offset", pa.int64()), *SCHEMA])
LEASED_SCHEMA = pa.schema([*READ_SCHEMA, ("attempts", pa.int64())])
TIMED_SCHEMA = pa.schema([*READ_SCHEMA, ("visible_at", pa.int64())])

INVALID = (pa.ArrowException, OSError, ValueError, EOFError, OverflowError, MemoryError, struct.error)
"""The errors of bytes that are not an Arrow stream."""


def parse_arrow(data: bytes, limit: int | None = None) -> list[Any]:
    """The record batches of an IPC stream, normalised; ValueError says what is wrong with it.

    Columns `tag` and `entry` are binary or string (also large and view forms), a null tag is an empty one; an
    optional `time` is int64 or a timestamp, kept as milliseconds. More than `limit` bytes are refused before they
    are unpacked.
    """
    if data[:6] == b"ARROW1":
        raise InvalidArrow("it is an Arrow file, not an Arrow stream: write it with pyarrow.ipc.new_stream")
    try:
        source = pa.BufferReader(data)
        batches = [_normalised(batch, limit) for batch in _batches(source, limit) if batch.num_rows]
        rest = len(data) - source.tell()
        if rest:  # perhaps a second stream: the client must not believe that it was written
            raise InvalidArrow(f"{rest} bytes follow the end of the Arrow stream; a payload is one stream")
    except InvalidArrow:
        raise
    except INVALID as error:
        raise InvalidArrow(f"not an Arrow stream: {str(error).splitlines()[0] if str(error) else error!r}") from error
    if len(batches) > 1:
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batches


def rows_of(batches: list[Any]) -> Iterator[tuple[bytes, bytes]]:
    """The tag and the entry of each row."""
    for batch in batches:
        for at in range(0, batch.num_rows, CHUNK):  # one call that makes a list of all rows would block other threads
            some = batch.slice(at, CHUNK)
            yield from zip(some.column("tag").to_pylist(), some.column("entry").to_pylist(), strict=True)


def size_of_rows(batches: list[Any]) -> int:
    """About how many bytes the entries have."""
    return sum(batch.column("entry").nbytes for batch in batches)


def without_rows(batches: list[Any], places: Iterable[int]) -> list[Any]:
    """The batches without the rows at these positions, which are sorted and counted through all batches."""
    left: list[Any] = []
    cuts = iter([*places, -1])
    cut = next(cuts)
    start = 0
    for batch in batches:
        at, end = 0, start + batch.num_rows
        while start <= cut < end:
            left.append(batch.slice(at, cut - start - at))
            at, cut = cut - start + 1, next(cuts)
        left.append(batch.slice(at))
        start = end
    return [batch for batch in left if batch.num_rows]


class InvalidArrow(ValueError):
    """Bytes that are not an Arrow stream of messages."""


def _batches(source: Any, limit: int | None) -> Iterator[Any]:
    """The batches of a stream; none is unpacked before the total size is known.

    If no column needs a cast, one pass is enough. That is faster, because the code stays in the processor's cache.
    """
    messages = list(pa.ipc.MessageReader.open_stream(source))
    if not messages:
        raise InvalidArrow("not an Arrow stream: there is nothing in it")
    _check_kinds([message.type for message in messages])
    schema = pa.ipc.read_schema(messages.pop(0))
    _check_names(schema.names)
    if limit is not None:
        _check_size(sum(map(message_size, messages)), limit)
    if _needs_no_cast(schema):
        for message in messages:
            yield pa.ipc.read_record_batch(message, schema)
    else:
        source.seek(0)
        with pa.ipc.open_stream(source) as reader:
            yield from reader


def _check_kinds(kinds: list[str]) -> None:
    """Refuse an unknown kind of message: pyarrow does not check it, but reads it as a schema."""
    if kinds[0] != "schema":
        raise InvalidArrow(f"not an Arrow stream: it begins with a message of the kind '{kinds[0]}', not with a schema")
    for kind in kinds[1:]:
        if kind not in ("record batch", "dictionary"):
            raise InvalidArrow(f"not an Arrow stream: there is a message of the kind '{kind}' in it")


def _needs_no_cast(schema: Any) -> bool:
    return bool(schema.equals(_PLAIN) or schema.equals(SCHEMA))


def _check_names(names: list[str]) -> None:
    for name in names:
        if name not in SCHEMA.names:
            raise InvalidArrow(f"column '{name}' is not one of time, tag, entry")
        if names.count(name) > 1:
            raise InvalidArrow(f"column '{name}' is given twice")
    for name in ("tag", "entry"):
        if name not in names:
            raise InvalidArrow(f"column '{name}' is missing")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidArrow(f"it unpacks to {size} bytes, and proto-max-bulk-len allows {limit}")


def _normalised(batch: Any, limit: int | None) -> Any:
    _check_types(batch.schema)
    batch.validate(full=True)
    for name in ("tag", "entry"):
        _check_table(name, batch.column(name))
    if _needs_no_cast(batch.schema) and not any(column.null_count for column in batch.columns):
        return batch
    found = {name: _checked(name, batch.column(name)) for name in SCHEMA.names if name in batch.schema.names}
    if limit is not None:
        _check_size(sum(_viewed(column) for column in found.values() if column.type in _VIEWS), limit)
    columns = {name: _column(name, column) for name, column in found.items()}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _check_types(schema: Any) -> None:
    """Check the types before any column is read: pyarrow cannot even make an object of some types."""
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name == "time":
            if kind != pa.int64() and not pa.types.is_timestamp(kind):
                raise InvalidArrow(f"column 'time' is {kind}, not int64 or a timestamp")
        elif kind not in _BINARIES:
            raise InvalidArrow(f"column '{name}' is {kind}, not binary or string")


def _check_table(name: str, column: Any) -> None:
    """Refuse a table of offsets that ends in the middle of a number, which Arrow accepts."""
    table = column.buffers()[1]
    if table is not None and table.size % 4:
        raise InvalidArrow(f"column '{name}' has a table of {table.size} bytes, which is no number of whole numbers")


def _checked(name: str, column: Any) -> Any:
    """A column of which every row may be read, also the nulls, which Arrow does not check but a cast reads."""
    if column.null_count and name != "tag":
        raise InvalidArrow(f"column '{name}' has nulls")
    if not column.null_count or column.type not in _VIEWS:
        return column
    _, views, *data = column.buffers()
    emptied = bytearray(views)
    for row, is_null in enumerate(column.is_null().to_pylist(), column.offset):
        if is_null:
            emptied[_VIEW * row : _VIEW * (row + 1)] = bytes(_VIEW)
    return pa.Array.from_buffers(column.type, len(column), [None, pa.py_buffer(emptied), *data], 0, column.offset)


def _viewed(column: Any) -> int:
    """Bytes of a column whose rows are views: many views may share bytes, and each becomes a copy."""
    lengths = memoryview(column.buffers()[1]).cast("i")
    return sum(islice(lengths, 4 * column.offset, 4 * (column.offset + len(column)), 4))


def _column(name: str, column: Any) -> Any:
    kind = column.type
    if name == "time":
        if pa.types.is_timestamp(kind):
            # Finer units are cut to milliseconds; seconds must not overflow.
            column = _cast(name, column, pa.timestamp("ms", kind.tz), safe=kind.unit == "s").cast(pa.int64())
    else:
        column = _cast(name, column, pa.binary())
    if column.null_count:
        column = pc.fill_null(column, _EMPTY)
    return column


def _cast(name: str, column: Any, kind: Any, safe: bool = True) -> Any:
    try:
        return column.cast(kind, safe=safe)
    except pa.ArrowInvalid as error:  # a time out of range, or more than 2 GiB
        raise InvalidArrow(f"column '{name}': {error}") from error


_VIEW = 16  # bytes
_VIEWS = (pa.binary_view(), pa.string_view())
_BINARIES = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), *_VIEWS)


def int64s(values: array[int]) -> Any:
    """An Arrow column over the same memory; the array may not grow while the column lives."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def binaries(table: Any, data: Any, count: int, kind: Any) -> Any:
    """An Arrow column of so many values: bytes, and the table of where each begins."""
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(table), pa.py_buffer(data)], 0)


_COUNTING = int64s(array("q", range(1000)))
_EMPTY = binaries(bytes(8), b"", 1, pa.binary())[0]


def offsets_from(start: int, count: int) -> Any:
    """The column start, start + 1, ... of at most a node's length, without making Python integers."""
    return pc.add(_COUNTING.slice(0, count), int64s(array("q", (start,)))[0])
