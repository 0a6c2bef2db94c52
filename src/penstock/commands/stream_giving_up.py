"""TGIVEUP: a member of a group that knows that a message will never succeed says so, and why.

The server takes the message from the member and writes its dead letter in one step, as it does for a message that
expires. So a member that holds the message no longer (TOKEN) writes no letter, and a letter that cannot be written
leaves the message pending.

Rejected: TWRITE and TACK in a MULTI of the client. EXEC has no way back: if the letter is refused, the TACK counts all
the same and the message is lost; and the client cannot know whether it still holds the message when EXEC runs.
"""

from __future__ import annotations

import sys

from penstock.commands.stream_acknowledging import pending_group
from penstock.commands.streams import to_ranges, to_token
from penstock.engine.declarations import Access, Argv, Flag, NotLazy, Reply, command, key
from penstock.engine.keyspace.databases import Database
from penstock.engine.session import Session
from penstock.engine.stream_history import Foreseen, with_history
from penstock.protocol.dead_letters import name_in_text
from penstock.protocol.errors import ReplyError
from penstock.types.stream.lease_chunk import Lease
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, Range
from penstock.types.stream.offset_ranges import merged
from penstock.types.stream.reading import each, take
from penstock.types.stream.stream import Stream

MOST = 1000
"""Messages that one command gives up: each becomes a letter, on the loop."""
LETTER = 500
"""Bytes of memory that a letter takes beside the message, the names and the reason in it."""
LONGEST_REASON = 4000
"""Characters of a reason that are kept: each of a thousand letters has it."""
ESCAPED = 6
"""Bytes that a byte of text may take in JSON."""


def _parse(argv: Argv) -> tuple[int | None, str | None, list[Range]]:
    token, words = to_token(argv[3:])
    reason = None
    if words[0].upper() == b"REASON":
        if len(words) < 3:
            raise ReplyError("REASON takes a text, and offsets follow it")
        reason, words = words[1][: 4 * LONGEST_REASON].decode(errors="replace")[:LONGEST_REASON], words[2:]
    return token, reason, merged(to_ranges(words))


def _growth(session: Session, argv: Argv) -> int:
    """The bytes of the letters: an entry that is no text takes a third more, and most of a message is its entry."""
    try:
        token, reason, ranges = _parse(argv)
        found = pending_group(session, argv)
    except ReplyError:
        return 0
    if found is None:
        return 0
    stream, group = found
    letter = LETTER + ESCAPED * (len(argv[1]) + len(argv[2]) + len((reason or "").encode(errors="replace")))
    growth = 0
    for lease in group.held(ranges, token, MOST):
        growth += letter * (lease.end - lease.start) + 2 * _cost(stream.messages, lease)
    return growth


def _cost(messages: Messages, lease: Lease) -> int:
    """Bytes of the messages of a lease. In files, which are not read for this, all in a node count the same."""
    count = lease.end - lease.start
    if messages.is_in_memory_from(lease.start):
        return take(messages, lease.start, count, sys.maxsize, lease.end).cost
    numbers = range((lease.start - 1) // NODE, (lease.end - 2) // NODE + 1)
    nodes = [messages.block(number) for number in numbers if number >= messages.lowest]
    return sum(node.raw for node in nodes) * count // (NODE * len(numbers))


def _foresee(session: Session, database: Database, argv: Argv) -> Foreseen:
    """The messages that letters will be made of."""
    token, _, ranges = _parse(argv)
    stream = database.find(argv[1], Stream)
    group = stream.groups.get(argv[2]) if stream is not None else None
    if stream is None or group is None:
        return Foreseen([])
    return _letters_of(stream, group.held(ranges, token, MOST))


def _letters_of(stream: Stream, leases: list[Lease]) -> Foreseen:
    return Foreseen([(stream.messages, (lease.start, lease.end)) for lease in leases if lease.dead_letter is not None])


@command(
    "TGIVEUP",
    arity=-4,
    flags=Flag.WRITE | Flag.DENYOOM,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key group [TOKEN token] [REASON text] offset | start-end [...]",
    cost="O(log L) a range with L leases pending, and O(bytes) of the letters",
    not_lazy=NotLazy("is logged by its effect, which is not known before it runs"),
    grows=_growth,
    foresees=_foresee,
)
def tgiveup(session: Session, argv: Argv) -> Reply:
    """Give up pending messages: write their dead letters, and deliver them no more; answer how many were pending.

    A letter goes to the stream that DEADLETTER named when the message was first delivered; without one there is no
    letter. REASON is the `why` of the letters, up to 4000 characters. With TOKEN, only messages that are still leased
    under this delivery. One call gives up at most 1000 messages. If the letters cannot be written, the messages stay
    pending.
    """
    found = pending_group(session, argv)
    if found is None:
        return 0
    stream, group = found
    if stream.messages.history:
        token, _, ranges = _parse(argv)
        letters = _letters_of(stream, group.held(ranges, token, MOST))
        return with_history(session, letters, lambda: _give_up(session, argv))
    return _give_up(session, argv)


def _give_up(session: Session, argv: Argv) -> int:
    token, reason, ranges = _parse(argv)
    found = pending_group(session, argv)
    if found is None:
        return 0
    stream, group = found
    leases = group.held(ranges, token, MOST)
    if not leases:
        return 0
    _check_targets(session, argv[1], leases)
    _check_readable(stream, leases)
    count = sum(lease.end - lease.start for lease in leases)
    change = group.give_up(stream.messages, leases)
    db, streams = session.db, session.engine.streams
    session.log(*streams.group_changed(db, argv[1], argv[2], stream, change, leases, reason))
    return count


def _check_readable(stream: Stream, leases: list[Lease]) -> None:
    """Refuse if messages are in a file of history that is lost."""
    if stream.messages.history:
        for lease in leases:
            if lease.dead_letter is not None:
                for _ in each(stream.messages, lease.start, lease.end - lease.start):
                    pass


def _check_targets(session: Session, name: bytes, leases: list[Lease]) -> None:
    """Refuse if a letter could not be written."""
    for target in {lease.dead_letter for lease in leases if lease.dead_letter is not None}:
        if target == name or type(session.db.get(target)) not in (Stream, type(None)):
            raise ReplyError(
                f"the dead letters go to '{name_in_text(target[:64])}', which "
                f"{'is the stream itself' if target == name else 'holds no stream'}; the messages stay pending"
            )
