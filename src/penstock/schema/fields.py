"""The schema of a stream: the named, typed fields that its entries have as JSON objects.

A schema is written as Spark writes the columns of a table:

    user string NOT NULL, page string, ms bigint DEFAULT 0, at timestamp, tags array<string>

`parser.py` reads that text, `fitting.py` says whether an entry fits, `widening.py` says which schema may follow which.
The server, the client and Spark share these modules, so they import none of the other packages.

Rejected: Spark's JSON form of a schema, which is too long to type, and types inferred from the first entry, which would
make the first mistake the rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLAIN_NAME = re.compile(r"[^\W\d]\w*")


def quoted(name: str) -> str:
    """The name of a field as a schema has it: between backticks, unless it is a plain word.

    >>> print(quoted("user"), quoted("page views"))
    user `page views`
    """
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


class InvalidSchema(Exception):
    """The text is no schema, or the schema does not widen the one before it. The message says where and why."""


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a field: its name in Spark, and its parts."""

    name: str
    precision: int = 0  # of a decimal
    scale: int = 0
    parts: tuple[Type, ...] = ()  # the element of an array; the key and the value of a map
    fields: tuple[Field, ...] = ()  # of a struct

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.name == "struct":
            return f"struct<{', '.join(str(field) for field in self.fields)}>"
        return f"{self.name}<{', '.join(map(str, self.parts))}>" if self.parts else self.name


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an entry. `default` is JSON, and is used if an entry does not have the field."""

    name: str
    type: Type
    required: bool = False
    default: str | None = None

    def __str__(self) -> str:
        required = " NOT NULL" if self.required else ""
        default = f" DEFAULT {self.default}" if self.default is not None else ""
        return f"{quoted(self.name)} {self.type}{required}{default}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of an entry. Its text is the one that `parser.parse` reads."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))
