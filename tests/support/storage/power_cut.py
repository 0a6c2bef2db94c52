"""A disk of which a test knows what a power cut would leave: only what was synced, by the letter of the standard.

    python -m tests.support.storage.power_cut FOLDER log|history|compaction

runs `live`, a short life of the log with everything that changes files in it, `live_with_history`, the same for the
files of old messages of streams, or `live_with_compaction`, again and again, each time in a process of its own that
dies by kill -9 before its first, second, third ... call that changes or syncs a file. Then it loads what each left, as
the kill left it and as a power cut at that instant would have, and says what is missing.

The model: a name is on disk once its folder was synced, and bytes are once their file was; of what was not, nothing is.
The events are noted in a file, because the child that writes a snapshot changes files too. Files are kept by their
inode number, so that those that were removed or replaced can be brought back.
"""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.storage.life import Life

from penstock.types.stream.nodes import NODE
from penstock.types.stream.reading import each
from penstock.types.stream.stream import Stream

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
            writer = life.persistence.aof.writer
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


HISTORY = {
    "stream_memory": "40000", "stream_hot_nodes": "0", "stream_compression": "none", "appendfsync": "always",
}  # fmt: skip


def live_with_history(folder: Path, disk: Disk, acknowledge: Callable[[int], object]) -> None:
    """Nodes go to files, are copied, compacted and evicted, with rewrites and a snapshot in between."""
    life = Life(folder, sync=disk.sync_data, **HISTORY)
    history = life.persistence.history
    number = 0

    def run(*words: bytes) -> None:
        life.engine.execute(life.session, list(words))
        life.loop.run()
        writer = life.persistence.aof.writer
        assert writer is not None
        writer.drain()

    def write() -> None:
        nonlocal number
        number += 1
        run(b"TWRITE", b"s", b"ENTRIES", *[b"", b"%d" % number] * NODE)
        run(b"TWRITE", b"c", b"ENTRIES", *[b"tag", b"%d" % number] * NODE)
        acknowledge(number)

    def work() -> None:
        """What the server does when it has time: nodes go to files, files that nothing needs are removed."""
        for _ in range(6):
            history.tick()
            while history._moving:
                life.loop.run()
                time.sleep(0.001)
            life.engine.streams.tick()
            life.loop.run()

    write()
    write()
    write()
    work()
    written = set(history.names())
    assert len(written) > 2, "nothing went to files"
    life.persistence.start_rewrite()
    write()
    life.wait_for_child()
    run(b"TRETAIN", b"c", b"COMPACT", b"yes")
    write()
    work()
    run(b"COPY", b"s", b"copy")
    run(b"TEVICT", b"s", b"%d" % (2 * NODE))
    work()
    life.persistence.save()
    run(b"DEL", b"copy")
    write()
    work()
    life.persistence.start_rewrite()
    life.wait_for_child()
    work()
    life.persistence.save()
    work()
    unneeded = written - set(history.names())
    assert unneeded
    patience = time.monotonic() + 60  # a thread removes them
    while unneeded & {path.name for path in history.files.folder.iterdir()}:
        assert time.monotonic() < patience, "files were not removed"
        time.sleep(0.001)
    write()
    life.persistence.close()


