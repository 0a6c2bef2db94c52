"""The connection itself: PING, ECHO, ..."""

from __future__ import annotations

from penstock.engine.session import Session
from penstock.engine.spec import Argv, Flag, Reply, command
from penstock.protocol.errors import wrong_arity
from penstock.protocol.resp import PONG


@command("PING", arity=-1, flags=Flag.FAST, group="connection", syntax="[message]")
def ping(session: Session, argv: Argv) -> Reply:
    """Answer PONG, or the message."""
    if len(argv) > 2:
        raise wrong_arity("ping")
    return argv[1] if len(argv) == 2 else PONG
