"""Commands that wait: for a key to change, and no longer than a deadline.

A handler that finds nothing to do returns `session.block(keys, deadline)`. When one of the keys changes, the whole
command is run again, in the order in which clients came. If it still finds nothing, it keeps its place in the queue and
its deadline. So a handler has no second half, the deadline is fixed once (redis#12998), and the effects of a blocked
command are logged as if it had just arrived. `session.candidates(keys)` gives a handler all its keys the first time,
then only the one that changed.

A handler may also leave a `Wish`: what it waits for, in a form that can be tested without running the command. Then a
change runs only commands that find something, and a read that removes nothing is run once for all that wait for the
same.

Invariants: a session waits in at most one command; a waiter is in the queue of each of its keys or of none; no session
enters a queue while `serve` works through it, because an unblocked session continues with its input later, from the
event loop (otherwise two clients that feed each other would recurse without end).

Rejected: a callback for each kind of blocked command. It is faster by one dictionary look-up, but there would be two
versions of every blocking command.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from penstock.engine.declarations import Argv, Command, Reply
from penstock.engine.internal_errors import internal_error
from penstock.engine.observe.statistics import FAILED
from penstock.engine.run_handler import AGAIN
from penstock.protocol.errors import ReplyError, Unblocked, WrongType
from penstock.protocol.resp import NO_REPLY, encode

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database, Value
    from penstock.engine.session import Session


class Wish(Protocol):
    """What a blocked command waits for at its keys.

    Other blocked commands on that key may take from it, and add nothing.
    """

    @property
    def shared(self) -> bool:
        """Whether all waiters with an equal wish get the same reply, so that one run of the command is enough."""

    def same(self) -> object:
        """Equal wishes have the same result: if there is nothing for one of them, there is nothing for the others."""

    def is_met(self, session: Session) -> bool:
        """Whether the command would find something now.

        If that depends on time alone, it also plans the next check.
        """

    def came_upon(self, value: Value | None) -> bool:
        """Whether this is the value that a key held when the command came, and not another one."""

    def goes_on_with(self, key: bytes, value: Value | None) -> None:
        """The value of a key was written to disk and read back, or copied: this is the same one."""


class Waiter:
    """One blocked command. It is in the queue of every key it waits for until it is
    served, times out or disconnects.
    """

    __slots__ = (
        "argv", "changed", "command", "database", "deadline", "give_up", "keys", "session", "silent", "timeout_reply",
        "timer", "wish",
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
        self.give_up: Callable[[], None] | None = None  # answers as after a timeout, if that is no constant
        self.timer: object | None = None
        self.changed: bytes | None = None  # the key because of which the command is run again
        self.wish: Wish | None = None  # None: not known before it is run
        self.silent = False  # CLIENT REPLY SKIP came before it


class Blocking:
    """The blocked commands of a server. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.count = 0  # blocked clients, for INFO
        self._held_back: dict[tuple[Database, bytes], None] = {}  # with waiters that may write, and replicas too few

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
        """Keep a session from running any command, this one first, until `run_again`."""
        session.postponed = argv
        self.enter(Waiter(session, command, argv, [], 0, None))

    def run_again(self, session: Session) -> None:
        """Continue a session whose command was postponed; it is run from the start, gates included."""
        assert session.waiter is not None, "nothing was postponed"
        session.skip_next = session.waiter.silent
        self.leave(session.waiter)
        session.output.resume()

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting, for whatever reason; the waiter is removed from every queue."""
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

    def _refuse(self, waiter: Waiter, error: ReplyError) -> None:
        """End the wait with an error. Its command was counted when it began to wait, and has failed now."""
        stats = self._engine.stats
        stats.calls[waiter.command.name][FAILED] += 1
        stats.count_error(error)
        self.answer(waiter, error)

    def time_out(self, waiter: Waiter) -> None:
        if waiter.session.waiter is waiter:
            self._engine.clock.refresh()
            self._answer_nothing(waiter)

    def _answer_nothing(self, waiter: Waiter) -> None:
        """Nothing came; but that may be because of a change that is hidden, such as a pop."""
        try:
            self._engine.hidden_changes.refuse_reads()
            self.answer(waiter, waiter.timeout_reply)
        except ReplyError as error:
            self._refuse(waiter, error)

    def unblock(self, session: Session, with_error: bool) -> bool:
        """End a session's wait as if it had timed out, or with an error; whether it was waiting at all."""
        waiter = session.waiter
        if waiter is None or not (waiter.keys or waiter.give_up):  # it is held back, or its command is in a thread
            return False
        if with_error:
            self._refuse(waiter, Unblocked())
        elif waiter.give_up is not None:
            waiter.give_up()
        else:
            self._answer_nothing(waiter)
        return True

    def unblock_all(self, why: str) -> None:
        """End the wait of all clients with UNBLOCKED, as Redis does when a leader becomes a replica.

        Those whose command was postponed go on waiting: it is run from the start, and the gates decide.
        """
        for session in list(self._engine.sessions.values()):
            waiter = session.waiter
            if waiter is not None and session.postponed is not waiter.argv:
                self._refuse(waiter, Unblocked(why))

    def before_reload(self) -> list[tuple[Database, bytes, Wish]]:
        """The wishes that `after_reload` informs that the value at a key is the same one."""
        waiters = [session.waiter for session in self._engine.sessions.values() if session.waiter is not None]
        return [
            (waiter.database, key, waiter.wish)
            for waiter in waiters
            for key in waiter.keys
            if waiter.wish is not None and waiter.wish.came_upon(waiter.database.data.get(key))
        ]

    def after_reload(self, informed: list[tuple[Database, bytes, Wish]]) -> None:
        """Everything was written to disk and read back: the values are equal, but new objects."""
        for database, key, wish in informed:
            wish.goes_on_with(key, database.data.get(key))

    def serve(self) -> None:
        """Run again every command that waits for a key that changed, first come first served.

        A served command may itself change keys that others wait for (LMOVE): those are served in a next round.
        """
        ready = self._engine.keyspace.ready
        if self._engine.scripting.running:
            return  # another client runs during a script, which must not be interrupted
        while ready:
            changed = dict.fromkeys(ready)  # a transaction may have changed a key many times
            ready.clear()
            for database, key in changed:
                self._serve_key(database, key)

    def resume_writes(self) -> None:
        """There are replicas enough to write again: serve what waited for that."""
        if self._held_back:
            self._engine.keyspace.ready.extend(self._held_back)
            self._held_back.clear()
            self.serve()

    def _serve_key(self, database: Database, key: bytes) -> None:
        """Offer a key to its waiters until it is used up.

        Waiters are tried in batches that grow, so that one element pushed costs one run and one step however many wait,
        and a stream that all of them can read costs O(N log N) steps for N runs.
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
        if self._engine.lacks_replicas and waiter.command.may_write(waiter.argv):
            self._held_back[waiter.database, key] = None
            return None
        try:
            self._engine.hidden_changes.refuse_reads()
            self._engine.require_disk(waiter.session, waiter.command, waiter.argv)
            reply = self._engine.call(waiter.session, waiter.command, waiter.argv, caller=AGAIN)
        except WrongType:
            return None  # the key came back as another type: it is not what this client waits for
        except ReplyError as error:
            reply = error.as_reply()
        except Exception as error:
            # It is not the fault of the client that changed the key, and the others in the queue must still be served.
            reply = internal_error(waiter.argv, error)
        if reply is NO_REPLY:
            return None
        data = encode(reply, waiter.session.protocol)
        self._answer(waiter, data)
        return data
