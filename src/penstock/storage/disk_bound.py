"""Bounds the files of all streams (`stream-history-max`), and evicts or refuses at the bound.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.engine.dispatch import Engine
from penstock.storage.known_files import KnownFiles
from penstock.storage.stream_places import find
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE


class DiskBound:
    """See the top of this file. `streams` are all that may have files."""

    def __init__(self, engine: Engine, known: KnownFiles, streams: Collection[Messages]) -> None:
        self._engine = engine
        self._config = engine.config
        self._known = known
        self._streams = streams

    def is_full(self, size: int) -> bool:
        """Whether so many bytes more are not allowed, and nothing may be evicted for them."""
        config = self._config
        return config.stream_history_full == "refuse" and 0 < config.stream_history_max < self._known.size + size

    def evict_oldest(self) -> None:
        """While files take more than they may, evict the segment whose messages are the oldest of all streams."""
        most = self._config.stream_history_max
        if not most or self._config.stream_history_full != "evict" or self._engine.pause.until:
            return
        while self._known.size > most:
            keyspace = self._engine.keyspace
            streams = [messages for messages in self._streams if messages.history and find(keyspace, messages)]
            # Not what is known: a reader may still have a file, and a stream, that no key has.
            names = {part.name for messages in streams for part in messages.history}
            if sum(map(self._known.size_of, names)) <= most:
                return
            if not any(map(self._evict_segment, sorted(streams, key=_oldest))):
                return

    def _evict_segment(self, messages: Messages) -> bool:
        """Evict the oldest segment of a stream; False if it is not possible now."""
        place = find(self._engine.keyspace, messages)
        if place is None or place[1] in place[0].locked:
            return False
        database, key = place
        self._engine.lazy.run_for(database, key, to_write=True)
        if find(self._engine.keyspace, messages) != place or not messages.history:
            return False
        messages.evict_through(messages.history[0].end * NODE)
        database.changed(key)
        self._engine.propagate(database, [[b"TEVICT", key, b"%d" % (messages.first - 1)]])
        return True


def _oldest(messages: Messages) -> int:
    """The time of the oldest segment."""
    return messages.history[0].peak
