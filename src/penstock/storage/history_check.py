"""The part of `penstock check` about history: which files of it the data of a folder needs, and whether they are whole.

Only the data itself says which files are needed: a file that the base of a log refers to may have been removed after a
later command evicted its messages. So the log is replayed, as at the start of a server, and the snapshot is loaded.
While a server uses the folder, that would be out of date at once; then each file is only checked by itself.

A repair gives up the messages that cannot be read, and no others: the log gets `TAPPLY key LOST name node ...` at its
end, a snapshot is written anew. A damaged file of which the log itself still has the messages is moved aside first: a
replay without it keeps them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock import commands
from penstock.engine.config import Config
from penstock.engine.dispatch import Engine
from penstock.engine.keyspace.databases import Keyspace
from penstock.protocol.resp import pack
from penstock.storage import batches, manifest, snapshot
from penstock.storage.aof import AppendOnlyFile
from penstock.storage.check_report import Report
from penstock.storage.files import StorageError, sync_folder, unused_name
from penstock.storage.folder_lock import FolderInUse, FolderLock
from penstock.storage.history import HistoryLost
from penstock.storage.segment_files import SegmentFiles, covered, node_problem, problems
from penstock.storage.writer import LogFile
from penstock.types.stream.messages import Messages
from penstock.types.stream.segments import MissingHistory, Segment, StoredFile
from penstock.types.stream.stored_nodes import forget_nodes
from penstock.types.stream.stream import Stream

_DATABASES = 1024
"""As many as there can be: a snapshot does not say how many there were."""


class ReferredFiles:
    """Files of types/stream/segments.py for data that is only looked at, and its Source."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._streams: Callable[[], Iterator[tuple[int, bytes, Messages]]] = lambda: iter(())

    def adopt(self, segment: Segment) -> None:
        segment.file = StoredFile(segment.name, self)

    def sealed(self, messages: Messages, raw: int) -> None:
        pass

    def compressed(self, saved: int) -> None:
        pass

    def fetch(self, segment: Segment, places: Sequence[int]) -> list[bytes]:
        """For a command of the log that reads history; it fails as it does when a server loads the log."""
        try:
            return self._files.fetch(segment, places)
        except MissingHistory as error:
            raise HistoryLost(str(error)) from error

    def keep_for_replay(self, segments: Sequence[Segment]) -> None:
        pass  # nothing is removed

    def names(self) -> list[str]:
        return sorted({segment.name for _, _, messages in self._streams() for segment in messages.history})

    def is_there(self, segment: Segment) -> bool:
        return self._files.missing(segment) is None

    def of(self, keyspace: Keyspace) -> None:
        """It has the files of these streams from now on."""
        keyspace.stream_storage.files = self
        self._streams = lambda: streams_of(keyspace)


def streams_of(keyspace: Keyspace) -> Iterator[tuple[int, bytes, Messages]]:
    for database in keyspace.databases:
        for key, value in database.data.items():
            if type(value) is Stream:
                yield database.index, key, value.messages


@dataclass(slots=True)
class _Lost:
    """Nodes of one segment that cannot be read."""

    database: int
    key: bytes
    segment: Segment
    numbers: list[int]  # of the nodes
    problem: str  # with the first of them

    @property
    def whose(self) -> str:
        first, last = covered(self.numbers[0], 1)[0], covered(self.numbers[-1], 1)[1]
        gaps = "" if len(self.numbers) == self.numbers[-1] + 1 - self.numbers[0] else ", not all of them,"
        name = self.key.decode("utf-8", "backslashreplace")
        return f"offsets {first} to {last}{gaps} of the stream '{name}' in database {self.database}"


class _Snapshot:
    """Data that is in a snapshot."""

    def __init__(self, path: Path, files: SegmentFiles) -> None:
        self.path = path
        self._files = files
        self.keyspace = Keyspace(0)

    def load(self) -> None:
        self.keyspace = Keyspace(_DATABASES)
        ReferredFiles(self._files).of(self.keyspace)
        for _ in snapshot.load(self.path, self.keyspace):
            pass

    def files(self) -> set[str]:
        """Files without which messages would be lost."""
        return set(snapshot.segment_names(self.path))

    def give_up(self, losses: list[_Lost]) -> str:
        """Write it again without these messages. Says what was kept."""
        _forget(self.keyspace, losses)
        copy = unused_name(self.path.with_name(self.path.name + ".bak"))
        shutil.copyfile(self.path, copy)
        snapshot.save(self.path, self.keyspace)
        return f"written again; as it was, it is in {copy.name}"


class _NoLoop:
    """A loop for a log that is only read."""

    def call_soon(self, callback: Callable[[], object]) -> None:
        pass

    call_soon_threadsafe = call_soon


class _Log:
    """Data that is in a log."""

    def __init__(self, path: Path, files: SegmentFiles) -> None:
        self.path = path  # of the manifest
        self._files = files
        self.keyspace = Keyspace(0)

    def load(self) -> None:
        commands.load()
        config = Config()
        places = {
            "dir": self.path.parent.parent,
            "appenddirname": self.path.parent.name,
            "appendfilename": self.path.stem,
        }
        for name, value in {**places, "databases": _DATABASES}.items():
            config.load(name, [str(value)])
        engine = Engine(config)
        self.keyspace = engine.keyspace
        engine.loading, engine.keyspace.expiring = True, False
        ReferredFiles(self._files).of(engine.keyspace)
        for _ in AppendOnlyFile(engine, _NoLoop()).load():
            pass

    def files(self) -> set[str]:
        return set(snapshot.segment_names(self.path.with_name(manifest.read(self.path).base)))

    def give_up(self, losses: list[_Lost]) -> str:
        """Append to its last increment that these messages are lost."""
        listed = manifest.read(self.path)
        name = listed.increments[-1] if listed.increments else manifest.increment_name(self.path.stem, listed.last + 1)
        repaired = listed.repaired()
        repaired.write(self.path)
        file = LogFile(self.path.with_name(name))
        try:
            file.append([batches.framed(b"".join(map(_effects, losses)))], os.fsync)
        finally:
            file.close()
        if not listed.increments:
            sync_folder(self.path.parent)
            replace(repaired, increments=(name,), last=listed.last + 1).write(self.path)
        _forget(self.keyspace, losses)
        return f"{name} says so now"


