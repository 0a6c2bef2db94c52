"""The metrics of streams and groups: those of the survey, and one series for the sum of all others.

The label `db` of that series is `rest`, which no database is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.engine.dispatch import Engine
from penstock.server.metrics.exposition import Page, labelled, shown_name
from penstock.server.metrics.stream_survey import Place, Survey, counted_by, lag, length
from penstock.types.stream.active import Active
from penstock.types.stream.groups import Group
from penstock.types.stream.nodes import OVERHEAD
from penstock.types.stream.seeking import age_of
from penstock.types.stream.stream import Stream

REST = "rest"
WRITTEN = 25
"""Streams or groups that are described in one step."""


class StreamMetrics:
    """Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.survey = Survey(engine)
        self._active_raw: dict[Place, tuple[Active, int, int]] = {}  # bytes of the first messages of an active node

    def steps(self, page: Page) -> Iterator[None]:
        """Write all families, a few streams at a time."""
        yield from self.survey.steps()
        yield from self._streams(page)
        yield from self._groups(page)

    def _streams(self, page: Page) -> Iterator[None]:
        rows: list[_StreamRow] = []
        raw: dict[Place, tuple[Active, int, int]] = {}
        for number, (place, reference) in enumerate(self.survey.streams.items()):
            stream = reference()
            if stream is not None:
                raw[place] = _raw_of_active(stream, self._active_raw.get(place))
                rows.append(_stream_row(place, stream, raw[place][2]))
            if not (number + 1) % WRITTEN:
                yield
        self._active_raw = raw
        others, survey = self.survey.others, self.survey
        rest = labelled(db=REST, stream=REST)
        if others.streams:
            in_tiers = (
                (f'{rest[:-1]},tier="memory"}}', others.in_memory),
                (f'{rest[:-1]},tier="files"}}', others.in_files),
            )
            rows.append(_StreamRow(rest, others.length, survey.others_written, others.groups_of_streams, in_tiers))
        page.gauge("penstock_streams", "Streams, as of the last survey.", len(survey.streams) + others.streams)
        page.samples("redis_stream_length", "gauge", "Messages that a stream holds.",
                     [(row.labels, row.length) for row in rows])  # fmt: skip
        page.samples("redis_stream_groups", "gauge", "Groups of a stream.",
                     [(row.labels, row.groups) for row in rows])  # fmt: skip
        page.samples("penstock_stream_written_total", "counter", "Messages that were ever written to a stream.",
                     [(row.labels, row.written) for row in rows])  # fmt: skip
        page.samples("penstock_stream_bytes", "gauge", "Bytes of a stream's messages before compression, by where "
                     "they are: memory or files. In the sum of the rest, without the newest thousand of each.",
                     [sample for row in rows for sample in row.bytes])  # fmt: skip
        yield

    def _groups(self, page: Page) -> Iterator[None]:
        rows: list[_GroupRow] = []
        now = self._engine.clock.now
        for number, (place, reference) in enumerate(self.survey.groups.items()):
            stream = reference()
            group = stream.groups.get(place.group) if stream is not None else None
            if stream is not None and group is not None:
                rows.append(_group_row(place, group, stream, now))
            if not (number + 1) % WRITTEN:
                yield
        others = self.survey.others
        if others.groups:
            labels = labelled(db=REST, stream=REST, group=REST)
            gauges = (others.lag, others.lag_ms / 1000, others.pending, others.delayed, others.consumers)
            rows.append(_GroupRow(labels, gauges, self.survey.others_counted))
        for at, (name, help) in enumerate(_GAUGES):
            page.samples(name, "gauge", help, [(row.labels, row.gauges[at]) for row in rows])
            yield
        for at, (name, help) in enumerate(_COUNTERS):
            page.samples(name, "counter", help, [(row.labels, row.counters[at]) for row in rows])
            yield


class _StreamRow(NamedTuple):
    labels: str
    length: int
    written: int
    groups: int
    bytes: tuple[tuple[str, int], ...]  # labels and value of each tier


class _GroupRow(NamedTuple):
    labels: str
    gauges: tuple[float, ...]  # in the order of _GAUGES
    counters: tuple[int, ...]  # in the order of _COUNTERS


_GAUGES = (
    ("redis_stream_group_lag", "Messages that a group has yet to get; of a compacted stream at most so many."),
    ("penstock_stream_group_lag_seconds", "Seconds since the next message of a group was written; 0 if there is none. "
     "In the rest, of the group that is furthest behind."),
    ("redis_stream_group_messages_pending", "Messages that were delivered and are not acknowledged."),
    ("penstock_stream_group_delayed", "Messages that a group has reached and gets later."),
    ("redis_stream_group_consumers", "Members of a group that read under a name."),
)  # fmt: skip
_COUNTERS = (
    ("penstock_stream_group_acknowledged_total", "Messages that a group has acknowledged."),
    ("penstock_stream_group_retries_total", "Messages that were delivered again, since the server started."),
    ("penstock_stream_group_dead_letters_total", "Messages that were given up and written to a dead letter stream, "
     "since the server started."),
    ("penstock_stream_group_lost_total", "Messages that were evicted before the group had done them."),
)  # fmt: skip


def _stream_row(place: Place, stream: Stream, active_raw: int) -> _StreamRow:
    messages = stream.messages
    db, name = f"db{place.database}", shown_name(place.key)
    memory, files = (labelled(db=db, stream=name, tier=tier) for tier in ("memory", "files"))
    tiers = (memory, messages.sealed_raw - messages.stored_raw + active_raw), (files, messages.stored_raw)
    return _StreamRow(labelled(db=db, stream=name), length(stream), messages.last, len(stream.groups), tiers)


def _group_row(place: Place, group: Group, stream: Stream, now: int) -> _GroupRow:
    labels = labelled(db=f"db{place.database}", stream=shown_name(place.key), group=shown_name(place.group))
    gauges = (
        lag(group, stream), age_of(stream.messages, group.position, now) / 1000, group.pending_count,
        group.waiting.messages, len(group.members.by_name),
    )  # fmt: skip
    return _GroupRow(labels, gauges, counted_by(group))


def _raw_of_active(stream: Stream, known: tuple[Active, int, int] | None) -> tuple[Active, int, int]:
    """The bytes of the node that is being written; only what came since the last time is counted."""
    active = stream.messages.active
    count, raw = known[1:] if known is not None and known[0] is active else (0, 0)
    tags, entries = active.tags[count:], active.entries[count:]
    raw += sum(map(len, tags)) + sum(map(len, entries)) + OVERHEAD * len(entries)
    return active, count + len(entries), raw
