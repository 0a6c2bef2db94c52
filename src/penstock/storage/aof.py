"""The append-only log as a whole: its files, how it is read at start, and how it is rewritten.

The log is a base (a snapshot) and the increments written since, listed by a manifest. A rewrite continues in a new
increment, has a child write a new base of the memory at that instant, and then lists these two alone. The old increment
is synced before the new one is listed, so that there is no gap between them, and the files that the manifest lists give
the same data at any instant.

Turned on at run time, the log has no base at first; its manifest is not written until a child has made one. A crash
before that restores what was on disk before, so CONFIG SET is answered only then (persistence.py).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from penstock.engine.declarations import REGISTRY, Argv
from penstock.engine.dispatch import Engine
from penstock.engine.observe.monitors import in_short
from penstock.engine.run_handler import REPLAY, run_handler
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.storage import batches, snapshot
from penstock.storage import manifest as manifests
from penstock.storage.child import Child
from penstock.storage.files import TEMPORARY, StorageError, install, remove_unfinished, sync_folder
from penstock.storage.manifest import Manifest
from penstock.storage.writer import LogFile, LogWriter, Loop

log = logging.getLogger("penstock.storage")

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
        self.writer: LogWriter | None = None
        self.manifest = Manifest()
        self.size_at_rewrite = 0  # growth is measured against this
        self._kept_from = ""  # the first increment that the base being written does not contain
        self._replaced: tuple[str, ...] = ()  # files of an older log, to be removed when this one is listed

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

    def _load_increment(self, path: Path, last: bool) -> Iterator[int]:
        session = Session.of_server(self._engine)
        failed: list[str] = []
        try:
            for offset, commands in batches.read(path):
                for start in range(0, len(commands), _SOME):  # a script may have written a million
                    self._replay(session, path, offset, commands[start : start + _SOME], failed)
                    yield offset
        except batches.TornTail as torn:
            if not last:
                remedy = f"`penstock check --fix {path}` cuts the log before this place"
                raise StorageError(path, torn.offset, torn.problem, remedy) from None
            if not self._engine.config.aof_load_truncated:
                remedy = "Set aof-load-truncated to yes, or run `penstock check --fix` on it"
                raise StorageError(path, torn.offset, torn.problem, remedy) from None
            log.warning("%s; cutting the file there, what follows was never acknowledged", torn)
            os.truncate(path, torn.offset)
        if failed:
            log.warning("%s: %d commands failed when replayed, the first with: %s", path, len(failed), failed[0])

    def _replay(self, session: Session, path: Path, offset: int, commands: Iterable[Argv], failed: list[str]) -> None:
        """Run the commands of a batch. MULTI and EXEC only mark what belongs together, which the batch keeps."""
        engine, by_name = self._engine, REGISTRY.by_name
        multi, execute = by_name[b"MULTI"], by_name[b"EXEC"]
        for argv in commands:
            command = by_name.get(argv[0])  # as most are spelled in the log
            if command is None or command.subcommands:
                command = REGISTRY.find(argv)
            if command is None:
                name = argv[0].decode("utf-8", "replace")
                raise StorageError(path, offset, f"the command {name} is unknown", "Load the module it is from")
            if command is multi or command is execute:
                continue
            try:
                run_handler(engine, session, command, argv, REPLAY)
            except ReplyError as error:  # a LAZY command is logged before it fails; or a key expired before it
                failed.append(f"{error} ({argv[0].decode('utf-8', 'replace')})")
            except Exception as error:  # a bug of ours, which did not end the server at that time either
                log.exception("internal error in %r, replayed from %s", in_short(argv), path, exc_info=error)
                failed.append(f"{error!r} ({argv[0].decode('utf-8', 'replace')})")

    def _remove_history(self) -> None:
        for name in self.manifest.history:
            (self.folder / name).unlink(missing_ok=True)
        self.manifest = replace(self.manifest, history=())

    # -- logging ----------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make a log of what is in memory now; blocks."""
        number = self._make_folder() + 1
        name = manifests.base_name(self.prefix, number)
        snapshot.save(self.folder / name, self._engine.keyspace)
        self.manifest = Manifest(name, history=self._listed_before(), last=number)
        self.manifest.write(self.manifest_path)
        self._remove_history()
        self.size_at_rewrite = self.size

    def _make_folder(self) -> int:
        """Make sure that the folder exists; answers the highest sequence number in use in it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sync_folder(self.folder.parent)
        return max((manifests.sequence_of(path.name) for path in self.folder.iterdir()), default=0)

    def open(self, on_trouble: Callable[[str | None], None]) -> None:
        """Log every change from now on."""
        config = self._engine.config
        remove_unfinished(self.folder, f"{self.prefix}*")
        self._remove_history()
        name = self.manifest.increments[-1] if self.manifest.increments else self._list_increment()
        self.writer = LogWriter(
            LogFile(self.folder / name), self._loop, config.appendfsync, on_trouble, self._sync,
            config.aof_timestamp_enabled,
        )  # fmt: skip
        self.set_policy(config.appendfsync)

    def open_without_base(self, on_trouble: Callable[[str | None], None]) -> None:
        """Log every change from now on; what is in memory already must be rewritten into a base at once."""
        self.manifest = Manifest(last=self._make_folder())
        self._replaced = self._listed_before()
        self.open(on_trouble)

    def _listed_before(self) -> tuple[str, ...]:
        """The files of an earlier log that is on disk."""
        try:
            return manifests.read(self.manifest_path).names
        except (OSError, StorageError):
            return ()

    def set_policy(self, policy: str) -> None:
        if self.writer is not None:
            self.writer.policy = policy
            self._engine.log_to(self.writer, strict=policy == "always")

    def close(self) -> None:
        """Stop logging. OSError if not everything could be written."""
        writer, self.writer = self.writer, None
        if writer is not None:
            self._engine.log_to(None)
            try:
                writer.close()
            finally:
                if not self.manifest.base:  # no manifest will list these
                    for name in self.manifest.increments:
                        (self.folder / name).unlink(missing_ok=True)

    def _list_increment(self) -> str:
        """Make an empty increment and list it."""
        number = self.manifest.last + 1
        name = manifests.increment_name(self.prefix, number)
        (self.folder / name).touch()
        sync_folder(self.folder)
        longer = replace(self.manifest, increments=(*self.manifest.increments, name), last=number)
        if longer.base:
            longer.write(self.manifest_path)
        self.manifest = longer
        return name

    # -- rewriting --------------------------------------------------------------------------------------------

    def start_rewrite(self) -> Child:
        """Continue in a new increment and have a child write a base of everything before it."""
        if self.writer is not None:
            self.writer.drain()
            if self.writer.file.size:
                self.writer.switch(LogFile(self.folder / self._list_increment()))
            self._kept_from = self.manifest.increments[-1]
        else:  # the log is off: a base alone replaces all files
            last = self._make_folder()
            listed = manifests.read(self.manifest_path) if self.exists else Manifest()
            self.manifest = replace(listed, last=last)
        keyspace = self._engine.keyspace
        temporary = self.folder / f"{TEMPORARY}{os.getpid()}-{self.prefix}.base"
        return Child(temporary, lambda file, go_on: snapshot.write(file, keyspace, go_on))

    def finish_rewrite(self, child: Child) -> None:
        """The child's base is on disk: list it instead of what it replaces, then remove that."""
        number = self.manifest.last + 1
        name = manifests.base_name(self.prefix, number)
        install(child.path, self.folder / name)
        before, increments = self.manifest, self.manifest.increments
        kept = increments[increments.index(self._kept_from) :] if self.writer is not None else ()
        listed = Manifest(name, kept, (*self._replaced, *(set(before.names) - set(kept))), number)
        listed.write(self.manifest_path)
        self.manifest, self._replaced = listed, ()
        self._remove_history()
        self.size_at_rewrite = self.size
        if self.writer is not None:
            self.writer.recovered()
