"""ONCE: a command that runs once, however often it is sent.

A client that lost its connection does not know whether its last commands ran. Under ONCE it can send them again: the
server keeps the replies of those that ran, and answers with them. The reply is kept, logged and saved together with
what the command changed, in one unit, so that a crash keeps both or neither.

The reply of a command that changed nothing is kept in memory only: after a crash it is safe to run the command again. A
command that was refused before it ran (no permission, no memory, a wrong number of arguments) did not run, and is not
kept.

A client-id belongs to the user that sends it: the same id of another user is another client, so that no user sees
another user's replies or moves another user's floor. In the records the client's name is the user's name, a NUL and the
id (`_client`).

An unknown client counts as new if its floor is 1, and is refused otherwise. A client that begins with ONCEBEGIN uses
numbers from 2 on, so it never counts as new: a command that it sends again is answered or refused, however late, and
never runs twice.

A client that is done says goodbye with ONCEEND, and its record is gone at once. Until then the record stays while the
client has a connection, and for its patience after that (engine/concurrency/once.py). However much one client keeps,
others go on, and however many clients a user has: at once-max-bytes only those are refused that keep more than their
share of their user's share (`OnceRecords.has_room`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from time import monotonic

from penstock import __version__
from penstock.engine.arguments import to_integer, to_positive
from penstock.engine.concurrency.workers import LongWay
from penstock.engine.declarations import Argv, Command, Flag, Handler, NotLazy, Reply, command, inner_keys
from penstock.engine.dispatch import Engine
from penstock.engine.run_handler import INNER, run_handler
from penstock.engine.session import Session
from penstock.engine.stream_history import fetch_first, may_fetch_first, read_from_files
from penstock.protocol.errors import (
    NoPerm,
    OnceFull,
    OnceStale,
    OnceUnknown,
    ReplyError,
    Unblocked,
    WrongType,
    shown,
    syntax_error,
)
from penstock.protocol.resp import NO_REPLY, OK, Raw, RawPieces, Status, encode
from penstock.types.once_records import BelowFloor, ClientRecord, OnceRecords, UnknownClient

LONGEST_ID = 128
_ALIKE = (
    int,
    bytes,
    Status,
    Raw,
    RawPieces,
)  # replies that RESP2 and RESP3 encode alike, or that are encoded already
_KEPT_OK = (encode(OK, 2),) * 2
_ZERO = ord("0")
_NUL = 0


@command(
    "ONCE",
    arity=-5,
    flags=Flag.WRITE | Flag.NOSCRIPT | Flag.MOVABLEKEYS | Flag.DIRECT,
    keys=inner_keys(4),
    group="once",
    syntax="client-id number floor command [argument ...]",
    cost="That of the command.",
    not_lazy=NotLazy("is answered with the reply of the command inside"),
)
def once(session: Session, argv: Argv) -> Reply:
    """Run a command, unless the same client has sent this number before: then answer with the reply that was kept.

    The client numbers its commands 1, 2, 3 ... and sends with each its floor: the lowest number whose reply it does not
    have yet. Replies below the floor are forgotten. Numbers may arrive in any order. A client that sends nothing for
    once-idle-timeout is forgotten, and one without a connection after once-gone-timeout or its patience; if it comes
    back it is refused with ONCEUNKNOWN. A client-id belongs to the user that sends it. Commands that only read or that
    concern the connection cannot run under ONCE, nor can LAZY; inside MULTI, put ONCE around each command.
    """
    if session.current is None:
        return _at_once(session, argv)
    client, inner = _client(session, argv[1]), argv[4:]
    number, floor = _positive(argv[2], "number"), _positive(argv[3], "floor")
    if floor > number:
        raise ReplyError(
            f"the floor {floor} is above the number {number}: the floor is the lowest that has no reply yet"
        )
    engine = session.engine
    records, now = engine.keyspace.once_records, engine.clock.now
    try:
        kept = records.find(client, number, floor, now)
    except BelowFloor as error:
        raise OnceStale(f"{error}: this client has said that it has the reply") from None
    except UnknownClient:
        raise OnceUnknown(
            f"nothing is known of client {shown(argv[1])}: {records.why_unknown(client)}; start with a new client-id"
        ) from None
    session.log()
    if (record := records.clients.get(client)) is not None and record.connection is not session:
        _connected(session, client, record)
    if kept is not None:
        engine.once.repeated += 1
        session.acknowledge_again()
        return Raw(kept[session.protocol - 2])
    called = engine.commands.resolve(inner)
    why_not, may_wait = _verdict(called)
    if why_not:
        raise ReplyError(why_not)
    if engine.gates_matter(session):
        engine.pass_gates(session, called, inner)
    engine.require_growth(session, called, inner)
    _find_room(session, client)
    if may_wait:
        _take_over(session, argv)
    if called.group == "scripting" and may_fetch_first(session, argv):
        began = monotonic()
        places = read_from_files(session, argv, [session.current])
        if places:
            return fetch_first(session, argv, places, began)

    def keep(run: Callable[[], Reply]) -> Reply:
        return _keep(session, argv, client, called, number, floor, run)

    session.around = keep
    try:
        return keep(lambda: run_handler(engine, session, called, inner, INNER))
    finally:
        session.around = None
        if session.fetched is not None and session.fetched.argv is argv:
            session.fetched = None


def _at_once(session: Session, argv: Argv) -> Reply:
    """`once` for the inner loop, where no gate applies: the usual case, quickly; other cases go through dispatch.

    The usual case is a new command of a known client that the inner loop can run.
    """
    engine = session.engine
    keyspace = engine.keyspace
    records = keyspace.once_records
    client = argv[1]
    if _NUL in client:
        raise LongWay
    if session.user.prefix:
        client = session.user.prefix + client
    record = records.clients.get(client)
    number_text = argv[2]
    if record is None or argv[3] != record.floor_text:
        record = _at_floor(records, client, argv)
    handler, low, high = engine.once.handlers.get(argv[4]) or _handler(engine, argv[4])
    if not number_text.isdigit() or number_text[0] == _ZERO or len(number_text) > 18:
        raise LongWay
    number, inner = int(number_text), argv[4:]
    if number < record.floor or (number <= record.top and number in record.replies):
        raise LongWay
    if not low <= len(inner) <= high or records.bytes >= engine.config.once_max_bytes:
        raise LongWay
    if record.connection is not session:
        _connected(session, client, record)
    before = keyspace.dirty
    reply: Reply
    try:
        reply = handler(session, inner)
    except ReplyError as error:
        reply = error
    kept = _KEPT_OK if reply is OK else _encoded(reply)
    records.keep_in(record, number, kept, keyspace.clock.now)
    if engine.log is not None and keyspace.dirty != before:
        effects = [inner] if session.effects is None else session.effects
        session.effects = [*effects, _record(client, argv, kept)]
    if isinstance(reply, ReplyError):
        raise reply
    return reply


def _at_floor(records: OnceRecords, client: bytes, argv: Argv) -> ClientRecord:
    """The record of a known client that moved or respelled its floor, which happens once in a pipeline."""
    record, text = records.clients.get(client), argv[3]
    if record is None or not text.isdigit() or text[0] == _ZERO or not len(text) <= len(argv[2]) < 19:
        raise LongWay
    floor = int(text)
    if not argv[2].isdigit() or not record.floor <= floor <= int(argv[2]):
        raise LongWay
    records.raise_floor(record, floor, text)
    return record


def _encoded(reply: Reply) -> tuple[bytes, bytes]:
    """A reply in both versions of the protocol; the same object if they are equal."""
    old = encode(reply, 2)
    new = old if type(reply) in _ALIKE else encode(reply, 3)
    return (old, old) if new == old else (old, new)


def _handler(engine: Engine, name: bytes) -> tuple[Handler, int, int]:
    """The handler of a command of the inner loop, with the least and most words; LongWay if it may not run so."""
    known = engine.every_fast.get(name)
    if known is None or known.brief or not may_run_once(known.command):
        raise LongWay
    found = engine.once.handlers[name] = known.handler, known.low, known.high
    return found


def _record(client: bytes, argv: Argv, kept: tuple[bytes, bytes]) -> Argv:
    """The log entry for a reply that is kept."""
    return [b"ONCEKEPT", client, argv[2], argv[3], *(kept[:1] if kept[0] == kept[1] else kept)]


def _keep(
    session: Session, argv: Argv, client: bytes, called: Command, number: int, floor: int, run: Callable[[], Reply]
) -> Reply:
    """Run the command, or the rest of it after its slow part ran in a thread, and keep its reply."""
    engine = session.engine
    before = engine.keyspace.dirty
    session.effects = None
    # A script logs its effects itself, so the record must be put in one unit with them.
    with nullcontext() if called.writes else engine.unit():
        reply: Reply
        try:
            reply = run()
        except ReplyError as error:
            if session.waiter is not None and isinstance(error, WrongType):
                raise  # the key that it waits for has another type now: it goes on waiting
            reply = error
        if reply is NO_REPLY:
            return reply  # it waits and will run again as a whole, or a thread runs it
        kept = _encoded(reply)
        engine.keyspace.once_records.keep(client, number, floor, kept, engine.clock.now)
        _connected(session, client, engine.keyspace.once_records.clients[client])
        effects: list[Argv] = []
        if engine.keyspace.dirty != before:
            if called.writes:
                effects = [argv[4:]] if session.effects is None else session.effects
            effects = [*effects, _record(client, argv, kept)]
        if not called.writes:
            engine.propagate(session.db, effects)
            effects = []
        session.log(*effects)
    if isinstance(reply, ReplyError):
        raise reply
    return Raw(kept[session.protocol - 2])


def _client(session: Session, name: bytes) -> bytes:
    """The client's name in the records. The log has the same name, so a name from the log is used unchanged."""
    if session.user is session.engine.acl.server:
        return name
    if len(name) > LONGEST_ID:
        raise ReplyError(f"a client-id has at most {LONGEST_ID} bytes")
    if _NUL in name:
        raise ReplyError("a client-id has no NUL bytes")
    return session.user.prefix + name


