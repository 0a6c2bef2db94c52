"""Exactly-once writes: sequence numbers of producers, and entries that are staged until their epoch commits.

A producer numbers its writes. The answers to its last few are remembered, so that a repeat after a lost reply gets the
same offset and appends nothing. A lower number comes from a producer that was replaced, and is refused. A commit is
numbered the same way by an epoch (a Spark batch). Only changes count as use: a repeat changes nothing, so that a replay
of the log, which has no repeats, forgets the same producers at the same time.

Rejected: remembering message ids for a limited time, because a later retry is then a duplicate.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, cast

import pyarrow as pa

from penstock.types.packing import CorruptValue, Part, Unmade, made
from penstock.types.stream.arrow import binaries, parse_arrow
from penstock.types.stream.column_buffers import column_of

REMEMBERED = 8  # answers for each producer: the writes that it may have in flight and still repeat
_PRODUCER = struct.Struct("<qqqqI")
_STAGE = struct.Struct("<qI")
_NO_EPOCH = -1


class ProducerFenced(ValueError):
    """A write or a commit of a producer that has been replaced by a newer one."""


class UnknownStage(LookupError):
    """A token under which nothing is staged."""


class Commit(NamedTuple):
    """The result of a commit: the first offset and how many entries."""

    first: int
    entries: int


class Producer:
    """What is remembered of one producer."""

    __slots__ = ("answers", "commit", "epoch", "used")

    def __init__(self) -> None:
        # Sequence number -> first offset, ascending; 0 if no entry was written, negative if some were not.
        self.answers: dict[int, int] = {}
        self.epoch = _NO_EPOCH
        self.commit = Commit(0, 0)  # of that epoch
        self.used = 0  # ms since 1970


class Producers:
    """Producers by id, the least recently used forgotten beyond a limit.

    >>> producers = Producers()
    >>> producers.remember(b"p", 7, first=100, now=0)
    >>> producers.repeated(b"p", 7), producers.repeated(b"p", 8)
    (100, None)
    """

    __slots__ = ("by_id", "limit")

    def __init__(self, limit: int = 10_000) -> None:
        self.limit = limit
        self.by_id: OrderedDict[bytes, Producer] = OrderedDict()

    def repeated(self, name: bytes, sequence: int) -> int | None:
        """The first offset of the answer to this write, None if it is new; ProducerFenced if it is too old.

        As in `answers`: 0 if no entry was written, negative if some were not.
        """
        producer = self.by_id.get(name)
        if producer is None or not producer.answers:
            return None
        answer = producer.answers.get(sequence)
        if answer is None and sequence <= (last := max(producer.answers)):
            raise ProducerFenced(f"sequence {sequence} is older than {last}")
        return answer

    def last(self, name: bytes) -> tuple[int, int] | None:
        """The sequence number of a producer's last write, and its first offset (0 if it appended nothing)."""
        producer = self.by_id.get(name)
        if producer is None or not producer.answers:
            return None
        sequence, first = max(producer.answers.items())
        return sequence, abs(first)

    def remember(self, name: bytes, sequence: int, first: int, now: int) -> None:
        """Record a write that `repeated` called new; its first offset is as in `answers`."""
        answers = self._used(name, now).answers
        answers[sequence] = first
        if len(answers) > REMEMBERED:
            del answers[next(iter(answers))]

    def committed(self, name: bytes, epoch: int) -> Commit | None:
        """As `repeated`, for a commit."""
        producer = self.by_id.get(name)
        if producer is None or epoch > producer.epoch:
            return None
        if epoch < producer.epoch:
            raise ProducerFenced(f"epoch {epoch} is older than {producer.epoch}")
        return producer.commit

    def remember_commit(self, name: bytes, epoch: int, commit: Commit, now: int) -> None:
        """Record a commit that `committed` called new."""
        producer = self._used(name, now)
        producer.epoch, producer.commit = epoch, commit

    def _used(self, name: bytes, now: int) -> Producer:
        producer = self.by_id.get(name)
        if producer is None:
            producer = self.by_id[name] = Producer()
            if len(self.by_id) > self.limit:
                self.by_id.popitem(last=False)
        else:
            self.by_id.move_to_end(name)
        producer.used = now
        return producer

    def dump(self) -> Iterator[bytes]:
        """A name and a record for each, least recently used first."""
        for name, producer in self.by_id.items():
            pairs = [number for pair in producer.answers.items() for number in pair]
            head = _PRODUCER.pack(producer.used, producer.epoch, *producer.commit, len(producer.answers))
            yield name
            yield head + struct.pack(f"<{len(pairs)}q", *pairs)

    def load_one(self, name: bytes, record: bytes) -> None:
        """Add what `dump` wrote of one producer."""
        if name in self.by_id:
            raise CorruptValue("a producer is there twice")
        try:
            used, epoch, first, entries, count = _PRODUCER.unpack_from(record)
            numbers = struct.unpack(f"<{2 * min(count, REMEMBERED)}q", record[_PRODUCER.size :])
        except struct.error as error:
            raise CorruptValue(f"a producer's record is damaged: {error}") from error
        producer = self.by_id[name] = Producer()
        producer.used, producer.epoch, producer.commit = used, epoch, Commit(first, entries)
        producer.answers = dict(zip(numbers[::2], numbers[1::2], strict=True))
        if [*producer.answers] != sorted(numbers[::2]):
            raise CorruptValue("a producer's sequence numbers are out of order")

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return sum(500 + len(name) + 70 * len(producer.answers) for name, producer in self.by_id.items())

    def check(self) -> None:
        assert len(self.by_id) <= self.limit
        for producer in self.by_id.values():
            assert len(producer.answers) <= REMEMBERED
            assert [*producer.answers] == sorted(producer.answers)


