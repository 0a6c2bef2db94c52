"""Lists: pushing, ranges, searches and moves. Popping is in list_popping.py; commands that wait in blocking_lists.py.

A list's key exists exactly as long as the list has elements: a command that removes elements ends with `db.emptied`.
"""

from __future__ import annotations

from penstock.engine.arguments import to_at_least, to_integer
from penstock.engine.concurrency.long_work import (
    LONG,
    is_long_removal,
    reply_aside,
    reply_in_steps,
)
from penstock.engine.concurrency.loop_steps import InSteps
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, key
from penstock.engine.keyspace.databases import Database
from penstock.engine.session import Session
from penstock.freeing import LongList
from penstock.protocol.errors import ReplyError, no_such_key, syntax_error
from penstock.protocol.resp import OK
from penstock.types.kernels import Steps, finish
from penstock.types.list import List

GROWS = Flag.WRITE | Flag.DENYOOM
INSERT = key(1, Access.WRITE, Effect.INSERT)
TAKE = key(1, Access.UPDATE, Effect.DELETE)
DELETE = key(1, Access.WRITE, Effect.DELETE)
MOVE = TAKE + key(2, Access.WRITE, Effect.INSERT)
READ = key(1, Access.READ)

# -- pushing ----------------------------------------------------------------------------------------------------


@command(
    "LPUSH",
    arity=-3,
    flags=GROWS | Flag.FAST,
    keys=INSERT,
    group="list",
    syntax="key element [element ...]",
    cost="O(1) an element",
)
def lpush(session: Session, argv: Argv) -> Reply:
    """Put elements at the head of the list at key, creating it; answer its length."""
    db = session.db
    name = argv[1]
    items = db.get(name)
    if type(items) is not List:
        items = db.obtain(name, List)
    if len(argv) == 3:
        items.appendleft(argv[2])
    else:
        items.extendleft(argv[2:])
    db.changed(name)
    return len(items)


@command(
    "RPUSH",
    arity=-3,
    flags=GROWS | Flag.FAST,
    keys=INSERT,
    group="list",
    syntax="key element [element ...]",
    cost="O(1) an element",
)
def rpush(session: Session, argv: Argv) -> Reply:
    """Put elements at the tail of the list at key, creating it; answer its length."""
    db = session.db
    name = argv[1]
    items = db.get(name)
    if type(items) is not List:
        items = db.obtain(name, List)
    if len(argv) == 3:
        items.append(argv[2])
    else:
        items.extend(argv[2:])
    db.changed(name)
    return len(items)


@command(
    "LPUSHX",
    arity=-3,
    flags=GROWS | Flag.FAST,
    keys=INSERT,
    group="list",
    syntax="key element [element ...]",
    cost="O(1) an element",
)
def lpushx(session: Session, argv: Argv) -> Reply:
    """Put elements at the head of the list at key if there is one; answer its length, 0 without a list."""
    return lpush(session, argv) if session.db.find(argv[1], List) is not None else 0


@command(
    "RPUSHX",
    arity=-3,
    flags=GROWS | Flag.FAST,
    keys=INSERT,
    group="list",
    syntax="key element [element ...]",
    cost="O(1) an element",
)
def rpushx(session: Session, argv: Argv) -> Reply:
    """Put elements at the tail of the list at key if there is one; answer its length, 0 without a list."""
    return rpush(session, argv) if session.db.find(argv[1], List) is not None else 0


# -- moving -----------------------------------------------------------------------------------------------------


def is_left(word: bytes) -> bool:
    """Whether a word says LEFT; anything but LEFT and RIGHT is a syntax error."""
    side = word.upper()
    if side not in (b"LEFT", b"RIGHT"):
        raise syntax_error()
    return side == b"LEFT"


@command(
    "LMOVE",
    arity=5,
    flags=GROWS,
    keys=MOVE,
    group="list",
    syntax="source destination LEFT | RIGHT LEFT | RIGHT",
    check_words=lambda session, argv: [is_left(word) for word in argv[3:]],
)
def lmove(session: Session, argv: Argv) -> Reply:
    """Take an element from one end of source, put it at one end of destination, and answer it."""
    from_left, to_left = is_left(argv[3]), is_left(argv[4])
    source = session.db.find(argv[1], List)
    return None if source is None else move(session.db, argv[1], source, argv[2], from_left, to_left)


