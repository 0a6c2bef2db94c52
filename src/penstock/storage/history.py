"""History: the old nodes of streams move from memory to files, so that a stream can be longer than memory.

`stream-memory` bounds what the sealed nodes of all streams take in memory, with what a thread makes of them when it
compresses them, and room for two copies of the largest node, which compressing or sealing it takes. From three quarters
of it on, the oldest nodes of the streams that take most go to segments: a thread writes and syncs a file, then the loop
lets go of the nodes and the log gets `TAPPLY key HISTORY index`. A replay of the log builds the nodes again and lets go
of them at the same place; if the file is not there any more, it keeps them, because the log will say that they were
evicted. Snapshots and the base of the log refer to files. When writers are faster than the disk and the bound is
reached, the loop waits for the thread.

Files that nothing needs are removed (known_files.py). Those that nothing refers to at the start are strays: a crash
left them.

Reading: a node of a file is fetched by a thread before the command that needs it runs (engine/stream_history.py), or in
the middle of a command that cannot wait.

Only a server that keeps its data on disk, and has its folder for itself, keeps history.

Owned by the loop thread. Another thread calls `fetch`, and runs the jobs that write and remove files.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.engine.dispatch import Engine
from penstock.protocol.errors import ReplyError
from penstock.storage import segment_files, snapshot
from penstock.storage.disk_bound import DiskBound
from penstock.storage.files import StorageError
from penstock.storage.history_choice import Chosen, Wish, choose, size_in_memory
from penstock.storage.history_thread import HistoryThread, Result
from penstock.storage.known_files import KnownFiles
from penstock.storage.machine_memory import memory_of_machine
from penstock.storage.notice_logging import notice
from penstock.storage.segment_files import FOLDER, Run, SegmentFiles
from penstock.storage.stream_places import all_streams, find
from penstock.storage.unused_memory import UnusedMemory
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Node
from penstock.types.stream.segments import MissingHistory, Segment, StoredNode
from penstock.types.stream.stored_nodes import forget_read, largest_node, read_back_size, sealed_size, store

if TYPE_CHECKING:
    from penstock.storage.aof import AppendOnlyFile
    from penstock.storage.writer import Loop

logger = logging.getLogger("penstock.storage")

LARGEST_SEGMENT = 64 << 20
SHARE = 16
"""A segment has at most one part in this many of `stream-memory`, so that moving nodes goes on in steps."""
COPIES = 2
"""Copies of a node that compressing it makes: what comes out, and the node that this becomes."""
RETRY_SECONDS = 1.0
"""How long it waits after the disk refused a segment."""
MEASURING = 100
"""One part in this many of the time may go into counting what nodes take."""


class HistoryLost(ReplyError, MissingHistory):
    """A read of messages whose file is missing or damaged; names the file and the offsets."""


class Moving(NamedTuple):
    """Nodes of a stream that a thread is writing to a file."""

    messages: weakref.ref[Messages]
    nodes: list[Node]
    payloads: list[bytes]


class History:
    """See the top of this file. Files of types/stream/segments.py, and its Source."""

    def __init__(
        self,
        engine: Engine,
        loop: Loop,
        aof: AppendOnlyFile,
        on_trouble: Callable[[], None],
        rewrite_soon: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._config = engine.config
        self._loop = loop
        self._aof = aof
        self._on_trouble = on_trouble
        self._rewrite_soon = rewrite_soon
        self.files = SegmentFiles(Path(engine.config.dir) / FOLDER)
        self.active = False  # nodes may go to files
        self.started = False  # it is active, unless dir is another folder now
        self.problem: str | None = None  # why the last segment could not be written
        self.known = KnownFiles()
        self._streams: weakref.WeakSet[Messages] = weakref.WeakSet()  # those with sealed nodes
        self._in_memory: weakref.WeakSet[Messages] = weakref.WeakSet()  # those whose sealed nodes are not all in files
        self._on_disk = DiskBound(engine, self.known, self._streams)
        self._held = 0  # about how many bytes sealed nodes take
        self._room = 0  # bytes that compressing or sealing the largest node takes for a moment
        self._read_back = 0  # how many of them are those of nodes that were read from files
        self._next_measure = 0.0
        self._moving: list[Moving] = []  # to one file
        self._next_try = 0.0
        self._relief_planned = False
        self._may_begin = True  # something has changed since no nodes could be moved
        self._refusing = False  # writes are refused because of this
        self._written = 0  # files
        self._thread = HistoryThread(loop, self._wrote)
        self._unused_memory = UnusedMemory(engine.memory, self._thread)
        engine.keyspace.stream_storage.files = self
        engine.config.on_change("stream-memory", self._limit_changes)
        engine.config.on_change("dir", self._folder_changes)

    # -- Files and Source -------------------------------------------------------------------------------------

    def adopt(self, segment: Segment) -> None:
        self.known.adopt(segment, self)

    def keep_for_replay(self, segments: Sequence[Segment]) -> None:
        self.known.keep_for_replay(segments)

    def names(self) -> list[str]:
        return self.known.names()

    def sealed(self, messages: Messages, raw: int) -> None:
        self._streams.add(messages)
        self._in_memory.add(messages)
        self._held += raw
        limit = self.limit
        if not limit or not self._moves:
            return
        if self._taken > limit and not self._relief_planned:
            self._relief_planned = True
            self._loop.call_soon(self._relieve)
        elif 4 * self._taken > 3 * limit and not self._moving and self._may_begin:
            self._may_begin = False
            self._loop.call_soon(self._move)  # before the next tick clients may write more than there is room for

    def compressed(self, saved: int) -> None:
        self._held -= saved
        self._may_begin = True

    def fetch(self, segment: Segment, places: Sequence[int]) -> list[bytes]:
        try:
            return self.files.fetch(segment, places)
        except MissingHistory as error:
            raise HistoryLost(str(error)) from error

    def is_there(self, segment: Segment) -> bool:
        """Whether its file exists, as far as a look at the folder tells, and will not be removed."""
        return not self.known.is_removing([segment.name]) and self.files.missing(segment) is None

    @property
    def _taken(self) -> int:
        """Bytes of sealed nodes, of what a thread makes of them, and what may be needed the next moment."""
        return self._held + self._engine.compression.in_flight + self._room

    @property
    def _moves(self) -> bool:
        """Whether this server decides what goes to files; a replica does as its leader."""
        return self.active and not (self._engine.following or self._engine.cannot_confirm)

    # -- start and end ----------------------------------------------------------------------------------------

    def start(self, snapshot_path: Path) -> None:
        """Everything is loaded and the folder is ours: remove strays, and keep history from now on."""
        self.started = True
        self.active = _is_parent(self._config.dir, self.files.folder)
        if not self.active:
            return  # a snapshot in our own folder may need files
        self._bound()
        self.known.in_snapshot = _named_in(snapshot_path)
        base = self._aof.base_on_disk()
        self.known.in_base = _named_in(base) if base is not None else frozenset()
        for _, key, stream in all_streams(self._engine.keyspace):
            for segment in stream.messages.history:
                problem = self.files.missing(segment)
                if problem is not None:
                    logger.error("history of the stream %r: %s; reads of it get an error", key[:64], problem)
        try:
            strays = self.files.strays({*self.known.names(), *self.known.in_snapshot, *self.known.in_base})
            for name in strays:
                self.files.remove(name)
        except OSError as error:
            logger.error("the folder of history cannot be used: %s", error)
            return
        if strays:
            notice("removed %d files of history that nothing refers to", len(strays))

    def close(self) -> None:
        """End the thread; a segment that it is writing becomes a stray."""
        self.active = self.started = False
        self._thread.close()

    # -- settings ---------------------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Bytes that sealed nodes may take in memory; 0 if none go to files."""
        wanted = self._config.stream_memory
        return wanted if wanted >= 0 else memory_of_machine() * -wanted // 100

    def _limit_changes(self, wanted: int) -> None:
        stored = self.known.size
        if not wanted and stored:
            raise ValueError(
                f"{stored} bytes of streams are in files and would have to fit memory; evict them first (TEVICT, "
                "TRETAIN), or choose a larger bound instead of 0"
            )
        self._loop.call_soon(self._bound)  # the new value holds from then on

    def _bound(self) -> None:
        most = self._engine.keyspace.stream_storage.most = self.limit or None if self.active else None
        if most is not None:
            self._unused_memory.bound(most)

    def _folder_changes(self, folder: str) -> None:
        """Another folder is not locked for us, and a snapshot there would refer to files in this one."""
        home = _is_parent(folder, self.files.folder)
        if not home and (self.known.names() or bool(self._moving)):
            raise ValueError(f"streams have history in {self.files.folder}; move the whole folder while it is stopped")
        if not home and self.active:
            logger.warning("history is off, because it is kept in %s, and dir is another folder now", self.files.folder)
        self.active = home and self.started
        self._loop.call_soon(self._bound)

    # -- moving nodes to files --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Many times a second."""
        self._may_begin = True
        self._remove_unneeded()
        if self._moves:
            self._on_disk.evict_oldest()
            if self.limit:
                self._unused_memory.tick()
            self._move()
            full = self.problem is not None or self._on_disk.is_full(_segment_size(self.limit))
            if full and self.known.has_for_replay:
                self._rewrite_soon()  # files that only a replay of the log reads make room
        self._tell_of_refusal()

    def _tell_of_refusal(self) -> None:
        if (self.refusal is not None) != self._refusing:
            self._refusing = not self._refusing
            self._on_trouble()

    def _measure(self, now: bool = False) -> int:
        """About how many bytes are taken. Counting nodes takes a part in MEASURING of the time, unless it must be
        `now`; in between, what was written and what went to files is added and subtracted.
        """
        started = time.monotonic()
        is_due = started >= self._next_measure
        if is_due:
            self._read_back = sum(read_back_size(messages) for messages in [*self._streams] if messages.recent)
        if now or is_due:
            streams = _with_nodes(self._in_memory)
            held = sum(map(size_in_memory, streams))
            if 2 * (held + self._read_back) > self.limit:  # else it cannot be too much, however it is stored
                held = sum(map(sealed_size, streams))
                self._room = min(COPIES * max(map(largest_node, streams), default=0), self.limit // 4)
            self._held = held + self._read_back
        if is_due:
            self._next_measure = started + MEASURING * (time.monotonic() - started)
        return self._taken

    def _move(self, at_once: bool = False) -> bool:
        """Have the thread write a segment, if memory is short and it writes none; whether it does.

        Nodes that wait to be compressed cannot go: a thread compresses them first, or this does `at_once`.
        """
        limit = self.limit
        if not limit or not self._moves or self._moving:
            return False
        if time.monotonic() < self._next_try or 4 * self._measure() < 3 * limit:
            return False
        if SHARE * self._read_back > limit:  # nodes that were read from files go first
            for messages in self._streams:
                forget_read(messages)
            self._held -= self._read_back
            self._read_back = 0
        size = _segment_size(limit)
        if self._on_disk.is_full(size):
            return False
        pressed = 8 * self._taken > 7 * limit
        for hot in (False, True) if pressed else (False,):
            chosen = choose(self._engine, _with_nodes(self._in_memory), Wish(size, hot, pressed, at_once))
            if chosen:
                self._write(chosen)
                return True
        return False

    def _write(self, chosen: Chosen) -> None:
        runs = []
        for messages, nodes in chosen:
            stored = [StoredNode(node.message(), node.newest, node.raw, node.offsets) for node in nodes]
            self._moving.append(Moving(weakref.ref(messages), nodes, [node.payload for node in stored]))
            runs.append(Run(nodes[0].number, nodes[0].before, stored))
        self._thread.start(partial(segment_files.write, self.files.folder, nodes[0].large, runs))

    def _wrote(self, result: Result) -> None:
        self._finish(result)
        self._move()

    def _finish(self, result: Result) -> bool:
        """The thread has written a file, or could not; whether nodes have left memory."""
        moving, self._moving = self._moving, []
        if isinstance(result, str):
            self._next_try = time.monotonic() + RETRY_SECONDS
            self._set_problem(result)
            return False
        self._set_problem(None)
        self._written += 1
        for segment in result:
            self.adopt(segment)  # from here on the file is removed if nothing has it
        gone = [self._let_go(*both) for both in zip(moving, result, strict=True)]
        return any(gone)

    def _let_go(self, moving: Moving, segment: Segment) -> bool:
        """These nodes are in a file: take them from memory, unless their stream or the role has changed meanwhile."""
        if not self._moves:
            return False
        messages = moving.messages()
        place = find(self._engine.keyspace, messages) if messages is not None else None
        if messages is None or place is None or place[1] in place[0].locked:
            return False
        now = [messages.nodes.get(node.number) for node in moving.nodes]
        same = all(
            node is None or (node is before and (not node.payload or node.payload is payload))
            for node, before, payload in zip(now, moving.nodes, moving.payloads, strict=True)
        )
        taken = sum(node.size() for node in now if node is not None)
        if not same or not store(messages, segment):
            return False
        self._held -= taken
        self._engine.propagate(place[0], [[b"TAPPLY", place[1], b"HISTORY", segment.dump()]])
        return True

    def _relieve(self) -> None:
        """The bound is reached: wait for the disk until it is kept again, or nothing more can go."""
        self._relief_planned = False
        self._measure(now=True)
        while self._moves and 0 < self.limit < self._taken:
            if not self._moving and not self._move(at_once=True):
                break
            if not self._finish(self._thread.wait()):
                break  # it would go on in the same way
        self._tell_of_refusal()  # clients write much before the next tick

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and self.problem is None:
            logger.error("history cannot be written: %s; it is tried again every second", problem)
        elif problem is None and self.problem is not None:
            logger.warning("history can be written again")
        self.problem = problem

    @property
    def refusal(self) -> str | None:
        """Why writes must be refused: memory is at its bound, and nothing can go to a file."""
        problem = self.problem
        if self._on_disk.is_full(_segment_size(self.limit)):
            problem = "the files take as much as stream-history-max allows"
        if not self.active or problem is None or self._measure() <= self.limit:
            return None
        return (
            f"streams take the memory they may (stream-memory), and history cannot be written: {problem}. Make room "
            "for it, or raise the limit"
        )

    # -- removing files ---------------------------------------------------------------------------------------

    def _remove_unneeded(self) -> None:
        if self.active and not self._moving:  # else the thread may be about to use a file of the same name
            for name in self.known.take_removable(self._aof.writer, self._aof.is_listed):
                self._thread.start(partial(self._remove, name))

    def _remove(self, name: str) -> None:
        """In the thread."""
        try:
            self.files.remove(name)
        except OSError as error:
            logger.warning("the file %s of history is not needed, and cannot be removed: %s", name, error.strerror)
        finally:
            self.known.removed(name)

    # -- INFO -------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, int | str]:
        """Fields of INFO persistence."""
        if not self._moves or not self.limit:
            self._measure()  # nothing else does: a replica lets go of nodes when its leader does
        return {
            "history_enabled": int(self.active and self.limit > 0),
            "history_files": len(self.known.names()),
            "history_bytes": self.known.size,
            "history_segments_written": self._written,
            "history_write_in_progress": int(bool(self._moving)),
            "history_files_to_remove": self.known.unneeded,
            "history_last_write_status": "ok" if self.problem is None else "err",
            "stream_memory_limit": self.limit,
            "stream_memory_held": self._taken - self._room,
        }


def _named_in(path: Path) -> frozenset[str]:
    """The files that a snapshot, or the base of a log, refers to; none if it cannot be read."""
    try:
        return frozenset(snapshot.segment_names(path))
    except (FileNotFoundError, StorageError):
        return frozenset()


def _is_parent(folder: str, inner: Path) -> bool:
    return Path(folder).resolve() == inner.parent.resolve()


def _segment_size(limit: int) -> int:
    """Bytes of a segment, when streams may take so much memory."""
    return min(LARGEST_SEGMENT, max(limit // SHARE, 1))


def _with_nodes(streams: weakref.WeakSet[Messages]) -> list[Messages]:
    """Streams with sealed nodes in memory; the others are removed until they have some again."""
    for messages in [*streams]:
        if not messages.nodes:
            streams.discard(messages)
    return [*streams]
