"""Stream commands as methods, for both clients and their pipelines: they build a command and say how to read its reply.

As in redis-py, a method returns what `execute_command` returns: the value, an awaitable of it, or the pipeline. What
replies become is in stream_replies.py. Times are in milliseconds, as on the wire, and say so in their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Required, TypedDict, Unpack

from redis.client import NEVER_DECODE

from penstock.client.api.reply_types import Key, Value, command_method
from penstock.client.api.schemas import SchemaCommands
from penstock.client.api.stream_replies import (
    DEFAULT_ROWS,
    ArrowReading,
    Committed,
    GroupInfo,
    Lease,
    ProducerInfo,
    Reading,
    SeveralReadings,
    StreamInfo,
)
from penstock.client.api.typed import TypedColumns


class GroupOptions(TypedDict, total=False):
    """The options of a read by a group; see `StreamCommands.tread`."""

    group: Required[Any]
    block_ms: int | None
    retry_ms: int | None
    expire_ms: int
    max_bytes: int | None
    dead_letter: Any
    max_attempts: int | None
    consumer: Any
    release: bool
    reserve: bool
    with_lease: bool


class StreamCommands(SchemaCommands):
    """TWRITE and its family. The server must be a Penstock server."""

    execute_command: Callable[..., Any]

    @command_method
    def twrite(
        self, key: Key, tag: Value, entry: Value, *, delay_ms: int | None = None, at_ms: int | None = None
    ) -> int | None:
        """Append a message; its offset. Groups get it after `delay_ms`, or at `at_ms`, milliseconds since 1970."""
        if delay_ms is None and at_ms is None:
            return self.execute_command("TWRITE", key, tag, entry)
        options = _write_options(None, None, delay_ms, at_ms)
        return self.execute_command("TWRITE", key, *options, "ENTRIES", tag, entry)

    @command_method
    def twrite_many(
        self,
        key: Key,
        entries: Iterable[tuple[Value, Value]],
        *,
        backlog: int | None = None,
        producer: tuple[Key, int] | None = None,
        delay_ms: int | None = None,
        at_ms: int | None = None,
    ) -> int | None:
        """Append (tag, entry) pairs, all or none, at offsets in a row; the first one's offset.

        `backlog` lets all but about so many of the newest messages go. `producer` is an id and a number that grows with
        each write: a repeat of one appends nothing and answers as the first time. Groups get the messages after
        `delay_ms`, or at `at_ms`, milliseconds since 1970.
        """
        options = _write_options(backlog, producer, delay_ms, at_ms)
        return self.execute_command("TWRITE", key, *options, "ENTRIES", *_flat(entries))

    @command_method
    def write_arrow(
        self,
        key: Key,
        table: Any,
        *,
        backlog: int | None = None,
        producer: tuple[Key, int] | None = None,
        delay_ms: int | None = None,
        at_ms: int | None = None,
    ) -> int | None:
        """Append the rows of a table with the columns tag and entry, and optionally time; the first one's offset.

        A pyarrow Table or RecordBatch, or anything that `pyarrow.table` takes: a data frame, a dict of columns.
        """
        options = _write_options(backlog, producer, delay_ms, at_ms)
        return self.execute_command("TWRITE", key, *options, "FORMAT", "ARROW", arrow_stream(table))

    @command_method
    def tread(
        self,
        key: Key,
        offset: int | str | None = None,
        count: int = 100,
        *,
        block_ms: int | None = None,
        group: Key | None = None,
        retry_ms: int | None = None,
        expire_ms: int = 0,
        max_bytes: int | None = None,
        dead_letter: Key | None = None,
        max_attempts: int | None = None,
        consumer: Key | None = None,
        release: bool = False,
        reserve: bool = False,
        with_lease: bool = False,
        with_info: bool = False,
        with_time: bool = False,
    ) -> Reading:
        """Up to `count` messages from an offset on (1 unless given), or the next ones of a group: a Reading.

        Without a group its items are the messages at offset, offset + 1 ..., None where one is gone. `block_ms` waits
        for something to come, 0 for ever; an empty Reading then says that nothing came. Of a group that does not exist
        yet the offset says where it begins: with the first message there is unless given. `retry_ms`, `expire_ms` and
        `max_attempts` are the group's terms for what is not acknowledged with `tack`. `with_lease` gives LeasedMessages
        and the token of the delivery. `reserve` begins none of them: that is what `textend` is for. `consumer` is the
        name of the member; with `release` what it holds is given back when the connection of this read ends.
        `with_time`, without a group, gives TimedMessages.
        """
        words = read_options(
            key,
            offset,
            count,
            block_ms=block_ms,
            group=group,
            retry_ms=retry_ms,
            expire_ms=expire_ms,
            max_bytes=max_bytes,
            dead_letter=dead_letter,
            max_attempts=max_attempts,
            consumer=consumer,
            release=release,
            reserve=reserve,
            with_lease=with_lease,
        )
        if with_time:
            words.append("WITHTIME")
        if with_info:
            words.append("WITHINFO")
        form = "leased " if with_lease else "timed " if with_time else ""
        return self.execute_command(*words, reading=form + ("info" if with_info else "plain"))

    @command_method
    def tread_several(
        self, keys: Sequence[Key], offset: int | str | None = None, count: int = 100, *, fair: bool = False,
        with_info: bool = False, **options: Unpack[GroupOptions],
    ) -> list[tuple[Any, Reading]]:  # fmt: skip
        """The next messages of a group in several streams: a list of pairs (key, Reading).

        A stream gives what those before it left of `count`; `fair` has each read begin with another one. Streams that
        gave nothing are absent. The options are those of `tread`.
        """
        first, *others = keys
        words = [*read_options(first, offset, count, **options), *(["WITHINFO"] if with_info else [])]
        if others:
            words += ["ALSO", len(others), *others, *(["FAIR"] if fair else [])]
        form = ("leased " if options.get("with_lease") else "") + ("info" if with_info else "plain")
        return self.execute_command(*words, reading=SeveralReadings(form, None if others else first))

    @command_method
    def read_arrow(
        self,
        key: Key,
        offset: int | str | None = None,
        count: int | None = None,
        *,
        block_ms: int | None = None,
        group: Key | None = None,
        retry_ms: int | None = None,
        expire_ms: int = 0,
        max_bytes: int | None = None,
        dead_letter: Key | None = None,
        max_attempts: int | None = None,
        consumer: Key | None = None,
        release: bool = False,
        reserve: bool = False,
        with_lease: bool = False,
        with_info: bool = False,
        compressed: bool = True,
        typed: bool = False,
        bad_entries: str = "fail",
    ) -> Any:
        """As `tread`, as a pyarrow Table with the columns offset, time, tag and entry; messages that are gone are
        absent.

        It reads at most `count` messages, 100,000 unless given. If that default ends a read before the end of the
        stream, there is a warning, IncompleteRead. `typed` gives the fields of the stream's schema as columns instead
        of entry; `bad_entries` says what to do about entries that do not fit: "fail" raises BadEntry, "null" gives
        nulls, "drop" no row. A typed read of a group needs `retry_ms`, and cannot drop rows. `with_info` puts the
        stream's first and last offset in `table.schema.metadata`, as b"first" and b"last", and its schema as b"schema".
        `with_lease` adds the column attempts, unless it is typed, and puts the token of the delivery there as b"token".
        What the server has compressed is sent so, and unpacked here; `compressed=False` lets the server do it.
        """
        columns = TypedColumns(key, bad_entries) if typed else None
        if columns is not None and group is not None:
            columns.check_group(retry_ms)
        if bad_entries != "fail" and not typed:
            raise ValueError(f"bad_entries={bad_entries!r} needs typed=True: raw entries are never bad")
        is_bounded = any(limit is not None for limit in (count, max_bytes, group, block_ms))
        words = read_options(
            key,
            offset,
            DEFAULT_ROWS if count is None else count,
            block_ms=block_ms,
            group=group,
            retry_ms=retry_ms,
            expire_ms=expire_ms,
            max_bytes=max_bytes,
            dead_letter=dead_letter,
            max_attempts=max_attempts,
            consumer=consumer,
            release=release,
            reserve=reserve,
            with_lease=with_lease,
        )
        words += ["FORMAT", "ARROW"]
        if compressed:
            words.append("COMPRESSED")
        if with_info or typed or not is_bounded:
            words.append("WITHINFO")
        reading = ArrowReading(columns, None if is_bounded else words[2], with_info, with_lease)
        return self.execute_command(*words, reading=reading, **{NEVER_DECODE: True})

    @command_method
    def tack(self, key: Key, group: Key, *offsets: int | str | range | Sequence[int], token: int | None = None) -> int:
        """Acknowledge messages: offsets, ranges such as "5-9", Python ranges, or lists of offsets; how many were
        pending.

        With the token of a delivery, here and below, only what is still leased under it counts.
        """
        return self.execute_command("TACK", key, group, *_token(token), *_some(offsets))

    @command_method
    def tnack(
        self,
        key: Key,
        group: Key,
        *offsets: int | str | range | Sequence[int],
        delay_ms: int = 0,
        token: int | None = None,
    ) -> int:
        """Have pending messages delivered again, at once or after a delay; how many were pending."""
        delay = ("DELAY", delay_ms) if delay_ms else ()
        return self.execute_command("TNACK", key, group, *_token(token), *_some(offsets), *delay)

    @command_method
    def textend(
        self,
        key: Key,
        group: Key,
        ms: int,
        *offsets: int | str | range | Sequence[int],
        token: int | None = None,
        begin: bool = False,
    ) -> int:
        """Hold pending messages for so long from now; how many were pending.

        `begin` counts an attempt for those that are reserved, once in a delivery.
        """
        words = [*_token(token), "BEGIN"] if begin else _token(token)
        return self.execute_command("TEXTEND", key, group, ms, *words, *_some(offsets))

    @command_method
    def tgiveup(
        self,
        key: Key,
        group: Key,
        *offsets: int | str | range | Sequence[int],
        token: int | None = None,
        reason: str | None = None,
    ) -> int:
        """Give up pending messages, which become dead letters with this reason; how many were pending."""
        words = [*_token(token), "REASON", reason] if reason is not None else _token(token)
        return self.execute_command("TGIVEUP", key, group, *words, *_some(offsets))

    @command_method
    def tproducer(self, key: Key, producer: Key) -> ProducerInfo | None:
        """The last write of a producer to a stream: a ProducerInfo, or None if the stream does not know it."""
        return self.execute_command("TPRODUCER", key, producer)

    @command_method
    def tevict(self, key: Key, offset: int) -> int:
        """Remove messages up to an offset, or all but the last n if it is -n; how many went."""
        return self.execute_command("TEVICT", key, offset)

    @command_method
    def tinfo(self, key: Key) -> StreamInfo:
        """All about a stream: a StreamInfo."""
        return self.execute_command("TINFO", key)

    @command_method
    def tseek(self, key: Key, time_ms: int) -> int:
        """The first offset written at or after a time, in milliseconds since 1970."""
        return self.execute_command("TSEEK", key, "TIME", time_ms)

    @command_method
    def tretain(
        self, key: Key, *, count: int | None = None, age_ms: int | None = None, max_bytes: int | None = None,
        compact: bool | None = None,
    ) -> bool:  # fmt: skip
        """Say what a stream keeps; None leaves a limit as it is, 0 takes it away."""
        limits = (("COUNT", count), ("AGE", age_ms), ("BYTES", max_bytes))
        words = [word for name, value in limits if value is not None for word in (name, value)]
        if compact is not None:
            words += ["COMPACT", "yes" if compact else "no"]
        return self.execute_command("TRETAIN", key, *words)

    @command_method
    def tstage(self, key: Key, token: Key, entries: Iterable[tuple[Value, Value]]) -> int:
        """Put (tag, entry) pairs aside under a token until `tcommit`; how many the token has now."""
        return self.execute_command("TSTAGE", key, token, "ENTRIES", *_flat(entries))

    @command_method
    def stage_arrow(self, key: Key, token: Key, table: Any) -> int:
        """As `tstage`, the rows of a table; see `write_arrow`."""
        return self.execute_command("TSTAGE", key, token, "ARROW", arrow_stream(table))

    @command_method
    def tcommit(self, key: Key, producer: Key, epoch: int, *tokens: Key) -> Committed:
        """Make what was staged visible, in the order of the tokens, if the epoch is newer than the producer's last:
        Committed.
        """
        return self.execute_command("TCOMMIT", key, producer, epoch, *tokens)

    @command_method
    def tgroup_list(self, key: Key) -> list[GroupInfo]:
        """A stream's groups: a list of GroupInfo."""
        return self.execute_command("TGROUP LIST", key)

    @command_method
    def tgroup_set(self, key: Key, group: Key, offset: int | str) -> bool:
        """Let a group go on from an offset, "$" or 0, creating it."""
        return self.execute_command("TGROUP SET", key, group, offset)

    @command_method
    def tgroup_del(self, key: Key, group: Key) -> int:
        """Forget a group; whether it was there."""
        return self.execute_command("TGROUP DEL", key, group)

    @command_method
    def tgroup_pending(
        self, key: Key, group: Key, span: str | range | None = None, count: int | None = None
    ) -> list[Lease]:
        """The pending messages of a group: a list of Lease."""
        words: list[Any] = spans([span]) if span is not None else []
        if count is not None:
            words += ["COUNT", count]
        return self.execute_command("TGROUP PENDING", key, group, *words)


