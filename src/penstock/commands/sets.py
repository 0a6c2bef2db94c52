"""Sets: SADD, SREM, random members, set algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice

from penstock.engine.arguments import to_at_least, to_positive, to_sample_count
from penstock.engine.concurrency.long_work import LONG, reply_aside, reply_draws, reply_maker
from penstock.engine.declarations import Access, Argv, Effect, Flag, Growth, Reply, command, counted_keys, key, keys
from penstock.engine.keyspace.cursors import to_cursor
from penstock.engine.keyspace.scanning import scan_elements
from penstock.engine.session import Session
from penstock.freeing import LongList
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.protocol.resp import Members, in_pieces
from penstock.types import kernels
from penstock.types.set import Set, in_integer_order, most_bytes

_READ = Flag.READONLY | Flag.FAST
_STORE = Flag.WRITE | Flag.DENYOOM
_NONE = Set()  # what a missing key reads as; never changed


# -- members ------------------------------------------------------------------------------------------------------


@command(
    "SADD",
    arity=-3,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.FAST,
    keys=key(1, Access.WRITE, Effect.INSERT),
    group="set",
    syntax="key member [member ...]",
    cost="O(1) a member",
)
def sadd(session: Session, argv: Argv) -> Reply:
    """Add members to the set at key, creating it, and answer how many of them are new."""
    db = session.db
    name = argv[1]
    found = db.get(name)
    if type(found) is not Set:
        found = db.obtain(name, Set)
    if len(argv) == 3 and found.sampler is None:
        member = argv[2]
        if member in found:
            return 0
        found.add(member)
        db.changed(name)
        return 1
    added = found.insert(argv[2:])
    if added:
        db.changed(name)
    return added


@command(
    "SREM",
    arity=-3,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.WRITE, Effect.DELETE),
    group="set",
    syntax="key member [member ...]",
    cost="O(1) a member",
)
def srem(session: Session, argv: Argv) -> Reply:
    """Remove members of the set at key and answer how many of them there were."""
    db = session.db
    found = db.find(argv[1], Set)
    if found is None:
        return 0
    removed = found.remove_all(argv[2:])
    if removed:
        db.emptied(argv[1], found)
    return removed


@command(
    "SMOVE",
    arity=4,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.UPDATE, Effect.DELETE) + key(2, Access.WRITE, Effect.INSERT),
    group="set",
    syntax="source destination member",
)
def smove(session: Session, argv: Argv) -> Reply:
    """Move a member from one set to another; answer 1 if it was in the first, 0 if not."""
    db = session.db
    _, source, destination, member = argv
    found = db.find(source, Set)
    if found is None:
        return 0
    db.find(destination, Set)  # checks its type: nothing is removed before the destination is known to be a set
    if member not in found:
        return 0
    if source != destination:
        found.remove_all([member])
        db.emptied(source, found)
        if db.obtain(destination, Set).insert([member]):
            db.changed(destination)
    return 1


@command("SCARD", arity=2, flags=_READ, keys=key(1, Access.READ, Effect.SIGHT), group="set", syntax="key")
def scard(session: Session, argv: Argv) -> Reply:
    """Answer how many members the set at key has."""
    return len(session.db.find(argv[1], Set) or _NONE)


@command("SISMEMBER", arity=3, flags=_READ, keys=key(1, Access.READ, Effect.SIGHT), group="set", syntax="key member")
def sismember(session: Session, argv: Argv) -> Reply:
    """Answer 1 if the set at key has the member, 0 if not."""
    return 1 if argv[2] in (session.db.find(argv[1], Set) or _NONE) else 0


@command(
    "SMISMEMBER",
    arity=-3,
    flags=_READ,
    keys=key(1, Access.READ),
    group="set",
    syntax="key member [member ...]",
    cost="O(1) a member",
)
def smismember(session: Session, argv: Argv) -> Reply:
    """Answer 1 for each of these that is a member of the set at key, 0 for the others."""
    found = session.db.find(argv[1], Set) or _NONE
    return [1 if member in found else 0 for member in argv[2:]]


@command(
    "SMEMBERS",
    arity=2,
    flags=Flag.READONLY | Flag.DIRECT,
    keys=key(1, Access.READ),
    group="set",
    syntax="key",
    cost="O(N) with N members",
)
def smembers(session: Session, argv: Argv) -> Reply:
    """Answer all members of the set at key."""
    found = session.db.find(argv[1], Set) or _NONE
    limit = session.engine.config.set_max_intset_entries
    if len(found) > LONG:
        return reply_aside(session, Members, len(found), lambda: in_integer_order(found, limit) or found)
    return _few(found, limit)


def _few(members: AbstractSet[bytes], limit: int) -> Reply:
    """A reply with few members, in their order if they have one.

    It is a copy, because EXEC encodes its replies only when all its commands have run; copying is cheap beside
    encoding.
    """
    ordered = in_integer_order(members, limit)
    return set(members) if ordered is None else Members(ordered)


@command(
    "SSCAN",
    arity=-3,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="set",
    syntax="key cursor [MATCH pattern] [COUNT count]",
    cost="O(1) a member, O(N) for the whole iteration",
)
def sscan(session: Session, argv: Argv) -> Reply:
    """Answer some members, and the cursor for the next call, which is 0 at the end."""
    cursor = to_cursor(argv[2])
    found = session.db.find(argv[1], Set)
    if found is None:
        return [b"0", []]
    ordered = in_integer_order(found, session.engine.config.set_max_intset_entries)
    if ordered is None:
        return scan_elements(session, argv, cursor, found)
    return scan_elements(session, argv, cursor, ordered, at_once=True)


# -- random members -----------------------------------------------------------------------------------------------


@command(
    "SPOP",
    arity=-2,
    flags=Flag.WRITE | Flag.FAST | Flag.RANDOM,
    keys=key(1, Access.UPDATE, Effect.DELETE),
    group="set",
    syntax="key [count]",
    cost="O(1) a member, O(N) the first time a set of N members is asked",
)
def spop(session: Session, argv: Argv) -> Reply:
    """Remove a random member, or count different ones, and answer what was removed.

    It is logged by its effect: an SREM, or a DEL when the set is empty.
    """
    if len(argv) > 2:
        return _spop_several(session, argv)
    db = session.db
    found = db.find(argv[1], Set)
    if found is None:
        return None
    member = found.take_random_member()
    session.log([b"SREM", argv[1], member])
    db.emptied(argv[1], found)
    return member


def _spop_several(session: Session, argv: Argv) -> Reply:
    if len(argv) > 3:
        raise syntax_error()
    count = to_positive(argv[2])
    db, name = session.db, argv[1]
    found = db.find(name, Set)
    if found is None or count == 0:
        return _NONE
    size, make_reply = len(found), reply_maker(session)
    limit = session.engine.config.set_max_intset_entries

    def all_taken(reply: Reply) -> Reply:
        db.delete(name)
        session.log([b"DEL", name])
        return reply

    def taken_from(rest: Set, logged: Argv, reply: Reply) -> Reply:
        db.replace(name, rest)
        session.log(logged)
        return reply

    def choose() -> tuple[Set, Argv, Reply]:
        rest = kernels.listed(found)
        logged = LongList([b"SREM", name])
        for taken in kernels.chunks(kernels.take_sample(rest, count)):
            logged += taken
        return kernels.union([rest]), logged, kernels.finish(make_reply(Members, count, islice(logged, 2, None)))

    if count >= size:
        if size <= LONG:
            return all_taken(_few(found, limit))

        def everything() -> Reply:
            return kernels.finish(make_reply(Members, size, in_integer_order(found, limit) or found))

        return session.aside(size, everything, all_taken)
    if count > LONG:
        return session.aside(size, choose, lambda chosen: taken_from(*chosen))
    few = found.take_random_members(count)
    return taken_from(found, [b"SREM", name, *few], few)


@command(
    "SRANDMEMBER",
    arity=-2,
    flags=Flag.READONLY | Flag.RANDOM | Flag.DIRECT,
    keys=key(1, Access.READ),
    group="set",
    syntax="key [count]",
    cost="O(1) a member, O(N) the first time a set of N members is asked",
)
def srandmember(session: Session, argv: Argv) -> Reply:
    """Answer a random member, or count different ones; a negative count allows the same one several times."""
    if len(argv) == 2:
        found = session.db.find(argv[1], Set)
        return None if found is None else found.random_member()
    if len(argv) > 3:
        raise syntax_error()
    count = to_sample_count(argv[2])
    found = session.db.find(argv[1], Set)
    if found is None or count == 0:
        return []
    if count < -LONG:
        return reply_draws(session, list, -count, len(found), lambda: (kernels.listed(found),))
    if count < 0:
        return [found.random_member() for _ in range(-count)]
    limit = session.engine.config.set_max_intset_entries
    if count >= len(found) > LONG:
        return reply_aside(session, list, len(found), lambda: in_integer_order(found, limit) or found)
    if count >= len(found):
        return in_integer_order(found, limit) or list(found)
    if count <= LONG:
        return found.random_members(count)
    return reply_aside(session, list, count, lambda: kernels.take_sample(kernels.listed(found), count), len(found))


# -- set algebra --------------------------------------------------------------------------------------------------


Kernel = Callable[[list[Set]], Set]


def _sets(session: Session, names: Iterable[bytes]) -> list[Set]:
    """The sets at these keys; a key of another type is an error, whatever the others hold."""
    find = session.db.find
    return [find(name, Set) or _NONE for name in names]


def _work(sets: list[Set], kernel: Kernel) -> int:
    """About how many members a kernel visits."""
    return min(map(len, sets)) * len(sets) if kernel is kernels.intersection else sum(map(len, sets))


def _answer(session: Session, names: Argv, kernel: Kernel) -> Reply:
    """The result of a kernel on the sets at these keys."""
    sets = _sets(session, names)
    work = _work(sets, kernel)
    limit = session.engine.config.set_max_intset_entries
    if work <= LONG:
        return _few(kernel(sets), limit)
    protocol = session.protocol

    def compute() -> Reply:
        members = kernel(sets)
        return in_pieces(Members, len(members), in_integer_order(members, limit) or members, protocol)

    return session.aside(work, compute)


def _growth(most: Callable[[Iterator[int]], int]) -> Growth:
    """How much memory a store takes whose result has at most so many members, given the sizes of its sets."""

    def growth(session: Session, argv: Argv) -> int:
        return most_bytes(most(map(len, _sets(session, argv[2:]))))

    return growth


def _store(session: Session, argv: Argv, kernel: Kernel) -> Reply:
    """Store the result of a kernel on the sets at the keys from the second on, at the first key."""
    sets = _sets(session, argv[2:])
    work = _work(sets, kernel)

    def commit(members: Set) -> int:
        if members:
            session.db.set(argv[1], members)
        else:
            session.db.delete(argv[1])
        return len(members)

    return commit(kernel(sets)) if work <= LONG else session.aside(work, lambda: kernel(sets), commit)


@command(
    "SINTER",
    arity=-2,
    flags=Flag.READONLY,
    keys=keys(1, -1, Access.READ),
    group="set",
    syntax="key [key ...]",
    cost="O(N*M) with N members of the smallest of M sets",
)
def sinter(session: Session, argv: Argv) -> Reply:
    """Answer the members that all these sets have."""
    return _answer(session, argv[1:], kernels.intersection)


@command(
    "SINTERSTORE",
    arity=-3,
    flags=_STORE,
    keys=key(1, Access.WRITE) + keys(2, -1, Access.READ),
    group="set",
    syntax="destination key [key ...]",
    cost="O(N*M) with N members of the smallest of M sets",
    grows=_growth(min),
)
def sinterstore(session: Session, argv: Argv) -> Reply:
    """Store the members that all these sets have at destination, and answer how many they are."""
    return _store(session, argv, kernels.intersection)


@command(
    "SINTERCARD",
    arity=-3,
    flags=Flag.READONLY | Flag.MOVABLEKEYS,
    keys=counted_keys(1, Access.READ),
    group="set",
    syntax="numkeys key [key ...] [LIMIT limit]",
    cost="O(N*M) with N members of the smallest of M sets",
)
def sintercard(session: Session, argv: Argv) -> Reply:
    """Answer how many members all these sets have in common, counting no further than the limit, if it is not 0."""
    count = to_at_least(1, argv[1], "numkeys should be greater than 0")
    if count > len(argv) - 2:
        raise ReplyError("Number of keys can't be greater than number of args")
    limit = 0
    for at in range(2 + count, len(argv), 2):
        if argv[at].upper() != b"LIMIT" or at + 1 == len(argv):
            raise syntax_error()
        limit = to_at_least(0, argv[at + 1], "LIMIT can't be negative")
    sets = _sets(session, argv[2 : 2 + count])
    work = _work(sets, kernels.intersection)
    if work <= LONG:
        return kernels.count_common(sets, limit)
    return session.aside(work, lambda: kernels.count_common(sets, limit))


@command(
    "SUNION",
    arity=-2,
    flags=Flag.READONLY,
    keys=keys(1, -1, Access.READ),
    group="set",
    syntax="key [key ...]",
    cost="O(N) with N members of all sets",
)
def sunion(session: Session, argv: Argv) -> Reply:
    """Answer the members that any of these sets has."""
    return _answer(session, argv[1:], kernels.union)


@command(
    "SUNIONSTORE",
    arity=-3,
    flags=_STORE,
    keys=key(1, Access.WRITE, Effect.OVERWRITE) + keys(2, -1, Access.READ),
    group="set",
    syntax="destination key [key ...]",
    cost="O(N) with N members of all sets",
    grows=_growth(sum),
)
def sunionstore(session: Session, argv: Argv) -> Reply:
    """Store the members that any of these sets has at destination, and answer how many they are."""
    return _store(session, argv, kernels.union)


@command(
    "SDIFF",
    arity=-2,
    flags=Flag.READONLY,
    keys=keys(1, -1, Access.READ),
    group="set",
    syntax="key [key ...]",
    cost="O(N) with N members of all sets",
)
def sdiff(session: Session, argv: Argv) -> Reply:
    """Answer the members of the first set that none of the others has."""
    return _answer(session, argv[1:], kernels.difference)


@command(
    "SDIFFSTORE",
    arity=-3,
    flags=_STORE,
    keys=key(1, Access.WRITE, Effect.OVERWRITE) + keys(2, -1, Access.READ),
    group="set",
    syntax="destination key [key ...]",
    cost="O(N) with N members of all sets",
    grows=_growth(next),
)
def sdiffstore(session: Session, argv: Argv) -> Reply:
    """Store the members of the first set that none of the others has at destination, and answer how many they are."""
    return _store(session, argv, kernels.difference)
