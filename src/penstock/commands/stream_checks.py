"""Entries are checked against the schema of their stream before they are written (TSCHEMA SET ... CHECK).

The log holds the command as it came. A replay checks the entries again with the same result, which depends only on the
entries and the schema.

Reading 100 kB of JSON takes about 15 ms, so long entries are read by a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from penstock.engine.declarations import LONG_ARGUMENT, Argv, Reply
from penstock.engine.session import Session
from penstock.protocol.dead_letters import Letter, name_in_text
from penstock.protocol.errors import ReplyError, SchemaMisfit
from penstock.types.stream.schemas import Check
from penstock.types.stream.stream import Stream

T = TypeVar("T")


class Misfit(NamedTuple):
    """An entry that does not fit: its place in the command, and why."""

    place: int
    why: str


def find_misfits(key: bytes, stream: Stream, entries: Iterable[bytes]) -> list[Misfit]:
    """The entries that do not fit, in order. SchemaMisfit for the first one if the stream refuses them."""
    schemas = stream.checked
    assert schemas is not None
    found: list[Misfit] = []
    for place, entry in enumerate(entries):
        why = schemas.misfit(entry)
        if why is None:
            continue
        if schemas.check is Check.REFUSE:
            raise refused(key, stream, Misfit(place, why))
        found.append(Misfit(place, why))
    return found


def check_aside(session: Session, size: int, check: Callable[[], T], commit: Callable[[T], Reply]) -> Reply:
    """Check entries of so many bytes in all, in a thread if they are long, and `commit` what `check` found.

    A byte of JSON takes about as long as an element of a collection.
    """
    if size <= LONG_ARGUMENT:
        return commit(check())
    return session.aside(size, check, commit)


def refused(key: bytes, stream: Stream, misfit: Misfit) -> SchemaMisfit:
    """The error for a writer whose entry does not fit."""
    schemas = stream.checked
    assert schemas is not None
    version = f"version {len(schemas.versions)} of the schema of '{name_in_text(key[:64])}'"
    return SchemaMisfit(f"entry {misfit.place + 1} does not fit {version}: {misfit.why[:200]}")


def write_letters(session: Session, key: bytes, stream: Stream, rows: list[tuple[bytes, bytes, str]]) -> list[Argv]:
    """Append (tag, entry, why) to the dead-letter stream for entries that do not fit; answer the evictions to log."""
    schemas = stream.checked
    assert schemas is not None
    assert schemas.dead_letter is not None
    version = len(schemas.versions)
    letters = [(tag, Letter(key, entry, why, version=version).encode()) for tag, entry, why in rows]
    evictions = session.engine.streams.append_letters(session.db, schemas.dead_letter, letters)
    if evictions is None:
        raise ReplyError(
            f"an entry does not fit the schema, and the key '{name_in_text(schemas.dead_letter)}' holds no stream"
        )
    return evictions
