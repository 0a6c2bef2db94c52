"""EXACTLY_ONCE for one logical connection: who numbers its writes, and what the server has said about itself.

While the level holds, every connection begins with an identity of its own and with two questions (`prepare`): how long
the server remembers an idle client, and which commands write. Writes are numbered once both are answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.batch import Batch
from penstock.client.delivery import Command
from penstock.client.errors import ExactlyOnceUnavailable
from penstock.client.held import Held
from penstock.client.once import REMEMBERS, Numbers, Writes, is_forgotten, new_client_id
from penstock.client.preface import Preface, PrefaceRefused


class Numbering:
    """Part of an engine; see the top of this file."""

    def __init__(self) -> None:
        self._client_id = new_client_id()
        self._identities = 0
        self._remembers = REMEMBERS
        self._numbers: Numbers | None = None
        self._writes: Writes | None = None

    @property
    def is_on(self) -> bool:
        return self._numbers is not None

    def stop(self) -> None:
        """The level was left."""
        self._numbers = None

    def forget_server(self) -> None:
        """A new connection may lead to another server."""
        self._numbers = self._writes = None

    def prepare(self, preface: Preface) -> None:
        """The level is wanted on this connection."""
        self._begin()
        if self._writes is None:
            preface.ask("CONFIG GET", "once-idle-timeout", raw=True)
            preface.ask("COMMAND", raw=True)

    def _begin(self) -> Numbers:
        self._identities += 1
        self._numbers = Numbers(f"{self._client_id}.{self._identities}")
        return self._numbers

    def numberer(self, heard: float) -> Callable[[Batch], None] | None:
        """What gives the next batches their numbers; `heard` is when something last came, and not later than now."""
        numbers, writes = self._numbers, self._writes
        if numbers is None or writes is None:
            return None
        if numbers.may_be_forgotten(heard):
            numbers = self._begin()
        return lambda batch: numbers.number(batch, writes, heard)

    def answered(self, batch: Batch) -> None:
        """All replies of a batch are here."""
        if self._numbers is not None and batch.numbered is not None:
            self._numbers.settled(batch)
            if batch.numbered[0] is self._numbers and is_forgotten(batch):
                self._begin()

    # -- what the server says ---------------------------------------------------------------------------------

    def take_timeout(self, reply: Any) -> None:
        """To CONFIG GET once-idle-timeout: milliseconds; the default counts if it was refused, or not known."""
        values = list(reply.values()) if isinstance(reply, dict) else reply[1:] if isinstance(reply, list) else ()
        self._remembers = int(values[0]) / 1000 if values else REMEMBERS

    def take_table(self, reply: Any, held: Held, heard: float) -> None:
        """To COMMAND. What may have run before, and the server could not know again, is not to be written again."""
        if isinstance(reply, Exception):
            reply.args = (
                f"{reply} (delivery level exactly-once asks COMMAND which commands write: let the user run it)",
            )
            raise PrefaceRefused(reply)
        writes = Writes(reply)
        if not writes.has_once:
            raise PrefaceRefused(
                ExactlyOnceUnavailable(
                    "delivery level exactly-once needs the command ONCE, which this server does not have; use a Penstock "
                    "server, or the level at-least-once"
                )
            )
        self._writes = writes

        def is_write(command: Command) -> bool:
            return (command.name, *command.arguments) in writes

        def look(batch: Batch) -> None:
            if batch.numbered is None:
                batch.filter(is_write, "it was sent without a number")
            elif heard - batch.numbered_at >= self._remembers:
                batch.filter(is_write, "the server may have forgotten since whether it ran")

        held.review(look)
