"""WAIT and WAITAOF: a client waits until replicas have what it has written.

Owned by the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.blocking import Waiter
from penstock.engine.declarations import Reply
from penstock.engine.session import Session
from penstock.protocol.resp import NO_REPLY

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.replication.replicas import Replicas

NEVER = 1 << 62
"""An offset that no log reaches."""


@dataclass(eq=False, slots=True)
class _Wait:
    waiter: Waiter
    replicas: int
    local: bool  # this server's own log must be safe from a power cut too
    aof: bool  # WAITAOF: what counts is what is safe from a power cut, and the answer has two numbers
    offset: int | None = None  # what was written until then; None until the log has it
    refused: bool = False  # the disk refuses what was written
    timer: object | None = None


class Waits:
    """The clients that wait."""

    def __init__(self, engine: Engine, replicas: Replicas) -> None:
        self._engine = engine
        self._replicas = replicas
        self._waits: list[_Wait] = []

    def wait(self, session: Session, local: bool, replicas: int, timeout: int, aof: bool) -> Reply:
        """Answer when so many replicas have all that was written until now, or after `timeout` milliseconds."""
        engine = self._engine
        if not session.may_block:
            return self._answer(self._replicas.end if self._log_has_all else NEVER, aof)
        assert session.current is not None
        command, argv = session.current
        waiter = Waiter(session, command, argv, [], 0, None)
        wait = _Wait(waiter, replicas, local, aof)
        waiter.give_up = lambda: self._end(wait)
        engine.blocking.enter(waiter)
        self._waits.append(wait)
        if timeout:
            wait.timer = engine.timers.call_later(timeout / 1000, waiter.give_up)
        engine.timers.call_later(0, lambda: self._when_logged(wait))  # not before the command has returned
        return NO_REPLY

    def _when_logged(self, wait: _Wait) -> None:
        commit = self._engine.commit
        if commit is not None and commit.pending:
            commit.hold(lambda _: self._logged(wait), [])
        else:
            self._logged(wait)

    @property
    def _log_has_all(self) -> bool:
        """Whether what was written is in the log: not while the disk refuses it."""
        writer = self._replicas.aof.writer
        return writer is None or writer.has_all

    def _logged(self, wait: _Wait) -> None:
        """The log has all that was written before, or the disk refuses it; then `look` tries again."""
        self._take_offset(wait)
        self.look()
        if wait in self._waits:
            self._replicas.ask_all()

    def _take_offset(self, wait: _Wait) -> None:
        writer = self._replicas.aof.writer
        wait.refused = writer is not None and writer.trouble is not None and not writer.has_all
        wait.offset = None if wait.refused else self._replicas.end

    @property
    def some(self) -> bool:
        return bool(self._waits)

    def look(self) -> None:
        """A replica, or the log, has more than before: answer those who waited for that."""
        for wait in list(self._waits):
            if wait.waiter.session.waiter is not wait.waiter:  # its client is gone
                self._forget(wait)
                continue
            if wait.refused:
                self._take_offset(wait)
            if wait.offset is not None and self._is_met(wait):
                self._end(wait)

    def _is_met(self, wait: _Wait) -> bool:
        assert wait.offset is not None
        enough = self._replicas.count(wait.offset, wait.aof) >= wait.replicas
        return enough and (not wait.local or self._is_safe_here(wait.offset))

    def _is_safe_here(self, offset: int) -> bool:
        writer = self._replicas.aof.writer
        return writer is not None and writer.synced_end >= offset

    def _answer(self, offset: int, aof: bool) -> Reply:
        count = self._replicas.count(offset, aof)
        return [int(self._is_safe_here(offset)), count] if aof else count

    def _end(self, wait: _Wait) -> None:
        if wait.waiter.session.waiter is wait.waiter:
            offset = wait.offset if wait.offset is not None else NEVER
            reply = self._answer(offset, wait.aof)
            self._forget(wait)
            self._engine.blocking.answer(wait.waiter, reply)
        else:
            self._forget(wait)

    def _forget(self, wait: _Wait) -> None:
        self._engine.timers.cancel(wait.timer)
        wait.waiter.give_up = None  # it refers to the wait, and the wait to it
        if wait in self._waits:
            self._waits.remove(wait)
