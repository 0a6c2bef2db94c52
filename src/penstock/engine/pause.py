"""CLIENT PAUSE and FAILOVER: hold commands back for a while, without blocking the loop.

Each purpose has a pause of its own, so none ends that of the other; the stricter one decides what must wait.

A held session is blocked like one that waits for a key, but without a key: its command goes back to it
(`session.postponed`) and is run from the start, gates included, when the pause ends; sessions continue in the order in
which they were held. During a pause the fast path is off, so no command passes. Expired keys are not deleted, because
that is a write too: commands do not find them, and they are deleted when the pause ends.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv, Command, Flag

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.session import Session


class Purpose(Enum):
    """What a pause is for."""

    CLIENT = "CLIENT PAUSE"
    FAILOVER = "FAILOVER"


class Pause:
    """The pauses in force, if any. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pauses: dict[Purpose, tuple[int, bool]] = {}  # until when, and whether reads wait too
        self.until = 0  # by Clock.lease_time, which setting the clock does not change; 0 when nothing is paused
        self._everything = False  # reads too
        self._held: dict[Session, None] = {}  # in order; some may have gone away
        self._timer: object | None = None

    def start(self, purpose: Purpose, milliseconds: int, everything: bool) -> None:
        """Pause from now on; a pause for the same purpose may only become longer and wider."""
        until, reads_wait = self._pauses.get(purpose, (0, False))
        until = max(until, self._engine.clock.lease_time() + milliseconds)
        self._pauses[purpose] = until, reads_wait or everything
        self._agree()

    def end(self, purpose: Purpose) -> None:
        """End the pause for this purpose, if there is one."""
        self._pauses.pop(purpose, None)
        self._agree()

    def hold(self, session: Session, command: Command, argv: Argv) -> bool:
        """Whether the command must wait; the session is then blocked. A replica's never does: what it says it has is
        what clients wait for that wrote before the pause.
        """
        if session.is_replica or (not self._everything and not writes(session, command, argv)):
            return False
        self._held[session] = None
        self._engine.blocking.postpone(session, command, argv)
        return True

    def _agree(self) -> None:
        """A pause has begun, or ended, or its time is over: hold back what those that are left do."""
        engine = self._engine
        now = engine.clock.lease_time()
        self._pauses = {purpose: pause for purpose, pause in self._pauses.items() if pause[0] > now}
        ends = [until for until, _ in self._pauses.values()]
        self.until, reads_waited = max(ends, default=0), self._everything
        self._everything = any(reads_wait for _, reads_wait in self._pauses.values())
        engine.freeze_or_thaw()
        engine.require_gates("pause", bool(ends))
        engine.timers.cancel(self._timer)
        self._timer = engine.timers.call_later((min(ends) - now) / 1000, self._agree) if ends else None
        if not ends or (reads_waited and not self._everything):
            self._continue()

    def _continue(self) -> None:
        """Run what waits again; what must go on waiting is held back again."""
        self._engine.clock.refresh()
        held, self._held = self._held, {}
        for session in held:
            if session.waiter is not None and session.postponed is session.waiter.argv:
                self._engine.blocking.run_again(session)


def writes(session: Session, command: Command, argv: Argv) -> bool:
    """Whether a command may change something, by what it contains too: a transaction, a script.

    EXEC is known by its name: no other command runs what its session has queued.
    """
    if command.name == "EXEC" and session.transaction is not None:
        return any(_may_write(session, queued, words) for queued, words in session.transaction.queue)
    return _may_write(session, command, argv)


def _may_write(session: Session, command: Command, argv: Argv) -> bool:
    if command.name in ("EVAL", "EVALSHA"):  # by name: the text of the script says whether it writes, no declaration
        return session.engine.scripting.may_write(command.name, argv[1])
    return command.may_write(argv) or Flag.MAY_REPLICATE in command.flags