class Stage:
    """Staged entries, not visible to any reader."""

    __slots__ = ("batches", "rows", "used")

    def __init__(self) -> None:
        self.batches: list[Any] = []  # as `parse_arrow` gives them
        self.rows = 0  # in all of them
        self.used = 0


class Stages:
    """Stages by token, the one used last at the end.

    Staging twice under a token adds to it: a task sends its rows in pieces.
    """

    __slots__ = ("by_token",)

    def __init__(self) -> None:
        self.by_token: dict[bytes, Stage] = {}

    def stage(self, token: bytes, batches: list[Any], now: int) -> int:
        """Stage batches; answer how many entries the token has now."""
        stage = self.by_token.pop(token, None) or Stage()
        self.by_token[token] = stage  # at the end: the one used last
        stage.batches += batches
        stage.rows += sum(batch.num_rows for batch in batches)
        stage.used = now
        return stage.rows

    def stage_entries(self, token: bytes, tags: list[bytes], entries: list[bytes], now: int) -> int:
        """As `stage`, of plain entries."""
        return self.stage(token, _batches(tags, entries), now)

    def take(self, tokens: list[bytes]) -> list[Any]:
        """The batches of all tokens in order, no longer staged; UnknownStage, and no change, if one is unknown."""
        taken: set[bytes] = set()
        for token in tokens:
            if token not in self.by_token or token in taken:
                raise UnknownStage(f"nothing is staged under '{token.decode(errors='replace')}'")
            taken.add(token)
        return [batch for token in tokens for batch in self.by_token.pop(token).batches]

    def drop(self, tokens: list[bytes]) -> int:
        """Drop the entries staged under the tokens; answer how many tokens existed."""
        return sum(self.by_token.pop(token, None) is not None for token in tokens)

    def expire(self, before: int) -> list[bytes]:
        """Drop the stages that were last added to before a time; answer their tokens. O(those).

        If the clock was set back, a stage may wait for the one before it.
        """
        stale = [token for token, _ in takewhile(lambda item: item[1].used < before, self.by_token.items())]
        for token in stale:
            del self.by_token[token]
        return stale

    def dump(self) -> Iterator[bytes]:
        """For each a token, a record, and its batches as Arrow streams."""
        return map(made, self.parts())

    def parts(self) -> Iterator[Part]:
        """The same for a caller that writes one after the other."""
        for token, stage in self.by_token.items():
            yield token
            yield _STAGE.pack(stage.used, len(stage.batches))
            for batch in stage.batches:
                counted = pa.MockOutputStream()
                _write_stream(counted, batch)
                yield Unmade(counted.size(), partial(_stream_of, batch))

    def load_one(self, token: bytes, parts: Iterator[bytes]) -> None:
        """Add what `dump` wrote of one stage; its parts follow the token."""
        try:
            used, count = _STAGE.unpack(next(parts))
            batches = [batch for _ in range(count) for batch in _staged(next(parts))]
        except (struct.error, StopIteration, ValueError) as error:
            raise CorruptValue(f"a stage is damaged: {error}") from error
        if token in self.by_token or len(batches) != count:
            raise CorruptValue("a stage is there twice or has an empty part")
        self.stage(token, batches, used)

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return sum(
            200 + len(token) + sum(batch.get_total_buffer_size() for batch in stage.batches)
            for token, stage in self.by_token.items()
        )

    def check(self) -> None:
        for stage in self.by_token.values():
            for batch in stage.batches:
                batch.validate(full=True)
                assert batch.num_rows
                assert batch.schema.names[-2:] == ["tag", "entry"]
                assert all(column.null_count == 0 for column in batch)
            assert stage.rows == sum(batch.num_rows for batch in stage.batches)


def _batches(tags: list[bytes], entries: list[bytes]) -> list[Any]:
    """As record batches, several if they have more than the 2 GiB that one can have."""
    try:
        columns = [binaries(*column_of(values, False), len(values), pa.binary()) for values in (tags, entries)]
    except OverflowError:
        half = len(tags) // 2
        if not half:
            raise
        return _batches(tags[:half], entries[:half]) + _batches(tags[half:], entries[half:])
    return [pa.RecordBatch.from_arrays(columns, names=["tag", "entry"])]


def _write_stream(sink: Any, batch: Any) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _stream_of(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    _write_stream(sink, batch)
    return cast(bytes, sink.getvalue().to_pybytes())


def _staged(part: bytes) -> list[Any]:
    """The batches of a part of a dump. It is never compressed, so it may not unpack to more."""
    return parse_arrow(part, len(part))
