"""Lists: taking elements from their ends. Commands that wait for an element are in blocking_lists.py.

A list's key exists exactly as long as the list has elements: a command that removes elements ends with `db.emptied`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from penstock.commands.lists import TAKE
from penstock.commands.multi_pop import MultiPop, parse_multi_pop
from penstock.engine.arguments import to_positive
from penstock.engine.concurrency.long_work import is_long_removal, reply_maker, with_key
from penstock.engine.concurrency.loop_steps import InSteps
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, counted_keys
from penstock.engine.keyspace.databases import Database
from penstock.engine.session import Session
from penstock.protocol.errors import wrong_arity
from penstock.protocol.resp import NULL_ARRAY
from penstock.types.kernels import Steps
from penstock.types.list import List


def _count_to_pop(session: Session, argv: Argv) -> int | None:
    """The count of LPOP and RPOP; None without one."""
    if len(argv) > 3:
        raise wrong_arity(argv[0].decode().lower())
    return to_positive(argv[2]) if len(argv) == 3 else None


@command(
    "LPOP",
    arity=-2,
    flags=Flag.WRITE | Flag.FAST,
    keys=TAKE,
    group="list",
    syntax="key [count]",
    cost="O(N) with N elements answered",
    check_words=_count_to_pop,
)
def lpop(session: Session, argv: Argv) -> Reply:
    """Remove and answer the first element of the list at key, or with count an array of up to that many."""
    items = session.db.get(argv[1])
    if type(items) is List and len(argv) == 2:
        item: bytes = items.popleft()
        session.db.emptied(argv[1], items)
        return item
    return _pop_counted(session, argv, left=True)


@command(
    "RPOP",
    arity=-2,
    flags=Flag.WRITE | Flag.FAST,
    keys=TAKE,
    group="list",
    syntax="key [count]",
    cost="O(N) with N elements answered",
    check_words=_count_to_pop,
)
def rpop(session: Session, argv: Argv) -> Reply:
    """Remove and answer the last element of the list at key, or with count an array of up to that many."""
    items = session.db.get(argv[1])
    if type(items) is List and len(argv) == 2:
        item: bytes = items.pop()
        session.db.emptied(argv[1], items)
        return item
    return _pop_counted(session, argv, left=False)


def _pop_counted(session: Session, argv: Argv, left: bool) -> Reply:
    """LPOP and RPOP with a count, and without one where there is no list."""
    count = _count_to_pop(session, argv)
    items = session.db.find(argv[1], List)
    if items is None:
        return None if count is None else NULL_ARRAY
    count = min(count or 0, len(items))
    if is_long_removal(count, len(items)):
        return _pop_aside(session, argv[1], items, left, count)
    return pop_many(session.db, argv[1], items, left, count)


def _pop_aside(
    session: Session,
    name: bytes,
    items: List,
    left: bool,
    count: int,
    done: Callable[[Reply], Reply] = lambda made: made,
) -> Reply:
    """Remove so many elements from one end; the rest is copied and the reply encoded in steps.

    `done` is called when they are removed, and gives the answer.
    """
    size, make_reply = len(items), reply_maker(session)

    def compute() -> Steps[tuple[List, Reply]]:
        reply = yield from make_reply(list, count, islice(items if left else reversed(items), count))
        rest = yield from items.part(count, size) if left else items.part(0, size - count)
        return rest, reply

    def commit(made: tuple[List, Reply]) -> Reply:
        session.db.replace_or_delete(name, made[0])
        return done(made[1])

    return session.aside(size, InSteps(compute), commit)


def pop_many(db: Database, name: bytes, items: List, left: bool, count: int) -> list[bytes]:
    """Remove up to `count` elements from one end, in the order in which they are popped."""
    take = items.popleft if left else items.pop
    popped = [take() for _ in range(min(count, len(items)))]
    if popped:
        db.emptied(name, items)
    return popped


def pop_from_first_list(session: Session, names: list[bytes], wanted: MultiPop) -> Reply:
    """Pop from the first of `names` that holds a list, and log it as LPOP or RPOP; None if none does."""
    for name in names:
        items = session.db.find(name, List)
        if items is not None:
            return _pop_logged(session, name, items, wanted)
    return None


def _pop_logged(session: Session, name: bytes, items: List, wanted: MultiPop) -> Reply:
    count = min(wanted.count, len(items))

    def done(popped: Reply) -> Reply:
        session.log([b"LPOP" if wanted.first else b"RPOP", name, b"%d" % count])
        return with_key(name, popped)

    if is_long_removal(count, len(items)):
        return _pop_aside(session, name, items, wanted.first, count, done)
    return done(pop_many(session.db, name, items, wanted.first, count))


@command(
    "LMPOP",
    arity=-4,
    flags=Flag.WRITE | Flag.MOVABLEKEYS,
    keys=counted_keys(1, Access.UPDATE, Effect.DELETE),
    group="list",
    syntax="numkeys key [key ...] LEFT | RIGHT [COUNT count]",
    cost="O(N + M) with N keys and M elements answered",
    check_words=lambda session, argv: parse_multi_pop(argv[1:], b"LEFT", b"RIGHT"),
)
def lmpop(session: Session, argv: Argv) -> Reply:
    """Pop from the first of the lists that has elements; answer its key and what was popped, or null."""
    wanted = parse_multi_pop(argv[1:], b"LEFT", b"RIGHT")
    return pop_from_first_list(session, wanted.names, wanted) or NULL_ARRAY
