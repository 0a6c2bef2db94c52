"""MULTI, EXEC and WATCH. (Filled in by the transactions step.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.spec import Argv, Command

if TYPE_CHECKING:
    from penstock.engine.session import Session


class Transaction:
    """What a session queued since MULTI."""

    def __init__(self) -> None:
        self.queue: list[tuple[Command, Argv]] = []
        self.aborted = False  # an error while queueing: EXEC must refuse


def unwatch(session: Session) -> None:
    """Forget every key the session watches."""
    for database, key in session.watching:
        observers = database.observed.get(key)
        if observers is not None:
            observers.watchers.discard(session)
            database.unobserve(key)
    session.watching.clear()
    session.watch_broken = False
