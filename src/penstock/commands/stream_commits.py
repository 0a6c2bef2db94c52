"""Exactly-once writes to streams: entries are staged, and one commit makes them visible. TAPPLY is for the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.commands.stream_checks import check_aside, find_misfits, refused
from penstock.commands.streams import log_at, parse_entries, retain, size_of_batches, to_batches, to_number
from penstock.engine.declarations import Access, Argv, Flag, Reply, command, key
from penstock.engine.run_handler import INNER, run_handler
from penstock.engine.session import Session
from penstock.protocol.errors import Fenced, ReplyError
from penstock.protocol.resp import OK
from penstock.types.packing import CorruptValue
from penstock.types.stream.arrow import rows_of, size_of_rows
from penstock.types.stream.changes import Change
from penstock.types.stream.compaction import compact_nodes
from penstock.types.stream.messages import Messages
from penstock.types.stream.producers import ProducerFenced, UnknownStage
from penstock.types.stream.segments import Segment
from penstock.types.stream.stored_nodes import forget_nodes, store
from penstock.types.stream.stream import Stream


@command(
    "TSTAGE",
    arity=-5,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.TIMED,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key token ENTRIES tag entry [tag entry ...] | key token ARROW payload",
    cost="O(1) an entry",
    grows=lambda session, argv: size_of_batches(argv[4]) if argv[3].upper() == b"ARROW" else 0,
)
def tstage(session: Session, argv: Argv) -> Reply:
    """Stage entries under a token, invisible to readers until TCOMMIT; answer how many the token has now.

    Staging again under a token adds to it. Stages that are not committed expire (stream-stage-timeout). If the stream
    checks its schema, an entry that does not fit makes the command fail, even if CHECK says deadletter: a stage is
    committed whole.
    """
    form = argv[3].upper()
    token = argv[2]
    if form == b"ENTRIES":
        tags, entries = parse_entries(argv, 4)
        size = sum(map(len, entries))
        return _stage(
            session, argv, size, entries, lambda stream, now: stream.stages.stage_entries(token, tags, entries, now)
        )
    if form == b"ARROW" and len(argv) == 5:
        batches = to_batches(session, argv[4])
        rows = (entry for _, entry in rows_of(batches))
        size = size_of_rows(batches)
        return _stage(session, argv, size, rows, lambda stream, now: stream.stages.stage(token, batches, now))
    raise ReplyError("TSTAGE takes ENTRIES tag entry ..., or ARROW and one payload")


def _stage(
    session: Session, argv: Argv, size: int, entries: Iterable[bytes], add: Callable[[Stream, int], int]
) -> Reply:
    """Check entries of so many bytes, and `add` them to a stream at a time; what `add` answers."""
    db, name = session.db, argv[1]
    found = db.find(name, Stream)

    def check() -> None:
        assert found is not None
        for misfit in find_misfits(name, found, entries):
            raise refused(name, found, misfit)

    def commit(_: None = None) -> int:
        now = session.engine.streams.lease_time()
        stream = db.obtain_stream(name)
        count = add(stream, now)
        session.engine.streams.note(db, name, stream)
        log_at(session, argv, moment=now)
        db.changed(name)
        return count

    if found is None or found.checked is None:
        return commit()
    return check_aside(session, size, check, commit)


@command(
    "TCOMMIT",
    arity=-5,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.TIMED,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key producer epoch token [token ...]",
    cost="O(entries of a node that is not whole) + O(nodes)",
)
def tcommit(session: Session, argv: Argv) -> Reply:
    """Make the entries staged under the tokens visible, in that order and at once; answer [first offset, entries].

    The epoch must be newer than the producer's last one. A repeat of the last epoch appends nothing and gets the same
    answer; an older one is refused with FENCED.
    """
    epoch = to_number(argv[3], "epoch")
    db = session.db
    stream = db.find(argv[1], Stream)
    if stream is None:
        raise ReplyError(f"nothing is staged under '{argv[4].decode(errors='replace')}': there is no such stream")
    messages = stream.messages
    first, before = messages.first, messages.last
    known = stream.producers.by_id.get(argv[2])
    last_epoch = known.epoch if known is not None else -1
    try:
        commit = stream.commit(argv[2], epoch, argv[4:], db.clock.now)
    except ProducerFenced as error:
        raise Fenced(f"producer {argv[2].decode(errors='replace')}: {error}") from None
    except UnknownStage as error:
        raise ReplyError(str(error)) from None
    if messages.last != before or epoch != last_epoch:
        retain(session, argv[1], stream, before + 1)
        log_at(session, argv, messages.first - 1 if messages.first != first else 0)
        db.changed(argv[1])
    else:
        session.acknowledge_again()
    return [commit.first, commit.entries]


@command(
    "TUNSTAGE",
    arity=-3,
    flags=Flag.WRITE,
    keys=key(1, Access.WRITE),
    group="stream",
    syntax="key token [token ...]",
    cost="O(1) a token",
)
def tunstage(session: Session, argv: Argv) -> Reply:
    """Drop the entries staged under the tokens, and answer how many tokens existed."""
    stream = session.db.find(argv[1], Stream)
    dropped = stream.stages.drop(argv[2:]) if stream is not None else 0
    if dropped:
        session.db.changed(argv[1])
    return dropped


@command(
    "TAPPLY",
    arity=-4,
    flags=Flag.WRITE | Flag.ADMIN | Flag.NOSCRIPT,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key GROUP name change | key AT ms command [argument ...] | key UNSTAGE ms | key COMPACT node [node ...]"
    " | key HISTORY index | key LOST name [node ...]",
    cost="That of what it applies.",
)
def tapply(session: Session, argv: Argv) -> Reply:
    """Apply an effect as the log records it: not for clients.

    GROUP sets the state of a group after a read, AT runs a stream command at the time it first ran, UNSTAGE drops
    stages older than a time, COMPACT drops superseded messages from these nodes. HISTORY lets go of messages that are
    in a file, and LOST gives up those of a file that is lost, or of these nodes in it.
    """
    form = argv[2].upper()
    if form == b"AT" and len(argv) > 5:
        return _apply_at(session, argv)
    db = session.db
    stream = db.find(argv[1], Stream)
    if form == b"GROUP" and len(argv) == 5:
        try:
            change = Change.decode(argv[4])
        except CorruptValue as error:
            raise ReplyError(f"TAPPLY: {error}") from None
        if not change.fits(stream.messages.last if stream is not None else 0):
            raise ReplyError("TAPPLY: a group change has leases of messages that were never written")
        session.engine.acl.check_value(session, change)
        session.engine.streams.check_from_client(change, [lease.first_delivered for lease in change.leases])
        stream = stream if stream is not None else db.obtain_stream(argv[1])
        stream.group(argv[3], change.position).apply(change)
        stream.expiries.note(argv[3], 0)
        session.engine.streams.note(db, argv[1], stream)
    elif form == b"UNSTAGE" and len(argv) == 4:
        before = to_number(argv[3], "UNSTAGE")
        if stream is None or not stream.stages.expire(before):
            return OK
    elif form == b"COMPACT":
        numbers = [to_number(word, "COMPACT's node") for word in argv[3:]]
        if stream is None:
            return OK
        compact_nodes(stream.messages, numbers)
    elif form == b"HISTORY" and len(argv) == 4:
        if session.user is not session.engine.acl.server:  # an index of a client could make nodes of any bytes
            raise ReplyError("TAPPLY HISTORY is only for the log of this server")
        if stream is not None:
            _let_go(stream.messages, argv[3])
        return OK
    elif form == b"LOST" and len(argv) > 3:
        numbers = [to_number(word, "node") for word in argv[4:]]
        if stream is None:
            return OK
        forget_nodes(stream.messages, argv[3].decode(errors="replace"), set(numbers))
    else:
        raise ReplyError(
            "TAPPLY knows GROUP name change, AT ms command, UNSTAGE ms, COMPACT node ..., HISTORY index and LOST name "
            "[node ...]"
        )
    db.changed(argv[1])
    return OK


def _let_go(messages: Messages, index: bytes) -> None:
    """If the file is gone, the messages stay in memory: a later effect evicts them."""
    try:
        store(messages, Segment.load(index))
    except CorruptValue as error:
        raise ReplyError(f"TAPPLY: {error}") from None


def _apply_at(session: Session, argv: Argv) -> Reply:
    moment = to_number(argv[3], "AT")
    inner = argv[4:]
    found = session.engine.commands.resolve(inner)
    allowed = found.group == "stream" and found.writes and not found.flags & (Flag.ADMIN | Flag.BLOCKING)
    if not allowed or inner[1] != argv[1]:
        raise ReplyError("TAPPLY ... AT runs commands that write the same stream")
    engine = session.engine
    engine.streams.replaying = True
    try:
        reply = run_handler(engine, session, found, inner, INNER, moment=moment)
    finally:
        engine.streams.replaying = False
    session.log(argv)
    return reply