def _connected(session: Session, client: bytes, record: ClientRecord) -> None:
    """The client uses this connection now; the log that is being replayed is none."""
    if record.connection is not session and session.user is not session.engine.acl.server:
        session.engine.once.connected(session, client, record)


def _find_room(session: Session, client: bytes) -> None:
    records, most = session.engine.keyspace.once_records, session.engine.config.once_max_bytes
    if records.has_room(client, most):
        return
    gone, gone_bytes = records.gone()
    raise OnceFull(
        f"this client keeps {records.kept_for(client)} bytes, more than its share of {records.share(client, most)}, "
        f"and all clients together {records.bytes}, where once-max-bytes allows {most}: move its floor up, or raise "
        f"once-max-bytes ({gone} of {len(records.clients)} clients, with {gone_bytes} bytes, have no connection; they "
        "are forgotten after once-gone-timeout)"
    )


def _positive(text: bytes, what: str) -> int:
    number = to_integer(text)
    if number < 1:
        raise ReplyError(f"the {what} is {number}; it starts at 1")
    return number


@cache
def _verdict(called: Command) -> tuple[str, bool]:
    """Why a command cannot run under ONCE, empty if it can; and whether it may wait."""
    runs_another = any(spec.inner for spec in called.keys)
    if called.name == "LAZY":
        return (
            "LAZY cannot run under ONCE: the reply that is kept is that of the command, which LAZY does not wait for; "
            "send the command under ONCE without LAZY, or LAZY without ONCE"
        ), False
    if called.flags & (Flag.CONTROL | Flag.NO_MULTI) or runs_another or called.group == "once":
        return f"{called.name} cannot run under ONCE", False
    script = called.group == "scripting" and bool(called.keys)
    changes = called.writes or script or Flag.MAY_REPLICATE in called.flags
    if not changes or Flag.READONLY in called.flags:
        return f"{called.name} changes nothing: send it without ONCE, as often as you like", False
    return "", Flag.BLOCKING in called.flags


