"""A log that continues in another file: the thread that syncs makes that file, while what is logged waits.

Owned by the loop thread, except `Switch.run`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.storage.busy_script_writer import BusyScriptWriter
from penstock.storage.writer import LogFile


class Switch:
    """A change to the next file, which the thread makes."""

    def __init__(self, make: Callable[[], LogFile], done: Callable[[OSError | None], None]) -> None:
        self._make = make
        self.done = done
        self.synced = False  # the old file
        self.file: LogFile | None = None  # the new one

    def run(self, sync: Callable[[], None]) -> None:
        """In the thread."""
        sync()
        self.synced = True
        self.file = self._make()


class SwitchingWriter(BusyScriptWriter):
    """See the top of this file."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._switch: Switch | None = None  # the thread makes the next file; it is busy then
        super().__init__(*arguments, **named)

    def write_all(self) -> None:
        """Everything that was logged is in the file when this returns, synced or not. Blocks while the thread works.

        OSError if the disk refuses.
        """
        self._wait()
        if self._pieces:
            try:
                self._write_here()
            except OSError:
                self._release(failed=True)
                raise

    @property
    def switching(self) -> bool:
        return self._switch is not None

    def switch(self, make: Callable[[], LogFile], done: Callable[[OSError | None], None]) -> None:
        """Have the thread sync this file and make the next one, and continue there; `write_all` before.

        Until then what is logged waits, and so do the replies to that. `done` gets the error if the disk refuses; then
        this file is continued.
        """
        assert not self._pieces and not self._busy and not self._syncing, "switched in the middle of a batch"
        file, sync = self.file, self._sync
        must_sync = self._unsynced and not self.needs_rewrite
        if self.policy == "always":
            self._leaving += self._held
            self._held = []
        else:
            self._release()
        self._database = -1
        self._busy = True
        self._switch = switch = Switch(make, done)
        self._thread.start(lambda: switch.run(lambda: file.sync(sync) if must_sync else None))

    def finish_switch(self) -> None:
        """If the next file is being made, wait for it; blocks."""
        if self._switch is not None:
            self._wait()

    def _switched(self, switch: Switch, error: OSError | None) -> None:
        self._switch, self._busy = None, False
        if switch.synced and not self.needs_rewrite:
            self._unsynced = False
            self.syncs += 1
            self.synced_end = self.file.end
        elif error is not None and not switch.synced:
            self._synced(self.file.end, error)
        if switch.file is not None:
            self.file.close()
            self.file = switch.file
        leaving, self._leaving = self._leaving, []
        (self._leave if switch.synced else self._refuse)(leaving)
        switch.done(error)

    def look(self) -> None:
        if self._switch is None:
            super().look()

    def _finished(self, error: OSError | None) -> None:
        if self._switch is None:
            super()._finished(error)
        else:
            self._switched(self._switch, error)
            self.flush()
