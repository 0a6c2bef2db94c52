"""Commands on keys of any type: DEL, EXISTS, TYPE, RENAME, COPY, MOVE, KEYS, SCAN and others.

A value that gets another name or another database keeps its expiry time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.commands.databases import database_index
from penstock.engine.concurrency.long_work import LONG
from penstock.engine.declarations import Access, Argv, Beyond, Effect, Flag, Reach, Reply, command, key, keys
from penstock.engine.globs import compile_glob
from penstock.engine.keyspace.cursors import ScanOptions, to_cursor
from penstock.engine.keyspace.databases import Database, Value
from penstock.engine.keyspace.key_views import lookup_now, names_now
from penstock.engine.keyspace.scanning import answer_step
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, no_such_key, syntax_error
from penstock.protocol.resp import OK, RawPieces, Status, array_of_chunks
from penstock.types import codec
from penstock.types.kernels import chunks
from penstock.types.stream.stream import Stream

_NONE = Status(b"none")
_EVERY_KEY = Beyond(Reach.DATABASE, "looks at every key of the database")


def place(session: Session, db: Database, name: bytes, value: Value, expires_at: int | None) -> None:
    """Store a value that was read or copied from elsewhere, with its expiry time if it has one."""
    db.set(name, value)
    if expires_at is not None:
        db.expire_at(name, expires_at)
    if type(value) is Stream:
        session.engine.streams.found(db, name, value)


# -- one key at a time ----------------------------------------------------------------------------------------


@command(
    "DEL",
    arity=-2,
    flags=Flag.WRITE | Flag.DIRECT,
    keys=keys(1, -1, Access.WRITE, Effect.REMOVE),
    group="generic",
    syntax="key [key ...]",
    cost="O(1) a key, O(N) to free a value of N elements",
)
def delete(session: Session, argv: Argv) -> Reply:
    """Remove keys; answer how many there were."""
    if len(argv) == 2:
        return 1 if session.db.delete(argv[1]) else 0
    return sum(map(session.db.delete, argv[1:]))


@command(
    "UNLINK",
    arity=-2,
    flags=Flag.WRITE | Flag.FAST,
    keys=keys(1, -1, Access.WRITE, Effect.REMOVE),
    group="generic",
    syntax="key [key ...]",
    cost="O(1) a key, O(N) to free a value of N elements",
)
def unlink(session: Session, argv: Argv) -> Reply:
    """Remove keys, as DEL does; answer how many there were."""
    return delete(session, argv)


@command(
    "EXISTS",
    arity=-2,
    flags=Flag.READONLY | Flag.FAST,
    keys=keys(1, -1, Access.READ, Effect.SIGHT),
    group="generic",
    syntax="key [key ...]",
)
def exists(session: Session, argv: Argv) -> Reply:
    """Answer how many of the keys exist; a key that is named twice counts twice."""
    get = session.db.get
    if len(argv) == 2:
        return 1 if get(argv[1]) is not None else 0
    return sum([get(name) is not None for name in argv[1:]])


@command(
    "TOUCH",
    arity=-2,
    flags=Flag.READONLY | Flag.FAST,
    keys=keys(1, -1, Access.READ, Effect.SIGHT),
    group="generic",
    syntax="key [key ...]",
)
def touch(session: Session, argv: Argv) -> Reply:
    """Answer how many of the keys exist. The time of the last use is not tracked, so nothing else happens."""
    return exists(session, argv)


@command(
    "TYPE",
    arity=2,
    flags=Flag.READONLY | Flag.FAST,
    keys=key(1, Access.READ, Effect.SIGHT),
    group="generic",
    syntax="key",
)
def type_(session: Session, argv: Argv) -> Reply:
    """Answer the type of the value at key: string, list, set, zset, hash, stream; none if there is no such key."""
    value = session.db.get(argv[1])
    return Status(codec.type_name(value).encode()) if value is not None else _NONE


# -- other names, other databases -----------------------------------------------------------------------------


def _rename(session: Session, argv: Argv, only_new: bool) -> bool:
    db = session.db
    _, name, new_name = argv
    value = db.get(name)
    if value is None:
        raise no_such_key()
    if only_new and new_name in db:
        return False
    if name != new_name:
        expires_at = db.expires_at(name)
        db.delete(name)
        place(session, db, new_name, value, expires_at)
    return True


@command(
    "RENAME",
    arity=3,
    flags=Flag.WRITE | Flag.RENAMES,
    keys=key(1, Access.UPDATE, Effect.DELETE) + key(2, Access.WRITE, Effect.OVERWRITE),
    group="generic",
    syntax="key newkey",
    cost="O(1), O(N) to free a value of N elements at newkey",
)
def rename(session: Session, argv: Argv) -> Reply:
    """Rename a key, replacing the key that had the new name."""
    _rename(session, argv, only_new=False)
    return OK


@command(
    "RENAMENX",
    arity=3,
    flags=Flag.WRITE | Flag.FAST | Flag.RENAMES,
    keys=key(1, Access.UPDATE, Effect.DELETE) + key(2, Access.WRITE, Effect.CREATE),
    group="generic",
    syntax="key newkey",
)
def renamenx(session: Session, argv: Argv) -> Reply:
    """Rename a key unless the new name is taken; 1 if it was renamed."""
    return int(_rename(session, argv, only_new=True))


def _names_a_database(argv: Argv) -> bool:
    return any(word.upper() == b"DB" for word in argv[3:])


def _destination(argv: Argv) -> list[tuple[int, bytes]]:
    named = [argv[at + 1] for at in range(3, len(argv) - 1) if argv[at].upper() == b"DB"]
    return [(2, named[-1])] if named else []


def _copy_options(session: Session, argv: Argv) -> tuple[Database, bool]:
    """The database that COPY copies to, and whether it replaces what is there."""
    target, replace = session.db, False
    words = iter(argv[3:])
    for word in words:
        option = word.upper()
        if option == b"REPLACE":
            replace = True
        elif option == b"DB" and (index := next(words, None)) is not None:
            target = session.engine.keyspace[database_index(session, index)]
        else:
            raise syntax_error()
    if target is session.db and argv[1] == argv[2]:
        raise ReplyError("source and destination objects are the same")
    return target, replace


@command(
    "COPY",
    arity=-3,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.RENAMES,
    keys=key(1, Access.READ) + key(2, Access.WRITE, Effect.OVERWRITE),
    group="generic",
    syntax="source destination [DB destination-db] [REPLACE]",
    cost="O(N) with N elements",
    beyond=Beyond(Reach.SERVER, "changes another database, with DB", _names_a_database, _destination),
    copies_from=1,
    grows=lambda session, argv: codec.size_of_copy(session.db.data.get(argv[1], b"")),
    check_words=_copy_options,
)
def copy(session: Session, argv: Argv) -> Reply:
    """Copy a value and its expiry time; 1 if it was copied, 0 if there is no source or the destination exists.

    DB copies to another database, REPLACE replaces the destination.
    """
    name, new_name = argv[1:3]
    target, replace = _copy_options(session, argv)
    value = session.db.get(name)
    if value is None or (not replace and new_name in target):
        return 0
    session.engine.acl.check_value(session, value)
    expires_at = session.db.expires_at(name)

    def commit(copied: Value) -> int:
        place(session, target, new_name, copied, expires_at)
        return 1

    work = codec.elements(value)
    return commit(codec.copy(value)) if work <= LONG else session.aside(work, lambda: codec.copy(value), commit)


@command(
    "MOVE",
    arity=3,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.UPDATE),
    group="generic",
    syntax="key db",
    beyond=Beyond(Reach.SERVER, "changes another database", places=lambda argv: [(1, argv[2])]),
)
def move(session: Session, argv: Argv) -> Reply:
    """Move a key to another database; 1 if it was moved, 0 if there is no such key or the name is taken there."""
    db = session.db
    target = session.engine.keyspace[database_index(session, argv[2])]
    if target is db:
        raise ReplyError("source and destination objects are the same")
    name = argv[1]
    value = db.get(name)
    if value is None or name in target:
        return 0
    expires_at = db.expires_at(name)
    db.delete(name)
    place(session, target, name, value, expires_at)
    return 1


# -- which keys there are -------------------------------------------------------------------------------------


@command(
    "KEYS",
    arity=2,
    flags=Flag.READONLY,
    group="generic",
    syntax="pattern",
    cost="O(N) with N keys in the database",
    categories=["read", "dangerous"],
    beyond=_EVERY_KEY,
)
def keys_(session: Session, argv: Argv) -> Reply:
    """Answer every key that matches the pattern, all at once; SCAN does it in steps."""
    db = session.db
    matches = compile_glob(argv[1])
    if len(db) <= LONG:
        return list(filter(matches, db.live_keys()))
    names, protocol = names_now(db), session.protocol

    def compute() -> RawPieces:
        return array_of_chunks((list(filter(matches, some)) for some in chunks(names)), protocol)

    return session.aside(len(db), compute)


@command(
    "RANDOMKEY",
    arity=1,
    flags=Flag.READONLY | Flag.RANDOM,
    group="generic",
    cost="O(1) on average: a pass over the keys every 1024 calls, more often while most keys have expired",
    categories=["read"],
    beyond=_EVERY_KEY,
)
def randomkey(session: Session, argv: Argv) -> Reply:
    """Answer a random key, all equally likely; null if there is none."""
    return session.db.random_key()


@command(
    "SCAN",
    arity=-2,
    flags=Flag.READONLY,
    group="generic",
    syntax="cursor [MATCH pattern] [COUNT count] [TYPE type]",
    cost="O(COUNT) a call, and a pass over the keys every 65,536 keys, more often at first and beside other iterations",
    categories=["read"],
    beyond=_EVERY_KEY,
)
def scan(session: Session, argv: Argv) -> Reply:
    """Answer the next cursor and some keys; start with cursor 0, and when it is 0 again all keys were seen.

    A key that exists from the first call to the last is answered at least once, whatever keys are added or deleted.
    MATCH and TYPE leave keys out, so an answer may be empty before the end.
    """
    cursor = to_cursor(argv[1])
    options = ScanOptions.parse(argv, 2, with_type=True)
    db = session.db
    step = session.engine.cursors.begin(db.index, cursor, options.count, len(db))
    new = step.window is None
    if step.work <= LONG:
        few = list(db.data) if new else []  # a copy, because looking a name up may delete it
        return answer_step(session, step, lambda: few, lambda found: _listed(found, options, db.get))
    names, look = names_now(db) if new else (), lookup_now(db)
    return answer_step(session, step, lambda: names, lambda found: _listed(found, options, look, new))


def _listed(
    names: Iterable[bytes], options: ScanOptions, look: Callable[[bytes], Value | None], live: bool = False
) -> Iterable[bytes]:
    """The names that SCAN answers; all of `live` existed when the command came."""
    wanted = options.type_name
    matching = names if options.matches is None else filter(options.matches, names)
    if wanted is None:
        return matching if live else [name for name in matching if look(name) is not None]
    found = ((name, look(name)) for name in matching)
    return [name for name, value in found if value is not None and codec.type_name(value).encode() == wanted]


# -- replicas -------------------------------------------------------------------------------------------------
