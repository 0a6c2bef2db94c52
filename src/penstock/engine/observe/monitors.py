"""MONITOR: every command that runs, as a line, to the sessions that asked for it; at a replica its leader's too.

Administrative commands are not shown, and passwords never: `redacted` is what MONITOR and the slow log see of a
command, also of one inside LAZY or ONCE, and `in_short` what the server's own log sees of it. While a client monitors,
the fast path is off.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.engine.declarations import REGISTRY, Argv, Command, Flag
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import Status

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.session import Session

_HIDDEN = b"(redacted)"
_OF_THE_DATA = Flag.READONLY | Flag.WRITE | Flag.MAY_REPLICATE
_INNER = {
    "ACL DRYRUN": 3,
    "COMMAND GETKEYS": 2,
    "COMMAND GETKEYSANDFLAGS": 2,
}  # where a command begins that they ask about
_ESCAPES = {0x5C: b"\\\\", 0x22: b'\\"', 0x0A: b"\\n", 0x0D: b"\\r", 0x09: b"\\t", 0x07: b"\\a", 0x08: b"\\b"}
_QUOTED = [_ESCAPES.get(byte, bytes([byte]) if 32 <= byte < 127 else b"\\x%02x" % byte) for byte in range(256)]


class Monitors:
    """The sessions that monitor. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.sessions: dict[Session, None] = {}

    def add(self, session: Session) -> None:
        session.monitoring = True
        if not self.sessions:
            self._engine.gates.append(self._gate)
            self._engine.require_gates("monitor", True)
        self.sessions[session] = None

    def remove(self, session: Session) -> None:
        if session.monitoring:
            session.monitoring = False
            del self.sessions[session]
            if not self.sessions:
                self._engine.gates.remove(self._gate)
                self._engine.require_gates("monitor", False)

    @staticmethod
    def _gate(session: Session, command: Command, argv: Argv) -> None:
        """A client that monitors may not use the data, as in Redis, which treats it as a replica."""
        if session.monitoring and (command.flags & _OF_THE_DATA or command.name.startswith("EVAL")):
            raise ReplyError("Replica can't interact with the keyspace")

    def feed(self, session: Session, command: Command, argv: Argv) -> None:
        """Show a command that just ran."""
        waiter = session.waiter
        again = waiter is not None and waiter.changed is not None  # a blocked command was shown when it came
        if again or Flag.ADMIN in command.flags or self._engine.loading:
            return
        words = b" ".join(quoted(arg) for arg in redacted(argv))
        origin = session.peer if session.id in self._engine.sessions else "lua"
        now = time.time_ns() // 1000
        head = f"{now // 1_000_000}.{now % 1_000_000:06d} [{session.db.index} {origin}] "
        line = Status(head.encode() + words)
        for monitor in self.sessions:
            monitor.push(line)


def quoted(arg: bytes) -> bytes:
    """An argument as a person can read it, in double quotes.

    >>> quoted(b'a"\\n')
    b'"a\\\\"\\\\n"'
    """
    return b'"%b"' % b"".join([_QUOTED[byte] for byte in arg])


def in_short(argv: Sequence[Any]) -> list[bytes]:
    """What the server's own log shows of a command, or of what a script hands over as
    one: three words, and no secrets.
    """
    return redacted([word if isinstance(word, bytes) else str(word).encode() for word in argv])[:3]


def redacted(argv: Argv) -> Argv:
    """A command with its secrets replaced, and those of the command inside it."""
    start = 0  # of the innermost command; a client may nest very many, although none is run then
    while command := REGISTRY.find(argv[start : start + 2]) if start < len(argv) else None:
        at = _INNER.get(command.name) or (command.keys[0].inner if command.keys else 0)
        if not at:
            return [*argv[:start], *_without_secrets(command.name, argv[start:])]
        start += at
    return argv


def _without_secrets(name: str, argv: Argv) -> Argv:
    if name == "AUTH":
        return [argv[0], *[_HIDDEN] * (len(argv) - 1)]
    if name == "HELLO":
        shown = list(argv)
        for at in range(2, len(argv)):
            if argv[at].upper() == b"AUTH":
                shown[at + 1 : at + 3] = [_HIDDEN] * len(argv[at + 1 : at + 3])
        return shown
    if name in ("ACL SETUSER", "CONFIG SET"):
        return [*argv[:2], *[_HIDDEN] * (len(argv) - 2)]
    return argv
