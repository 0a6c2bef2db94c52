"""Commands that wait: for a key to change, and no longer than a deadline.

A handler that finds nothing to do returns `session.block(keys, deadline)`. When one of the keys changes, the whole
command is run again, in the order in which clients came; if it still finds nothing it stays where it was in the
queue, with the deadline it had. So a handler has no second half, the deadline is fixed once (redis#12998), and
whatever a blocked command does is logged as if it had just arrived. What a handler may want to know is in
`session.candidates(keys)`: all its keys the first time, then only the one that changed.

A handler may also leave a `Wish`: what it waits for, in a form that can be looked at without running it. Then a change
runs only commands that find something, and a read that takes nothing away is run once for all who wait for the same.

Invariants: a session waits in at most one command; a waiter is in the queue of each of its keys or of none; no session
enters a queue while `serve` works through it, because an unblocked session goes on with its input later, from the
event loop (run at once, two clients that feed each other would recurse without end).

Rejected: a callback for each kind of blocked command. It is faster by one dictionary look-up, and then there are two
versions of every blocking command that must agree.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from penstock.engine.declarations import Argv, Command, Reply
from penstock.engine.observe.monitors import in_short
from penstock.engine.run_handler import AGAIN
from penstock.protocol.errors import ReplyError, Unblocked, WrongType
from penstock.protocol.resp import NO_REPLY, encode

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database, Value
    from penstock.engine.session import Session

log = logging.getLogger("penstock.engine")


class Wish(Protocol):
    """What a blocked command waits for, of one key.

    Other blocked commands on that key may take from it, and add nothing.
    """

    @property
    def shared(self) -> bool:
        """Whether all who wish the same are given the same reply, so that one run of the command is enough."""

    def same(self) -> object:
        """Those with an equal one wish the same: if there is nothing for one of them,
        there is nothing for the others.
        """

    def is_met(self, session: Session) -> bool:
        """Whether the command would find something now.

        Where time alone will change that, see that it is asked again.
        """

    def came_upon(self, value: Value | None) -> bool:
        """Whether this is the very value that was there when the command came, and not one that took its place."""

    def goes_on_with(self, value: Value | None) -> None:
        """The value was written to disk and read back: this is what it came upon."""


class Waiter:
    """One blocked command. In the queue of every key it waits for, until it is served, times out or goes away."""

    __slots__ = (
        "argv", "changed", "command", "database", "deadline", "keys", "session", "silent", "timeout_reply", "timer",
        "wish",
    )  # fmt: skip

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
        self.changed: bytes | None = None  # the key because of which the command is run again
        self.wish: Wish | None = None  # None: not known before it is run
        self.silent = False  # CLIENT REPLY SKIP came before it


class Blocking:
    """The blocked commands of a server. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.count = 0  # blocked clients, for INFO

    def enter(self, waiter: Waiter) -> None:
        """Start waiting."""
        waiter.session.waiter = waiter
        self.count += 1
        for key in waiter.keys:
            waiter.database.observed.of(key).waiters[waiter] = None
        if waiter.deadline:
            delay = max(waiter.deadline - self._engine.clock.now, 0) / 1000
            waiter.timer = self._engine.timers.call_later(delay, lambda: self.time_out(waiter))

    def postpone(self, session: Session, command: Command, argv: Argv) -> None:
        """Keep a session from running anything, this command first, until `run_again`."""
        session.postponed = argv
        self.enter(Waiter(session, command, argv, [], 0, None))

    def run_again(self, session: Session) -> None:
        """Go on with a session whose command was postponed; it is run from the start, gates included."""
        assert session.waiter is not None, "nothing was postponed"
        session.skip_next = session.waiter.silent
        self.leave(session.waiter)
        session.output.resume()

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
                waiter.database.observed.forget(key)
        if waiter.timer is not None:
            self._engine.timers.cancel(waiter.timer)

    def answer(self, waiter: Waiter, reply: Reply) -> None:
        """End the wait with a reply (a ReplyError is one too)."""
        self._answer(waiter, encode(reply, waiter.session.protocol))

    def _answer(self, waiter: Waiter, reply: bytes) -> None:
        self.leave(waiter)
        waiter.session.unblocked(reply, waiter.silent)

    def time_out(self, waiter: Waiter) -> None:
        if waiter.session.waiter is waiter:
            self._engine.clock.refresh()
            self.answer(waiter, waiter.timeout_reply)

    def unblock(self, session: Session, with_error: bool) -> bool:
        """End a session's wait as if it had timed out, or with an error; whether it was waiting at all."""
        waiter = session.waiter
        if waiter is None or not waiter.keys:  # no keys: it is held back, or its command is in a thread
            return False
        if with_error:
            error = Unblocked()
            self._engine.stats.count_error(error)
            self.answer(waiter, error)
        else:
            self.answer(waiter, waiter.timeout_reply)
        return True

    def before_reload(self) -> list[Waiter]:
        """Those who are to be told by `after_reload` that what is at their key is what they came upon."""
        waiters = [session.waiter for session in self._engine.sessions.values() if session.waiter is not None]
        return [
            waiter
            for waiter in waiters
            if waiter.wish is not None and waiter.wish.came_upon(waiter.database.data.get(waiter.keys[0]))
        ]

    def after_reload(self, waiters: list[Waiter]) -> None:
        """Everything was written to disk and read back: values are others, and the same."""
        for waiter in waiters:
            assert waiter.wish is not None
            waiter.wish.goes_on_with(waiter.database.data.get(waiter.keys[0]))

    def serve(self) -> None:
        """Run again every command that waits for a key that changed, first come first served.

        A served command may itself change keys that others wait for (LMOVE): those are served in a next round.
        """
        ready = self._engine.keyspace.ready
        if self._engine.scripting.running:
            return  # another client is heard in the middle of a script, which must not be interrupted
        while ready:
            changed = dict.fromkeys(ready)  # a transaction may have changed a key many times
            ready.clear()
            for database, key in changed:
                self._serve_key(database, key)

    def _serve_key(self, database: Database, key: bytes) -> None:
        """Offer a key to those who wait for it until it is gone.

        Waiters are looked at in batches that grow, so that one element pushed costs one run and one step however
        many wait, and a stream that all of them can read costs O(N log N) steps for N runs.
        """
        observers = database.observed.get(key)
        if observers is None:
            return
        locked, may_serve = self._engine.busy_names.table, self._engine.lock_gate.may_serve
        in_vain = 0  # these stay at the head of the queue
        known: dict[
            object, bytes | None
        ] = {}  # of wishes: the reply to all of them, or None when there is nothing left
        size = 1
        while batch := list(islice(observers.waiters, in_vain, in_vain + size)):
            for waiter in batch:
                if key not in database:
                    return
                wish = waiter.wish
                if waiter.session.closing or (locked and not may_serve(waiter, key)):
                    served = False
                elif wish is None:
                    served = self._retry(waiter, key) is not None
                else:
                    served = self._grant(waiter, wish, key, known)
                in_vain += not served
            size *= 2

    def _grant(self, waiter: Waiter, wish: Wish, key: bytes, known: dict[object, bytes | None]) -> bool:
        """Run a blocked command again if there is anything for it; whether it is over."""
        same = (wish.same(), waiter.session.protocol)
        reply = known.get(same, b"")
        if reply:
            self._answer(waiter, reply)
        elif reply is None:
            return False
        elif not wish.is_met(waiter.session):
            known[same] = None
            return False
        else:
            reply = self._retry(waiter, key)
            if reply is None or wish.shared:
                known[same] = reply
        return reply is not None

    def _retry(self, waiter: Waiter, key: bytes) -> bytes | None:
        """Run a blocked command again; what it was answered, or None if it is not over."""
        waiter.changed = key
        try:
            reply = self._engine.call(waiter.session, waiter.command, waiter.argv, caller=AGAIN)
        except WrongType:
            return None  # the key came back as another type: it is not what this client waits for
        except ReplyError as error:
            reply = error.as_reply()
        except Exception as error:
            # The client that changed the key is not to blame, and the others in the queue still want theirs.
            log.exception("internal error in %r", in_short(waiter.argv))
            reply = ReplyError(f"internal error: {error!r}")
        if reply is NO_REPLY:
            return None
        data = encode(reply, waiter.session.protocol)
        self._answer(waiter, data)
        return data