def may_run_once(called: Command) -> bool:
    """Whether a command may run under ONCE."""
    return not _verdict(called)[0]


def _take_over(session: Session, argv: Argv) -> None:
    """The same command already waits on a connection that its client gave up: this one waits in its place."""
    for other in list(session.engine.sessions.values()):
        waiter = other.waiter
        if (
            waiter is not None
            and other is not session
            and other.user is session.user
            and waiter.argv[1:3] == argv[1:3]
            and waiter.command.name == "ONCE"
        ):
            session.engine.blocking.answer(waiter, Unblocked("the same command was sent again, on another connection"))


@command(
    "ONCEBEGIN",
    arity=-2,
    flags=Flag.WRITE | Flag.NOSCRIPT | Flag.FAST,
    group="once",
    syntax="client-id [PATIENCE milliseconds] [WITHINFO]",
)
def oncebegin(session: Session, argv: Argv) -> Reply:
    """Register a client of ONCE, so that after it was forgotten it is not taken for a new one. Its numbers begin at 2.

    Without this the server cannot tell a first command from the repeat of one that it has forgotten, and runs it.

    With PATIENCE the client says how long after the end of its connection it may come back and send commands again:
    the server remembers it for that long, if that is longer than once-gone-timeout, up to once-idle-timeout. With
    WITHINFO the answer is a map: the version of the server, once-idle-timeout, once-gone-timeout, and a digest of the
    names and flags of all commands. A client that knows what COMMAND answers for this digest need not ask.
    """
    client, keyspace, config = _client(session, argv[1]), session.engine.keyspace, session.engine.config
    patience, with_info = _terms(argv)
    records = keyspace.once_records
    if client not in records.clients:
        _find_room(session, client)
    if records.meet(client, keyspace.clock.now, patience):
        keyspace.dirty += 1
        session.log([argv[0], client, b"PATIENCE", b"%d" % patience] if patience else [argv[0], client])
    else:
        session.acknowledge_again()
    _connected(session, client, records.clients[client])
    if not with_info:
        return OK
    return {
        "version": __version__,
        "commands": session.engine.commands.digest(),
        "once-idle-timeout": config.once_idle_timeout,
        "once-gone-timeout": config.once_gone_timeout,
    }


