"""Sorted-set commands that wait: BZPOPMIN, BZPOPMAX, BZMPOP.

Each tries at once. If the sorted sets are empty it waits through `session.block`, which runs the whole command again
when a key changes. The log gets the ZPOPMIN or ZPOPMAX that does the same without waiting.
"""

from __future__ import annotations

from penstock.commands.multi_pop import parse_multi_pop
from penstock.commands.sorted_sets import first_disordered, pop_from_first, pop_wanted_members
from penstock.engine.arguments import to_timeout
from penstock.engine.concurrency.long_work import sort_first
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, counted_keys, keys
from penstock.engine.session import Session
from penstock.protocol.resp import NULL_ARRAY

_WAITS = Flag.WRITE | Flag.NOSCRIPT | Flag.BLOCKING | Flag.FAST


@command(
    "BZPOPMIN",
    arity=-3,
    flags=_WAITS,
    keys=keys(1, -2, Access.UPDATE, Effect.DELETE),
    group="sorted-set",
    syntax="key [key ...] timeout",
    cost="O(log N)",
)
def bzpopmin(session: Session, argv: Argv) -> Reply:
    """Remove the member with the lowest score from the first sorted set that has one; wait while there is none.

    Answers key, member and score. The timeout is in seconds, and 0 waits for ever. After a timeout the answer is null.
    """
    return _pop(session, argv, highest=False)


@command(
    "BZPOPMAX",
    arity=-3,
    flags=_WAITS,
    keys=keys(1, -2, Access.UPDATE, Effect.DELETE),
    group="sorted-set",
    syntax="key [key ...] timeout",
    cost="O(log N)",
)
def bzpopmax(session: Session, argv: Argv) -> Reply:
    """Remove the member with the highest score from the first sorted set that has one; wait while there is none."""
    return _pop(session, argv, highest=True)


def _pop(session: Session, argv: Argv, highest: bool) -> Reply:
    deadline = to_timeout(argv[-1], session.engine.clock.now)
    names = argv[1:-1]
    candidates = session.candidates(names)
    if (disordered := first_disordered(session, candidates)) is not None:
        return sort_first(session, disordered, lambda: _pop(session, argv, highest))
    popped = pop_from_first(session, candidates, 1, highest)
    if popped is None:
        return session.block(names, deadline, NULL_ARRAY)
    name, [(score, member)] = popped
    return [name, member, score]


@command(
    "BZMPOP",
    arity=-5,
    flags=Flag.WRITE | Flag.BLOCKING | Flag.MOVABLEKEYS,
    keys=counted_keys(2, Access.UPDATE, Effect.DELETE),
    group="sorted-set",
    syntax="timeout numkeys key [key ...] <MIN | MAX> [COUNT count]",
    cost="O(K) with K keys, and O(log N) a member",
)
def bzmpop(session: Session, argv: Argv) -> Reply:
    """Remove members as ZMPOP does; wait while all of the sorted sets are empty."""
    wanted = parse_multi_pop(argv[2:], b"MIN", b"MAX")
    deadline = to_timeout(argv[1], session.engine.clock.now)
    candidates = session.candidates(wanted.names)
    if (disordered := first_disordered(session, candidates)) is not None:
        return sort_first(session, disordered, lambda: bzmpop(session, argv))
    popped = pop_wanted_members(session, candidates, wanted)
    return popped or session.block(wanted.names, deadline, NULL_ARRAY)
