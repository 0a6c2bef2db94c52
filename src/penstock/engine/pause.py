"""CLIENT PAUSE: hold commands back for a while, without blocking the loop.

A held session is blocked like one that waits for a key, but without a key: its command goes back to it
(`session.postponed`) and is run from the start, gates included, when the pause ends; sessions continue in the order in
which they were held. During a pause the fast path is off, so no command passes. Expired keys are not deleted, because
that is a write too: commands do not find them, and they are deleted when the pause ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv, Command, Flag

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.session import Session


class Pause:
    """The pause in force, if any. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.until = 0  # by Clock.lease_time, which setting the clock does not change; 0 when nothing is paused
        self.everything = False  # reads too
        self._held: dict[Session, None] = {}  # in order; some may have gone away
        self._timer: object | None = None

    def start(self, milliseconds: int, everything: bool) -> None:
        """Pause from now on; a pause under way may only become longer and wider."""
        now = self._engine.clock.lease_time()
        self.everything = everything or (self.until > now and self.everything)
        self.until = max(self.until, now + milliseconds)
        self._engine.freeze_or_thaw()
        self._engine.require_gates("pause", True)
        timers = self._engine.timers
        timers.cancel(self._timer)
        self._timer = timers.call_later((self.until - now) / 1000, self.end)

    def hold(self, session: Session, command: Command, argv: Argv) -> bool:
        """Whether the command must wait; the session is then blocked."""
        if not self.everything and not writes(session, command, argv):
            return False
        self._held[session] = None
        self._engine.blocking.postpone(session, command, argv)
        return True

    def end(self) -> None:
        """Continue everything that waits."""
        self.until = 0
        self._engine.freeze_or_thaw()
        timers = self._engine.timers
        timers.cancel(self._timer)
        self._timer = None
        self._engine.require_gates("pause", False)
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
