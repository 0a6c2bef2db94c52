"""What members of a group say about messages that they hold: TACK, TNACK, TEXTEND."""

from __future__ import annotations

from collections.abc import Callable

from penstock.commands.streams import log_at, to_number, to_ranges, to_token
from penstock.engine.arguments import INT64_MAX
from penstock.engine.declarations import Access, Argv, Flag, Reply, command, key
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.types.stream.groups import Group
from penstock.types.stream.offset_ranges import merged
from penstock.types.stream.stream import Stream


@command(
    "TACK",
    arity=-4,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key group [TOKEN token] offset | start-end [offset | start-end ...]",
    cost="O(log L) a range with L leases pending, and 0.01 microseconds a lease in it; the numbers in a range are"
    " not walked",
    check_words=lambda session, argv: to_ranges(to_token(argv[3:])[1]),
)
def tack(session: Session, argv: Argv) -> Reply:
    """Acknowledge messages of a group and answer how many were pending; unknown offsets are ignored.

    With TOKEN, only messages that are still leased under this delivery are acknowledged (TREAD ... WITHLEASE).
    """
    token, words = to_token(argv[3:])
    ranges = to_ranges(words)
    found = pending_group(session, argv)
    removed = found[1].ack(ranges, token) if found is not None else 0
    if removed:
        session.db.changed(argv[1])
    return removed


@command(
    "TNACK",
    arity=-4,
    flags=Flag.WRITE | Flag.FAST | Flag.TIMED,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key group [TOKEN token] offset | start-end [...] [DELAY ms]",
    cost="O(log L) a range with L leases pending, and 0.05 microseconds a lease in it; with TOKEN a range counts as "
    "often as leases of another delivery interrupt it",
)
def tnack(session: Session, argv: Argv) -> Reply:
    """Deliver pending messages again at once, or after a delay; answer how many were pending.

    With TOKEN, only messages that are still leased under this delivery. They are no longer leased under it afterwards.
    """
    token, words = to_token(argv[3:])
    delay = 0
    if len(words) > 2 and words[-2].upper() == b"DELAY":
        delay = to_number(words[-1], "DELAY")
        words = words[:-2]
    ranges = merged(to_ranges(words))
    return _postpone(session, argv, delay, lambda group, at, now: group.nack(ranges, at, token))


@command(
    "TEXTEND",
    arity=-5,
    flags=Flag.WRITE | Flag.FAST | Flag.TIMED,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key group ms [TOKEN token] [BEGIN] offset | start-end [...]",
    cost="O(log L) a range with L leases pending, and 0.05 microseconds a lease in it; with TOKEN a range counts as "
    "often as leases of another delivery interrupt it; BEGIN 5 microseconds a lease",
)
def textend(session: Session, argv: Argv) -> Reply:
    """Hold pending messages for ms from now, before they are delivered again; answer how many were pending.

    With TOKEN, only messages that are still leased under this delivery. BEGIN counts an attempt for those that were
    reserved (TREAD ... RESERVE), and the time to their expiry starts with the first attempt. To begin a message again
    in the same delivery counts nothing.
    """
    wait = to_number(argv[3], "ms", 1)
    token, words = to_token(argv[4:])
    begin = words[0].upper() == b"BEGIN"
    if begin and len(words) == 1:
        raise ReplyError("BEGIN needs offsets after it")
    ranges = merged(to_ranges(words[1:] if begin else words))

    def extend(group: Group, at: int, now: int) -> int:
        count = group.extend(ranges, at, token)
        if count and begin:
            group.begin(ranges, now, token)
        return count

    return _postpone(session, argv, wait, extend, may_expire_now=begin)


def _postpone(
    session: Session,
    argv: Argv,
    wait: int,
    change: Callable[[Group, int, int], int],
    may_expire_now: bool = False,
) -> int:
    """Have messages of `key group ...` delivered again after `wait` milliseconds; answer how many were pending.

    `change` gets the group, the time at which they are due, and the present time.
    """
    found = pending_group(session, argv)
    if found is None:
        return 0
    stream, group = found
    now = session.engine.streams.lease_time()
    at = min(now + wait, INT64_MAX)
    count = change(group, at, now)
    if count:
        # A last attempt ends at that time. With BEGIN only a search would tell when: upkeep looks in its next round.
        stream.expiries.note(argv[2], 0 if may_expire_now else at)
        log_at(session, argv, moment=now)
        session.db.changed(argv[1])
    return count


def pending_group(session: Session, argv: Argv) -> tuple[Stream, Group] | None:
    """The stream and the group that `key group ...` names; None if there are none."""
    stream = session.db.find(argv[1], Stream)
    group = stream.groups.get(argv[2]) if stream is not None else None
    return (stream, group) if stream is not None and group is not None else None