def _terms(argv: Argv) -> tuple[int, bool]:
    """The options of ONCEBEGIN."""
    patience, with_info, rest = 0, False, iter(argv[2:])
    for word in rest:
        match word.upper():
            case b"PATIENCE":
                patience = to_positive(next(rest, b""), "PATIENCE")
            case b"WITHINFO":
                with_info = True
            case _:
                raise syntax_error()
    return patience, with_info


@command(
    "ONCEEND",
    arity=-2,
    flags=Flag.WRITE | Flag.NOSCRIPT | Flag.FAST,
    group="once",
    syntax="client-id [client-id ...]",
    cost="O(N) with N replies that are kept for the clients",
)
def onceend(session: Session, argv: Argv) -> Reply:
    """Say goodbye: forget these clients of ONCE, which have all their replies. Answers how many of them were known.

    A client that does not say goodbye is forgotten after its connection has ended and its patience is over.
    """
    keyspace = session.engine.keyspace
    clients = [_client(session, name) for name in argv[1:]]
    ended = [client for client in clients if keyspace.once_records.end(client)]
    session.once_clients.difference_update(ended)
    keyspace.dirty += len(ended)
    session.log(*([[argv[0], *ended]] if ended else []))
    return len(ended)


@command(
    "ONCEKEPT",
    arity=-5,
    flags=Flag.ADMIN | Flag.NOSCRIPT,
    group="once",
    syntax="client-id number floor reply [reply-in-resp3]",
)
def oncekept(session: Session, argv: Argv) -> Reply:
    """Keep a reply, as the log records it. Not for clients: refused to users who do not have all permissions."""
    if not session.user.unrestricted:
        raise NoPerm("this user has no permissions to keep replies in the name of others")
    number, floor = _positive(argv[2], "number"), _positive(argv[3], "floor")
    keyspace = session.engine.keyspace
    try:
        if keyspace.once_records.find(argv[1], number, floor, keyspace.clock.now) is not None:
            return OK
    except UnknownClient:
        pass  # its first record after it was forgotten, or the first in this log
    except BelowFloor:
        return OK
    keyspace.once_records.keep(argv[1], number, floor, (argv[4], argv[-1]), keyspace.clock.now)
    keyspace.dirty += 1
    return OK
