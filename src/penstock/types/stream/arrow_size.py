"""The size of an Arrow stream after unpacking, found without unpacking it.

A few kilobytes of compressed zeros unpack to gigabytes. Arrow writes the unpacked length before every compressed buffer
and allocates exactly that, so the sum of these lengths is what a payload will take. A buffer that holds something else
is refused by Arrow later. The positions of the buffers are in each message's metadata, a flatbuffer of which two tables
are needed here (format/Message.fbs: Message and RecordBatch).

Rejected: unpacking under a memory limit (pyarrow has no pool with one), and relying on the ratio of the codecs, which
has no useful bound for zstd.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

_U16, _U32, _I32, _I64 = (struct.Struct(code) for code in ("<H", "<I", "<i", "<q"))
_BUFFER = struct.Struct("<qq")  # position in the body, and length

# Field numbers in Message.fbs.
_HEADER = 2  # of Message
_DATA = 1  # of DictionaryBatch
_BUFFERS, _COMPRESSION = 2, 3  # of RecordBatch
_NOT_COMPRESSED = -1  # instead of a length: this buffer was not compressed


def unpacked_size(data: bytes) -> int:
    """Bytes of all buffers of an IPC stream. O(batches); pyarrow's errors, or struct.error, if it is not one."""
    return sum(map(message_size, pa.ipc.MessageReader.open_stream(data)))


def message_size(message: Any) -> int:
    """Bytes of the buffers of one message of such a stream."""
    if message.type not in ("record batch", "dictionary"):
        return 0
    metadata = memoryview(message.metadata)
    root = followed(metadata, 0)
    batch = followed(metadata, field_at(metadata, root, _HEADER))
    if message.type == "dictionary":
        batch = followed(metadata, field_at(metadata, batch, _DATA))
    buffers = _vector(metadata, field_at(metadata, batch, _BUFFERS))
    if not field_at(metadata, batch, _COMPRESSION):
        return sum(length for _, length in _BUFFER.iter_unpack(buffers))
    body = memoryview(message.body)
    return sum(_compressed_size(body, at, length) for at, length in _BUFFER.iter_unpack(buffers) if length)


def _compressed_size(body: memoryview, at: int, length: int) -> int:
    size: int = _I64.unpack_from(body, at)[0]
    if size < _NOT_COMPRESSED:
        raise ValueError(f"a compressed buffer of {size} bytes")  # would make the sum smaller
    return length if size == _NOT_COMPRESSED else size


# Flatbuffers: a table begins with the distance back to its list of fields; a field that is not inline is a distance
# ahead.


def followed(data: memoryview, at: int) -> int:
    return at + int(_U32.unpack_from(data, at)[0])


def field_at(data: memoryview, table: int, number: int) -> int:
    """The position of a table's field; 0 if it is left out."""
    fields = table - _I32.unpack_from(data, table)[0]
    slot = 4 + 2 * number
    if slot >= _U16.unpack_from(data, fields)[0]:
        return 0
    distance: int = _U16.unpack_from(data, fields + slot)[0]
    return table + distance if distance else 0


def _vector(data: memoryview, at: int) -> memoryview:
    """The bytes of a vector of buffers."""
    start = followed(data, at)
    count = _U32.unpack_from(data, start)[0]
    return data[start + 4 : start + 4 + count * _BUFFER.size]
