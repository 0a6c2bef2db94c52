"""EXACTLY_ONCE for one logical connection: the numbers of its writes, and what the server has said about itself.

While the level holds, every connection begins with two questions, how long the server remembers an idle client and
which commands write, and by making an identity known (`prepare`). Nothing is written before that is answered, nor when
it takes another identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.exceptions import NoPermissionError

from penstock.client.delivery import Command, Delivery
from penstock.client.engine.batch import Batch
from penstock.client.engine.handshake import Handshake, HandshakeRefused
from penstock.client.engine.once_numbers import REMEMBERS, OnceNumbers, WriteCommands, is_forgotten, new_client_id
from penstock.client.engine.pending import PendingBatches
from penstock.client.errors import ExactlyOnceUnavailable


class ExactlyOnce:
    """Part of a core; see the top of this file."""

    def __init__(self, handshake: Handshake) -> None:
        self._handshake = handshake
        self._client_id = new_client_id()
        self._identities = 0
        self._remembers = REMEMBERS
        self._numbers: OnceNumbers | None = None
        self._writes: WriteCommands | None = None

    @property
    def is_on(self) -> bool:
        return self._numbers is not None

    def stop(self) -> None:
        """The level was left."""
        self._numbers = None

    def forget_server(self) -> None:
        """A new connection may lead to another server."""
        self._numbers = self._writes = None

    def prepare(self, now: float) -> None:
        """The level is wanted on this connection."""
        if self._writes is None:
            self._handshake.ask("CONFIG GET", "once-idle-timeout", raw=True)
            self._handshake.ask("COMMAND", raw=True)
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._identities += 1
        identity = f"{self._client_id}.{self._identities}"
        self._numbers = OnceNumbers(identity, now)
        self._handshake.ask("ONCEBEGIN", identity)

    def renew(self, now: float) -> None:
        """Take another identity if this one was not used for so long that the server might forget it."""
        if self._numbers is not None and self._numbers.is_idle(now, self._remembers / 2):
            self._begin(now)

    def numberer(self, now: float) -> Callable[[Batch], None] | None:
        """What gives the next batches their numbers; None: nothing does."""
        numbers, writes = self._numbers, self._writes
        if numbers is None or writes is None:
            return None
        return lambda batch: numbers.number(batch, writes, now)

    def answered(self, batch: Batch, now: float) -> None:
        """All replies of a batch are here."""
        if self._numbers is not None and batch.numbered is not None:
            self._numbers.answered(batch)
            if batch.numbered[0] is self._numbers and is_forgotten(batch):
                self._begin(now)

    # -- what the server says ---------------------------------------------------------------------------------

    def take_reply(self, name: str, reply: Any, level: Delivery, pending: PendingBatches) -> None:
        """The reply to one of the commands that `prepare` has asked; the level may have been changed since."""
        if name == "CONFIG GET":
            self._take_timeout(reply)
        elif name == "COMMAND" and level is Delivery.EXACTLY_ONCE:
            self._take_table(reply, pending)
        elif name == "ONCEBEGIN" and level is Delivery.EXACTLY_ONCE:
            self._take_welcome(reply)

    def _take_timeout(self, reply: Any) -> None:
        """To CONFIG GET once-idle-timeout: milliseconds; the default counts if it was refused, or not known."""
        values = list(reply.values()) if isinstance(reply, dict) else reply[1:] if isinstance(reply, list) else ()
        self._remembers = int(values[0]) / 1000 if values else REMEMBERS

    def _take_table(self, reply: Any, pending: PendingBatches) -> None:
        """To COMMAND. A write that may have run before, and has no number, is not to be written again."""
        if isinstance(reply, Exception):
            reply.args = (
                f"{reply} (delivery level exactly-once asks COMMAND which commands write: let the user run it)",
            )
            raise HandshakeRefused(reply)
        writes = WriteCommands(reply)
        if not writes.has_once:
            raise HandshakeRefused(
                ExactlyOnceUnavailable(
                    "delivery level exactly-once needs the command ONCE, which this server does not have; "
                    "use a Penstock server, or the level at-least-once"
                )
            )
        self._writes = writes

        def is_write(command: Command) -> bool:
            return (command.name, *command.arguments) in writes

        def look(batch: Batch) -> None:
            if batch.numbered is None:
                batch.filter(is_write, "it was sent without a number")

        pending.review(look)

    def _take_welcome(self, reply: Any) -> None:
        """To ONCEBEGIN. If it was refused, no harm is done: of a client that it does not know the server
        runs nothing.
        """
        if isinstance(reply, NoPermissionError):
            reply.args = (f"{reply} (delivery level exactly-once needs ONCE and ONCEBEGIN: let the user run them)",)
            raise HandshakeRefused(reply)
