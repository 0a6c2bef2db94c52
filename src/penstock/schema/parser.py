"""Parses the text of a schema. It accepts Spark's and Arrow's names of types, and keeps Spark's."""

from __future__ import annotations

import re

from penstock.schema.fields import Field, InvalidSchema, Schema, Type
from penstock.schema.fitting import DECODER, misfit_of_value

MAX_DEPTH = 32
"""The deepest nesting of types."""
MAX_FIELDS = 2000
"""The most fields of a schema, with those of inner structs."""


def parse(text: str) -> Schema:
    """The schema that a text describes. InvalidSchema if it describes none.

    >>> str(parse("user utf8 not null, n int64 default 0"))
    'user string NOT NULL, n bigint DEFAULT 0'
    """
    return Schema(_Parser(text).schema())


_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>[^\W\d]\w*)|(?P<number>\d+)|(?P<sign>[<>(),:\[\]=]))")

_NAMES = {
    "boolean": ("boolean", "bool"),
    "tinyint": ("tinyint", "byte", "int8"),
    "smallint": ("smallint", "short", "int16"),
    "int": ("int", "integer", "int32"),
    "bigint": ("bigint", "long", "int64"),
    "float": ("float", "real", "float32"),
    "double": ("double", "float64"),
    "string": ("string", "utf8", "large_utf8", "large_string"),
    "binary": ("binary", "large_binary"),
    "date": ("date", "date32"),
    "timestamp": ("timestamp", "timestamp_ltz"),
    "timestamp_ntz": ("timestamp_ntz",),
}
_SIMPLE = {alias: kind for name, aliases in _NAMES.items() for kind in [Type(name)] for alias in aliases}


class _Parser:
    """Reads a schema from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._count = 0

    def schema(self) -> tuple[Field, ...]:
        fields = self._fields(0)
        if self._text[self._at :].strip():
            raise InvalidSchema(f"what follows {self._near()} is not understood")
        return fields

    def _fields(self, depth: int, end: str = "") -> tuple[Field, ...]:
        fields: list[Field] = []
        names: set[str] = set()
        while True:
            field = self._field(depth)
            if field.name.lower() in names:
                raise InvalidSchema(f"the field '{field.name}' is there twice; names that differ in case are the same")
            names.add(field.name.lower())
            fields.append(field)
            self._count += 1
            if self._count > MAX_FIELDS:
                raise InvalidSchema(f"a schema has at most {MAX_FIELDS} fields")
            if not self._skip(","):
                break
        if end:
            self._expect(end)
        return tuple(fields)

    def _field(self, depth: int) -> Field:
        name = self._name()
        self._skip(":")
        kind = self._type(depth)
        required, default = False, None
        while (word := self._peek().lower()) in ("not", "default"):
            self._next()
            if word == "not":
                if self._next().lower() != "null":
                    raise InvalidSchema(f"NOT is followed by NULL, in the field '{name}'")
                required = True
            else:
                default = self._default(name, kind)
        return Field(name, kind, required, default)

    def _default(self, name: str, kind: Type) -> str:
        start = len(self._text) - len(self._text[self._at :].lstrip())
        try:
            value, self._at = DECODER.raw_decode(self._text, start)
        except ValueError:
            raise InvalidSchema(f"DEFAULT of the field '{name}' is followed by a JSON value") from None
        why = None if value is None else misfit_of_value(kind, value, name)
        if value is None or why:
            raise InvalidSchema(f"DEFAULT of the field '{name}' does not fit its type: {why or 'it is null'}")
        return self._text[start : self._at]

    def _type(self, depth: int) -> Type:
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"types are nested more than {MAX_DEPTH} deep")
        word = self._next()
        name = word.lower()
        if name in _SIMPLE:
            if name == "timestamp" and self._skip("["):
                return self._arrow_timestamp()
            if name == "date32" and self._skip("["):
                self._next()
                self._expect("]")
            return _SIMPLE[name]
        if name in ("decimal", "decimal128", "numeric", "dec"):
            return self._decimal()
        if name in ("array", "list"):
            self._expect("<")
            if self._peek().lower() == "item" and self._text[self._at :].lstrip()[4:].lstrip().startswith(":"):
                self._next()  # Arrow writes list<item: int64>
                self._expect(":")
            element = self._type(depth + 1)
            self._expect(">")
            return Type("array", parts=(element,))
        if name == "map":
            self._expect("<")
            key = self._type(depth + 1)
            self._expect(",")
            value = self._type(depth + 1)
            self._expect(">")
            if key.name != "string":
                raise InvalidSchema("the keys of a map are strings: those of a JSON object always are")
            return Type("map", parts=(key, value))
        if name == "struct":
            self._expect("<")
            return Type("struct", fields=self._fields(depth + 1, ">"))
        known = ", ".join(sorted({*_NAMES, "decimal(p,s)", "array<...>", "map<string, ...>", "struct<...>"}))
        raise InvalidSchema(f"there is no type '{word[:64]}'; there are {known}")

    def _arrow_timestamp(self) -> Type:
        unit = self._next()
        zoned = self._skip(",")
        if zoned:
            if self._next() != "tz" or not self._skip("="):
                raise InvalidSchema("timestamp[us, tz=UTC] is spelled so")
            self._next()
        self._expect("]")
        if unit != "us":
            raise InvalidSchema(f"timestamps have microseconds: timestamp[us], not timestamp[{unit[:16]}]")
        return Type("timestamp" if zoned else "timestamp_ntz")

    def _decimal(self) -> Type:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._integer()
            scale = self._integer() if self._skip(",") else 0
            self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise InvalidSchema("decimal(p,s) has 1 to 38 digits, at most all of them after the point")
        return Type("decimal", precision, scale)

    def _integer(self) -> int:
        word = self._next()
        if not word.isdigit() or len(word) > 3:
            raise InvalidSchema(f"a number of digits is expected {self._near()}")
        return int(word)

    def _name(self) -> str:
        match = self._match()
        if match is None or not (match["quoted"] or match["word"]):
            raise InvalidSchema(f"a field's name is expected {self._near()}; other names stand between backticks")
        self._at = match.end()
        quoted: str | None = match["quoted"]
        return quoted[1:-1].replace("``", "`") if quoted else str(match["word"])

    def _match(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _peek(self) -> str:
        match = self._match()
        return match[0].strip() if match is not None else ""

    def _next(self) -> str:
        match = self._match()
        if match is None:
            raise InvalidSchema(f"more is expected {self._near()}")
        self._at = match.end()
        return match[0].strip()

    def _skip(self, sign: str) -> bool:
        if self._peek() != sign:
            return False
        self._next()
        return True

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            raise InvalidSchema(f"'{sign}' is expected {self._near()}")

    def _near(self) -> str:
        before, after = self._text[max(0, self._at - 20) : self._at], self._text[self._at : self._at + 20].strip()
        return f"after '{before.strip()}'" + (f", before '{after}'" if after else ", at the end")
