"""The schemas of a stream: its versions, oldest first, and what happens to entries that do not fit the newest one.

Immutable: a new version makes a new object, so copies of a stream share it.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, replace
from typing import Self

from penstock.schema.fields import InvalidSchema, Schema
from penstock.schema.fitting import misfit
from penstock.schema.parser import parse
from penstock.schema.widening import narrowing
from penstock.types.packing import CorruptValue, pack_many, unpack_many

MAX_VERSIONS = 1000
"""The most versions of one stream. Each is kept, because a reader may ask which one an entry was written under."""

SIZE_OF_TEXT = 25
"""The most bytes of memory that a schema takes for each byte of its text: fields with short names take the most."""

_HEAD = struct.Struct("<B?")  # the check; whether there is a key for dead letters
_SINCE = struct.Struct("<q")


class Check(enum.Enum):
    """What happens to an entry that does not fit."""

    OFF = 0  # it is written like any other
    REFUSE = 1  # the command fails, and writes nothing
    DEADLETTER = 2  # it goes to the dead-letter stream instead; the others are written


@dataclass(frozen=True, slots=True)
class Version:
    """A schema, and the first offset that can have been written under it."""

    schema: Schema
    since: int


@dataclass(frozen=True, slots=True)
class Schemas:
    """See the top of this file. Versions are numbered from 1."""

    versions: tuple[Version, ...]
    check: Check = Check.OFF
    dead_letter: bytes | None = None  # the key of the stream for entries that do not fit

    @property
    def newest(self) -> Schema:
        return self.versions[-1].schema

    def widened(self, schema: Schema, since: int) -> Self:
        """With one more version, or unchanged if it equals the newest version. InvalidSchema if it narrows."""
        if schema == self.newest:
            return self
        if why := narrowing(self.newest, schema):
            raise InvalidSchema(f"a new version may only widen version {len(self.versions)}: {why}")
        if len(self.versions) == MAX_VERSIONS:
            raise InvalidSchema(f"a stream has at most {MAX_VERSIONS} versions; TSCHEMA DEL forgets all of them")
        return replace(self, versions=(*self.versions, Version(schema, since)))

    def misfit(self, entry: bytes) -> str | None:
        """Why an entry does not fit the newest version, or None."""
        return misfit(self.newest, entry)

    def dump(self) -> bytes:
        parts = [_HEAD.pack(self.check.value, self.dead_letter is not None), self.dead_letter or b""]
        for version in self.versions:
            parts += [_SINCE.pack(version.since), str(version.schema).encode()]
        return pack_many(parts)

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The value that `dump` wrote; CorruptValue for anything else."""
        head, dead_letter, *parts = unpack_many(data)
        try:
            check, has_dead_letter = _HEAD.unpack(head)
            pairs = zip(parts[::2], parts[1::2], strict=True)
            versions = [Version(parse(text.decode()), _SINCE.unpack(since)[0]) for since, text in pairs]
            schemas = cls(tuple(versions), Check(check), dead_letter if has_dead_letter else None)
        except (struct.error, ValueError, InvalidSchema) as error:
            raise CorruptValue(f"the schemas of a stream are damaged: {error}") from error
        schemas._refuse_damage()
        return schemas

    def _refuse_damage(self) -> None:
        if not 1 <= len(self.versions) <= MAX_VERSIONS:
            raise CorruptValue("the schemas of a stream are damaged: the number of versions")
        if (self.check is Check.DEADLETTER) != (self.dead_letter is not None):
            raise CorruptValue("the schemas of a stream are damaged: the key of the dead letters")
        for one, other in zip(self.versions, self.versions[1:], strict=False):
            if one.since > other.since or narrowing(one.schema, other.schema):
                raise CorruptValue("the schemas of a stream are damaged: a version narrows the one before it")

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return 200 + sum(300 + SIZE_OF_TEXT * len(str(version.schema)) for version in self.versions)
