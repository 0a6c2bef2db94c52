"""The interface between a stream and the module that encodes its messages for readers.

A node keeps its encoded bytes, because readers that follow a stream read the same messages. This package does not know
what the bytes mean: the server supplies RESP (protocol/stream_messages.py).

Rejected: keeping the bytes outside of the nodes. They would have to be looked up for every read, and freed when a node
goes cold, is rewritten or evicted.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any, Protocol

Encoded = tuple[bytes, "array[int]"]  # messages, and where each begins (one more: the end)
Column = tuple[Any, Any]  # Arrow's two buffers of a binary column that is no slice: the table, and the data


class Encoding(Protocol):
    """Functions of a module or an object. They must always encode a message in the same way."""

    def encode_more(
        self, encoded: bytearray, begins: array[int], start: int, tags: list[bytes], entries: list[bytes], end: int, /
    ) -> None:
        """Add the messages that are not encoded yet, up to row `end`; row 0 has the offset `start`."""

    def encode_columns(
        self, start: int, offsets: array[int] | None, tags: Column, entries: Column, first: int, end: int, wide: bool, /
    ) -> Encoded:
        """The rows from `first` to before `end` of two columns; row n has offsets[n], or start + n if there are none.

        The columns' tables have 64 bits a place if `wide`, else 32.
        """

    def encode_leased(
        self,
        start: int,
        times: array[int],
        tags: list[bytes],
        entries: list[bytes],
        first: int,
        end: int,
        more: int,
        /,
    ) -> bytes:
        """The rows from `first` to before `end`, each with its time and one more number, which is the same for all; row
        0 has the offset `start`.
        """

    def encode_leased_columns(
        self,
        start: int,
        offsets: array[int] | None,
        times: Any,
        tags: Column,
        entries: Column,
        first: int,
        end: int,
        wide: bool,
        more: int,
        /,
    ) -> bytes:
        """The same of columns as encode_columns takes them; `times` is a buffer of 64 bits a number."""


def encoded_one_by_one(
    encoding: Encoding, offsets: list[int], tags: list[bytes], entries: list[bytes]
) -> tuple[bytes, list[int]]:
    """Messages, and where each begins, made one by one; for checks."""
    pieces = [bytearray() for _ in offsets]
    for piece, offset, tag, entry in zip(pieces, offsets, tags, entries, strict=True):
        encoding.encode_more(piece, array("Q", (0,)), offset, [tag], [entry], 1)
    return b"".join(pieces), [*accumulate(map(len, pieces), initial=0)]
