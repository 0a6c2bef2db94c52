"""Dead letters: entries that do not fit a query's schema, written to a stream of their own, each once.

A task that fails runs again, and so does a batch whose driver died; both find the same bad entries. So letters are
written with TWRITE ... PRODUCER. The producer stands for one node of a stream, as one query reads it. The sequence
number of a letter is the offset of its message, and the server takes each number once. A partition of a query with
letters ends only at the end of a node or of its batch (`ranges.cut`). So one task at a time reads a node, in the order
of offsets, however many partitions there are. Two attempts of a task, even at the same time, cannot skip a letter: if
the server refuses a number as too old (FENCED), that letter was written before.

The letters of some rows are written before the rows go on, in one transaction. It succeeds or fails as a whole, so
a later letter cannot fence an earlier one that failed. They are visible at once, before the batch is committed: a
letter says that a message is bad, which is true whatever becomes of the batch.

Rejected: staging them like the rows of a sink. The tasks of a source cannot tell the driver that they are done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql.types import StructType

from penstock.protocol.dead_letters import Letter
from penstock.spark.options import Options
from penstock.spark.ranges import Range, node_of
from penstock.spark.stream_connection import StreamConnection

LETTERS_A_WRITE = 1000


class BadMessage(NamedTuple):
    """A message that does not fit, and why."""

    tag: bytes
    entry: bytes
    why: str


class DeadLetters:
    """The letters of one partition.

    `query` identifies the reader: a message that it reads again gets no second letter.
    """

    def __init__(
        self, connection: StreamConnection, options: Options, schema: StructType, query: str, part: Range
    ) -> None:
        # A query may read a stream twice, as different things; what is bad to one is not to the other.
        reading = hashlib.sha256(schema.json().encode()).hexdigest()[:16]
        self._producer = f"{query}/{reading}/{part.stream}"
        self._connection = connection
        self._into = options.deadLetterStream
        self._from = part.stream

    def write(self, bad: Mapping[int, BadMessage]) -> None:
        """Write letters about messages, by offset. The offsets must be larger than those of earlier calls."""
        offsets = sorted(bad)
        for at in range(0, len(offsets), LETTERS_A_WRITE):
            self._connection.together_unless_fenced(
                *(self._command(offset, bad[offset]) for offset in offsets[at : at + LETTERS_A_WRITE])
            )

    def _command(self, offset: int, message: BadMessage) -> tuple[str | bytes | int, ...]:
        letter = Letter(self._from.encode(), message.entry, message.why, offset)
        return (
            "TWRITE",
            self._into,
            "PRODUCER",
            f"{self._producer}/{node_of(offset)}",
            offset,
            "ENTRIES",
            message.tag,
            letter.encode(),
        )
