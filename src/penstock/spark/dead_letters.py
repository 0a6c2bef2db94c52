"""Dead letters: entries that do not fit a query's schema, written to a stream of their own, each once.

A task that fails is run again, and so is a batch whose driver died; both meet the same bad entries. So a letter is
written as what a producer does (TWRITE ... PRODUCER): the producer is one node of a stream, as one query reads it, a
letter's number is the offset of its message, and the server takes each number once. A partition of a query with letters
ends only where a node does, or where its batch does (`ranges.cut`), so one task at a time goes through a node, in the
order of offsets, however many partitions there are. Of two attempts, even at the same time, neither can overtake a
letter that is not there: a number that the server calls too old (FENCED) was written before.

Letters are written before their rows go on, all those of some rows as one transaction: it comes to pass as a whole, so
no later letter can shut out an earlier one that failed. They are visible at once, before the batch is committed: a
letter says that a message is bad, which is true whatever becomes of the batch.

Rejected: staging them like the rows of a sink. A source has no word with the driver when its tasks are done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql.types import StructType

from penstock.protocol.dead_letters import Letter
from penstock.spark.link import Link
from penstock.spark.options import Options
from penstock.spark.ranges import Range, node_of

LETTERS_A_WRITE = 1000


class BadMessage(NamedTuple):
    """A message that does not fit, and why."""

    tag: bytes
    entry: bytes
    why: str


class DeadLetters:
    """The letters of one partition.

    `query` names the reader: what is read again under the same name is not written again.
    """

    def __init__(self, link: Link, options: Options, schema: StructType, query: str, part: Range) -> None:
        # A query may read a stream twice, as different things; what is bad to one is not to the other.
        reading = hashlib.sha256(schema.json().encode()).hexdigest()[:16]
        self._producer = f"{query}/{reading}/{part.stream}"
        self._link = link
        self._into = options.deadLetterStream
        self._from = part.stream

    def write(self, bad: Mapping[int, BadMessage]) -> None:
        """Write letters about messages, given by offset; all of them are beyond those of earlier calls."""
        offsets = sorted(bad)
        for at in range(0, len(offsets), LETTERS_A_WRITE):
            self._link.together_unless_fenced(
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
