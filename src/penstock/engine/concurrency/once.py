"""The periodic work of ONCE: clients that were idle for long are forgotten; and the figures for INFO.

The records are in `keyspace.once_records`, with the data, because they are logged and saved with the data: a snapshot
that had one without the other would run a command twice, or never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine

LOOK_EVERY = 1000
"""Milliseconds between looks for idle clients: a look visits all of them."""
STOOD_STILL = 10_000
"""Milliseconds without a look after which the clock was set, or the server was suspended: that time does not count as
idle.
"""


class Once:
    """Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked = 0
        self.repeated = 0  # commands answered with a reply that was kept
        self.forgotten = 0  # clients

    def tick(self) -> None:
        now = self._engine.clock.now
        passed = now - self._looked
        if not 0 <= passed < LOOK_EVERY and not self._engine.loading:
            if self._looked and not 0 <= passed <= STOOD_STILL:  # the server was suspended, or the clock was set
                self._engine.keyspace.once_records.postpone(passed)
            self._looked = now
            self.forgotten += self._engine.keyspace.once_records.forget_idle(
                now - self._engine.config.once_idle_timeout
            )

    def info(self) -> dict[str, int | str]:
        """The fields of INFO once."""
        records = self._engine.keyspace.once_records
        return {
            "once_clients": len(records.clients),
            "once_replies": records.replies,
            "once_bytes": records.bytes,
            "once_repeated": self.repeated,
            "once_forgotten_clients": self.forgotten,
        }
