"""Tracks which history files are still needed: by streams, snapshots, the log and replicas that copy them.

A file is removed once nothing refers to it and the log entry that says so is durable; otherwise a power cut could
bring back a stream whose file is gone. A deleted stream drops its files by itself: a file is known as long as a
segment has its `StoredFile`. Compaction is logged as the nodes that it rewrote, so a replay of it reads the stream as
it was: all files of the stream stay until the log has a base that was begun afterwards. While the log is off, the
one on disk does not learn what is evicted, so it needs the files of its base until another log replaces it.

Owned by the loop thread. Other threads may free the last reference to a StoredFile.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable

from penstock.storage.writer import LogWriter
from penstock.types.stream.segments import Segment, Source, StoredFile


class KnownFiles:
    """See the top of this file."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[str, StoredFile] = weakref.WeakValueDictionary()
        self._sizes: dict[str, int] = {}
        self._let_go: deque[str] = deque()  # names whose StoredFile is gone
        self._unneeded: dict[str, int] = {}  # names, and how often the log was synced when they came here
        self._removing: set[str] = set()  # names that a thread was told to remove; it takes them out itself
        self._for_replay: set[StoredFile] = set()  # that a replay of the log reads
        self._before_base: frozenset[StoredFile] = frozenset()  # those that it no longer reads with the next base
        self.in_snapshot: frozenset[str] = frozenset()
        self._in_next_snapshot: frozenset[str] = frozenset()
        self.in_base: frozenset[str] = frozenset()  # of the log on disk
        self._in_next_base: frozenset[str] = frozenset()
        self._pinned: dict[object, frozenset[str]] = {}  # by who copies them

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __bool__(self) -> bool:
        """Whether streams have any."""
        return bool(self._known)

    def adopt(self, segment: Segment, source: Source) -> None:
        """Give a segment its file, the same one to all of that name."""
        file = self._known.get(segment.name)
        if file is None:
            file = self._known[segment.name] = StoredFile(segment.name, source)
            weakref.finalize(file, self._let_go.append, segment.name)
        self._sizes[segment.name] = max(self._sizes.get(segment.name, 0), segment.places[-1])  # others may have more
        segment.file = file

    def names(self) -> list[str]:
        """The files that streams have."""
        return list(self._known)

    @property
    def size(self) -> int:
        """Bytes of the files that streams have."""
        return sum(self._sizes[name] for name in self.names())

    def size_of(self, name: str) -> int:
        """Bytes of a file that streams have, as far as their segments tell."""
        return self._sizes[name]

    @property
    def unneeded(self) -> int:
        """How many files wait to be removed."""
        return len(self._unneeded)

    def snapshot_begins(self) -> None:
        """A snapshot of this instant is about to be written."""
        self._in_next_snapshot = frozenset(self._known)

    def snapshot_ended(self, done: bool) -> None:
        """It has replaced the last one, or was given up."""
        if done:
            self._look_at(self.in_snapshot - self._in_next_snapshot)
            self.in_snapshot = self._in_next_snapshot
        self._in_next_snapshot = frozenset()

    def pin(self, owner: object, names: Iterable[str]) -> None:
        """Keep these files until `unpin`; they replace those that this owner had."""
        self._pinned[owner] = frozenset(names)

    def unpin(self, owner: object) -> None:
        self._pinned.pop(owner, None)

    def keep_for_replay(self, segments: Iterable[Segment]) -> None:
        """The log has an effect whose replay reads these segments."""
        files = {segment.file for segment in segments if segment.file is not None}
        self._for_replay |= files
        self._before_base -= files  # the base that is being written was begun before this effect

    @property
    def has_for_replay(self) -> bool:
        """Whether files may stay only because the log has no newer base."""
        return bool(self._for_replay)

    def base_begins(self) -> None:
        """A base of this instant is about to be written."""
        self._before_base = frozenset(self._for_replay)
        self._in_next_base = frozenset(self._known)

    def base_ended(self, done: bool) -> None:
        """The log begins with it, or it was given up."""
        if done:
            self._for_replay -= self._before_base
            self._look_at(self.in_base - self._in_next_base)
            self.in_base = self._in_next_base
        self._before_base = frozenset()
        self._in_next_base = frozenset()

    def _look_at(self, names: Iterable[str]) -> None:
        """These may not be needed any more."""
        for name in names:
            self._unneeded.setdefault(name, 0)

    def take_removable(self, writer: LogWriter | None, log_is_listed: bool) -> list[str]:
        """The files that can be removed now; the caller removes them, and says `removed` of each.

        `log_is_listed` says that what is written now goes to the log that a restart would read.
        """
        if writer is None:
            self._for_replay.clear()
        while self._let_go:
            self._unneeded[self._let_go.popleft()] = writer.syncs if writer is not None else 0
        kept = self.in_snapshot.union(self._in_next_snapshot, *self._pinned.values())
        if not log_is_listed:
            kept |= self.in_base | self._in_next_base
        removable: list[str] = []
        for name, syncs in list(self._unneeded.items()):
            if name in self._known:
                del self._unneeded[name]
            elif name not in kept and (writer is None or writer.is_safe_since(syncs)):
                del self._unneeded[name]
                self._sizes.pop(name, None)
                removable.append(name)
        self._removing.update(removable)
        return removable

    def removed(self, name: str) -> None:
        """A removable file is gone, or cannot be removed; said by any thread."""
        self._removing.discard(name)

    def is_removing(self, names: Iterable[str]) -> bool:
        """Whether one of these files is about to be removed, although it may exist."""
        return not self._removing.isdisjoint(names)
