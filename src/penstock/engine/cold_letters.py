"""Dead letters of expired messages that lie in files: a thread reads the files before the messages are given up.

Upkeep gives a slice of them up at a time (stream_upkeep.py). The slice ends before the first message whose file was not
read yet, and a thread reads that one and those that follow. Other groups of the stream wait behind it; other streams
and clients do not. A file that is lost counts as read, and the group is done with its messages.

AT_ONCE streams at most have something read for them, with MOST_BYTES of messages together, or one stream with what its
first lease needs. What its stream does not come for is let go of. Without threads, files are read in place, as in the
middle of a group read that comes upon expired messages which it did not foresee.

Owned by the loop thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING

from penstock.engine.stream_history import fetch_what_is_there
from penstock.types.stream.groups import FETCH, SLICE, Group, part_of, unready
from penstock.types.stream.messages import Messages, Place
from penstock.types.stream.segments import Identity
from penstock.types.stream.stored_nodes import with_fetched

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine

AT_ONCE = 8
"""Streams for which a thread reads, or has read."""
AHEAD_BYTES = 4 << 20
"""Bytes of messages after which a thread reads nothing for later leases."""
MOST_BYTES = 16 << 20
"""Bytes of messages that are read for all streams together."""
PATIENCE = 1000
"""Milliseconds after which what was read may go for other streams, if its own did not come for it."""
UNUSED = 10.0
"""Seconds after which it goes in any case."""


class Reading:
    """Nodes that a thread reads for a stream, or has read."""

    __slots__ = ("found", "is_over", "places", "since", "size")

    def __init__(self, places: list[Place], now: int) -> None:
        self.places = places
        self.found: dict[Identity, bytes | None] = {}  # None for what is lost
        self.is_over = False
        self.since = now  # it began, then that it was over, by the clock of leases
        self.size = _size(places)


class ColdLetters:
    """See the top of this file."""

    def __init__(self, engine: Engine, go_on: Callable[[], None]) -> None:
        self._engine = engine
        self._go_on = go_on  # called when a thread has read what a stream waits for
        self._readings: weakref.WeakKeyDictionary[Messages, Reading] = weakref.WeakKeyDictionary()

    def ready_for(self, messages: Messages, group: Group, now: int) -> Container[Identity] | None:
        """The nodes in files that a group may read to give up what has expired; None if it waits for a thread."""
        if not messages.history:
            return _EVERYTHING
        reading = self._readings.get(messages)
        if reading is not None and not reading.is_over:
            return None
        found: dict[Identity, bytes | None] = reading.found if reading is not None else {}
        unread = _unread(group, messages, now, found)
        if not unread:
            return found
        if found:  # it was read for leases that are gone: a reading has all that the first lease needs
            unread = _unread(group, messages, now, {})
        return None if self._read(messages, unread) else _EVERYTHING

    def used(self, messages: Messages) -> AbstractContextManager[None]:
        """During this, reads find what was read for a stream; it is used once."""
        reading = self._readings.pop(messages, None)
        return with_fetched(messages, _that_are_there(reading) if reading is not None else [])

    def _read(self, messages: Messages, places: list[Place]) -> bool:
        """Have a thread read these, now or when others have had their turn; False if there is no thread."""
        now = self._engine.clock.lease_time()
        reading = Reading(places, now)
        if not self._has_room(messages, reading.size):
            for other, unused in [*self._readings.items()]:
                if unused.is_over and now - unused.since >= PATIENCE:
                    del self._readings[other]
            self._go_on()
            return True
        stream = weakref.ref(messages)

        def over() -> None:
            reading.is_over, reading.since = True, self._engine.clock.lease_time()
            self._engine.timers.call_later(UNUSED, lambda: self._forget(stream(), reading))
            self._go_on()

        begun = self._engine.workers.in_background(
            lambda: reading.found.update(fetch_what_is_there(places)), over, for_disk=True
        )
        if begun:
            self._readings[messages] = reading
        return begun

    def _has_room(self, messages: Messages, size: int) -> bool:
        """Whether so much may be read for a stream, beside what there is for others."""
        others = [reading.size for stream, reading in self._readings.items() if stream is not messages]
        return not others or (len(others) < AT_ONCE and sum(others) + size <= MOST_BYTES)

    def _forget(self, messages: Messages | None, reading: Reading) -> None:
        """Its stream did not come for it: the messages may have been acknowledged."""
        if messages is not None and self._readings.get(messages) is reading:
            del self._readings[messages]


def _unread(group: Group, messages: Messages, now: int, ready: Container[Identity]) -> list[Place]:
    """The nodes in files that `expire` needs first and that are not ready; none if the first lease needs none.

    Those of later leases are a guess, and bounded by AHEAD_BYTES.
    """
    first = group.leases.expired(now)
    unread = unready(messages, part_of(messages, first, SLICE), ready) if first is not None else []
    if unread:
        known = {segment.identity(place) for segment, place in unread}
        room = AHEAD_BYTES - _size(unread)
        for lease in islice(group.leases, SLICE):
            if len(known) >= SLICE // FETCH or room <= 0:
                break
            if 0 < lease.end_at <= now:
                for segment, place in unready(messages, part_of(messages, lease, FETCH), ready):
                    if segment.identity(place) not in known and room > 0:
                        room -= segment.raws[place]
                        known.add(segment.identity(place))
                        unread.append((segment, place))
    return unread


def _size(places: list[Place]) -> int:
    """Bytes of the messages of these nodes."""
    return sum(segment.raws[place] for segment, place in places)


class _Everything:
    """Any file may be read in place."""

    def __contains__(self, identity: object) -> bool:
        return True


_EVERYTHING = _Everything()


def _that_are_there(reading: Reading) -> list[tuple[Place, bytes]]:
    found = [(place, reading.found.get(place[0].identity(place[1]))) for place in reading.places]
    return [(place, payload) for place, payload in found if payload is not None]
