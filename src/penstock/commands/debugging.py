"""DEBUG: what tests and operators do to a server to see how it, or a client of it, bears that.

The directive enable-debug-command says who may: each handler calls `check_allowed` first.
"""

from __future__ import annotations

import time

from penstock.commands.objects import encoding
from penstock.engine.arguments import to_float
from penstock.engine.session import Session
from penstock.engine.spec import Access, Argv, Effect, Flag, Reply, command, key
from penstock.protocol.errors import ReplyError, no_such_key
from penstock.protocol.resp import OK, Status
from penstock.types import codec

FLAGS = Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE

LONGEST_SLEEP = 1e9
"""Seconds; the system's own limit is an error, not a sleep."""

_REFUSED = (
    'DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a local '
    "connection, otherwise you need to set this option in the configuration file, and then restart the server."
)


def check_allowed(session: Session) -> None:
    if not session.is_allowed(session.engine.config.enable_debug_command):
        raise ReplyError(_REFUSED)


@command(
    "DEBUG SLEEP", arity=3, flags=FLAGS, group="server", syntax="seconds", cost="O(1), and nobody is served meanwhile"
)
def debug_sleep(session: Session, argv: Argv) -> Reply:
    """Stop the whole server for so many seconds, fractions allowed."""
    check_allowed(session)
    time.sleep(min(max(to_float(argv[2]), 0.0), LONGEST_SLEEP))
    session.engine.clock.refresh()
    return OK


@command(
    "DEBUG OBJECT", arity=3, flags=FLAGS | Flag.PEEKS, keys=key(2, Access.READ, Effect.SIGHT), group="server", syntax="key",
    cost="O(N) with N elements in the value",
)  # fmt: skip
def debug_object(session: Session, argv: Argv) -> Reply:
    """Tell how the value at key is kept."""
    check_allowed(session)
    value = session.db.get(argv[2])
    if value is None:
        raise no_such_key()
    return Status(
        b"Value at:0x%x refcount:1 encoding:%b serializedlength:%d lru:0 lru_seconds_idle:0"
        % (id(value), encoding(value, session.engine.config), len(codec.dump(value)))
    )


@command("DEBUG SET-ACTIVE-EXPIRE", arity=3, flags=FLAGS, group="server", syntax="0 | 1")
def debug_set_active_expire(session: Session, argv: Argv) -> Reply:
    """Turn the deletion of expired keys that nobody looks at off or on."""
    check_allowed(session)
    session.engine.active_expiry = argv[2] != b"0"
    return OK
