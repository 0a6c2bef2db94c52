"""CLIENT: list, name, pause, unblock and close connections."""

from __future__ import annotations

from collections.abc import Callable

from penstock.commands.connection import checked_name
from penstock.engine.arguments import to_integer
from penstock.engine.declarations import Argv, Flag, Reply, command
from penstock.engine.pause import Purpose
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, bad_subcommand, shown, syntax_error
from penstock.protocol.resp import NO_REPLY, OK, Verbatim

_PLAIN = Flag.NOSCRIPT | Flag.LOADING | Flag.STALE
_ADMIN = _PLAIN | Flag.ADMIN
_TYPES = {b"NORMAL": "normal", b"MASTER": "master", b"SLAVE": "replica", b"REPLICA": "replica", b"PUBSUB": "pubsub"}

Test = Callable[[Session], bool]


def client_type(session: Session) -> str:
    """normal, replica, master or pubsub: output limits and filters depend on it."""
    if session.leads:
        return "master"
    if session.link is not None:
        return "replica"
    return "pubsub" if session.subscribed else "normal"


def _to_type(raw: bytes) -> str:
    kind = _TYPES.get(raw.upper())
    if kind is None:
        raise ReplyError(f"Unknown client type '{shown(raw)}'")
    return kind


def _to_switch(raw: bytes) -> bool:
    if raw.upper() not in (b"ON", b"OFF"):
        raise syntax_error()
    return raw.upper() == b"ON"


# -- about this connection ------------------------------------------------------------------------------------


@command("CLIENT ID", arity=2, flags=_PLAIN, group="connection")
def client_id(session: Session, argv: Argv) -> Reply:
    """Answer the number of this connection; no two ever have the same."""
    return session.id


@command("CLIENT INFO", arity=2, flags=_PLAIN, group="connection")
def client_info(session: Session, argv: Argv) -> Reply:
    """Answer this connection's line of CLIENT LIST."""
    return Verbatim(session.describe() + "\n")


@command("CLIENT GETNAME", arity=2, flags=_PLAIN, group="connection")
def client_getname(session: Session, argv: Argv) -> Reply:
    """Answer the connection's name; null when it has none."""
    return session.name or None


@command("CLIENT SETNAME", arity=3, flags=_PLAIN, group="connection", syntax="connection-name")
def client_setname(session: Session, argv: Argv) -> Reply:
    """Name the connection; an empty name takes it away."""
    session.name = checked_name(argv[2])
    return OK


@command("CLIENT SETINFO", arity=4, flags=_PLAIN, group="connection", syntax="LIB-NAME libname | LIB-VER libver")
def client_setinfo(session: Session, argv: Argv) -> Reply:
    """Tell which client library this is, for CLIENT LIST."""
    option = argv[2].lower()
    if option not in (b"lib-name", b"lib-ver"):
        raise ReplyError(f"Unrecognized option '{shown(argv[2])}'")
    error = f"{option.decode()} cannot contain spaces, newlines or special characters."
    session.library[option == b"lib-ver"] = checked_name(argv[3], error)
    return OK


@command("CLIENT REPLY", arity=3, flags=_PLAIN, group="connection", syntax="ON | OFF | SKIP")
def client_reply(session: Session, argv: Argv) -> Reply:
    """Answer all further commands, none of them, or not the next one."""
    mode = argv[2].upper()
    if mode == b"ON":
        session.muted = session.skipping = False
        return OK
    session.was_silent = True
    if mode == b"OFF":
        session.muted = True
    elif mode == b"SKIP":
        session.skip_next = not session.muted
    else:
        raise syntax_error()
    return NO_REPLY


@command("CLIENT NO-EVICT", arity=3, flags=_ADMIN, group="connection", syntax="ON | OFF")
def client_no_evict(session: Session, argv: Argv) -> Reply:
    """Keep this connection although all clients together take more memory than maxmemory-clients allows."""
    session.no_evict = _to_switch(argv[2])
    return OK


@command("CLIENT NO-TOUCH", arity=3, flags=_PLAIN, group="connection", syntax="ON | OFF")
def client_no_touch(session: Session, argv: Argv) -> Reply:
    """Do not count this connection's reads as use of a key. Use is not counted here, so nothing changes."""
    _to_switch(argv[2])
    return OK


# -- about all of them ----------------------------------------------------------------------------------------


@command(
    "CLIENT LIST",
    arity=-2,
    flags=_ADMIN,
    group="connection",
    syntax="[TYPE NORMAL | MASTER | REPLICA | PUBSUB] [ID client-id [client-id ...]]",
    cost="O(N) with N connections",
)
def client_list(session: Session, argv: Argv) -> Reply:
    """Answer a line for each connection, or only for those of a type or with these ids."""
    sessions = session.engine.sessions
    chosen = list(sessions.values())
    if len(argv) == 4 and argv[2].upper() == b"TYPE":
        kind = _to_type(argv[3])
        chosen = [other for other in chosen if client_type(other) == kind]
    elif len(argv) > 3 and argv[2].upper() == b"ID":
        numbers = [to_integer(raw, lambda: ReplyError("Invalid client ID")) for raw in argv[3:]]
        chosen = [sessions[number] for number in numbers if number in sessions]
    elif len(argv) != 2:
        raise syntax_error()
    return Verbatim("".join(other.describe() + "\n" for other in chosen))


