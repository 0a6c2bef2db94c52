"""EXACTLY_ONCE for one logical connection: the numbers of its writes, and what the server has said about itself.

While the level holds, every connection begins by making an identity known, with one command (`prepare`): its answer
says how long the server remembers an idle client, and a digest of the server's commands. Only if that digest is not
known (write_commands.py), or the server is older than this, COMMAND is asked. Nothing is written before that is
answered, nor when the connection takes another identity.

With the identity the client tells its patience, command_timeout: for that long after a lost connection the server keeps
the replies. An identity that is not needed any more is ended, with ONCEEND: when the connection takes another one, and
at its end (`finished_identities`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from redis.exceptions import NoPermissionError

from penstock.client.delivery import Command, Delivery, Settings
from penstock.client.engine.batch import Batch
from penstock.client.engine.encoding import pack
from penstock.client.engine.handshake import Handshake, HandshakeRefused
from penstock.client.engine.once_numbers import REMEMBERS, OnceNumbers, is_forgotten, name_refusal, new_client_id
from penstock.client.engine.pending import PendingBatches
from penstock.client.engine.write_commands import WriteCommands, known_table, remember_table
from penstock.client.errors import ExactlyOnceUnavailable

MOST_FORMER = 100
"""Identities of earlier connections that are remembered to be ended; the server forgets others after their patience."""
FOR_EVER = 1 << 40
"""The patience, in milliseconds, of a client without command_timeout; the server has a limit of its own."""
SLACK = 5.0
"""Seconds by which the server is to be more patient than the client: it may learn of a lost connection earlier."""


class ExactlyOnce:
    """Part of a core; see the top of this file."""

    def __init__(self, handshake: Handshake, settings: Settings) -> None:
        self._handshake, self._settings = handshake, settings
        self._client_id = new_client_id()
        self._identities = 0
        self._remembers = REMEMBERS
        self._numbers: OnceNumbers | None = None
        self._writes: WriteCommands | None = None
        self._digest = ""  # of the table that was asked for
        self._former: deque[OnceNumbers] = deque(maxlen=MOST_FORMER)
        self._is_old_server = False  # it knows neither the options of ONCEBEGIN nor ONCEEND

    @property
    def is_on(self) -> bool:
        return self._numbers is not None

    def stop(self) -> None:
        """The level was left."""
        self._retire()

    def forget_server(self) -> None:
        """A new connection may lead to another server."""
        self._retire()
        self._writes, self._is_old_server = None, False

    def _retire(self) -> None:
        if self._numbers is not None:
            self._former.append(self._numbers)
        self._numbers = None

    def finished_identities(self) -> list[str]:
        """The identities that have all their replies: the server may forget them, and is told to."""
        numbers = [*self._former, *([] if self._numbers is None else [self._numbers])]
        return [] if self._is_old_server else [each.identity for each in numbers if each.is_answered]

    def farewell(self) -> bytes:
        """The last bytes to write before an idle connection is closed; their reply matters to no caller."""
        identities = self.finished_identities()
        return pack(("ONCEEND", *identities)) if identities else b""

    def prepare(self, now: float) -> None:
        """The level is wanted on this connection."""
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._retire()
        finished = self.finished_identities()
        self._former = deque([each for each in self._former if each.identity not in finished], MOST_FORMER)
        self._identities += 1
        self._numbers = OnceNumbers(f"{self._client_id}.{self._identities}", now)
        self._introduce()
        if finished:
            self._handshake.ask("ONCEEND", *finished)

    def _introduce(self) -> None:
        """Make the identity known."""
        assert self._numbers is not None
        self._numbers.refusal = None
        if self._is_old_server:
            self._handshake.ask("ONCEBEGIN", self._numbers.identity)
            return
        timeout = self._settings.command_timeout
        patience = FOR_EVER if timeout is None else int((timeout + SLACK) * 1000)
        info = ["WITHINFO"] if self._writes is None else []
        self._handshake.ask("ONCEBEGIN", self._numbers.identity, "PATIENCE", patience, *info, raw=True)

    def renew(self, now: float) -> None:
        """Take another identity if this one was not used for so long that the server might forget it."""
        if self._numbers is not None and self._numbers.is_idle(now, self._remembers / 2):
            self._begin(now)

    def numberer(self, now: float) -> Callable[[Batch], None] | None:
        """The function that numbers the next batches; None if they get no numbers."""
        numbers, writes = self._numbers, self._writes
        if numbers is None or writes is None:
            return None
        return lambda batch: numbers.number(batch, writes, now)

    def answered(self, batch: Batch, now: float) -> None:
        """All replies of a batch are here."""
        if batch.numbered is None:
            return
        numbers = batch.numbered[0]
        assert isinstance(numbers, OnceNumbers)
        numbers.answered(batch)
        if not is_forgotten(batch):
            return
        if numbers.refusal is not None and batch.attempts == 1:
            name_refusal(batch, numbers.refusal)
        if numbers is self._numbers:
            self._begin(now)

    # -- what the server says ---------------------------------------------------------------------------------

    def take_reply(self, name: str, reply: Any, level: Delivery, pending: PendingBatches) -> None:
        """The reply to one of the commands that `prepare` has asked; the level may have been changed since."""
        if name == "CONFIG GET":
            self._take_timeout(reply)
        elif name == "COMMAND" and level is Delivery.EXACTLY_ONCE:
            self._take_table(reply, pending)
        elif name == "ONCEBEGIN" and level is Delivery.EXACTLY_ONCE:
            self._take_welcome(reply, pending)

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
        writes = WriteCommands.parse(reply)
        if not writes.has_once:
            raise HandshakeRefused(
                ExactlyOnceUnavailable(
                    "delivery level exactly-once needs the command ONCE, which this server does not have; "
                    "use a Penstock server, or the level at-least-once"
                )
            )
        if self._digest:
            remember_table(self._digest, writes)
        self._know(writes, pending)

    def _know(self, writes: WriteCommands, pending: PendingBatches) -> None:
        self._writes = writes

        def is_write(command: Command) -> bool:
            return (command.name, *command.arguments) in writes

        def look(batch: Batch) -> None:
            if batch.numbered is None:
                batch.filter(is_write, "it was sent without a number")

        pending.review(look)

    def _take_welcome(self, reply: Any, pending: PendingBatches) -> None:
        """To ONCEBEGIN. If it was refused, no harm is done: of a client that it does not know the server
        runs nothing.
        """
        if isinstance(reply, NoPermissionError):
            reply.args = (f"{reply} (delivery level exactly-once needs ONCE and ONCEBEGIN: let the user run them)",)
            raise HandshakeRefused(reply)
        if self._numbers is None:
            return
        self._numbers.refusal = reply if isinstance(reply, Exception) else None
        if self._writes is not None or self._is_old_server:
            return
        told = _pairs(reply)
        self._digest = told.get(b"commands", b"").decode()
        if b"once-idle-timeout" in told:
            self._remembers = int(told[b"once-idle-timeout"]) / 1000
        else:
            self._is_old_server = True
            self._handshake.ask("CONFIG GET", "once-idle-timeout", raw=True)
        writes = known_table(self._digest)
        if writes is not None:
            self._know(writes, pending)
            return
        self._handshake.ask("COMMAND", raw=True)
        if isinstance(reply, Exception):
            self._introduce()


def _pairs(reply: Any) -> dict[bytes, Any]:
    """A map, which RESP2 sends as an array; empty if it is something else."""
    if isinstance(reply, list):
        return dict(zip(reply[::2], reply[1::2], strict=False))
    return reply if isinstance(reply, dict) else {}
