"""Commands that wait: for a key to change, and no longer than a deadline.

A handler that finds nothing to do returns `session.block(keys, deadline)`. When one of the keys changes, the whole
command is run again, in the order in which clients came; if it still finds nothing it stays where it was in the
queue, with the deadline it had. So a handler has no second half, the deadline is fixed once (redis#12998), and
whatever a blocked command does is logged as if it had just arrived.

Rejected: a callback for each kind of blocked command. It is faster by one dictionary look-up, and then there are two
versions of every blocking command that must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.spec import Argv, Command, Reply
from penstock.protocol.errors import ReplyError, WrongType
from penstock.protocol.resp import NO_REPLY

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.session import Session


class Waiter:
    """One blocked command. In the queue of every key it waits for, until it is served, times out or goes away."""

    __slots__ = ("argv", "command", "database", "deadline", "keys", "session", "timeout_reply", "timer")

    def __init__(
        self, session: Session, command: Command, argv: Argv, keys: list[bytes], deadline: int, timeout_reply: Reply
    ) -> None:
        self.session = session
        self.command = command
        self.argv = argv
        self.database = session.db
        self.keys = keys
        self.deadline = deadline  # milliseconds since 1970; 0 waits for ever
        self.timeout_reply = timeout_reply
        self.timer: object | None = None


class Blocking:
    """The blocked commands of a server. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.count = 0

    def enter(self, waiter: Waiter) -> None:
        """Start waiting."""
        waiter.session.waiter = waiter
        self.count += 1
        for key in waiter.keys:
            waiter.database.observe(key).waiters[waiter] = None
        if waiter.deadline:
            delay = max(waiter.deadline - self._engine.clock.now, 0) / 1000
            waiter.timer = self._engine.timers.call_later(delay, lambda: self.time_out(waiter))

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting, whatever the reason; every queue forgets the waiter."""
        if waiter.session.waiter is not waiter:
            return
        waiter.session.waiter = None
        self.count -= 1
        for key in waiter.keys:
            observers = waiter.database.observed.get(key)
            if observers is not None:
                observers.waiters.pop(waiter, None)
                waiter.database.unobserve(key)
        self._engine.timers.cancel(waiter.timer)

    def answer(self, waiter: Waiter, reply: Reply) -> None:
        """End the wait with a reply (a ReplyError is one too)."""
        self.leave(waiter)
        waiter.session.unblocked(reply)

    def time_out(self, waiter: Waiter) -> None:
        if waiter.session.waiter is waiter:
            self._engine.clock.refresh()
            self.answer(waiter, waiter.timeout_reply)

    def serve(self) -> None:
        """Run again every command that waits for a key that changed, first come first served.

        A served command may itself change keys that others wait for (LMOVE), so this goes on until nothing is
        ready. A waiter that finds nothing costs one run; the keys it left alone wake nobody else.
        """
        ready = self._engine.keyspace.ready
        while ready:
            database, key = ready.pop(0)
            observers = database.observed.get(key)
            if observers is None:
                continue
            for waiter in list(observers.waiters):
                if waiter.session.waiter is waiter and not self._retry(waiter):
                    if key not in database:
                        break  # nothing left for those behind it

    def _retry(self, waiter: Waiter) -> bool:
        try:
            reply = self._engine.call(waiter.session, waiter.command, waiter.argv)
        except WrongType:
            return False  # the key came back as another type: it is not what this client waits for
        except ReplyError as error:
            reply = error
        if reply is NO_REPLY:
            return False
        self.answer(waiter, reply)
        return True
