"""The append-only log as a whole: its files, how it is read at start, and how it is rewritten.

The log is a base (a snapshot) and the increments written since, listed by a manifest. A rewrite continues in a new
increment, has a child write a new base of the memory at that instant, and then lists these two alone. The old increment
is synced before the new one is listed, so that there is no gap between them, and the files that the manifest lists give
the same data at any instant.

The bytes of all increments in order are the feed, which replicas follow; each increment knows its offset in it
(manifest.py). After a rewrite the old increments can be kept for a while (feed.py), so that a replica that was away
finds what it lacks.

Turned on at run time, the log has no base at first; its manifest is not written until a child has made one. A crash
before that restores what was on disk before, so CONFIG SET is answered only then (persistence.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from penstock.engine.dispatch import Engine
from penstock.storage import batches, snapshot
from penstock.storage import manifest as manifests
from penstock.storage.child import Child
from penstock.storage.feed import Feed
from penstock.storage.files import TEMPORARY, StorageError, install, remove_unfinished, sync_folder, unlink_held
from penstock.storage.follower_writer import FollowerWriter
from penstock.storage.lineage import Lineage
from penstock.storage.log_or_snapshot import MemoryStanding
from penstock.storage.manifest import Manifest, State
from penstock.storage.replay import Replay
from penstock.storage.switching_writer import SwitchingWriter
from penstock.storage.writer import LogDeleted, LogFile, Loop

logger = logging.getLogger("penstock.storage")

_SOME = 500
"""Commands that are replayed before clients get LOADING again."""


class AppendOnlyFile:
    """See the top of this file. Owned by the loop thread."""

    def __init__(self, engine: Engine, loop: Loop, sync: Callable[[int], None] = os.fdatasync) -> None:
        config = engine.config
        self._engine = engine
        self._loop = loop
        self._sync = sync
        self.prefix: str = config.appendfilename
        self.folder = Path(config.dir) / str(config.appenddirname)
        self.writer: SwitchingWriter | None = None
        self.manifest = Manifest()
        self.size_at_rewrite = 0  # growth is measured against this
        self._kept_from = ""  # the first increment that the base being written does not contain
        self._installed: Manifest | None = None  # what a thread is listing, after a rewrite
        self.finish_installing: Callable[[], None] = lambda: None  # waits for that
        self.on_switch_failed: Callable[[str], None] = lambda problem: None  # there is no increment to continue in
        self._replaced: tuple[str, ...] = ()  # files of an older log, to be removed when this one is listed
        self.memory = MemoryStanding(self, engine.keyspace)
        self.feed = Feed(self)
        self.on_written: Callable[[batches.Batch], None] = lambda batch: None  # told of each batch that the log has got
        self.own_writer: Callable[..., SwitchingWriter] = SwitchingWriter  # for a log that is no replica's

    @property
    def manifest_path(self) -> Path:
        return self.folder / f"{self.prefix}.manifest"

    @property
    def exists(self) -> bool:
        return self.manifest_path.exists()

    @property
    def is_listed(self) -> bool:
        """Whether the log is on and a restart would read it; not yet, when it was just turned on."""
        return self.writer is not None and bool(self.manifest.base)

    def base_on_disk(self) -> Path | None:
        """The base of the log that is on disk, whether it is on or not; None if there is none."""
        try:
            return self.folder / manifests.read(self.manifest_path).base
        except (OSError, StorageError):
            return None

    @property
    def size(self) -> int:
        """Bytes on disk, of all files."""
        whole = [self.folder / name for name in self.manifest.names]
        return sum(path.stat().st_size for path in whole if path.exists())

    # -- the feed ---------------------------------------------------------------------------------------------

    @property
    def lineage(self) -> Lineage:
        return self.manifest.lineage

    def write_by_itself(self) -> None:
        """Log this server's own changes from now on, instead of a copy of another log."""
        self.finish_switch_and_install()
        for path in self.folder.glob(f"{TEMPORARY}copy-*.base"):
            path.unlink(missing_ok=True)
        self.list_files(replace(self.manifest, lineage=self.lineage.continued(self.feed.end), own=True))

    def list_files(self, manifest: Manifest) -> None:
        """These are the files of the log from now on."""
        if manifest.base:
            manifest.write(self.manifest_path)
        self.manifest = manifest

    # -- loading ----------------------------------------------------------------------------------------------

    def load(self) -> Iterator[int]:
        """Read the whole log into the keyspace; yields the bytes done so far. The last file's torn end is cut off."""
        self.manifest = manifests.read(self.manifest_path)
        for name in self.manifest.names:
            if not (self.folder / name).exists():
                raise StorageError(self.manifest_path, 0, f"the log needs {name}, which is not there", "Restore it")
        base = self.folder / self.manifest.base
        for _ in snapshot.load(base, self._engine.keyspace):
            yield 0
        done = base.stat().st_size
        yield done
        for name in self.manifest.increments:
            for offset in self._load_increment(self.folder / name, name == self.manifest.increments[-1]):
                yield done + offset
            done += (self.folder / name).stat().st_size
        self.size_at_rewrite = done
        if not self.lineage.feeds:
            self._number_increments()

    def _number_increments(self) -> None:
        """A log of an older version: its increments begin at these offsets of the feed."""
        starts, start = {}, 0
        for name in self.manifest.increments:
            starts[name] = start
            start += (self.folder / name).stat().st_size
        self.manifest = replace(self.manifest, starts=starts)

    def _load_increment(self, path: Path, last: bool) -> Iterator[int]:
        replay = Replay(self._engine)
        try:
            for offset, commands in batches.read(path):
                for start in range(0, len(commands), _SOME):  # a script may have written a million
                    replay.run(path, offset, commands[start : start + _SOME])
                    yield offset
        except batches.TornTail as torn:
            if not last:
                remedy = f"`penstock check --fix {path}` cuts the log before this place"
                raise StorageError(path, torn.offset, torn.problem, remedy) from None
            if not self._engine.config.aof_load_truncated:
                remedy = "Set aof-load-truncated to yes, or run `penstock check --fix` on it"
                raise StorageError(path, torn.offset, torn.problem, remedy) from None
            logger.warning("%s; cutting the file there, what follows was never acknowledged", torn)
            os.truncate(path, torn.offset)
        if failed := replay.failed:
            logger.warning("%s: %d commands failed when replayed, the first with: %s", path, len(failed), failed[0])

    def remove_history(self) -> None:
        """Remove the files that the manifest calls history, but for those that are kept for replicas.

        Their names go at once. A thread frees what they take, so that no client waits for that.
        """
        kept = self.manifest.kept
        for name in self.manifest.history:
            if name not in kept:
                descriptor = unlink_held(self.folder / name)
                if descriptor is not None:
                    close = partial(os.close, descriptor)
                    if not self._engine.workers.in_background(close, lambda: None, for_disk=True):
                        close()
        self.manifest = replace(self.manifest, history=kept)

    # -- logging ----------------------------------------------------------------------------------------------

    def create(self, at_end: bool = False) -> None:
        """Make a log of what is in memory now; blocks. `at_end`: it will not be opened, which would begin a feed."""
        number = self._make_folder() + 1
        name = manifests.base_name(self.prefix, number)
        snapshot.save(self.folder / name, self._engine.keyspace)
        lineage = Lineage().continued(0) if at_end else Lineage()  # snapshots tell logs from each other by it
        self.manifest = Manifest(name, history=self._listed_before(), last=number, lineage=lineage, state=State.ON)
        self.manifest.write(self.manifest_path)
        self.memory.leave_log(beyond=False)
        self.remove_history()
        self.size_at_rewrite = self.size

    def _make_folder(self) -> int:
        """Make sure that the folder exists; answers the highest sequence number in use in it."""
        self.folder.mkdir(exist_ok=True)  # not the folder that it is in: that may be a disk that is away
        sync_folder(self.folder.parent)
        return max((manifests.sequence_of(path.name) for path in self.folder.iterdir()), default=0)

    def open(self, on_trouble: Callable[[str | None], None], following: bool = False) -> None:
        """Log every change from now on, or append what a leader has logged."""
        remove_unfinished(self.folder, f"{self.prefix}*")
        self.remove_history()
        if self.manifest.state is not State.ON:
            self.list_files(replace(self.manifest, state=State.ON))
        if not self.manifest.increments:
            name, listed = _with_increment(self.manifest, self.prefix, 0)
            self._list_increment(name, listed)
            self.manifest = listed
        name = self.manifest.increments[-1]
        self._open_writer(LogFile(self.folder / name, self.manifest.starts[name]), on_trouble, following)
        if not following:
            self.write_by_itself()

    def _open_writer(self, file: LogFile, on_trouble: Callable[[str | None], None], following: bool) -> None:
        config = self._engine.config
        kind = FollowerWriter if following else self.own_writer
        self.writer = kind(file, self._loop, config.appendfsync, on_trouble, self._sync, config.aof_timestamp_enabled)
        self.writer.on_written = self.on_written
        self.set_policy(config.appendfsync)

    def open_without_base(self, on_trouble: Callable[[str | None], None]) -> None:
        """Log every change from now on; what is in memory already must be rewritten into a base at once."""
        self.manifest = Manifest(last=self._make_folder(), state=State.ON)
        self._replaced = self._listed_before()
        self.open(on_trouble)

    def _listed_before(self) -> tuple[str, ...]:
        """The files of an earlier log that is on disk."""
        try:
            listed = manifests.read(self.manifest_path)
            return (*listed.names, *listed.history)
        except (OSError, StorageError):
            return ()

    def set_policy(self, policy: str) -> None:
        if self.writer is not None:
            self.writer.policy = policy
            self._engine.log_to(self.writer, strict=policy == "always" or self._engine.config.replica_acks > 0)

    def change_role(self, on_trouble: Callable[[str | None], None], following: bool) -> None:
        """Continue as a replica's log, or as that of a server that writes by itself.

        OSError if the disk refuses, or the file is gone: then nothing has changed.
        """
        assert self.writer is not None
        self.writer.drain()
        if self.writer.file.is_deleted:  # what it had is in memory only, until there is a new base
            raise LogDeleted
        if not following:
            self.write_by_itself()
        file = LogFile(self.writer.file.path, self.writer.file.start)
        self.writer.close()
        self._open_writer(file, on_trouble, following)

    def follow(self, lineage: Lineage) -> None:
        """The leader that is followed has this lineage, and so has this log from now on."""
        self.finish_switch_and_install()
        if self.manifest.own or lineage != self.lineage:
            self.list_files(replace(self.manifest, lineage=lineage, own=False))

    def replace_by(self, base: Path, start: int, lineage: Lineage) -> None:
        """A copy of a leader's base, and nothing yet of the feed from `start` on, take the place of this log.

        OSError if the disk refuses: then this log is as before, and the copy is gone.
        """
        self.finish_switch_and_install()
        number = self._make_folder() + 1
        name, increment = manifests.base_name(self.prefix, number), manifests.increment_name(self.prefix, number + 1)
        starts = {increment: start}
        manifest = Manifest(name, (increment,), self._listed_before(), number + 1, starts, lineage, State.ON)
        try:
            install(base, self.folder / name)
            (self.folder / increment).touch()
            sync_folder(self.folder)
            manifest.write(self.manifest_path)
        except OSError:
            for path in (base, self.folder / name, self.folder / increment):
                path.unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):  # of a log that is given up
            self.close()
        self.manifest = manifest
        self.remove_history()
        self.size_at_rewrite = self.size

    def close(self) -> None:
        """Stop logging. OSError if not everything could be written."""
        was_listed = self.is_listed
        writer, self.writer = self.writer, None
        if writer is not None:
            self._engine.log_to(None)
            whole = False
            try:
                writer.close()
                whole = not writer.needs_rewrite
            finally:
                if was_listed:
                    self.memory.leave_log(beyond=not whole)
                if not self.manifest.base:  # no manifest will list these
                    for name in self.manifest.increments:
                        (self.folder / name).unlink(missing_ok=True)

    def _list_increment(self, name: str, listed: Manifest) -> None:
        """Make an empty increment and list it, if there is a base; also in a thread."""
        (self.folder / name).touch()
        sync_folder(self.folder)
        if listed.base:
            listed.write(self.manifest_path)

    # -- rewriting --------------------------------------------------------------------------------------------

    def start_rewrite(self) -> Child:
        """Have a child write a base of everything that the log has, and continue in a new increment."""
        if self.writer is not None:
            self.writer.write_all()
            if self.writer.file.is_deleted:
                self._make_folder()
        else:  # the log is off: a base alone replaces all files
            last = self._make_folder()
            listed = manifests.read(self.manifest_path) if self.exists else Manifest()
            self.manifest = replace(listed, last=last)
        keyspace = self._engine.keyspace
        temporary = self.folder / f"{TEMPORARY}{os.getpid()}-{self.prefix}.base"
        try:
            child = Child(temporary, lambda file, go_on: snapshot.write(file, keyspace, go_on))
        except OSError:
            if self.writer is not None:
                self.writer.drain()  # replies may wait for it
            raise
        if self.writer is not None:
            self._kept_from = self.manifest.increments[-1]
            if self.writer.file.size or self.writer.file.is_deleted:
                self._switch(self.writer)
        return child

    def _switch(self, writer: SwitchingWriter) -> None:
        """Continue in a new increment, which the thread of the log makes and lists."""
        start = writer.file.end
        name, listed = _with_increment(self.manifest, self.prefix, start)
        self._kept_from = name

        def make() -> LogFile:
            self._list_increment(name, listed)
            return LogFile(self.folder / name, start)

        def done(error: OSError | None) -> None:
            if error is None:
                self.manifest = listed
            else:
                self.on_switch_failed(str(error))

        writer.switch(make, done)

    def finish_switch_and_install(self) -> None:
        """Wait for a thread that lists files; called before anything else is listed. Blocks."""
        if self.writer is not None:
            self.writer.finish_switch()
        self.finish_installing()

    def installing(self, child: Child) -> Callable[[], None]:
        """The child has written a base: what a thread has to do to list it instead of what it replaces."""
        number = self.manifest.last + 1
        name = manifests.base_name(self.prefix, number)
        before, increments = self.manifest, self.manifest.increments
        kept = increments[increments.index(self._kept_from) :] if self.writer is not None else ()
        replaced = [each for each in before.names if each not in kept]
        listed = replace(
            before, base=name, increments=kept, history=(*self._replaced, *before.kept, *replaced), last=number
        )
        if self.writer is None:  # the base alone: what comes after it is another feed
            listed = replace(listed, starts={}, lineage=Lineage().continued(0), state=State.OFF)
        self._installed = listed

        def install_base() -> None:
            install(child.path, self.folder / name)
            listed.write(self.manifest_path)

        return install_base

    def finish_rewrite(self) -> None:
        """The new base is listed: remove what it replaces."""
        assert self._installed is not None
        self.manifest, self._installed, self._replaced = self._installed, None, ()
        self.feed.trim()
        self.remove_history()
        self.size_at_rewrite = self.size
        if self.writer is not None:
            self.writer.recovered()
        else:
            self.memory.leave_log(beyond=True)


def _with_increment(before: Manifest, prefix: str, start: int) -> tuple[str, Manifest]:
    """The name of an increment that begins here, and the manifest that lists it."""
    number = before.last + 1
    name = manifests.increment_name(prefix, number)
    starts = {**before.starts, name: start}
    return name, replace(before, increments=(*before.increments, name), last=number, starts=starts)
