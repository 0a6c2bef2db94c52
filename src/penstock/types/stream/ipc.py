"""The reply to a reader that asked for Arrow: an IPC stream, as pieces that need not be joined.

A node's payload is an IPC message of (time, tag, entry). Sending it takes another description of the same buffers, with
an offset column in front. pyarrow would make about twenty objects and two copies for that, and would decompress five
small buffers in other threads, which takes longer than decompressing them here. So the few parts of the format that
this needs are read and written here: the positions of a message's buffers, and a description with other numbers in it.
After the description and the offsets comes the payload's own body, as one piece.

A compressed node is sent compressed to a reader that asked for it, and decompressed to others when its turn comes. It
is not sent compressed to all, because pyarrow's reader then uses threads by default; docs/design/0011-large-replies.md
has the figures.

Invariant: `load_node` has had pyarrow check a payload and compared the result with `Layout`; all other payloads were
written here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, Self

import pyarrow as pa

from penstock.types.stream.arrow import LARGE_SCHEMA, LEASED_SCHEMA, READ_SCHEMA, SCHEMA, binaries, int64s

Piece = bytes | memoryview  # part of a reply; a view is of bytes that never change

_STREAM_HEAD = READ_SCHEMA.serialize().to_pybytes()
_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_PREFIX = 8  # a message begins with a marker and the size of its description, a compressed buffer with its real size
_AS_IT_IS = -1  # instead of a real size: compression would not have made the buffer smaller
_CODECS = ("lz4", "zstd")  # as the format numbers them
_USED = (1, 3, 4, 6, 7)  # buffers of time; table and data of tag and of entry. The others, of nulls, are empty.
_PADDING = [bytes(count) for count in range(8)]
_NOT_SMALLER = struct.pack("<q", _AS_IT_IS)

_unpack_numbers = struct.Struct("<16q").unpack_from
_unpack_number = struct.Struct("<q").unpack_from


class ArrowPart(NamedTuple):
    """A part of an Arrow stream: its size, and its pieces, which may be made only when they are asked for."""

    size: int
    pieces: Iterable[Piece]


def stream_of(
    messages: Iterable[ArrowPart],
    bounds: tuple[int, int] | None = None,
    fields: str | None = None,
    schema: Any = READ_SCHEMA,
    token: int | None = None,
) -> ArrowPart:
    """A whole stream: its schema, some messages, its end.

    The schema's metadata has the bounds, the fields of the entries and the token of the delivery, if given.
    """
    if schema is READ_SCHEMA and bounds is None:
        head = _STREAM_HEAD
    elif schema is READ_SCHEMA and bounds is not None and fields is None:
        head = _head_with(*bounds)
    else:
        metadata = {} if token is None else {b"token": b"%d" % token}
        if bounds is not None:
            metadata[b"first"], metadata[b"last"] = (b"%0*d" % (_DIGITS, bound) for bound in bounds)
        if fields is not None:
            metadata[b"schema"] = fields.encode()
        head = schema.with_metadata(metadata).serialize().to_pybytes()
    sizes, pieces = zip(*messages, (len(_STREAM_END), [_STREAM_END]), strict=True)
    return ArrowPart(len(head) + sum(sizes), chain([head], *pieces))


_DIGITS = 19  # the most digits of an offset
_HEAD_WITH_BOUNDS = (
    READ_SCHEMA.with_metadata({b"first": b"1" * _DIGITS, b"last": b"2" * _DIGITS}).serialize().to_pybytes()
)
_PLACES = [_HEAD_WITH_BOUNDS.index(digit * _DIGITS) for digit in (b"1", b"2")]


def _head_with(*bounds: int) -> bytes:
    head = bytearray(_HEAD_WITH_BOUNDS)
    for place, bound in zip(_PLACES, bounds, strict=True):
        head[place : place + _DIGITS] = b"%0*d" % (_DIGITS, bound)
    return bytes(head)


class Layout(NamedTuple):
    """The positions of the five buffers of a payload: time, table and data of tag, table and data of entry."""

    rows: int
    codec: Any | None  # None: not compressed
    places: list[tuple[int, int]]  # (offset in the payload, length)

    @classmethod
    def of(cls, payload: bytes) -> Self:
        fields = _Fields(payload)
        numbers = _unpack_numbers(payload, fields.buffers)
        places = [(fields.body + numbers[2 * at], numbers[2 * at + 1]) for at in _USED]
        rows = _unpack_number(payload, fields.length)[0] if fields.length else 0
        return cls(rows, _codec(_CODECS[fields.codec]) if fields.codec is not None else None, places)

    def sizes(self, payload: bytes) -> list[int]:
        """Bytes of each buffer, uncompressed."""
        if self.codec is None:
            return [size for _, size in self.places]
        return [_real_size(payload, at, size) for at, size in self.places]

    def buffers(self, payload: bytes) -> Iterator[Piece]:
        """The buffers of a compressed payload, decompressed one after the other in this thread."""
        assert self.codec is not None
        view = memoryview(payload)
        for at, size in self.places:
            if not size:
                yield b""
            elif (real := _unpack_number(payload, at)[0]) == _AS_IT_IS:
                yield view[at + _PREFIX : at + size]
            else:
                yield self.codec.decompress(view[at + _PREFIX : at + size], real, asbytes=True)


def messages(stream: memoryview) -> Iterator[memoryview]:
    """The messages of a stream that follow its schema."""
    at, end = 0, len(stream) - len(_STREAM_END)
    while at < end:
        body_size = _fields(stream, _followed(stream, at + _PREFIX))[3]
        start, at = at, at + _PREFIX + _int32(stream, at + 4)[0] + _unpack_number(stream, body_size)[0]
        yield stream[start:at]


def _real_size(payload: bytes, at: int, size: int) -> int:
    """Bytes of a compressed buffer, uncompressed."""
    if not size:
        return 0
    real: int = _unpack_number(payload, at)[0]
    return size - _PREFIX if real == _AS_IT_IS else real


def decoded(payload: bytes, schema: Any) -> Any:
    """The record batch of a payload."""
    layout = Layout.of(payload)
    if layout.codec is None:
        return pa.ipc.read_record_batch(payload, schema)
    time, tag_table, tags, entry_table, entries = map(pa.py_buffer, layout.buffers(payload))
    columns = zip(schema.types, ([time], [tag_table, tags], [entry_table, entries]), strict=True)
    arrays = [pa.Array.from_buffers(kind, layout.rows, [None, *buffers], 0) for kind, buffers in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@cache
def _codec(name: str) -> Any:
    return pa.Codec(name)


def rows_part(offsets: Any, batch: Any, more: int | None = None) -> ArrowPart:
    """The message of any rows of a node, with the column of their offsets; several messages for a large node.

    With `more` there is one more column, which has this number in every row.
    """
    if batch.schema == LARGE_SCHEMA:
        # Rows of a large node are megabytes each; one row for each batch fits 32-bit offsets again.
        rows = [
            (
                offsets.slice(row, 1),
                [column.cast(field.type) for column, field in zip(batch.slice(row, 1), SCHEMA, strict=True)],
            )
            for row in range(batch.num_rows)
        ]
    else:
        rows = [(offsets, batch.columns)] if batch.num_rows else []
    if more is not None:
        rows = [(at, [*columns, int64s(array("q", (more,)) * len(at))]) for at, columns in rows]
    schema = READ_SCHEMA if more is None else LEASED_SCHEMA  # the message does not say what its columns are called
    pieces = [
        memoryview(pa.RecordBatch.from_arrays([places, *columns], schema=schema).serialize())
        for places, columns in rows
    ]
    return ArrowPart(sum(map(len, pieces)), pieces)


def node_part(payload: bytes, offsets: Callable[[], Piece], compressed: bool) -> ArrowPart:
    """The message of a whole node: the column of its offsets, then the payload's columns,
    compressed only if allowed.
    """
    fields = _Fields(payload)
    if fields.codec is None or compressed:
        return _stored_part(payload, fields, offsets)
    layout = Layout.of(payload)
    sizes = layout.sizes(payload)
    body = 8 * layout.rows + sum(sizes) + sum([-size % 8 for size in sizes])
    return ArrowPart(len(_TEMPLATES[None].description) + body, _node_pieces(payload, offsets, layout, sizes, body))


def _stored_part(payload: bytes, fields: _Fields, offsets: Callable[[], Piece]) -> ArrowPart:
    """The payload's body unchanged, behind the offsets, which are not compressed."""
    rows: int = _unpack_number(payload, fields.length)[0] if fields.length else 0
    size = 8 * rows + (len(_NOT_SMALLER) if fields.codec is not None else 0)
    body = len(payload) - fields.body
    numbers = list(_unpack_numbers(payload, fields.buffers))
    numbers[::2] = [place + size for place in numbers[::2]]
    head = _TEMPLATES[fields.codec].filled(rows, size + body, (0, 0, 0, size, *numbers))
    if fields.codec is not None:
        head += _NOT_SMALLER
    return ArrowPart(len(head) + 8 * rows + body, _stored_pieces(head, offsets, memoryview(payload)[fields.body :]))


