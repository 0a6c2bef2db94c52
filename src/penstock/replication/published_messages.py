"""What is published at this server, on its way to the subscribers of its replicas.

A message is not logged, and must not come before the changes that were made before it. So those of a turn of the loop
wait as its replies do, until the log (and with `replica-acks` enough replicas) has these changes.

Owned by the loop thread.
"""

from __future__ import annotations

from penstock.engine.declarations import Argv
from penstock.engine.dispatch import Engine
from penstock.engine.session import LOST
from penstock.replication.frames import out_of_band
from penstock.replication.replicas import Replicas


class PublishedMessages:
    """See the top of this file."""

    def __init__(self, engine: Engine, replicas: Replicas) -> None:
        self._engine = engine
        self._replicas = replicas
        self._of_this_turn: list[bytes] = []  # as frames

    def publish(self, words: Argv) -> None:
        """Have the subscribers of replicas get a message, at the end of this turn: what a transaction or a script has
        changed is logged when that ends.
        """
        replicas = self._replicas
        if not any(link.follows for link in replicas.links.values()):
            return
        if not self._of_this_turn:
            self._engine.timers.call_later(0, self._turn_ends)
        frame = out_of_band(*words)
        self._of_this_turn.append(frame)
        replicas.held += len(frame)

    def _turn_ends(self) -> None:
        frames, self._of_this_turn = b"".join(self._of_this_turn), []
        self._replicas.after_replies(lambda data: self._pass_on(data, len(frames)), [frames])
        if self._replicas.held:
            for link in self._replicas.links.values():
                link.check_unsent()

    def _pass_on(self, frames: bytes, size: int) -> None:
        """The log has all that came before, but for what the disk refuses: that will be one batch, and these wait."""
        replicas, writer = self._replicas, self._replicas.aof.writer
        replicas.held -= size
        if frames is LOST:
            return
        refused = writer is not None and writer.trouble is not None and not writer.has_all
        for link in replicas.links.values():
            link.publish(frames, replicas.end + refused)