@command("RPOPLPUSH", arity=3, flags=GROWS, keys=MOVE, group="list", syntax="source destination")
def rpoplpush(session: Session, argv: Argv) -> Reply:
    """Take the last element of source, put it at the head of destination, and answer it."""
    source = session.db.find(argv[1], List)
    return None if source is None else move(session.db, argv[1], source, argv[2], from_left=False, to_left=True)


def move(db: Database, name: bytes, source: List, target_name: bytes, from_left: bool, to_left: bool) -> bytes:
    """Move one element. If source and target are one list, it rotates, and its key must not be deleted in between."""
    target = db.obtain(target_name, List)
    item = source.popleft() if from_left else source.pop()
    if to_left:
        target.appendleft(item)
    else:
        target.append(item)
    db.changed(target_name)
    if target is not source:
        db.emptied(name, source)
    return item


# -- reading ----------------------------------------------------------------------------------------------------


@command(
    "LLEN", arity=2, flags=Flag.READONLY | Flag.FAST, keys=key(1, Access.READ, Effect.SIGHT), group="list", syntax="key"
)
def llen(session: Session, argv: Argv) -> Reply:
    """Answer the length of the list at key; 0 if there is none."""
    items = session.db.find(argv[1], List)
    return 0 if items is None else len(items)


@command(
    "LINDEX",
    arity=3,
    flags=Flag.READONLY,
    keys=READ,
    group="list",
    syntax="key index",
    cost="O(N / 64) with N elements up to the nearer end",
)
def lindex(session: Session, argv: Argv) -> Reply:
    """Answer the element at index, counted from the tail if negative; null outside the list."""
    items = session.db.find(argv[1], List)
    if items is None:
        return None
    at = to_integer(argv[2])
    return items[at] if -len(items) <= at < len(items) else None


@command(
    "LRANGE",
    arity=4,
    flags=Flag.READONLY,
    keys=READ,
    group="list",
    syntax="key start stop",
    cost="O(S + N) with S elements up to the nearer end and N answered",
)
def lrange(session: Session, argv: Argv) -> Reply:
    """Answer the elements from start to stop, both included; negative ones count from the tail."""
    start, stop = to_integer(argv[2]), to_integer(argv[3])
    items = session.db.find(argv[1], List)
    if items is None:
        return []
    start, stop = _inside(start, stop, len(items))
    if stop - start > LONG:
        return reply_aside(session, list, stop - start, lambda: items.walk(start, stop))
    return items.slice(start, stop) if start < stop else []


def _inside(start: int, stop: int, length: int) -> tuple[int, int]:
    """Redis's inclusive range as a Python one inside the list; empty if the first is not below the second."""
    if start < 0:
        start = max(start + length, 0)
    if stop < 0:
        stop += length
    return start, min(stop + 1, length)


_RANK_ZERO = (
    "RANK can't be zero: use 1 to start from the first match, 2 from the second ... "
    "or use negative to start from the end of the list"
)


@command(
    "LPOS",
    arity=-3,
    flags=Flag.READONLY,
    keys=READ,
    group="list",
    syntax="key element [RANK rank] [COUNT num-matches] [MAXLEN len]",
    cost="O(N) with N elements looked at",
)
def lpos(session: Session, argv: Argv) -> Reply:
    """Answer the position of element in the list at key, or null; with COUNT an array of positions (0 for all).

    RANK 2 begins at the second match, negative ranks search from the tail; MAXLEN limits how many elements are
    compared.
    """
    rank, count, limit = _position_options(argv[3:])
    items = session.db.find(argv[1], List)
    if items is None:
        return None if count is None else []
    size, protocol = len(items), session.protocol
    limit = min(limit or size, size)
    first = min(abs(rank) - 1, size)
    wanted = size if count == 0 else min(first + (count or 1), size)

    def search(limit: int) -> Steps[LongList]:
        found = LongList()
        if first < wanted:
            for places in items.positions(argv[2], limit, from_tail=rank < 0):
                found += places
                if len(found) >= wanted:
                    break
                yield
        del found[wanted:], found[:first]
        return found

    def answer() -> Steps[Reply]:
        found = yield from search(limit)
        if count is None:
            return found[0] if found else None
        if len(found) <= LONG:
            return list(found)
        return (yield from reply_in_steps(list, len(found), found, protocol))

    if limit > LONG and len(finish(search(LONG))) < wanted - first:  # near the starting end, it is found at once
        return session.aside(limit, InSteps(answer))
    return finish(answer())


