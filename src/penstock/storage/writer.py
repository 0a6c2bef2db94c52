"""The writing end of the log: entries in, batches on disk, and no reply ahead of what it claims.

Entries collect until the end of the loop's iteration and go out as one batch. How far a batch must be before the
replies of that iteration leave (`engine.commit`) is `appendfsync`:

    always     written and synced, by a thread. What arrives meanwhile is the next batch: a group commit, so the number
               of syncs a second does not bound the number of writes.
    everysec   written: a kill -9 loses nothing either. The thread syncs once a second, and what comes while it does is
               written all the same. A power cut can cost what came since the last sync began.
    no         written.

Rejected: keeping entries in memory while a sync is under way and letting replies leave, for two seconds at most, as
Redis does because a file system may block a write behind a sync. A kill -9 in these seconds loses what was
acknowledged. If the file system does block the write, replies have to wait for it anyway. Rejected: leaving that write
to a second thread, because all replies wait for it just the same, and the common write that is not blocked would cost
more.

All replies wait, those of reads and pushes to subscribers too: a read must not show what a crash could take back.

When the disk refuses (full, broken), the half-written batch is cut off the file again, its entries are kept, writes are
refused with MISCONF, and every second the batch is tried again; when that works, writes are let in again. The clients
whose writes were in the batch get that MISCONF instead of their OK. Under `always` each reply that acknowledges one is
marked. Under the other policies this would cost every write, so the replies of a turn are marked together: if a client
sent one command, it gets the error, and if it sent several, its connection is closed. Both mean what a lost connection
means: not acknowledged. The same happens to a change that is logged while the disk refuses: a thread had begun it
before, or the command that came upon the full disk is behind it in a pipeline. A repeat that answers for a change in
the batch acknowledges it too, and gets the same (`Session.acknowledge_again`). The change has happened in memory, is
seen by readers from then on (they go on being served; this is the one moment when a read can show what a crash takes
back), and reaches the disk with the retry, so that memory and log agree again. Rejected: undoing the change, which
would need the old value of everything a command may touch; exiting, as Redis does under `always`, which turns a full
disk into an outage for readers; sending the reply as it is under the other policies, as Redis does: a kill -9 before
there is room loses what was acknowledged. With `replica-acks` a reply claims, under each policy, that replicas have the
change. They get what this file has, so these clients get NOREPLICAS, which says that the change was made here only.
Other replies of the turn may show it: their connections are closed.

A sync that fails is different: the kernel may have dropped what it could not write and says so only once. Under
`always` the batch is still here and is written again. Otherwise it is gone, and only a new base will do:
`needs_rewrite` asks for one, as soon as a sync works again (`sync_works`), which is tried every second. A file that was
deleted under the server needs one too: it takes all writes, and the next start would not find them.

Owned by the loop thread, except that the thread writes to and syncs the file while `_busy` or `_syncing`.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from penstock.engine.declarations import Argv
from penstock.engine.interfaces import LogEntry
from penstock.storage.batches import LARGE, LENGTHS, Batch, add_lines, framed, framed_in_pieces
from penstock.storage.files import write_pieces, write_rest
from penstock.storage.held_replies import Confirmations, Held, answer_changes, send_all
from penstock.storage.log_thread import LogThread

logger = logging.getLogger("penstock.storage")

NOT_CONFIRMED = b"-NOREPLICAS The change was made here, but too few replicas have it.\r\n"
"""What a client gets whose change was not confirmed by as many replicas as `replica-acks` wants."""
MANY = 200
"""Lines that are joined as soon as nothing needs them separately."""


class Loop(Protocol):
    """The methods of an event loop that this uses."""

    def call_soon(self, callback: Callable[[], object]) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> object: ...


class LogDeleted(FileNotFoundError):
    """The file of the log has no name any more."""

    def __init__(self) -> None:
        super().__init__(errno.ENOENT, "the file of the log was deleted")


class LogFile:
    """An increment, open for appending. `size` counts whole batches only; `start` is its place in the feed."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self.start = start
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self._descriptor).st_size
        self._torn = False  # part of a batch may follow `size`

    @property
    def end(self) -> int:
        """Where the feed goes on."""
        return self.start + self.size

    @property
    def is_deleted(self) -> bool:
        """Whether it has no name any more: nothing that is written to it will be found at the next start.

        Its path alone does not say so, because the folder may have been moved, and will come back. Nor do its links
        alone: some file systems do not count them. If they do, what its path names now is another file.
        """
        if os.fstat(self._descriptor).st_nlink:
            return False
        try:
            return self.path.stat().st_nlink > 0
        except OSError:
            return True

    def append_unless_deleted(self, batch: Batch, sync: Callable[[int], None] | None) -> None:
        """As `append`, by a thread: it looks itself, since it may be at work each time that `LogWriter.tick` comes."""
        if self.is_deleted:
            raise LogDeleted
        self.append(batch, sync)

    def append(self, batch: Batch, sync: Callable[[int], None] | None) -> None:
        """Write one batch and perhaps sync it; if either fails the file is as before."""
        self._cut()
        self._torn = True
        try:
            if len(batch) == 1:
                total = len(batch[0])
                written = os.write(self._descriptor, batch[0])
                if written < total:
                    write_rest(self._descriptor, batch, written)
            else:
                total = write_pieces(self._descriptor, batch)
            if sync is not None:
                sync(self._descriptor)
        except OSError:
            self._cut()
            raise
        self._torn = False
        self.size += total

    def _cut(self) -> None:
        if self._torn:
            os.ftruncate(self._descriptor, self.size)
            self._torn = False

    def sync(self, sync: Callable[[int], None]) -> None:
        sync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class LogWriter:
    """See the top of this file. `log` is engine.log, and the object itself is engine.commit."""

    def __init__(
        self,
        file: LogFile,
        loop: Loop,
        policy: str,
        on_trouble: Callable[[str | None], None] = lambda problem: None,
        sync: Callable[[int], None] = os.fdatasync,
        timestamps: bool = False,
    ) -> None:
        self.file = file
        self.policy = policy
        self.timestamps = timestamps
        self.pending = False  # entries wait for the disk, or for replicas, so replies come to `hold`
        self.confirmed_by_replicas = False  # replies wait for replicas too, until `confirm`
        self.trouble: str | None = None  # why the last write failed
        self.needs_rewrite = False  # a sync failed or the file is gone: it may lack what was written to it
        self.sync_works = True  # the last one did
        self.syncs = 0  # how often the file was synced
        self.synced_end = file.end  # the feed up to here is safe from a power cut
        self.delayed_syncs = 0  # syncs that were under way when the next one was due
        self.on_written: Callable[[Batch], None] = lambda batch: None  # told of each batch, before replies leave
        self._loop = loop
        self._on_trouble = on_trouble
        self._sync = sync
        self._pieces: Batch = []  # lines of entries that are in no batch yet
        self._joined = 0  # how many of them, the first ones, are many lines joined already
        self._has_large = False  # one of them may be LARGE
        self._database = -1  # the one that the last entry was for
        self._held: list[Held] = []  # replies that wait for _pieces
        self._leaving: list[Held] = []  # replies that wait for the batch the thread has
        self._confirmations = Confirmations(self._send)  # replies that wait for replicas
        self._confirmed_end = -1  # replicas have the feed up to here; -1: not known
        self._planned = False  # a flush will come
        self._batch: Batch = []  # the batch the thread has
        self._busy = False  # the thread has a batch
        self._syncing = False  # the thread syncs what was written (everysec)
        self._syncing_to = 0  # up to where
        self._sync_is_late = False  # the one under way is in `delayed_syncs`
        self._unsynced = False
        self._last_sync = time.monotonic()
        self._last_try = 0.0
        self._last_stamp = 0
        self._thread = LogThread(loop, self._finished)

    # -- engine.log and engine.commit -------------------------------------------------------------------------

    def log(self, entries: list[LogEntry]) -> None:
        """Take entries that belong together."""
        if len(entries) > 1:
            add_lines(self._pieces, [b"MULTI"])
        for database, argv in entries:
            # A handler may name a value that it edits in place again before the batch is made.
            self.append(database, [arg if type(arg) is bytes else bytes(memoryview(arg)) for arg in argv])
        if len(entries) > 1:
            add_lines(self._pieces, [b"EXEC"])

    def append(self, database: int, argv: Argv) -> None:
        """Take one command. Every logged write comes through here, so the common length is spelt out."""
        pieces = self._pieces
        if database != self._database:
            self._database = database
            add_lines(pieces, [b"SELECT", b"%d" % database])
        if len(argv) == 3:
            name, key, value = argv
            try:
                pieces += (b"*3", LENGTHS[len(name)], name, LENGTHS[len(key)], key, LENGTHS[len(value)], value)
            except IndexError:
                self._has_large = self._has_large or len(value) >= LARGE
                add_lines(pieces, argv)
        else:
            if len(argv) < MANY // 2:  # else its lines are joined
                self._has_large = self._has_large or max(map(len, argv)) >= LARGE
            add_lines(pieces, argv)
        if self.trouble is not None:
            self.pending = True
        elif not self._planned:
            self._write_soon()

    def _write_soon(self) -> None:
        self.pending = self._planned = True
        if not self._busy:
            self._loop.call_soon(self.flush)

    def hold(self, write: Callable[[bytes], None], replies: list[bytes | memoryview]) -> None:
        """Send these once everything logged so far is as safe as the policy says.

        Those that are Unconfirmed acknowledge a change; if the disk refuses it, they become errors. While it refuses,
        no reply waits: the change may have come before, from a thread, or by the command that found the disk full.
        """
        if self.trouble is not None and not self._held and not self._leaving:
            self._leave([(write, replies)], refusal(self))
            return
        if len(self._pieces) - self._joined > MANY:
            self._join()
        if self._pieces:
            self._held.append((write, replies))
        elif self._busy or not self._confirmations:
            self._leaving.append((write, replies))
        else:
            self._confirmations.join((write, replies))

    def _join(self) -> None:
        """Join lines, so that arguments are let go while they are in the processor's cache."""
        lines = b"\r\n".join(self._pieces[self._joined :])
        self._pieces[self._joined :] = [lines]
        self._joined += 1
        self._has_large = self._has_large or len(lines) >= LARGE

    @property
    def syncing(self) -> bool:
        """The thread is at work on the file."""
        return self._syncing or self._busy

    def is_safe_since(self, syncs: int) -> bool:
        """Whether what was logged when `syncs` was this is as safe as the policy promises.

        A sync that was under way at that time does not count, so it takes two.
        """
        if self.trouble is not None or self.needs_rewrite:
            return False
        idle = not (self._pieces or self._busy or self._syncing)
        return self.syncs >= syncs + 2 or (idle and (self.policy == "no" or not self._unsynced))

    @property
    def has_all(self) -> bool:
        """Whether everything that was logged is in the file."""
        return not self._pieces and not self._batch

    @property
    def waiting_bytes(self) -> int:
        return sum(map(len, self._pieces)) + 2 * len(self._pieces) + sum(map(len, self._batch))

    # -- batches ----------------------------------------------------------------------------------------------

    def _take_batch(self) -> Batch:
        """Take the collected batch, as it is written. It begins in database 0 if it does not say which.

        So a batch can be understood without those before it.
        """
        pieces, self._pieces, self._joined = self._pieces, [], 0
        if self._database:
            self._database = -1
        if self.timestamps and (now := int(time.time())) != self._last_stamp:
            self._last_stamp = now
            pieces.insert(0, b"#TS:%d" % now)
        pieces.append(b"")
        if not self._has_large:
            return [framed(b"\r\n".join(pieces))]
        self._has_large = False
        return framed_in_pieces(pieces)

    def _take_back(self, batch: Batch) -> None:
        """The disk refused a batch: it becomes the beginning of the next one."""
        self._pieces.insert(0, b"".join(batch).partition(b"\n")[2].removesuffix(b"\r\n"))
        self._joined += 1
        self._has_large = True

    def flush(self) -> None:
        """The end of an iteration, or of the thread's last job: start the next batch."""
        if self._busy:
            return
        self._planned = False
        if not self._pieces:
            return
        if self.policy == "always":
            batch = self._batch = self._take_batch()
            self._leaving += self._held
            self._held = []
            self._busy = True
            self._last_try = time.monotonic()
            append = self.file.append if self.needs_rewrite else self.file.append_unless_deleted
            self._thread.start(lambda: append(batch, self._sync))
        else:
            failed = False
            try:
                self._write_here()
            except OSError:  # it will be tried again
                failed = True
            self._release(failed)

    def _write_here(self) -> None:
        self._planned = False  # else what is logged now would not wait for the next flush
        batch = self._take_batch()
        self._last_try = time.monotonic()
        try:
            self.file.append(batch, None)
        except OSError as error:
            self._take_back(batch)
            self._in_trouble(error)
            raise
        self._unsynced = True
        self._out_of_trouble()
        self.on_written(batch)

    def _synced(self, end: int, error: OSError | None = None) -> None:
        """The file is safe from a power cut up to here; with an error, it may lack what was written to it."""
        self.sync_works = error is None
        if error is None:
            self.syncs += 1
            self.synced_end = end
        else:
            self.needs_rewrite = True
            self._in_trouble(error)

    def _release(self, failed: bool = False) -> None:
        """Send every reply, in order; after a failure some of them as errors."""
        leaving, self._leaving, self._held = self._leaving + self._held, [], []
        (self._refuse if failed else self._leave)(leaving)

    def _refuse(self, replies: list[Held]) -> None:
        """The disk refuses what these acknowledge, or show."""
        if self.confirmed_by_replicas:
            answer_changes(replies, lambda changes: self._leave(changes, NOT_CONFIRMED))
            replies = []
        self._leave(replies, refusal(self))

    def _leave(self, replies: list[Held], error: bytes | None = None) -> None:
        """The log has what these acknowledge, or there is an error: send them, or have them wait for replicas."""
        lacks = self.confirmed_by_replicas and error is None and self.file.end > self._confirmed_end
        if self._confirmations or lacks:
            self._confirmations.add(self.file.end, replies, error)
            self.pending = True
        else:
            self.pending = bool(self._pieces)
            self._send(replies, error)

    def _send(self, replies: list[Held], error: bytes | None) -> None:
        """The one place where replies leave."""
        send_all(replies, error)

    def wait_for_replicas(self) -> None:
        """Have replies wait until replicas confirm all that the file has now: they may lack some of it."""
        self._confirmed_end = -1
        if self.confirmed_by_replicas:
            self._confirmations.add(self.file.end, [])
            self.pending = True

    def confirm(self, offset: int) -> None:
        """Enough replicas have the feed up to here."""
        self._confirmed_end = max(self._confirmed_end, min(offset, self.file.end))
        self._confirmations.confirm(offset)
        if not self._confirmations and not self._busy and not self._pieces:
            self.pending = False

    def refuse_unconfirmed(self, give_replies: Callable[[], None]) -> bool:
        """Too few replicas are left: the clients that wait for them are told so, also those whose replies did not come
        to `hold` yet. Whether there is a change that may be lost, and is not to be shown.
        """
        if not self._confirmations and self.has_all:
            return False
        give_replies()
        self._confirmations.refuse(NOT_CONFIRMED)
        self.pending = bool(self._pieces or self._busy)
        return True

    def _in_trouble(self, error: OSError) -> None:
        trouble = error.strerror or str(error)
        self._on_trouble(trouble)  # replies that it gives to `hold` are of before the trouble
        self.trouble = trouble

    def _out_of_trouble(self) -> None:
        if self.trouble is not None and not self.needs_rewrite:
            self.trouble = None
            self._on_trouble(None)

    # -- the thread -------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for the thread; blocks."""
        while self._busy or self._syncing:
            self._finished(self._thread.wait())

    def _finished(self, error: OSError | None) -> None:
        if self._syncing:
            self._syncing = self._sync_is_late = False
            self._synced(self._syncing_to, error)
        else:
            self._busy = False
            batch, self._batch = self._batch, []
            if error is not None:
                self._take_back(batch)
                self.needs_rewrite = self.needs_rewrite or isinstance(error, LogDeleted)
                self._in_trouble(error)
                self._release(failed=True)
                return
            self._out_of_trouble()
            self._synced(self.file.end)
            self.on_written(batch)
            leaving, self._leaving = self._leaving, []
            self._leave(leaving)
        self.flush()

    # -- from time to time ------------------------------------------------------------------------------------

    def tick(self, may_sync: bool = True) -> None:
        """Sync if it is time, and retry what the disk refused a second ago.

        `may_sync` is about `everysec` only; under `always` replies depend on the sync.
        """
        now = time.monotonic()
        if not self.needs_rewrite and not self._busy and self.file.is_deleted:
            self.needs_rewrite = True
            self._in_trouble(LogDeleted())
        if self._pieces and self.trouble is not None and now - self._last_try >= 1:
            self.flush()
        wanted = (may_sync and self.policy == "everysec" and self._unsynced) or not self.sync_works
        if not wanted or now - self._last_sync < 1:
            return
        if self._syncing and not self._sync_is_late:
            self._sync_is_late = True
            self.delayed_syncs += 1
        elif not self._syncing and not self._busy:
            self._last_sync = now
            self._unsynced = False
            self._syncing, self._syncing_to = True, self.file.end
            self._thread.start(lambda: self.file.sync(self._sync))

    def drain(self) -> None:
        """Write and sync everything now; blocks. Raises OSError if the disk refuses."""
        self._wait()
        try:
            if self._pieces:
                self._write_here()
            if self._unsynced and not self.needs_rewrite:
                self.file.sync(self._sync)
                self._unsynced = False
                self._synced(self.file.end)
        except OSError as error:
            if self.has_all:  # so it was the sync
                self._synced(self.file.end, error)
            self._release(failed=True)
            raise
        self._release()

    def recovered(self) -> None:
        """A new base holds everything, so a failed sync of older files no longer matters."""
        self.needs_rewrite = False
        self._out_of_trouble()
        if self._pieces and not self._planned:
            self._write_soon()  # what was logged meanwhile

    def close(self) -> None:
        """Write and sync what can be, send the replies, end the thread."""
        try:
            self.drain()
        finally:
            self._confirmations.refuse(NOT_CONFIRMED)  # no reply shows what replicas may lack
            self._thread.close()
            self.file.close()


def refusal(writer: LogWriter) -> bytes:
    """The reply to clients whose change the disk has refused."""
    if writer.confirmed_by_replicas:  # replicas get what the file has, so no log has the change
        return NOT_CONFIRMED
    return f"-MISCONF Errors writing to the AOF file: {writer.trouble}\r\n".encode()
