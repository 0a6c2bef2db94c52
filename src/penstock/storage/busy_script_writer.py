"""A log that is written while a script holds the loop: what other clients get of it (server/busy_script_io.py).

Owned by the loop thread.
"""

from __future__ import annotations

from penstock.storage.writer import LogWriter


class BusyScriptWriter(LogWriter):
    """See the top of this file."""

    def look(self) -> None:
        """Send the replies whose batch the thread has synced by now. An error waits for the loop, because it would
        refuse the second half of the script.
        """
        if self._busy and self._thread.has_succeeded():
            self._finished(self._thread.wait())
