"""The state of a connection (SELECT, AUTH, CLIENT SETNAME ...) that must be restored on the next one.

SELECT, AUTH, CLIENT SETNAME and the like are remembered when their reply has come, in the order of replies; commands
without a reply are all younger, so a replay after the restore finds the connection as it was when it was first sent.
(What the URL says is not here: redis-py's own handshake does that.)
"""

from __future__ import annotations

from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import Kind, name_of

_FIRST = ("HELLO", "AUTH")  # a server may refuse anything else before these
_END = frozenset(["EXEC", "DISCARD"])


class SessionState:
    """Connection state, as the replies so far have made it."""

    def __init__(self) -> None:
        self._commands: dict[str, bytes] = {}
        self.watching = False
        self.queueing = False

    @property
    def in_transaction(self) -> bool:
        """A WATCH or a MULTI is open, which no other connection can take over."""
        return self.watching or self.queueing

    @property
    def is_changed(self) -> bool:
        """Whether the connection is not any more what its handshake made it."""
        return bool(self._commands) or self.in_transaction

    def restore(self) -> list[bytes]:
        """The commands that bring a new connection into this state."""
        first = [self._commands[name] for name in _FIRST if name in self._commands]
        return first + [command for name, command in self._commands.items() if name not in _FIRST]

    def adopt(self, other: SessionState) -> bool:
        """Take over what another connection remembers; whether that differs from what was here."""
        if self._commands == other._commands:
            return False
        self._commands = dict(other._commands)
        return True

    def learn(self, batch: Batch) -> None:
        """Look at the replies that came since the last look."""
        assert batch.notable is not None
        known = len(batch.replies)
        if batch.atomic:
            if known == batch.count:
                if isinstance(batch.replies[-1], list):
                    for index, kind in batch.notable.items():
                        if kind is Kind.SESSION:
                            self._note(name_of(batch.commands[index]), batch.encoded(index), kind)
                self.watching = self.queueing = False
            return
        for index, kind in batch.notable.items():
            if (
                kind is not Kind.FINAL
                and batch.learned <= index < known
                and not isinstance(batch.replies[index], Exception)
            ):
                self._note(name_of(batch.commands[index]), batch.encoded(index), kind)
        batch.learned = known

    def _note(self, name: str, data: bytes, kind: Kind) -> None:
        if kind is Kind.TRANSACTION:
            self.watching = name == "WATCH" or (self.watching and name == "MULTI")
            self.queueing = name == "MULTI" or (self.queueing and name not in _END)
        elif name == "RESET":
            self._commands.clear()
            self.watching = self.queueing = False
        elif name in ("READONLY", "READWRITE"):
            self._commands["READONLY"] = data
        else:
            self._commands[name] = data
