"""TSCHEMA: the fields of a stream's entries, and what happens to entries that do not fit.

The subcommand comes before the key, as in TGROUP, so that reading a schema is a read-only command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.commands.streams import to_number
from penstock.engine.declarations import Access, Argv, Flag, KeySpec, NotLazy, Reply, command, key
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.schema.fields import InvalidSchema, Schema
from penstock.schema.parser import parse
from penstock.types.stream.schemas import SIZE_OF_TEXT, Check, Schemas, Version
from penstock.types.stream.stream import Stream

_CHECKS = {b"off": Check.OFF, b"refuse": Check.REFUSE, b"deadletter": Check.DEADLETTER}


def _dead_letter_key(argv: Sequence[bytes]) -> Iterable[int]:
    return [6] if len(argv) == 7 and argv[5].lower() == b"deadletter" else []


@command(
    "TSCHEMA SET",
    arity=-4,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.MOVABLEKEYS,
    keys=(*key(2, Access.UPDATE), KeySpec(Access.WRITE, find=_dead_letter_key)),
    group="stream",
    syntax="key fields [CHECK off | refuse | deadletter stream]",
    cost="O(fields)",
    not_lazy=NotLazy("decides which of the next writes are refused"),
    grows=lambda session, argv: SIZE_OF_TEXT * len(argv[3]),
)
def tschema_set(session: Session, argv: Argv) -> Reply:
    """Declare the fields of a stream's entries, which are JSON objects, and answer the number of the version.

    Fields are written as Spark writes columns: `user string NOT NULL, ms bigint DEFAULT 0`. The stream is created if it
    does not exist. A new version may only widen the one before it: it adds fields that older entries need not have, and
    widens types. If the fields equal those of the newest version, there is no new version. CHECK says what happens to
    entries that do not fit: they are written (off), the command that writes them fails and writes nothing (refuse), or
    they go to another stream (deadletter). Without CHECK the setting stays.
    """
    db, name = session.db, argv[2]
    schema = _schema(argv[3])
    stream = db.find(name, Stream)
    known = stream.schemas if stream is not None else None
    since = stream.messages.last + 1 if stream is not None else 1
    try:
        schemas = known.widened(schema, since) if known is not None else Schemas((Version(schema, since),))
    except InvalidSchema as error:
        raise ReplyError(f"TSCHEMA SET: {error}") from None
    if len(argv) > 4:
        schemas = _with_check(schemas, name, argv[4:])
    if schemas != known:
        db.obtain_stream(name).set_schemas(schemas)
        db.changed(name)
    return len(schemas.versions)


def _schema(text: bytes) -> Schema:
    try:
        return parse(text.decode())
    except UnicodeDecodeError:
        raise ReplyError("TSCHEMA SET: the fields are not UTF-8") from None
    except InvalidSchema as error:
        raise ReplyError(f"TSCHEMA SET: {error}") from None


def _with_check(schemas: Schemas, name: bytes, words: Argv) -> Schemas:
    check = _CHECKS.get(words[1].lower()) if len(words) > 1 and words[0].upper() == b"CHECK" else None
    if check is None or len(words) != (3 if check is Check.DEADLETTER else 2):
        raise ReplyError("TSCHEMA SET takes CHECK off, CHECK refuse, or CHECK deadletter and the name of a stream")
    dead_letter = words[2] if check is Check.DEADLETTER else None
    if dead_letter == name:
        raise ReplyError("entries that do not fit must go to another stream")
    return replace(schemas, check=check, dead_letter=dead_letter)


@command(
    "TSCHEMA GET",
    arity=-3,
    flags=Flag.READONLY,
    keys=key(2, Access.READ),
    group="stream",
    syntax="key [version]",
    cost="O(fields)",
)
def tschema_get(session: Session, argv: Argv) -> Reply:
    """Describe the newest schema of a stream, or a version of it: its fields, its first offset, and CHECK.

    Null if the stream has no schema, or no such version.
    """
    if len(argv) > 4:
        raise ReplyError("TSCHEMA GET takes a key and the number of a version")
    number = to_number(argv[3], "version", 1) if len(argv) == 4 else None
    schemas = _schemas(session, argv[2])
    if schemas is None or (number is not None and number > len(schemas.versions)):
        return None
    number = number or len(schemas.versions)
    check = schemas.check.name.lower().encode()
    return {**_described(schemas, number), b"check": check, b"deadletter": schemas.dead_letter}


@command(
    "TSCHEMA VERSIONS",
    arity=3,
    flags=Flag.READONLY,
    keys=key(2, Access.READ),
    group="stream",
    syntax="key",
    cost="O(fields of all versions)",
)
def tschema_versions(session: Session, argv: Argv) -> Reply:
    """List the versions of a stream's schema, oldest first, each with its fields and its first offset."""
    schemas = _schemas(session, argv[2])
    return [_described(schemas, number + 1) for number in range(len(schemas.versions))] if schemas is not None else []


@command(
    "TSCHEMA DEL",
    arity=3,
    flags=Flag.WRITE,
    keys=key(2, Access.UPDATE),
    group="stream",
    syntax="key",
    cost="O(1)",
    not_lazy=NotLazy("decides which of the next writes are refused"),
)
def tschema_del(session: Session, argv: Argv) -> Reply:
    """Remove the schema of a stream, all versions and CHECK, and answer how many versions there were."""
    stream = session.db.find(argv[2], Stream)
    if stream is None or stream.schemas is None:
        return 0
    forgotten = len(stream.schemas.versions)
    stream.set_schemas(None)
    session.db.changed(argv[2])
    return forgotten


def _schemas(session: Session, name: bytes) -> Schemas | None:
    stream = session.db.find(name, Stream)
    return stream.schemas if stream is not None else None


def _described(schemas: Schemas, number: int) -> dict[bytes, object]:
    version = schemas.versions[number - 1]
    return {b"version": number, b"since": version.since, b"fields": str(version.schema).encode()}
