"""The thread that writes and syncs the log, one job after the other."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.storage.writer import Loop


class LogThread:
    """The loop calls `on_result` after each job, with the error of the disk if there is one, unless `wait` took it."""

    def __init__(self, loop: Loop, on_result: Callable[[OSError | None], None]) -> None:
        self._loop = loop
        self._on_result = on_result
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        self._failed = False  # the job whose result was put there last
        self._thread = threading.Thread(target=self._work, name="penstock-log", daemon=True)
        self._thread.start()

    def start(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def wait(self) -> OSError | None:
        """Wait for the job under way; blocks."""
        return self._results.get()

    def has_succeeded(self) -> bool:
        """Whether the job under way is over, without an error; its result waits to be taken."""
        return not self._results.empty() and not self._failed

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result = None
            try:
                job()
            except OSError as error:
                result = error
            self._failed = result is not None
            self._results.put(result)
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._on_result(self._results.get_nowait())
