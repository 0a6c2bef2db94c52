"""What a reader of a stream gets, as one string of RESP."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.protocol import stream_messages
from penstock.protocol.stream_messages import NULL2 as NULL
from penstock.types.stream import reading
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Range


def read(
    messages: Messages, offset: int, count: int, max_bytes: int | None = None, null: bytes = NULL
) -> tuple[bytes, int]:
    """The messages of offset, offset + 1, ..., and how many they are."""
    pieces, count = reading.read(messages, offset, count, stream_messages, null, max_bytes)
    return b"".join(pieces), count


def read_runs(messages: Messages, runs: Iterable[Range]) -> bytes:
    """Runs of messages that are there."""
    return b"".join(reading.read_runs(messages, runs, stream_messages))
