"""The subscribers of each channel, and delivering each message to all of them.

A message is encoded at most once for each protocol version and each kind of subscription (by name, by a pattern),
however many receive it; each receiver then costs one `send`. Receivers of a channel get its messages in the order in
which they were published, because both happen in the loop thread, which owns all of this.

Invariant: a session is in the table under a name exactly when the name is in the session's own set, and no name is in a
table without a session.

Channels belong to no database. Shard channels are a second, separate name space without patterns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv, Command, Flag
from penstock.engine.globs import compile_glob
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import Push, encode

if TYPE_CHECKING:
    from penstock.engine.session import Session

Listeners = dict[bytes, dict["Session", None]]
"""Sessions by channel or pattern, in the order in which they came."""


class Publications:
    """See the top of this file."""

    def __init__(self) -> None:
        self.channels: Listeners = {}
        self.patterns: Listeners = {}
        self.shard_channels: Listeners = {}

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send to all subscribers of the channel, by name or by a pattern; how many times it was sent."""
        count = self._send(self.channels.get(channel), [b"message", channel, message])
        for pattern, listeners in self.patterns.items():
            if compile_glob(pattern)(channel):
                count += self._send(listeners, [b"pmessage", pattern, channel, message])
        return count

    def publish_to_shard(self, channel: bytes, message: bytes) -> int:
        """Like `publish`, for the shard channels."""
        return self._send(self.shard_channels.get(channel), [b"smessage", channel, message])

    def forget(self, session: Session) -> None:
        """The session disconnected, or was reset: remove all its subscriptions."""
        for table, names in (
            (self.channels, session.channels),
            (self.patterns, session.patterns),
            (self.shard_channels, session.shard_channels),
        ):
            for name in list(names):
                leave(table, names, session, name)

    @staticmethod
    def gate(session: Session, command: Command, argv: Argv) -> None:
        """Limit a subscribed RESP2 client to SUBSCRIBED commands: it could not tell another reply from a message."""
        if session.protocol == 2 and Flag.SUBSCRIBED not in command.flags and session.subscribed:
            raise ReplyError(
                f"Can't execute '{command.wire_name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET "
                "are allowed in this context"
            )

    @staticmethod
    def _send(listeners: Iterable[Session] | None, message: list[bytes]) -> int:
        if not listeners:
            return 0
        encoded: dict[int, bytes] = {}
        count = 0
        for session in listeners:
            data = encoded.get(session.protocol)
            if data is None:
                data = encoded[session.protocol] = encode(Push(message), session.protocol)
            session.output.send(data)
            count += 1
        return count


def join(table: Listeners, names: set[bytes], session: Session, name: bytes) -> None:
    """Subscribe the session, whose own set is `names`, to `name`."""
    if name not in names:
        names.add(name)
        table.setdefault(name, {})[session] = None


def leave(table: Listeners, names: set[bytes], session: Session, name: bytes) -> None:
    """Undo `join`; nothing happens if the session is not subscribed to `name`."""
    if name in names:
        names.remove(name)
        listeners = table[name]
        del listeners[session]
        if not listeners:
            del table[name]