def _stored_pieces(head: bytes, offsets: Callable[[], Piece], body: memoryview) -> Iterator[Piece]:
    yield head
    yield offsets()
    yield body


def _node_pieces(
    payload: bytes, offsets: Callable[[], Piece], layout: Layout, sizes: list[int], body: int
) -> Iterator[Piece]:
    yield _described(layout.rows, sizes, body)
    yield offsets()
    for buffer in layout.buffers(payload):
        yield buffer
        yield _PADDING[-len(buffer) % 8]


class _Fields:
    """The positions of the numbers in a record batch message, a FlatBuffer: tables that point at their fields."""

    __slots__ = ("body", "body_size", "buffers", "codec", "length", "nodes")

    def __init__(self, message: Piece) -> None:
        self.body: int = _PREFIX + _int32(message, 4)[0]
        _, _, header, self.body_size = _fields(message, _followed(message, _PREFIX))
        self.length, nodes, buffers, compression = _fields(message, _followed(message, header))
        self.nodes = _followed(message, nodes) + 4  # behind the count
        self.buffers = _followed(message, buffers) + 4
        self.codec: int | None = None
        if compression:
            codec = _fields(message, _followed(message, compression))[0]
            self.codec = message[codec] if codec else 0  # a field with its default value is left out


def _fields(message: Piece, table: int) -> list[int]:
    """The positions of the first four fields of a table; 0 for one that is left out."""
    directory = table - _int32(message, table)[0]
    size, _, *offsets = _directory(message, directory)
    return [table + offset if offset and 4 + 2 * number < size else 0 for number, offset in enumerate(offsets)]


