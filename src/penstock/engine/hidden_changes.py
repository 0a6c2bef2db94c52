"""Changes that only this server has, and that may be lost: with `replica-acks`, no client may see them.

Too few replicas follow, or the disk refuses the log. The next leader may then lack a change that memory has here, so
reads are refused until replicas have it. Rejected: answering reads with the values from before. Nothing keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv, Command, Flag
from penstock.protocol.errors import NoReplicas

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.session import Session

REFUSED = (
    "Not enough good replicas to read: some changes are only here, and may be lost. Start replicas, or use CONFIG SET "
    "replica-acks 0 to see them."
)


class HiddenChanges:
    """See the top of this file. True while there are some."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._are_there = False

    def __bool__(self) -> bool:
        return self._are_there

    def hide(self, on: bool) -> None:
        """Refuse reads from now on, or answer them again."""
        if on != self._are_there:
            self._are_there = on
            self._engine.require_gates("hidden changes", on)

    def concern(self, command: Command) -> bool:
        """Whether there are some, and this command may have read them before they were hidden: in a thread, or earlier
        in a transaction. One that runs while the data is loaded, such as REPLCONF READ of a replica that copies
        everything, reads none, and neither does an operator's.
        """
        return self._are_there and not command.flags & (Flag.LOADING | Flag.ADMIN)

    def refuse_reads(self) -> None:
        """For a command that passed the gates before there were hidden changes."""
        if self._are_there:
            raise NoReplicas(REFUSED)

    def gate(self, session: Session, command: Command, argv: Argv) -> None:
        """Refuse whatever may read."""
        if command.writes or Flag.READONLY in command.flags:
            self.refuse_reads()
