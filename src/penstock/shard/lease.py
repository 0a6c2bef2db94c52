"""The lease of a node in etcd: granted, kept alive, given back.

`valid_until` is when the lease may end, by the clock of engine/leadership.py: counted from the moment at which the last
successful request was sent, less a margin for clocks that do not run at the same speed. etcd counts from a later
moment, and ends a lease late rather than early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.engine.leadership import now
from penstock.shard.etcd import Etcd, EtcdError

logger = logging.getLogger("penstock.agent")

RENEWALS = 5
"""How often a lease is renewed in its time."""
MARGIN = 0.2
"""The part of its time that is not used."""


class Lease:
    """See the top of this file. `keep` it as a task; it has a client of etcd of its own."""

    def __init__(self, etcd: Etcd, seconds: int, on_change: Callable[[], None]) -> None:
        self._etcd = etcd
        self._seconds = seconds
        self._on_change = on_change  # told when it was renewed, and when it is gone
        self.id = 0  # 0 while there is none
        self.valid_until = 0
        self._lock = asyncio.Lock()  # the client is for one thread at a time

    def needed(self) -> int:
        """Its id, for a key that must end with it; EtcdError if there is none. A key without a lease would stay."""
        if not self.id:
            raise EtcdError("the lease has expired")
        return self.id

    async def grant(self) -> None:
        """Get a new one; EtcdError if that fails."""
        async with self._lock:
            sent = now()
            self.id, seconds = await asyncio.to_thread(self._etcd.grant, self._seconds)
            self._renewed(sent, seconds)

    async def revoke(self) -> None:
        """End it at once, if etcd can be reached; otherwise it runs out."""
        lease, self.id, self.valid_until = self.id, 0, 0
        if lease:
            async with self._lock:
                try:
                    await asyncio.to_thread(self._etcd.revoke, lease)
                except EtcdError as error:
                    logger.warning("the lease could not be given back, and will run out: %s", error)

    async def keep(self) -> None:
        """Renew it, again and again."""
        told = ""
        while True:
            await asyncio.sleep(self._seconds / RENEWALS)
            if not self.id:
                continue
            try:
                await self._renew()
                told = ""
            except EtcdError as error:
                if str(error) != told:
                    logger.warning("the lease could not be renewed: %s", error)
                told = str(error)
            except Exception:  # a bug of ours must not end the renewals
                logger.exception("internal error while the lease was renewed")

    async def _renew(self) -> None:
        async with self._lock:
            lease, sent = self.id, now()
            seconds = await asyncio.to_thread(self._etcd.keep_alive, lease) if lease else 0
            if lease != self.id:
                return
            if seconds:
                self._renewed(sent, seconds)
            else:
                logger.warning("the lease has run out")
                self.id = self.valid_until = 0
        self._on_change()

    def _renewed(self, sent: int, seconds: int) -> None:
        self.valid_until = sent + int(seconds * (1 - MARGIN) * 1e9)
