"""Values made from the replies of stream commands: messages, readings, tables, and facts about streams.

The clients add CALLBACKS to redis-py's, by which it converts replies. Times are milliseconds, as on the wire, and say
so in their names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.client.api.reply_fields import map_fields, text
from penstock.client.api.schemas import SCHEMA_CALLBACKS
from penstock.client.api.typed import TypedColumns


class Message(NamedTuple):
    """One message of a stream; tag and entry are bytes, or text if the client decodes replies."""

    offset: int
    tag: bytes | str
    entry: bytes | str


class LeasedMessage(NamedTuple):
    """A message of a delivery that knows its lease: when it was written (milliseconds since 1970), and its attempts."""

    offset: int
    tag: bytes | str
    entry: bytes | str
    time: int
    attempts: int


class TimedMessage(NamedTuple):
    """A message, when it was written, and when groups get it, 0 if they do already; milliseconds since 1970."""

    offset: int
    tag: bytes | str
    entry: bytes | str
    time: int
    visible_at: int


class Reading(list["Message | LeasedMessage | TimedMessage | None"]):
    """The messages of one TREAD, None where one is gone; with `first` and `last` offset of the stream if asked for.

    `token` is the number of the delivery, if asked for; 0 if there is nothing in it.
    """

    first: int | None = None
    last: int | None = None
    token: int = 0


class Committed(NamedTuple):
    """The result of a TCOMMIT."""

    first: int
    entries: int


class Lease(NamedTuple):
    """Messages a group was given together and has not acknowledged; times are milliseconds since 1970, 0 is never."""

    first: int
    last: int
    attempts: int
    first_delivered: int
    next_retry: int
    expires: int


class ProducerInfo(NamedTuple):
    """The last write of a producer: its number, and the offset of its first entry, None if no entry fitted."""

    sequence: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A named member of a group: how many messages it holds, and the milliseconds since it last asked."""

    name: str
    pending: int
    idle: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group of a stream."""

    name: str
    position: int
    lag: int
    pending: int
    acknowledged: int
    """Messages."""
    lost: int
    next_retry: int
    done_through: int = 0
    """All messages up to this offset are acknowledged, given up or lost."""
    consumers: tuple[ConsumerInfo, ...] = ()
    delayed: int = 0
    """Messages that it has passed by because they are not visible yet."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention rules of a stream; 0 is no limit."""

    count: int
    age_ms: int
    bytes: int
    compact: bool


@dataclass(frozen=True, slots=True)
class History:
    """The part of a stream that is in files: messages, bytes, files."""

    length: int = 0
    bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The reply of TINFO."""

    first: int
    last: int
    length: int
    nodes: int
    nodes_hot: int
    nodes_cold: int
    bytes_raw: int
    bytes_stored: int
    retention: Retention
    producers: int
    stages: int
    groups: tuple[GroupInfo, ...]
    delayed: int = 0
    """Messages that groups do not get yet."""
    history: History = History()


DEFAULT_ROWS = 100_000
"""How many messages a table has at most, unless the caller says."""


class IncompleteRead(UserWarning):
    """A read without a limit of the caller's ended at the default one, before the end of the stream."""


class ArrowReading(NamedTuple):
    """Decodes a reply in Arrow."""

    columns: TypedColumns | None = None
    start: int | str | None = None  # where it began, if the caller gave no limit and is to know of the default one
    with_info: bool = True
    with_lease: bool = False

    def table(self, reply: bytes | None) -> Any:
        table = _table(reply, self.with_lease)
        if isinstance(self.start, int):
            self._tell_rest(self.start + DEFAULT_ROWS, int(table.schema.metadata[b"last"]))
        if self.columns is not None:
            table = self.columns.of(table)
        if self.with_info:
            return table
        kept = {b"token": (table.schema.metadata or {}).get(b"token", b"0")} if self.with_lease else None
        return table.replace_schema_metadata(kept)

    def _tell_rest(self, stop: int, last: int) -> None:
        if stop <= last:
            warnings.warn(
                f"read_arrow stopped at its default of {DEFAULT_ROWS:,} messages, before offset {stop}; the stream "
                f"goes on to {last}. read_tables() gives all of it in tables, and count= says how many messages you "
                "want",
                IncompleteRead,
                stacklevel=2,
            )


