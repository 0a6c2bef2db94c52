"""List commands that wait: BLPOP, BRPOP, BLMPOP, BLMOVE, BRPOPLPUSH.

Each tries at once. If the lists are empty it waits through `session.block`, which runs the whole command again when a
key changes. The log gets the command that does the same without waiting.
"""

from __future__ import annotations

from penstock.commands.list_popping import pop_from_first_list, pop_many
from penstock.commands.lists import is_left, move
from penstock.commands.multi_pop import parse_multi_pop
from penstock.engine.arguments import to_timeout
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, counted_keys, key, keys
from penstock.engine.session import Session
from penstock.protocol.errors import WrongType
from penstock.protocol.resp import NULL_ARRAY
from penstock.types.list import List

WAITS = Flag.WRITE | Flag.NOSCRIPT | Flag.BLOCKING
FROM_TO = key(1, Access.UPDATE, Effect.DELETE) + key(2, Access.WRITE, Effect.INSERT)


@command(
    "BLPOP",
    arity=-3,
    flags=WAITS,
    keys=keys(1, -2, Access.UPDATE, Effect.DELETE),
    group="list",
    syntax="key [key ...] timeout",
    cost="O(N) with N keys",
)
def blpop(session: Session, argv: Argv) -> Reply:
    """Pop the first element of the first list that has one, and answer key and element; wait while there is none.

    The timeout is in seconds, and 0 waits for ever. After a timeout the answer is null. Clients are served in the order
    in which they came.
    """
    return _pop(session, argv, left=True)


@command(
    "BRPOP",
    arity=-3,
    flags=WAITS,
    keys=keys(1, -2, Access.UPDATE, Effect.DELETE),
    group="list",
    syntax="key [key ...] timeout",
    cost="O(N) with N keys",
)
def brpop(session: Session, argv: Argv) -> Reply:
    """Pop the last element of the first list that has one, and answer key and element; wait while there is none."""
    return _pop(session, argv, left=False)


def _pop(session: Session, argv: Argv, left: bool) -> Reply:
    deadline = to_timeout(argv[-1], session.engine.clock.now)
    names = argv[1:-1]
    for name in session.candidates(names):
        items = session.db.find(name, List)
        if items is not None:
            session.log([b"LPOP" if left else b"RPOP", name])
            return [name, *pop_many(session.db, name, items, left, 1)]
    return session.block(names, deadline, NULL_ARRAY)


@command(
    "BLMPOP",
    arity=-5,
    flags=Flag.WRITE | Flag.BLOCKING | Flag.MOVABLEKEYS,
    keys=counted_keys(2, Access.UPDATE, Effect.DELETE),
    group="list",
    syntax="timeout numkeys key [key ...] LEFT | RIGHT [COUNT count]",
    cost="O(N + M) with N keys and M elements answered",
)
def blmpop(session: Session, argv: Argv) -> Reply:
    """Pop from the first of the lists that has elements, and answer its key and them; wait while there is none."""
    wanted = parse_multi_pop(argv[2:], b"LEFT", b"RIGHT")
    deadline = to_timeout(argv[1], session.engine.clock.now)
    popped = pop_from_first_list(session, session.candidates(wanted.names), wanted)
    return popped or session.block(wanted.names, deadline, NULL_ARRAY)


@command(
    "BLMOVE",
    arity=6,
    flags=WAITS | Flag.DENYOOM,
    keys=FROM_TO,
    group="list",
    syntax="source destination LEFT | RIGHT LEFT | RIGHT timeout",
)
def blmove(session: Session, argv: Argv) -> Reply:
    """Move an element from one end of source to one end of destination, and answer it; wait while there is none."""
    from_left, to_left = is_left(argv[3]), is_left(argv[4])
    return _move(session, argv, from_left, to_left)


@command(
    "BRPOPLPUSH", arity=4, flags=WAITS | Flag.DENYOOM, keys=FROM_TO, group="list", syntax="source destination timeout"
)
def brpoplpush(session: Session, argv: Argv) -> Reply:
    """Move the last element of source to the head of destination, and answer it; wait while there is none."""
    return _move(session, argv, from_left=False, to_left=True)


def _move(session: Session, argv: Argv, from_left: bool, to_left: bool) -> Reply:
    source_name, target_name = argv[1], argv[2]
    deadline = to_timeout(argv[-1], session.engine.clock.now)
    source = session.db.find(source_name, List)
    if source is None:
        # Redis answers a timeout with a null array and, where waiting is not allowed, with a null.
        return session.block([source_name], deadline, NULL_ARRAY) if session.may_block else None
    try:
        item = move(session.db, source_name, source, target_name, from_left, to_left)
    except WrongType as error:
        return error  # returned, not raised: raised, it would mean that the client goes on waiting for source
    session.log([b"LMOVE", source_name, target_name, _side(from_left), _side(to_left)])
    return item


def _side(left: bool) -> bytes:
    return b"LEFT" if left else b"RIGHT"
