"""Changes that the next leader may lack, at a leader with `replica-acks`: when reads are refused, and answered again.

They are refused from when replicas become too few for a change that is under way, or the disk refuses the log, until
replicas have all that memory has, or this server follows another one. `engine.hidden_changes` is what refuses them.

Owned by the loop thread.
"""

from __future__ import annotations

from penstock.engine.dispatch import Engine
from penstock.replication.replicas import Replicas


class UnconfirmedChanges:
    """See the top of this file."""

    def __init__(self, engine: Engine, replicas: Replicas) -> None:
        self._engine = engine
        self._replicas = replicas
        self._replicas_are_too_few = False

    def replicas_are_too_few(self, too_few: bool) -> None:
        """Whether fewer replicas follow than `replica-acks` wants. Clients do not wait for replicas then: those that
        did are told so. Called many times a second, because the log may have got something since.
        """
        were_too_few, self._replicas_are_too_few = self._replicas_are_too_few, too_few
        if too_few:
            self.give_up_waiting()
        elif (were_too_few or (self._engine.hidden_changes and self._may_show)) and not self._engine.following:
            self.show_what_is_confirmed()
        if not self._engine.config.replica_acks:
            self._engine.hidden_changes.hide(False)

    def give_up_waiting(self) -> None:
        """No replica will confirm what waits: they are too few, or the log ends. What they may lack is not shown."""
        writer = self._replicas.aof.writer
        if writer is None or not self._engine.config.replica_acks:
            return
        if writer.refuse_unconfirmed(self._engine.give_replies):
            self._engine.hidden_changes.hide(True)

    def started_as_replica(self) -> None:
        """This server may have led when it ended, and its log may end with what its next leader lacks."""
        if self._engine.config.replica_acks and self._replicas.aof.manifest.own:
            self._engine.hidden_changes.hide(True)

    def disk_refuses(self, refuses: bool) -> None:
        """The log cannot be written, or it can be again."""
        if not refuses and not self._engine.following:
            self.show_what_is_confirmed()
        elif refuses and self._engine.config.replica_acks:
            self._engine.give_replies()  # to the writer, which refuses them too
            self._hide_what_no_log_has()

    def settings_change(self) -> None:
        """`replica-acks` may have another value."""
        if self._disk_is_in_trouble and self._engine.config.replica_acks:
            self._hide_what_no_log_has()

    def _hide_what_no_log_has(self) -> None:
        """Replicas get what this log has, so they lack what the disk refuses."""
        if not self._engine.following:
            self._engine.hidden_changes.hide(True)

    @property
    def _disk_is_in_trouble(self) -> bool:
        writer = self._replicas.aof.writer
        return writer is not None and writer.trouble is not None

    def show_what_is_confirmed(self) -> None:
        """Answer reads again, if nothing stands against it: they wait until replicas have all that the log has."""
        self._replicas.wait_for_all()
        if self._may_show:
            self._engine.hidden_changes.hide(False)

    @property
    def _may_show(self) -> bool:
        """Whether replicas get all changes. They get none from a server whose log was turned off."""
        has_log = self._replicas.aof.writer is not None
        return has_log and not self._replicas_are_too_few and not self._disk_is_in_trouble
