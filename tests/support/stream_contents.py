"""The messages of a stream for tests: some to begin with, as a table of Arrow, and what is left of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.types.stream import reading
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Storage
from penstock.types.stream.reading import each


def filled(count: int, storage: Storage | None = None) -> Messages:
    """So many messages of one tag."""
    messages = Messages(storage or Storage())
    messages.append_many(1000, [b"tag"] * count, [b"entry %d" % n for n in range(1, count + 1)])
    return messages


def offsets_of(messages: Messages, offset: int = 1, count: int = 10**6) -> list[int]:
    """The offsets of the messages that are there."""
    return [message.offset for message in each(messages, offset, count)]


def ipc(columns: dict[str, Any]) -> bytes:
    """Columns as an Arrow stream."""
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_arrow(messages: Messages, *args: Any) -> Any:
    """What a reader of Arrow gets, as a table."""
    size, pieces = reading.read_arrow(messages, *args)
    data = b"".join(pieces)
    assert len(data) == size
    return pa.ipc.open_stream(data).read_all()