def _followed(message: Piece, at: int) -> int:
    return at + int(_int32(message, at)[0])


_int32 = struct.Struct("<i").unpack_from
_directory = struct.Struct("<6H").unpack_from  # its size, the table's size, and where fields are in the table

_pack_number = struct.Struct("<q").pack_into
_pack_rows = struct.Struct("<8q").pack_into
_pack_buffers = struct.Struct("<20q").pack_into


class _Template:
    """The description of a message of four columns, as pyarrow writes it, to be filled with other numbers."""

    def __init__(self, codec: str | None) -> None:
        number, text = int64s(array("q", (1,))), binaries(array("i", (0, 3)), b"tag", 1, pa.binary())
        sample = pa.RecordBatch.from_arrays([number, number, text, text], schema=READ_SCHEMA)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, READ_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
        ) as writer:
            writer.write_batch(sample)
        message = sink.getvalue().to_pybytes()[len(_STREAM_HEAD) :]
        self._at = _Fields(message)
        self.description = message[: self._at.body]

    def filled(self, rows: int, body: int, buffers: Iterable[int]) -> bytes:
        """Fill in the rows, the size of the body, and the position and length of its ten buffers."""
        message, at = bytearray(self.description), self._at
        _pack_number(message, at.length, rows)
        _pack_number(message, at.body_size, body)
        _pack_rows(message, at.nodes, rows, 0, rows, 0, rows, 0, rows, 0)
        _pack_buffers(message, at.buffers, *buffers)
        return bytes(message)


_TEMPLATES: dict[int | None, _Template] = {number: _Template(name) for number, name in enumerate(_CODECS)}
_TEMPLATES[None] = _Template(None)  # not compressed


def _described(rows: int, sizes: Iterable[int], body: int) -> bytes:
    """The description in front of a message's body: the offset column, then columns with buffers of these sizes."""
    places = []
    end = 8 * rows
    for size in sizes:
        places.append((end, size))
        end += size + -size % 8
    time, tag_table, tags, entry_table, entries = places
    buffers = (0, 0, 0, 8 * rows, 0, 0, *time, 0, 0, *tag_table, *tags, 0, 0, *entry_table, *entries)
    return _TEMPLATES[None].filled(rows, body, buffers)
