"""The streams and groups that have series of their own in /metrics, and the sums of all others.

There may be any number of streams and groups, and each series costs the monitoring system memory. So `metrics-streams`
of each have their own: the largest streams, and the groups that are furthest behind. One of them is given up only for
one that is larger by a tenth, so that two of the same size do not take turns. All others are summed up.

A survey visits every stream and every group, in small steps. Its own pace bounds what it costs: surveys take one part
in SHARE of the time, so with a handful of streams each scrape has a new one, and with ten thousand there is one in some
seconds.

The sum of counters must not fall when a stream leaves it, or monitoring systems would take that for a restart. So the
sums of counters grow by what each stream and group outside of the lists has grown since the last survey.

Owned by the loop thread.
"""

from __future__ import annotations

import heapq
import time
import weakref
from collections.abc import Iterator
from typing import NamedTuple

from penstock.engine.dispatch import Engine
from penstock.types.stream.groups import Group
from penstock.types.stream.seeking import age_of
from penstock.types.stream.stream import Stream

VISITED = 50
"""Streams and groups between two steps."""
SHARE = 200
STAYS = 1.1
"""How much larger than it is one that is in the list counts."""


class Place(NamedTuple):
    """Where a stream is, and the group if it is about one."""

    database: int
    key: bytes
    group: bytes = b""


class Others:
    """The sums of those that have no series of their own."""

    def __init__(self) -> None:
        self.streams = self.length = self.in_memory = self.in_files = 0
        self.groups_of_streams = 0
        self.groups = self.consumers = self.lag = self.pending = self.delayed = 0
        self.lag_ms = 0  # of the one that is furthest behind


class _Listed(NamedTuple):
    """One that is among the largest so far."""

    size: float
    place: Place
    stream: Stream
    group: Group | None


class Survey:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = 0.0  # when the next one may begin
        self._spent = 0.0  # seconds that the one under way has taken
        self._round = 0  # its number
        self._most = 0  # streams, and groups, that it lists
        self._known: set[int] = set()  # the identities of streams and groups that the last survey listed
        self.streams: dict[Place, weakref.ref[Stream]] = {}
        self.groups: dict[Place, weakref.ref[Stream]] = {}
        self.others = Others()
        self.others_written = 0
        self.others_counted = (0, 0, 0, 0)  # as counted_by

    def steps(self) -> Iterator[None]:
        """Visit everything, if it is time to. Other work may be done between two steps."""
        began = time.perf_counter()
        if time.monotonic() < self._next:
            return
        self._spent = 0.0
        for _ in self._visit_all():
            self._spent += time.perf_counter() - began
            yield
            began = time.perf_counter()
        self._next = time.monotonic() + SHARE * (self._spent + time.perf_counter() - began)

    def _visit_all(self) -> Iterator[None]:
        """One pass: one that is not, or no longer, among the largest is added to the others at once."""
        everything = self._engine.keyspace.stream_storage.streams
        self._round += 1
        self._most = self._engine.config.metrics_streams
        self._known = set(self._listed())
        others = Others()
        streams: list[_Listed] = []
        groups: list[_Listed] = []
        visited = 0
        for _ in range(0, len(everything), VISITED):
            for stream in everything.visit(VISITED):
                database = self._database(stream)
                if database is None or stream.seen_in == self._round:  # its turn again, because others were freed
                    continue
                stream.seen_in = self._round
                messages = stream.messages
                place = Place(database, messages.key)
                self._weigh(streams, others, messages.sealed_raw + len(messages.active.entries), place, stream)
                for name, group in list(stream.groups.items()):
                    behind = lag(group, stream) + group.leases.messages
                    self._weigh(groups, others, behind, place, stream, name, group)
                    visited += 1
                    if visited % VISITED == 0:
                        yield
            yield
        self.others = others
        for each in streams:
            each.stream.surveyed = each.stream.messages.last
        for each in groups:
            assert each.group is not None
            each.group.surveyed = counted_by(each.group)
        self.streams = {each.place: weakref.ref(each.stream) for each in sorted(streams, reverse=True, key=_order)}
        self.groups = {each.place: weakref.ref(each.stream) for each in sorted(groups, reverse=True, key=_order)}

    def _listed(self) -> Iterator[int]:
        """The identities of streams and groups in the lists. Those that are gone may have given theirs to others."""
        for reference in self.streams.values():
            if (stream := reference()) is not None:
                yield id(stream)
        for place, reference in self.groups.items():
            if (stream := reference()) is not None and place.group in stream.groups:
                yield id(stream.groups[place.group])

    def _weigh(
        self, best: list[_Listed], others: Others, size: float, place: Place, stream: Stream, name: bytes = b"",
        group: Group | None = None,
    ) -> None:  # fmt: skip
        """Put one among the largest, and the smallest of them among the others."""
        most = self._most
        if id(stream if group is None else group) in self._known:
            size *= STAYS
        if len(best) >= most and (not best or size <= best[0].size):
            self._add(others, stream, group)
            return
        at = place if group is None else Place(place.database, place.key, name)
        listed = _Listed(size, at, stream, group)
        if len(best) < most:
            heapq.heappush(best, listed)
        else:
            _, _, stream, group = heapq.heapreplace(best, listed)
            self._add(others, stream, group)

    def _add(self, others: Others, stream: Stream, group: Group | None) -> None:
        if group is None:
            messages = stream.messages
            self.others_written += max(messages.last - stream.surveyed, 0)
            stream.surveyed = messages.last
            others.streams += 1
            others.length += length(stream)
            others.groups_of_streams += len(stream.groups)
            others.in_memory += messages.sealed_raw - messages.stored_raw
            others.in_files += messages.stored_raw
            return
        counted, before = counted_by(group), group.surveyed
        if counted != before:
            a, b, c, d = (
                total + max(after - known, 0)
                for total, after, known in zip(self.others_counted, counted, before, strict=True)
            )
            self.others_counted = (a, b, c, d)
            group.surveyed = counted
        others.groups += 1
        others.consumers += len(group.members.by_name)
        others.lag += lag(group, stream)
        others.lag_ms = max(others.lag_ms, age_of(stream.messages, group.position, self._engine.clock.now))
        others.pending += group.leases.messages
        others.delayed += group.waiting.messages

    def _database(self, stream: Stream) -> int | None:
        """The database that has a stream; None if none has, as while a copy of it is made."""
        key = stream.messages.key
        for database in self._engine.keyspace.databases:
            if database.data.get(key) is stream:
                return database.index
        return None


def _order(listed: _Listed) -> tuple[float, Place]:
    return listed.size, listed.place


def length(stream: Stream) -> int:
    """Messages that can be read, without looking into a file; too many by those that were compacted away and share
    a node with the first one.
    """
    messages = stream.messages
    if messages.complete:
        return messages.last + 1 - messages.first
    return min(messages.sealed_rows + len(messages.active.entries), messages.last + 1 - messages.first)


def lag(group: Group, stream: Stream) -> int:
    """Messages that a group has yet to get. Where messages were compacted away, it may be less: to count them would
    take a look at each node.
    """
    messages = stream.messages
    behind = messages.last + 1 - max(group.position, messages.first)
    if behind <= 0:
        return 0
    return behind if messages.complete else min(behind, length(stream))


def counted_by(group: Group) -> tuple[int, int, int, int]:
    """Messages that were acknowledged, delivered again, written as dead letters, and lost."""
    return group.acknowledged, group.retries, group.dead_letters, group.lost
