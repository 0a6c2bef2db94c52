"""The thread that writes and removes the files of history, one after the other."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.types.stream.segments import Segment

if TYPE_CHECKING:
    from penstock.storage.writer import Loop

logger = logging.getLogger("penstock.storage")

Result = list[Segment] | str
"""The segments of a file that was written, or why it was not."""
Job = Callable[[], list[Segment] | None]
"""Writes a file, or does something that nothing waits for (None)."""


class HistoryThread:
    """Started when first needed. The loop calls `on_result` for each file, unless `wait` took the result."""

    def __init__(self, loop: Loop, on_result: Callable[[Result], None]) -> None:
        self._loop = loop
        self._on_result = on_result
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, job: Job) -> None:
        """Have it do this after what it has to do already."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="penstock-history", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def wait(self) -> Result:
        """Wait for the file that is being written; blocks."""
        return self._results.get()

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)
            del job  # while it waits for the next one, it holds no nodes

    def _do(self, job: Job) -> None:
        """In a function of its own: a segment that a waiting thread had would keep its file from being removed."""
        result: Result | None
        try:
            result = job()
        except OSError as error:
            result = error.strerror or str(error)
        except Exception as error:  # a bug of ours must not leave the nodes of a stream stuck
            logger.exception("internal error in the thread of history")
            result = repr(error)
        if result is not None:
            self._results.put(result)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._on_result(self._results.get_nowait())