def check_history(folder: Path, acknowledged: int) -> None:
    """Load it; every message that was acknowledged and not evicted can be read."""
    life = Life(folder, **HISTORY)
    data = life.engine.keyspace[0].data
    for key in (b"s", b"copy"):
        stream = data.get(key)
        assert stream is not None or key == b"copy" or not acknowledged, "the stream is gone"
        if isinstance(stream, Stream):
            stream.check()
            found = [(message.offset, message.entry) for message in each(stream.messages, 1, 10**6)]
            first, last = stream.messages.first, stream.messages.last
            assert found == [(at, b"%d" % ((at - 1) // NODE + 1)) for at in range(first, last + 1)], (
                "messages are missing"
            )
            assert first in (1, 2 * NODE + 1)
            assert last >= acknowledged * NODE or key == b"copy", (
                f"{acknowledged} were acknowledged, {last} is the last"
            )
    compacted = data.get(b"c")
    if isinstance(compacted, Stream):
        compacted.check()
        newest = [message.entry for message in each(compacted.messages, 1, 10**6)][-1]
        assert int(newest) >= acknowledged
    life.persistence.close()


def live_with_compaction(folder: Path, disk: Disk, acknowledge: Callable[[int], object]) -> None:
    """A stream is compacted before, while and after the log is rewritten, so that each base and what follows it need
    the same files in two ways.
    """
    life = Life(folder, sync=disk.sync_data, **HISTORY)
    history = life.persistence.history
    last = 0

    def run(*words: bytes) -> None:
        life.engine.execute(life.session, list(words))
        life.loop.run()
        writer = life.persistence.aof.writer
        assert writer is not None
        writer.drain()

    def write(first_tag: int) -> None:
        """A node of messages. Their tags follow each other, so that a second node with the same ones supersedes it."""
        nonlocal last
        last += NODE
        tags = range(first_tag, first_tag + NODE)
        run(b"TWRITE", b"s", b"ENTRIES", *[word for tag in tags for word in (b"%d" % tag, b"entry")])
        acknowledge(last)

    def work() -> None:
        for _ in range(4):
            life.engine.streams.tick()
            life.loop.run()
            history.tick()
            while history._moving:
                life.loop.run()
                time.sleep(0.001)

    def begin_rewrite() -> None:
        life.persistence.start_rewrite()
        while life.persistence._child.running is None:
            life.persistence.tick()
            life.loop.run()

    for node in range(3):
        write(node * NODE)
    run(b"TRETAIN", b"s", b"COMPACT", b"yes")
    work()
    begin_rewrite()
    life.wait_for_child()
    write(NODE // 2)  # the second half of the first node, the first half of the second one
    write(3 * NODE)
    work()
    begin_rewrite()
    write(2 * NODE)
    write(4 * NODE)
    work()
    life.wait_for_child()
    work()
    write(NODE // 4)
    work()
    patience = time.monotonic() + 60  # a thread removes what nothing needs
    while {path.name for path in history.files.folder.iterdir()} - set(history.names()):
        assert time.monotonic() < patience, "files were not removed"
        time.sleep(0.001)
    life.persistence.close()


def check_compaction(folder: Path, acknowledged: int) -> None:
    """Load it; of every tag the newest message is there, and can be read."""
    life = Life(folder, **HISTORY)
    stream = life.engine.keyspace[0].data.get(b"s")
    assert isinstance(stream, Stream) or not acknowledged, "the stream is gone"
    if isinstance(stream, Stream):
        stream.check()
        last = stream.messages.last
        assert last >= acknowledged, f"{acknowledged} was acknowledged, {last} is the last"
        first_tags = [0, NODE, 2 * NODE, NODE // 2, 3 * NODE, 2 * NODE, 4 * NODE, NODE // 4]
        expected = {tag: at for at in range(1, last + 1) for tag in [first_tags[(at - 1) // NODE] + (at - 1) % NODE]}
        found = {int(message.tag): message.offset for message in each(stream.messages, 1, 10**6)}
        assert found == expected, "messages are missing"
    life.persistence.close()


LIVES = {
    "log": (live, check),
    "history": (live_with_history, check_history),
    "compaction": (live_with_compaction, check_compaction),
}


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


def crash(place: Path, fatal: int, kind: str) -> tuple[bool, int]:
    """Die before call number `fatal`; whether there was such a call, and what was acknowledged.

    In `place` are then `disk`, as the kill left it, and `cut`, as a power cut would have.
    """
    lived, _ = LIVES[kind]
    folder, kept = place / "disk", place / "kept"
    folder.mkdir(parents=True)
    kept.mkdir()
    acknowledged = kept / "acknowledged"
    acknowledged.write_text("0")
    (kept / "events").touch()

    def run() -> None:
        note = os.open(acknowledged, os.O_WRONLY)
        lived(folder, Disk(folder, kept, fatal), lambda number: os.pwrite(note, b"%d" % number, 0))

    status = in_process(run)
    if status not in (0, -signal.SIGKILL):
        sys.exit(f"the life itself failed before call {fatal}")
    done = int(acknowledged.read_text())
    after_power_cut(folder, kept, place / "cut")
    shutil.rmtree(kept)
    return status != 0, done


def check_all(crashes: list[tuple[Path, int]], kind: str) -> None:
    """Load what each left. AssertionError if anything is lost; it says what, and goes on before that."""
    _, checked = LIVES[kind]
    lost = 0
    for fatal, (place, done) in enumerate(crashes, 1):
        for name, death in (("disk", "kill -9"), ("cut", "a power cut")):
            try:
                checked(place / name, done)
            except Exception as error:
                lost += 1
                say(f"{death} before call {fatal} loses something: {type(error).__name__}: {error}")
        shutil.rmtree(place)
    assert not lost, f"{lost} of {2 * len(crashes)} lost something"


def main(root: Path, kind: str) -> None:
    """Every crash there can be. Ends with status 1 if one of them loses something.

    One process loads all that they left: the first touch of each page after a fork takes most of the time of a load.
    """
    gc.collect()
    gc.freeze()  # or each of the processes would collect what was imported here, and copy its pages
    crashes: list[tuple[Path, int]] = []
    more = True
    while more:
        place = root / str(len(crashes))
        more, done = crash(place, len(crashes) + 1, kind)
        crashes.append((place, done))
    is_lost = in_process(lambda: check_all(crashes, kind)) != 0
    say(f"{len(crashes) - 1} crashes")
    sys.exit(is_lost)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