def _flat(entries: Iterable[tuple[Any, Any]]) -> list[Any]:
    words = [word for tag, entry in entries for word in (tag, entry)]
    if not words:
        raise ValueError("entries is empty: give at least one pair of tag and entry")
    return words


def arrow_stream(table: Any) -> bytes:
    """A pyarrow Table or RecordBatch, or what pyarrow makes one of, as the bytes of an Arrow stream."""
    import pyarrow as pa

    if not isinstance(table, pa.Table | pa.RecordBatch):
        table = pa.table(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def spans(offsets: Sequence[Any]) -> list[Any]:
    """Offsets as TACK takes them; a Python range becomes a span, and so do neighbours.

    >>> spans([3, 4, 5, 9, range(20, 30), "40-50", [7, 8]])
    ['3-5', 9, '20-29', '40-50', '7-8']
    """
    found: list[Any] = []
    start = end = 0
    for offset in offsets:
        if isinstance(offset, int) and start and offset == end + 1:
            end = offset
            continue
        if start:
            found.append(start if start == end else f"{start}-{end}")
            start = 0
        if isinstance(offset, int):
            start = end = offset
        elif isinstance(offset, range):
            if offset.step != 1:
                raise ValueError(f"{offset!r} has gaps; give a range with step 1")
            if offset:
                found.append(f"{offset.start}-{offset.stop - 1}")
        elif isinstance(offset, list | tuple):
            found += spans(offset)
        else:
            found.append(offset)
    if start:
        found.append(start if start == end else f"{start}-{end}")
    return found


def _some(offsets: Sequence[Any]) -> list[Any]:
    found = spans(offsets)
    if not found:
        raise ValueError("offsets is empty: name at least one message")
    return found


def _token(token: int | None) -> list[Any]:
    return [] if token is None else ["TOKEN", token]


def _write_options(
    backlog: int | None, producer: tuple[Any, int] | None, delay_ms: int | None, at_ms: int | None
) -> list[Any]:
    if delay_ms is not None and at_ms is not None:
        raise ValueError(f"delay_ms={delay_ms} and at_ms={at_ms}: give one of them")
    words: list[Any] = [] if backlog is None else ["BACKLOG", backlog]
    words += [] if producer is None else ["PRODUCER", *producer]
    words += [] if delay_ms is None else ["DELAY", delay_ms]
    return words if at_ms is None else [*words, "AT", at_ms]


def read_options(
    key: Any,
    offset: int | str | None,
    count: int,
    *,
    block_ms: int | None = None,
    group: Any = None,
    retry_ms: int | None = None,
    expire_ms: int = 0,
    max_bytes: int | None = None,
    dead_letter: Any = None,
    max_attempts: int | None = None,
    consumer: Any = None,
    release: bool = False,
    reserve: bool = False,
    with_lease: bool = False,
) -> list[Any]:
    """The words of a TREAD."""
    if expire_ms and retry_ms is None:
        raise ValueError(f"expire_ms={expire_ms} needs retry_ms: only what is delivered again can expire")
    terms = {"max_attempts": max_attempts, "release": release, "reserve": reserve, "with_lease": with_lease}
    for name, value in terms.items():
        if value and retry_ms is None:
            raise ValueError(f"{name}={value} needs retry_ms: without it a message is done when it is delivered")
    if offset is None:
        offset = 1 if group is None else 0
    words = ["TREAD", key, offset, count]
    if block_ms is not None:
        words += ["BLOCK", block_ms]
    if group is not None:
        words += ["GROUP", group]
    if retry_ms is not None:
        words += ["RETRY", retry_ms, expire_ms]
    if max_bytes is not None:
        words += ["MAXBYTES", max_bytes]
    if dead_letter is not None:
        words += ["DEADLETTER", dead_letter]
    if max_attempts is not None:
        words += ["MAXATTEMPTS", max_attempts]
    if consumer is not None:
        words += ["CONSUMER", consumer]
    if release:
        words.append("RELEASE")
    if reserve:
        words.append("RESERVE")
    if with_lease:
        words.append("WITHLEASE")
    return words


# -- replies --------------------------------------------------------------------------------------------------
