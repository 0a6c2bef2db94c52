"""A forked child that writes a file while the server continues.

The child has the memory of the instant of the fork, and only the thread that forked. Any lock another thread held at
that instant stays held in it for ever, so it touches nothing that has one: no logging, no event loop, no imports, no
garbage collector (which would also copy every page it looks at). It closes what it inherited, because a listening
socket that outlives a killed server keeps the next one from starting. It serialises, syncs, and leaves by os._exit.

The child does not rename its file: the parent does, when it has seen the child succeed. A child whose parent was killed
notices and gives up, and the file it was writing has a temporary name that the next start removes. A child that writes
nothing for an hour is killed, because no other snapshot or rewrite can begin while it runs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from penstock.storage.files import write_synced

STALLED_SECONDS = 3600.0
"""Far more than the slowest disk needs for a sync, or the largest value to be serialised."""

Write = Callable[[BinaryIO, Callable[[], None]], str | None]
"""Writes the file; calls its second argument now and then, which raises if the child should give up. Answers what it
left out, if anything.
"""


class Orphaned(Exception):
    """The parent is gone."""


class Child:
    """A file being written by a child process. Owned by the loop thread; `poll` it."""

    def __init__(self, path: Path, write: Write) -> None:
        self.path = path
        self.started = time.monotonic()
        self._size = 0  # of the file, when it was last seen to grow
        self._grew = self.started
        self._hung = False
        self.left_out = ""  # of a file that is written: in words for the log
        parent = os.getpid()
        self._pipe, their_end = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns that forking with threads may deadlock the child; see the top for why ours does not.
            warnings.simplefilter("ignore", DeprecationWarning)
            began = time.perf_counter_ns()
            try:
                self.pid = os.fork()
            except OSError:
                os.close(self._pipe)
                os.close(their_end)
                raise
        if self.pid == 0:
            _run(path, write, parent, their_end)
        self.fork_nanoseconds = time.perf_counter_ns() - began
        os.close(their_end)

    @property
    def seconds(self) -> int:
        return int(time.monotonic() - self.started)

    def poll(self) -> str | None:
        """None while it runs, "" when the file is written and synced, otherwise what went wrong."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return self._end("another part of the process took the child's exit status")
        if pid == 0:
            self._kill_if_stalled()
            return None
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            self.left_out = os.read(self._pipe, 4096).decode("utf-8", "replace")
            return self._end("")
        if self._hung:
            return self._end(f"the child wrote nothing for {STALLED_SECONDS:g} seconds and was killed")
        text = os.read(self._pipe, 4096).decode("utf-8", "replace")
        return self._end(text or f"the child ended with {'signal' if code < 0 else 'status'} {abs(code)}")

    def _kill_if_stalled(self) -> None:
        """Does not wait for its end: a child that hangs in the kernel would block the server."""
        now = time.monotonic()
        with contextlib.suppress(OSError):
            size = self.path.stat().st_size
            if size != self._size:
                self._size, self._grew = size, now
        if now - self._grew > STALLED_SECONDS and not self._hung:
            self._hung = True
            os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill it; its file is removed."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._end("killed")

    def _end(self, problem: str) -> str:
        os.close(self._pipe)
        if problem:
            with contextlib.suppress(OSError):  # where nothing can be removed; the next start does it
                self.path.unlink()
        return problem


def _run(path: Path, write: Write, parent: int, pipe: int) -> None:
    """The main function of the child."""
    status = 1
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, pipe)
        os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))

        def go_on() -> None:
            if os.getppid() != parent:
                raise Orphaned

        left_out: list[str | None] = []
        write_synced(path, lambda file: left_out.append(write(file, go_on)))
        if left_out[0]:
            os.write(pipe, left_out[0].encode()[:4096])
        status = 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(pipe, str(error).encode()[:4096] or type(error).__name__.encode())
    finally:
        os._exit(status)
