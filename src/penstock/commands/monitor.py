"""MONITOR: watch every command as it runs."""

from __future__ import annotations

from penstock.engine.declarations import Argv, Flag, Reply, command
from penstock.engine.session import Session
from penstock.protocol.resp import NO_REPLY, OK


@command("MONITOR", arity=1, flags=Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE, group="server")
def monitor(session: Session, argv: Argv) -> Reply:
    """Show every command that any client runs from now on, until RESET or QUIT. It slows all clients down.

    Administrative commands are not shown, and passwords are replaced.
    """
    if session.monitoring:
        return NO_REPLY
    session.engine.monitors.add(session)
    return OK
