"""FUNCTION, as far as a server without functions can answer: programs and test suites begin by deleting all of them."""

from __future__ import annotations

from penstock.engine.session import Session
from penstock.engine.spec import Argv, Flag, Reply, command
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import OK


@command(
    "FUNCTION FLUSH", arity=-2, flags=Flag.WRITE | Flag.NOSCRIPT, group="scripting", syntax="[ASYNC | SYNC]",
)  # fmt: skip
def function_flush(session: Session, argv: Argv) -> Reply:
    """Delete all functions: there are none, as functions are not here."""
    if len(argv) > 3 or (len(argv) == 3 and argv[2].upper() not in (b"ASYNC", b"SYNC")):
        raise ReplyError("FUNCTION FLUSH only supports SYNC|ASYNC option")
    return OK


@command(
    "FUNCTION LIST", arity=-2, flags=Flag.NOSCRIPT, group="scripting", syntax="[LIBRARYNAME pattern] [WITHCODE]",
)  # fmt: skip
def function_list(session: Session, argv: Argv) -> Reply:
    """List all functions: there are none, as functions are not here."""
    return []