def _forget(keyspace: Keyspace, losses: list[_Lost]) -> None:
    for lost in losses:
        stream = keyspace[lost.database].data[lost.key]
        assert isinstance(stream, Stream)
        forget_nodes(stream.messages, lost.segment.name, lost.numbers)


def _effects(lost: _Lost) -> bytes:
    numbers = [b"%d" % number for number in lost.numbers]
    select = pack(b"SELECT", b"%d" % lost.database)
    return select + pack(b"TAPPLY", lost.key, b"LOST", lost.segment.name.encode(), *numbers)


_Data = _Snapshot | _Log


def check_history(
    folder: Path, files: SegmentFiles, snapshots: Sequence[Path], logs: Sequence[Path], fix: bool, report: Report
) -> None:
    """Check the files of history of a folder, for these snapshots and manifests of logs, which are whole."""
    data: list[_Data] = [*(_Snapshot(path, files) for path in snapshots), *(_Log(path, files) for path in logs)]
    if not files.strays([]) and not any(one.files() for one in data):
        return
    lock = FolderLock(folder)
    try:
        lock.take()
        _Check(files, data, report).run(fix)
    except FolderInUse as error:
        report.say(files.folder, f"{error.problem}, so each file is checked by itself, and not which of them it needs")
        _check_alone(files, report)
    finally:
        lock.release()


def _check_alone(files: SegmentFiles, report: Report) -> None:
    names = [name for name in files.strays([]) if name.endswith(".arrow")]
    for name in names:
        for problem in problems(files.folder / name)[:1]:
            if problem != "it is not there":  # the server has removed it by now
                report.damage(files.folder / name, problem)


@dataclass(slots=True)
class _Check:
    """One run on a folder that is ours."""

    files: SegmentFiles
    data: list[_Data]
    report: Report
    _known: dict[tuple[str, int, int], str | None] = field(default_factory=dict)
    """By file, place and checksum: what is wrong with a node."""

    def run(self, fix: bool) -> None:
        for one in self.data:
            try:
                one.load()
            except StorageError as error:
                self.report.damage(one.path, f"it cannot be loaded, so which files it needs is not known: {error}")
                return
        losses = [self._losses(one) for one in self.data]
        if fix and self._move_aside(losses):
            losses = [self._losses(one) for one in self.data]
        for one, lost in zip(self.data, losses, strict=True):
            if fix and lost:
                self._give_up(one, lost)
            else:
                self._blame(one, lost)
        self._sum_up({each.segment.name for some in losses for each in some if not fix})

    def _losses(self, one: _Data) -> list[_Lost]:
        return [
            _Lost(database, key, segment, numbers, self._problem(segment, numbers[0]) or "")
            for database, key, messages in streams_of(one.keyspace)
            for segment in messages.history
            if (numbers := [
                number
                for number in range(max(segment.first, messages.lowest), segment.end)
                if self._problem(segment, number) is not None
            ])
        ]  # fmt: skip

    def _problem(self, segment: Segment, number: int) -> str | None:
        place = number - segment.first
        node = segment.name, segment.places[place], segment.checksums[place]
        if node not in self._known:
            self._known[node] = node_problem(self.files.folder / segment.name, segment, place)
        return self._known[node]

    def _move_aside(self, losses: list[list[_Lost]]) -> bool:
        """Move damaged files aside of which the log has the messages; whether there are any, and they are back."""
        needed = {name for one in self.data for name in one.files()}
        names = {lost.segment.name for some in losses for lost in some} - needed
        for name in sorted(names):
            path = self.files.folder / name
            aside = unused_name(path.with_name(name + ".bak"))
            path.rename(aside)
            self.report.say(path, f"fixed: moved to {aside.name}; the log has its messages")
        for one in self.data if names else ():
            one.load()
        return bool(names)

    def _blame(self, one: _Data, losses: list[_Lost]) -> None:
        for lost in losses:
            path = self.files.folder / lost.segment.name
            self.report.damage(path, f"{lost.problem}; {one.path.name} needs {lost.whose}")

    def _give_up(self, one: _Data, losses: list[_Lost]) -> None:
        done = one.give_up(losses)
        for lost in losses:
            path = self.files.folder / lost.segment.name
            self.report.say(path, f"{lost.problem}; fixed: {lost.whose} are given up")
        self.report.say(one.path, f"fixed: {done}")

    def _sum_up(self, damaged: set[str]) -> None:
        needed: set[str] = set()
        streams: set[tuple[int, bytes]] = set()
        for database, key, messages in (found for one in self.data for found in streams_of(one.keyspace)):
            needed |= {segment.name for segment in messages.history}
            streams |= {(database, key)} if messages.history else set()
        whole = needed - damaged
        self.report.say(
            self.files.folder, f"files of history: {len(needed)}, of {len(streams)} streams; {len(whole)} are whole"
        )
        for name in sorted(whole):
            for problem in problems(self.files.folder / name, nodes=False):
                self.report.say(self.files.folder / name, f"its messages are whole, but {problem}")
        for name in self.files.strays(needed):
            self.report.say(self.files.folder / name, "a stray: nothing refers to it, and the server will remove it")
