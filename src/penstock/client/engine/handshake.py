"""The commands that a connection begins with; they are answered before anything else is written.

They restore the session, ask what the server can do, or only whether it is there. If the server refuses one, the
connection is refused.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import redis

from penstock.client.engine.batch import Batch
from penstock.client.engine.session_state import SessionState


class HandshakeRefused(Exception):
    """The server refused a command that a connection begins with."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Handshake:
    """The commands that have no reply yet."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def ask(self, *command: Any, raw: bool = False) -> None:
        self._batches.append(Batch.handshake(*command, raw=raw))

    def restore(self, session: SessionState) -> None:
        """Bring a new connection into the state of the old one."""
        for command in session.restore():
            batch = Batch(("SESSION",), command)
            batch.is_handshake = True
            self._batches.append(batch)

    def clear(self) -> None:
        self._batches.clear()

    def take(self) -> list[Batch]:
        """The bytes to write now."""
        unwritten = [batch for batch in self._batches if not batch.attempts]
        for batch in unwritten:
            batch.attempts = 1
        return unwritten

    def answered(self, batch: Batch) -> tuple[str, Any]:
        """The name of the first command and its reply. Raises HandshakeRefused, or InvalidResponse if now is only too
        early.
        """
        self._batches.popleft()
        reply, name = batch.replies[0], batch.commands[0][0]
        if isinstance(reply, redis.exceptions.BusyLoadingError) or batch.refused is not None:
            raise redis.InvalidResponse(str(reply))  # not now, or not here: another connection will do
        if isinstance(reply, Exception) and name not in _MAY_FAIL:
            raise HandshakeRefused(reply)
        return name, reply


_MAY_FAIL = ("PING", "CONFIG GET", "COMMAND", "ONCEBEGIN", "ONCEEND")
"""An error, too, shows that the server is there; of the others exactly_once.py says what it means."""