class SeveralReadings(NamedTuple):
    """Decodes a reply that has several streams."""

    form: str
    only: Any = None  # the key, if there is but one

    def readings(self, reply: Any) -> list[tuple[Any, Any]]:
        if self.only is not None:
            reading = _reading(reply, self.form)
            return [(self.only, reading)] if reading else []
        return [(key, _reading(part, self.form)) for key, part in reply or ()]


def _reading(reply: Any, reading: str | ArrowReading | SeveralReadings | None = None) -> Any:
    if reading is None:
        return reply  # a subclass with its own execute_command
    if isinstance(reading, SeveralReadings):
        return reading.readings(reply)
    if isinstance(reading, ArrowReading):
        return reading.table(reply)
    found = Reading()
    if reply is None:
        return found  # BLOCK came to its end
    make: Callable[[Any], Any] = Message._make
    if reading.startswith("leased"):
        found.token, *reply = reply
        make = LeasedMessage._make
    elif reading.startswith("timed"):
        make = TimedMessage._make
    if reading.endswith("info"):
        (found.first, found.last), *reply = reply
    found.extend([None if row is None else make(row) for row in reply])
    return found


def _table(reply: bytes | None, with_lease: bool) -> Any:
    import pyarrow as pa

    if reply is None:
        schema = pa.schema([("offset", pa.int64()), ("time", pa.int64()), ("tag", pa.binary()), ("entry", pa.binary())])
        if with_lease:
            schema = schema.append(pa.field("attempts", pa.int64()))
        return schema.empty_table()
    # Without threads: a column of a batch is small, and to hand it to a thread takes longer than to decompress it.
    with pa.ipc.open_stream(reply, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
        return reader.read_all()


_GROUP_FIELDS = frozenset(GroupInfo.__slots__)
_STREAM_FIELDS = frozenset(StreamInfo.__slots__)


def _group(reply: Any) -> GroupInfo:
    fields = map_fields(reply)
    consumers = [map_fields(consumer) for consumer in fields.get("consumers", ())]
    fields.update(
        name=text(fields["name"]),
        next_retry=fields["next_retry"] or 0,
        consumers=tuple(ConsumerInfo(text(one["name"]), one["pending"], one["idle"]) for one in consumers),
    )
    return GroupInfo(**{name: value for name, value in fields.items() if name in _GROUP_FIELDS})  # a newer server's too


def _info(reply: Any) -> StreamInfo:
    fields = map_fields(reply)
    kept = map_fields(fields["retention"])
    fields["retention"] = Retention(kept["count"], kept["age"], kept["bytes"], bool(kept["compact"]))
    fields["groups"] = tuple(_group(group) for group in fields["groups"])
    if "history" in fields:
        held = map_fields(fields["history"])
        fields["history"] = History(held["length"], held["bytes"], held["files"])
    return StreamInfo(**{name: value for name, value in fields.items() if name in _STREAM_FIELDS})


def _ok(reply: Any) -> bool:
    return reply in (b"OK", "OK")


CALLBACKS: dict[str, Callable[..., Any]] = {
    "TREAD": _reading,
    "TINFO": _info,
    "TRETAIN": _ok,
    "TCOMMIT": Committed._make,
    "TPRODUCER": lambda reply: None if reply is None else ProducerInfo._make(reply),
    "TGROUP LIST": lambda reply: [_group(group) for group in reply],
    "TGROUP SET": _ok,
    "TGROUP DEL": bool,
    "TGROUP PENDING": lambda reply: [Lease._make(row) for row in reply],
    **SCHEMA_CALLBACKS,
}
"""By command name as the methods above spell it: a call of execute_command that spells it otherwise gets the reply as
it is.
"""
