"""The connection itself: HELLO, AUTH, PING, ECHO, QUIT, RESET.

A password is never part of an error text, a log line or a MONITOR line; commands/monitor.py leaves out the commands of
this module that carry one.
"""

from __future__ import annotations

from penstock.engine.arguments import to_integer
from penstock.engine.declarations import Argv, Flag, Reply, command
from penstock.engine.session import Session
from penstock.engine.transactions import discard
from penstock.protocol.errors import NoAuth, NoProto, ReplyError, shown, syntax_error, wrong_arity
from penstock.protocol.resp import OK, PONG, Status

REDIS_VERSION = "7.0.15"
"""The Redis version whose behaviour this server has; clients choose features by it."""

_ANYTIME = Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.FAST | Flag.NO_AUTH | Flag.ALLOW_BUSY


@command("PING", arity=-1, flags=Flag.FAST | Flag.SUBSCRIBED | Flag.NO_DATA, group="connection", syntax="[message]")
def ping(session: Session, argv: Argv) -> Reply:
    """Answer PONG, or the message."""
    if len(argv) > 2:
        raise wrong_arity("ping")
    if session.protocol == 2 and session.subscribed:
        return [b"pong", argv[1] if len(argv) == 2 else b""]
    return argv[1] if len(argv) == 2 else PONG


@command("ECHO", arity=2, flags=Flag.LOADING | Flag.STALE | Flag.FAST, group="connection", syntax="message")
def echo(session: Session, argv: Argv) -> Reply:
    """Answer the message."""
    return argv[1]


@command(
    "HELLO", arity=-1, flags=_ANYTIME, group="connection", syntax="[protover [AUTH username password] [SETNAME name]]"
)
def hello(session: Session, argv: Argv) -> Reply:
    """Choose the protocol version (2 or 3), log in and name the connection in one command; answer facts about the
    server.
    """
    protocol = session.protocol
    if len(argv) > 1:
        protocol = to_integer(argv[1], lambda: ReplyError("Protocol version is not an integer or out of range"))
        if protocol not in (2, 3):
            raise NoProto
    credentials: tuple[bytes, bytes] | None = None
    name: bytes | None = None
    at = 2
    while at < len(argv):
        option, left = argv[at].upper(), len(argv) - at - 1
        if option == b"AUTH" and left >= 2:
            credentials = argv[at + 1], argv[at + 2]
            at += 3
        elif option == b"SETNAME" and left:
            name = checked_name(argv[at + 1])
            at += 2
        else:
            raise ReplyError(f"Syntax error in HELLO option '{shown(argv[at])}'")
    if credentials is not None:
        session.engine.acl.log_in(session, *credentials)
    if not session.authenticated:
        raise NoAuth(
            "HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> "
            "option can be used to authenticate the client and select the RESP protocol version at the same time"
        )
    if name is not None:
        session.name = name
    session.protocol = protocol
    replication = session.engine.replication
    leads = replication is None or replication.leads
    return {
        b"server": b"redis",
        b"version": REDIS_VERSION.encode(),
        b"proto": protocol,
        b"id": session.id,
        b"mode": b"standalone",
        b"role": b"master" if leads else b"replica",
        b"modules": [],
    }


def checked_name(
    name: bytes, error: str = "Client names cannot contain spaces, newlines or special characters."
) -> bytes:
    """A client's name as CLIENT LIST can show it: printable ASCII, no spaces. The empty name is none."""
    if any(not 33 <= byte <= 126 for byte in name):
        raise ReplyError(error)
    return name


@command("AUTH", arity=-2, flags=_ANYTIME | Flag.NO_DATA, group="connection", syntax="[username] password")
def auth(session: Session, argv: Argv) -> Reply:
    """Log in as a user, or as the default user when only a password is given."""
    if len(argv) > 3:
        raise syntax_error()
    acl = session.engine.acl
    if len(argv) == 2 and acl.default.needs_no_password:
        raise ReplyError(
            "AUTH <password> called without any password configured for the default user. "
            "Are you sure your configuration is correct?"
        )
    acl.log_in(session, argv[1] if len(argv) == 3 else b"default", argv[-1])
    return OK


@command("QUIT", arity=-1, flags=_ANYTIME | Flag.CONTROL | Flag.SUBSCRIBED | Flag.NO_DATA, group="connection")
def quit_connection(session: Session, argv: Argv) -> Reply:
    """Answer OK, then close the connection."""
    session.output.close(after_reply=True)
    return OK


@command("RESET", arity=1, flags=_ANYTIME | Flag.CONTROL | Flag.SUBSCRIBED, group="connection")
def reset(session: Session, argv: Argv) -> Reply:
    """Reset the connection to its first state: no transaction, no subscription, database 0, RESP2, the default user."""
    engine = session.engine
    discard(session)
    engine.publications.forget(session)
    session.protocol = 2
    session.db = engine.keyspace[0]
    session.name = b""
    session.muted = session.skip_next = session.skipping = session.no_evict = False
    engine.monitors.remove(session)
    session.user = engine.acl.default
    session.authenticated = engine.acl.default.needs_no_password
    return Status(b"RESET")
