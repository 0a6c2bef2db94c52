"""A disk of which a test knows what a power cut would leave: only what was synced, by the letter of the standard.

    python -m tests.support.storage.power_cut FOLDER

runs `live`, a short life of the log with everything that changes files in it, again and again, each time in a process
of its own that dies by kill -9 before its first, second, third ... call that changes or syncs a file. After each it
loads what is there, as the kill left it and as a power cut at that instant would have, and says what is missing.

The model: a name is on disk once its folder was synced, and bytes are once their file was; of what was not, nothing is.
The events are noted in a file, because the child that writes a snapshot changes files too. Files are kept by their
inode number, so that those that were removed or replaced can be brought back.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.storage.life import Life

Note = list[Any]


class Disk:
    """Stands between this process and the files below `folder`; kills it before call number `fatal`."""

    def __init__(self, folder: Path, kept: Path, fatal: int) -> None:
        self.folder, self.kept, self._left = folder, kept, fatal
        self._open, self._file_open, self._fdatasync = os.open, io.open, os.fdatasync
        for name in ("replace", "unlink", "mkdir"):
            self._wrap_named(name)
        os.open, io.open = self.open, self.file_open  # type: ignore[assignment]
        fsync = os.fsync
        os.fsync = lambda descriptor: self.sync(fsync, descriptor)  # type: ignore[assignment]

    def _may_die(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, *event: object) -> None:
        descriptor = self._open(self.kept / "events", os.O_WRONLY | os.O_APPEND)  # a child closes what it inherits
        os.write(descriptor, json.dumps(event).encode() + b"\n")
        os.close(descriptor)

    def _is_ours(self, path: object) -> bool:
        return isinstance(path, str | Path) and Path(path).is_relative_to(self.folder)

    def _wrap_named(self, name: str) -> None:
        real = getattr(os, name)

        def call(path: Any, *rest: Any, **options: Any) -> None:
            if not self._is_ours(path):
                real(path, *rest, **options)
                return
            self._may_die()
            real(path, *rest, **options)
            target = {"replace": lambda: str(rest[0]), "mkdir": lambda: Path(path).stat().st_ino, "unlink": lambda: ""}
            self._note(name, str(path), target[name]())

        setattr(os, name, call)

    def _made(self, path: str | Path) -> None:
        number = Path(path).stat().st_ino
        os.link(path, self.kept / str(number))
        self._note("create", str(path), number)

    def open(self, path: Any, flags: int, *rest: Any, **options: Any) -> int:
        new = bool(flags & os.O_CREAT) and self._is_ours(path) and not Path(path).exists()
        if new:
            self._may_die()
        descriptor = self._open(path, flags, *rest, **options)
        if new:
            self._made(path)
        return descriptor

    def file_open(self, path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        new = "w" in mode and self._is_ours(path) and not Path(path).exists()
        if new:
            self._may_die()
        file = self._file_open(path, mode, *rest, **options)
        if new:
            self._made(path)
        return file

    def sync(self, real: Callable[[int], None], descriptor: int) -> None:
        self._may_die()
        real(descriptor)
        status = os.fstat(descriptor)
        self._note("sync", "", status.st_ino, status.st_size)

    def sync_data(self, descriptor: int) -> None:
        self.sync(self._fdatasync, descriptor)


def after_power_cut(folder: Path, kept: Path, into: Path) -> None:
    """Make `into` what `folder` would be."""
    names: dict[str, int] = {}  # inodes by path
    durable: dict[str, int] = {}
    sizes: dict[int, int] = {}
    folders = {folder.stat().st_ino: str(folder)}
    events: list[Note] = [json.loads(line) for line in (kept / "events").read_text().splitlines()]
    for kind, path, what, *size in events:
        if kind == "replace":
            names[what] = names.pop(path)
        elif kind == "unlink":
            names.pop(path, None)
        elif kind != "sync":
            names[path] = what
            if kind == "mkdir":
                folders[what] = path
        elif what in folders:
            synced = Path(folders[what])
            elsewhere = {each: inode for each, inode in durable.items() if Path(each).parent != synced}
            durable = elsewhere | {each: inode for each, inode in names.items() if Path(each).parent == synced}
        else:
            sizes[what] = size[0]
    into.mkdir()
    for path, number in sorted(durable.items()):
        target = into / Path(path).relative_to(folder)
        if number in folders:
            target.mkdir()
        elif target.parent.exists():
            target.write_bytes((kept / str(number)).read_bytes()[: sizes.get(number, 0)])


def live(folder: Path, disk: Disk, acknowledge: Callable[[int], object]) -> None:
    """A log is begun, rewritten, turned off and on again, with a snapshot in between, and written to all the time."""
    life = Life(folder, appendfsync="always", sync=disk.sync_data)
    number = 0

    def write(durable: bool = True) -> None:
        nonlocal number
        number += 1
        with life.engine.unit():
            life.run(f"SET last {number}", f"RPUSH list {number}")
        life.loop.run()
        if durable:
            writer = life.persistence._aof.writer
            assert writer is not None
            writer.drain()
            acknowledge(number)

    write()
    write()
    life.persistence.start_rewrite()
    write()
    life.wait_for_child()
    write()
    life.persistence.save()
    write()
    life.run("CONFIG SET appendonly no")
    write(durable=False)
    life.session.waiter = None
    life.run("CONFIG SET appendonly yes")
    write(durable=False)
    life.wait_for_child()
    acknowledge(number)  # the moment when CONFIG SET is answered
    write()
    life.persistence.close()


def check(folder: Path, acknowledged: int) -> None:
    """Load it; everything acknowledged is there, and no unit by halves."""
    life = Life(folder)
    database = life.engine.keyspace[0]
    last = int(database.data.get(b"last", b"0"))
    items = [int(item) for item in database.data.get(b"list", [])]
    assert last >= acknowledged, f"{acknowledged} was acknowledged, {last} is there"
    assert items == list(range(1, last + 1)), f"{items} is no list of {last}"
    life.persistence.close()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # before the next fork, or both would print it


def in_process(work: Callable[[], None]) -> int:
    """The exit status of a process that does this."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            say(f"{type(error).__name__}: {error}")
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def crash(place: Path, fatal: int) -> tuple[bool, bool]:
    """Die before call number `fatal`; whether there was such a call, and whether nothing is lost."""
    folder, kept, cut = place / "disk", place / "kept", place / "cut"
    folder.mkdir(parents=True)
    kept.mkdir()
    acknowledged = kept / "acknowledged"
    acknowledged.write_text("0")
    (kept / "events").touch()

    def run() -> None:
        note = os.open(acknowledged, os.O_WRONLY)
        live(folder, Disk(folder, kept, fatal), lambda number: os.pwrite(note, b"%d" % number, 0))

    status = in_process(run)
    if status not in (0, -signal.SIGKILL):
        sys.exit(f"the life itself failed before call {fatal}")
    done = int(acknowledged.read_text())
    after_power_cut(folder, kept, cut)
    lost = [world for world in (folder, cut) if in_process(lambda world=world: check(world, done))]  # type: ignore[misc]
    for world in lost:
        say(f"{'kill -9' if world == folder else 'a power cut'} before call {fatal} loses something")
    shutil.rmtree(place)
    return status != 0, not lost


def main(root: Path) -> None:
    """Every crash there can be. Ends with status 1 if one of them loses something."""
    outcomes = []
    more = True
    while more:
        more, safe = crash(root / str(len(outcomes)), len(outcomes) + 1)
        outcomes.append(safe)
    say(f"{len(outcomes) - 1} crashes")
    sys.exit(not all(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
