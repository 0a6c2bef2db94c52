"""Arrow streams from machines of the other byte order: read as what they mean, or refused."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from penstock.types.stream.arrow import InvalidArrow, parse_arrow
from penstock.types.stream.arrow_size import _BUFFERS, _HEADER, _vector, field_at, followed
from penstock.types.stream.messages import Messages
from penstock.types.stream.reading import each

COLUMNS = {
    "time": pa.array([1, 2, 1 << 40], pa.int64()),
    "tag": pa.array([b"one", b"two", b""], pa.binary()),
    "entry": pa.array([b"a", b"bb", b"ccc"], pa.binary()),
}
WIDTHS = {"time": (0, 8), "tag": (0, 4, 0), "entry": (0, 4, 0)}  # bytes of a number, buffer by buffer


def described(data: bytearray, at: int) -> tuple[memoryview, int, int]:
    """The description of the message at a place, where in it the header's table is, and where its body begins."""
    (size,) = struct.unpack_from("<i", data, at + 4)
    description = memoryview(data)[at + 8 : at + 8 + size]
    return description, followed(description, field_at(description, followed(description, 0), _HEADER)), at + 8 + size


def says_big_endian(names: list[str]) -> tuple[bytearray, int]:
    """A little-endian stream whose schema says that it is not, and where its only batch begins.

    Little is left out of a schema, so the field is made to point at a 1 that is there for another reason.
    """
    batch = pa.record_batch({name: COLUMNS[name] for name in names})
    batch = batch.replace_schema_metadata({b"ones": struct.pack("<4h", 1, 1, 1, 1)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = bytearray(sink.getvalue())
    description, schema, body = described(data, 0)
    one = next(at for at in range(schema, len(description), 2) if struct.unpack_from("<h", description, at)[0] == 1)
    (distance,) = struct.unpack_from("<i", description, schema)
    struct.pack_into("<H", description, schema - distance + 4, one - schema)
    return data, body


def big_endian(names: list[str]) -> bytes:
    """A stream as a big-endian machine writes it."""
    data, at = says_big_endian(names)
    description, batch, body = described(data, at)
    places: list[Any] = list(struct.iter_unpack("<qq", _vector(description, field_at(description, batch, _BUFFERS))))
    widths = [width for name in names for width in WIDTHS[name]]
    for (start, length), width in zip(places, widths, strict=True):
        for number in range(body + start, body + start + length, width or length or 1):
            if width:
                data[number : number + width] = data[number : number + width][::-1]
    return bytes(data)


@pytest.mark.parametrize("names", [["time", "tag", "entry"], ["tag", "entry"]])
def test_a_big_endian_stream_is_read_as_what_it_means(names: list[str]) -> None:
    assert big_endian(names) != bytes(says_big_endian(names)[0])
    messages = Messages()
    assert messages.append_arrow(7, parse_arrow(big_endian(names), 1 << 20)) == 1
    times = [1, 2, 1 << 40] if "time" in names else [7, 7, 7]
    rows = [(message.time, message.tag, message.entry) for message in each(messages, 1, 10)]
    assert rows == list(zip(times, [b"one", b"two", b""], [b"a", b"bb", b"ccc"], strict=True))
    messages.check()


def test_a_stream_that_lies_about_its_byte_order_is_refused() -> None:
    with pytest.raises(InvalidArrow):
        parse_arrow(bytes(says_big_endian(["tag", "entry"])[0]), 1 << 20)
