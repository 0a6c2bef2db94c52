"""Replies that wait: until the log has what they acknowledge, and perhaps until replicas have it too.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from penstock.engine.session import CHANGED, LOST, Unconfirmed

logger = logging.getLogger("penstock.storage")

Held = tuple[Callable[[bytes], None], list[bytes | memoryview]]


def send_all(replies: list[Held], error: bytes | None = None) -> None:
    """Send replies in order; with an error, those that acknowledge a change become that error.

    Where it is not known which ones do (CHANGED), none is sent, and the connection is closed.
    """
    for write, pieces in replies:
        if error is not None and any(piece is CHANGED for piece in pieces):
            lose_all([(write, pieces)])
            continue
        if error is not None:
            pieces = _with_errors(pieces, error)
        try:
            write(b"".join(pieces))
        except Exception:  # a bug of ours in one connection must not keep the replies of the others
            logger.exception("a reply could not be sent")


def _with_errors(pieces: list[bytes | memoryview], error: bytes) -> list[bytes | memoryview]:
    """The same, with the error in place of each reply that acknowledges a change."""
    made: list[bytes | memoryview] = []
    for piece in pieces:
        if type(piece) is Unconfirmed:
            del made[len(made) - piece.pieces :]
            made.append(error * piece.commands)
        else:
            made.append(piece)
    return made


def lose_all(replies: list[Held]) -> None:
    """Close the connections that these were for: the replies may not leave any more."""
    for write, _ in replies:
        try:
            write(LOST)
        except Exception:  # as above
            logger.exception("a connection could not be closed")


def answer_changes(replies: list[Held], answer: Callable[[list[Held]], None]) -> None:
    """Replies that acknowledge changes, and nothing else, are answered. All others may show a change that may be lost,
    and their connections are closed.
    """
    for held in replies:
        is_change = held[1] and all(type(piece) is Unconfirmed for piece in held[1])
        (answer if is_change else lose_all)([held])


class Confirmations:
    """Replies to what the log has and too few replicas have yet, in order (`replica-acks`)."""

    def __init__(self, send: Callable[[list[Held], bytes | None], None] = send_all) -> None:
        self._send = send
        self._waiting: deque[tuple[int, list[Held], bytes | None]] = deque()  # by the end of their batch in the feed

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, end: int, replies: list[Held], error: bytes | None = None) -> None:
        """Send these when replicas have the feed up to `end`."""
        self._waiting.append((end, replies, error))

    def join(self, reply: Held) -> None:
        """Send this behind all that waits: it may show what has yet to be confirmed."""
        self._waiting[-1][1].append(reply)

    def confirm(self, offset: int) -> None:
        """Send what waits for replicas to have the feed up to here."""
        while self._waiting and self._waiting[0][0] <= offset:
            _, replies, error = self._waiting.popleft()
            self._send(replies, error)

    def refuse(self, error: bytes) -> None:
        """Replicas will not confirm what waits."""
        waiting = [held for _, replies, _ in self._waiting for held in replies]
        self._waiting.clear()
        answer_changes(waiting, lambda replies: self._send(replies, error))