@command(
    "CLIENT KILL",
    arity=-3,
    flags=_ADMIN,
    group="connection",
    syntax="ip:port | [ID client-id] [TYPE type] [USER username] [ADDR ip:port] [LADDR ip:port] [SKIPME yes/no]",
    cost="O(N) with N connections",
)
def client_kill(session: Session, argv: Argv) -> Reply:
    """Close the connection from an address, or all that pass every filter; then answer how many."""
    sessions = list(session.engine.sessions.values())
    if len(argv) == 3:
        address = argv[2].decode("utf-8", "surrogateescape")
        chosen = [other for other in sessions if other.peer == address]
        if not chosen:
            raise ReplyError("No such client")
    else:
        tests, skip_me = _kill_filters(session, argv)
        chosen = [other for other in sessions if all(test(other) for test in tests)]
        if skip_me:
            chosen = [other for other in chosen if other is not session]
    for other in chosen:
        other.output.close(after_reply=other is session)
    return OK if len(argv) == 3 else len(chosen)


def _kill_filters(session: Session, argv: Argv) -> tuple[list[Test], bool]:
    tests: list[Test] = []
    skip_me = True
    if len(argv) % 2:
        raise syntax_error()
    for option, raw in zip(argv[2::2], argv[3::2], strict=True):
        word = raw.decode("utf-8", "surrogateescape")
        match option.upper():
            case b"ID":
                number = to_integer(raw, lambda: ReplyError("client-id should be greater than 0"))
                if number < 1:
                    raise ReplyError("client-id should be greater than 0")
                tests.append(lambda other, number=number: other.id == number)  # type: ignore[misc]
            case b"TYPE":
                kind = _to_type(raw)
                tests.append(lambda other, kind=kind: client_type(other) == kind)  # type: ignore[misc]
            case b"ADDR":
                tests.append(lambda other, word=word: other.peer == word)  # type: ignore[misc]
            case b"LADDR":
                tests.append(lambda other, word=word: other.local == word)  # type: ignore[misc]
            case b"USER":
                if word not in session.engine.acl.users:
                    raise ReplyError(f"No such user '{word}'")
                tests.append(lambda other, word=word: other.authenticated and other.user.name == word)  # type: ignore[misc]
            case b"SKIPME":
                if raw.lower() not in (b"yes", b"no"):
                    raise syntax_error()
                skip_me = raw.lower() == b"yes"
            case _:
                raise syntax_error()
    return tests, skip_me


@command("CLIENT UNBLOCK", arity=-3, flags=_ADMIN, group="connection", syntax="client-id [TIMEOUT | ERROR]")
def client_unblock(session: Session, argv: Argv) -> Reply:
    """End the wait of a connection in a blocking command, with a timeout or an error; answer 1 if it was waiting."""
    if len(argv) > 4:
        raise bad_subcommand(argv)
    reason = argv[3].upper() if len(argv) == 4 else b"TIMEOUT"
    if reason not in (b"TIMEOUT", b"ERROR"):
        raise ReplyError("CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    other = session.engine.sessions.get(to_integer(argv[2]))
    if other is None:
        return 0
    return int(session.engine.blocking.unblock(other, reason == b"ERROR"))


@command("CLIENT PAUSE", arity=-3, flags=_ADMIN, group="connection", syntax="timeout [WRITE | ALL]")
def client_pause(session: Session, argv: Argv) -> Reply:
    """Delay every client's commands, or only those that write, for so many milliseconds."""
    if len(argv) > 4:
        raise bad_subcommand(argv)
    if len(argv) == 4 and argv[3].upper() not in (b"WRITE", b"ALL"):
        raise ReplyError("CLIENT PAUSE mode must be WRITE or ALL")
    milliseconds = to_integer(argv[2], lambda: ReplyError("timeout is not an integer or out of range"))
    if milliseconds < 0:
        raise ReplyError("timeout is negative")
    if milliseconds > 1 << 50:
        raise ReplyError("timeout is out of range")
    session.engine.pause.start(Purpose.CLIENT, milliseconds, everything=len(argv) == 3 or argv[3].upper() == b"ALL")
    return OK


@command("CLIENT UNPAUSE", arity=2, flags=_ADMIN, group="connection", cost="O(N) with N clients that wait")
def client_unpause(session: Session, argv: Argv) -> Reply:
    """End CLIENT PAUSE now. What FAILOVER holds back goes on waiting."""
    session.engine.pause.end(Purpose.CLIENT)
    return OK


# -- client-side caching, which this server does not do -------------------------------------------------------


@command("CLIENT TRACKING", arity=-3, flags=_PLAIN, group="connection", syntax="ON | OFF")
def client_tracking(session: Session, argv: Argv) -> Reply:
    """Turn invalidation messages off. This version sends none, so ON is refused."""
    if _to_switch(argv[2]):
        raise ReplyError("client-side caching is not supported by this server: CLIENT TRACKING ON is refused")
    return OK


@command("CLIENT TRACKINGINFO", arity=2, flags=_PLAIN, group="connection")
def client_trackinginfo(session: Session, argv: Argv) -> Reply:
    """Answer that nothing is tracked."""
    return {b"flags": {b"off"}, b"redirect": -1, b"prefixes": []}


@command("CLIENT GETREDIR", arity=2, flags=_PLAIN, group="connection")
def client_getredir(session: Session, argv: Argv) -> Reply:
    """Answer -1: nothing is tracked."""
    return -1


@command("CLIENT CACHING", arity=3, flags=_PLAIN, group="connection", syntax="YES | NO")
def client_caching(session: Session, argv: Argv) -> Reply:
    """Refused: nothing is tracked."""
    raise ReplyError(
        "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled"
    )