def _position_options(options: Argv) -> tuple[int, int | None, int]:
    """(rank, count or None, longest walk or 0) of LPOS."""
    rank, count, limit = 1, None, 0
    for at in range(0, len(options), 2):
        word, raw = options[at].upper(), options[at + 1 : at + 2]
        if word == b"RANK" and raw:
            rank = to_integer(raw[0])
            if rank == 0:
                raise ReplyError(_RANK_ZERO)
        elif word == b"COUNT" and raw:
            count = to_at_least(0, raw[0], "COUNT can't be negative")
        elif word == b"MAXLEN" and raw:
            limit = to_at_least(0, raw[0], "MAXLEN can't be negative")
        else:
            raise syntax_error()
    return rank, count, limit


# -- changing the middle ----------------------------------------------------------------------------------------


@command(
    "LSET",
    arity=4,
    flags=GROWS,
    keys=key(1, Access.WRITE),
    group="list",
    syntax="key index element",
    cost="O(N / 64) with N elements up to the nearer end",
    check_words=lambda session, argv: to_integer(argv[2]),
)
def lset(session: Session, argv: Argv) -> Reply:
    """Replace the element at index, which must exist."""
    items = session.db.find(argv[1], List)
    if items is None:
        raise no_such_key()
    at = to_integer(argv[2])
    if not -len(items) <= at < len(items):
        raise ReplyError("index out of range")
    items[at] = argv[3]
    session.db.changed(argv[1])
    return OK


@command(
    "LINSERT",
    arity=5,
    flags=GROWS,
    keys=INSERT,
    group="list",
    syntax="key BEFORE | AFTER pivot element",
    cost="O(N) with N elements up to the pivot",
    check_words=lambda session, argv: _is_after(argv[2]),
)
def linsert(session: Session, argv: Argv) -> Reply:
    """Insert an element beside the first one that equals pivot; answer the length, -1 without pivot, 0 without list."""
    after = _is_after(argv[2])
    items = session.db.find(argv[1], List)
    if items is None:
        return 0

    def find(limit: int) -> Steps[int | None]:
        for places in items.positions(argv[3], limit):
            if places:
                return places[0]
            yield
        return None

    def insert(at: int | None) -> int:
        if at is None:
            return -1
        items.insert(at + after, argv[4])
        session.db.changed(argv[1])
        return len(items)

    at = finish(find(LONG))
    if at is None and len(items) > LONG:
        return session.aside(len(items), InSteps(lambda: find(len(items))), insert)
    return insert(at)


def _is_after(word: bytes) -> bool:
    if word.upper() not in (b"BEFORE", b"AFTER"):
        raise syntax_error()
    return word.upper() == b"AFTER"


@command(
    "LREM",
    arity=4,
    flags=Flag.WRITE,
    keys=DELETE,
    group="list",
    syntax="key count element",
    cost="O(N) with N elements in the list",
    check_words=lambda session, argv: to_integer(argv[2]),
)
def lrem(session: Session, argv: Argv) -> Reply:
    """Remove elements equal to element and answer how many: count from the head, -count from the tail, all for 0."""
    count = to_integer(argv[2])
    items = session.db.find(argv[1], List)
    if items is None:
        return 0
    size = len(items)

    def commit(rest: List) -> int:
        if len(rest) < size:
            session.db.replace_or_delete(argv[1], rest)
        return size - len(rest)

    if size > LONG:
        return session.aside(size, InSteps(lambda: items.without(argv[3], count)), commit)
    return commit(finish(items.without(argv[3], count)))


@command(
    "LTRIM",
    arity=4,
    flags=Flag.WRITE,
    keys=DELETE,
    group="list",
    syntax="key start stop",
    cost="O(N) with N elements removed",
    check_words=lambda session, argv: [to_integer(word) for word in argv[2:]],
)
def ltrim(session: Session, argv: Argv) -> Reply:
    """Keep only the elements from start to stop, both included."""
    start, stop = to_integer(argv[2]), to_integer(argv[3])
    items = session.db.find(argv[1], List)
    if items is None:
        return OK
    db, name, size = session.db, argv[1], len(items)
    start, stop = _inside(start, stop, size)
    if start >= stop:
        db.delete(name)
        return OK
    if stop - start == size:
        db.touch(name)
        return OK

    def commit(kept: List) -> Reply:
        db.replace(name, kept)
        return OK

    if is_long_removal(size - (stop - start), size):
        return session.aside(size, InSteps(lambda: items.part(start, stop)), commit)
    items.keep(start, stop)
    return commit(items)
