"""Dead letters of expired messages that lie in files: a thread reads the files before the messages are given up.

Upkeep gives a slice of them up at a time (stream_upkeep.py). The slice ends before the first message whose file was not
read yet, and a thread reads that one and those that follow. Other groups of the stream wait behind it; other streams
and clients do not. A file that is lost counts as read, and the group is done with its messages.

AT_ONCE streams at most have something read for them, so that it takes little memory. Without threads, files are read in
place, as in the middle of a group read that comes upon expired messages which it did not foresee.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from penstock.engine.stream_history import fetch_what_is_there
from penstock.types.stream.groups import FETCH, SLICE, Group, part_of, unready
from penstock.types.stream.messages import Messages, Place
from penstock.types.stream.segments import Identity
from penstock.types.stream.stored_nodes import with_fetched

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine

AT_ONCE = 8
"""Streams for which a thread reads, or has read."""
PATIENCE = 1000
"""Milliseconds after which what was read may go, if its stream did not come for it."""


class Reading:
    """Nodes that a thread reads for a stream, or has read."""

    __slots__ = ("found", "is_over", "places", "since")

    def __init__(self, places: list[Place], now: int) -> None:
        self.places = places
        self.found: dict[Identity, bytes | None] = {}  # None for what is lost
        self.is_over = False
        self.since = now  # by the clock of leases


class ColdLetters:
    """See the top of this file."""

    def __init__(self, engine: Engine, go_on: Callable[[], None]) -> None:
        self._engine = engine
        self._go_on = go_on  # called when a thread has read what a stream waits for
        self._readings: WeakKeyDictionary[Messages, Reading] = WeakKeyDictionary()

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
        if len(self._readings) >= AT_ONCE and messages not in self._readings:
            for other, reading in [*self._readings.items()]:
                if reading.is_over and now - reading.since >= PATIENCE:
                    del self._readings[other]
            self._go_on()
            return True
        reading = Reading(places, now)

        def over() -> None:
            reading.is_over = True
            self._go_on()

        begun = self._engine.workers.in_background(
            lambda: reading.found.update(fetch_what_is_there(places)), over, for_disk=True
        )
        if begun:
            self._readings[messages] = reading
        return begun


def _unread(group: Group, messages: Messages, now: int, ready: Container[Identity]) -> list[Place]:
    """The nodes in files that `expire` needs first and that are not ready; none if the first lease needs none.

    Those of later leases are a guess.
    """
    first = group.leases.expired(now)
    unread = unready(messages, part_of(messages, first, SLICE), ready) if first is not None else []
    if unread:
        known = {segment.identity(place) for segment, place in unread}
        for lease in islice(group.leases, SLICE):
            if len(known) >= SLICE // FETCH:
                break
            if 0 < lease.end_at <= now:
                for segment, place in unready(messages, part_of(messages, lease, FETCH), ready):
                    if segment.identity(place) not in known:
                        known.add(segment.identity(place))
                        unread.append((segment, place))
    return unread


class _Everything:
    """Any file may be read in place."""

    def __contains__(self, identity: object) -> bool:
        return True


_EVERYTHING = _Everything()


def _that_are_there(reading: Reading) -> list[tuple[Place, bytes]]:
    found = [(place, reading.found.get(place[0].identity(place[1]))) for place in reading.places]
    return [(place, payload) for place, payload in found if payload is not None]
