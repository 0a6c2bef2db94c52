"""A schema proposed from entries: the narrowest types that hold all values of the sample.

A field is NOT NULL if every entry of the sample has it and none has null there. Whole numbers are bigint, whatever
their size: a sample says little about the largest. Texts are dates or times if all of them are. A field whose values
no type holds (12 and "twelve") is left out and named, because a schema cannot say it.

If the stream has a schema, a type is inferred only from values that do not fit the type of their field. Other values
say nothing new, and many types cannot be inferred: 12.50 may be a decimal(10,2), and a text binary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.schema.fields import Field, InvalidSchema, Schema, Type
from penstock.schema.fitting import DECODER, misfit_of_value
from penstock.schema.parser import MAX_DEPTH
from penstock.schema.widening import merged_types

_CANDIDATES = (
    Type("boolean"),
    Type("bigint"),
    Type("decimal", 38, 0),
    Type("double"),
    Type("date"),
    Type("timestamp_ntz"),
    Type("timestamp"),
    Type("string"),
)
"""The first of these that holds all values is proposed."""


@dataclass(slots=True)
class Proposal:
    """What a sample says: `schema` is None if no field could be found. `refused` are entries without use, by offset."""

    schema: Schema | None
    entries: int
    refused: dict[int, str]
    left_out: dict[str, str]  # why, by field


def infer(sample: Iterable[tuple[int, bytes]], known: Schema | None = None) -> Proposal:
    """Propose a schema for entries, given with their offsets, and for a stream that has the schema `known`.

    Fields of `known` that no entry has are not in the proposal; `widening.merged` adds them.

    >>> print(infer([(1, b'{"user":"ada","ms":1}'), (2, b'{"user":"bob","ms":2.5,"page":"/"}')]).schema)
    user string NOT NULL, ms double NOT NULL, page string
    """
    root = _Seen(Type("struct", fields=known.fields) if known is not None else None)
    refused: dict[int, str] = {}
    left_out: dict[str, str] = {}
    for offset, entry in sample:
        try:
            value = DECODER.decode(entry.decode())
        except (ValueError, RecursionError, ArithmeticError) as error:
            refused[offset] = f"not JSON: {error}"
            continue
        if not isinstance(value, dict):
            refused[offset] = "not a JSON object"
        elif _is_deeper(value, MAX_DEPTH):
            refused[offset] = f"nested more than {MAX_DEPTH} deep"
        else:
            root.add(value)
    fields = root.fields_of_schema("", left_out)
    return Proposal(Schema(fields) if fields else None, root.count, refused, left_out)


@dataclass(slots=True)
class _Seen:
    """What the values at one place are."""

    known: Type | None = None  # that the schema of the stream has there
    count: int = 0  # values that are not null
    nulls: int = 0
    fits: bool = False  # some values are of the known type
    fitting: Any = None  # one of them
    scalars: list[Type] | None = None  # types that hold all scalars; None if there were none
    arrays: _Seen | None = None  # the elements
    fields: dict[str, _Seen] | None = None  # of objects
    values: _Seen | None = None  # of objects, if they are known to be maps
    examples: list[Any] = field(default_factory=list)

    def add(self, value: Any) -> None:
        if value is None:
            self.nulls += 1
            return
        self.count += 1
        known = self.known
        if isinstance(value, dict) and known is not None and known.name == "map":
            self.values = self.values or _Seen(known.parts[1])
            for part in value.values():
                self.values.add(part)
        elif isinstance(value, dict):
            if self.fields is None:
                self.fields = {each.name: _Seen(each.type) for each in known.fields} if known is not None else {}
            for name, part in value.items():
                self.fields.setdefault(name, _Seen()).add(part)
        elif isinstance(value, list):
            if self.arrays is None:
                self.arrays = _Seen(known.parts[0] if known is not None and known.name == "array" else None)
            for part in value:
                self.arrays.add(part)
        elif known is not None and misfit_of_value(known, value, "") is None:
            self.fits, self.fitting = True, value
        else:
            self._add_scalar(value)

    def _add_scalar(self, value: Any) -> None:
        before = _CANDIDATES if self.scalars is None else self.scalars
        self.scalars = [kind for kind in before if _is_of(kind, value)]
        if len(self.scalars) < len(before) and len(self.examples) < 2:
            self.examples.append(value)

    def type_of_schema(self, where: str, left_out: dict[str, str]) -> Type | None:
        """The type of the values; None, with the reason, if there is none."""
        forms = [what for what, has in self._forms().items() if has]
        if len(forms) > 1:
            left_out[where] = f"it has {' and '.join(forms)}"
        elif self.scalars is None and (self.fits or (self.known is not None and not forms)):
            return self.known
        elif not forms:
            left_out[where] = "it is always null"
        elif self.scalars is not None:
            if (kind := self._scalar_type()) is not None:
                return kind
            one = self.fitting if self.fits else self.examples[0]
            left_out[where] = f"no type holds both {one!s} and {self.examples[-1]!s}"
        elif self.values is not None:
            value = self.values.type_of_schema(f"{where}[]", left_out)
            return Type("map", parts=(Type("string"), value)) if value is not None else None
        elif self.arrays is not None:
            is_known = self.arrays.count > 0 or self.arrays.known is not None
            element = self.arrays.type_of_schema(f"{where}[]", left_out) if is_known else Type("string")
            return Type("array", parts=(element,)) if element is not None else None
        elif fields := self.fields_of_schema(f"{where}.", left_out):
            return Type("struct", fields=fields)
        elif self.known is not None and self.known.name == "struct":
            return self.known  # all objects are empty
        elif self.fields:
            left_out[where] = "none of its fields has a type"
        else:
            return Type("map", parts=(Type("string"), Type("string")))  # all objects are empty
        return None

    def _scalar_type(self) -> Type | None:
        """The first candidate that holds all scalars, those of the known type included."""
        if not self.fits or self.known is None:
            return self.scalars[0] if self.scalars else None
        for kind in self.scalars or ():
            try:
                return merged_types(self.known, kind, "")
            except InvalidSchema:
                pass
        return None

    def _forms(self) -> dict[str, bool]:
        return {
            "single values": self.scalars is not None or self.fits,
            "arrays": self.arrays is not None,
            "objects": self.fields is not None or self.values is not None,
        }

    def fields_of_schema(self, where: str, left_out: dict[str, str]) -> tuple[Field, ...]:
        found: list[Field] = []
        taken: set[str] = set()
        for name, seen in (self.fields or {}).items():
            if not seen.count and not seen.nulls:
                continue  # a known field that no entry has
            if name.lower() in taken or not name:
                left_out[where + name] = "another field differs only in case" if name else "it has no name"
                continue
            if not _is_text(name):
                left_out[where + name] = "its name cannot be written as UTF-8"
                continue
            kind = seen.type_of_schema(where + name, left_out)
            if kind is not None:
                taken.add(name.lower())
                found.append(Field(name, kind, seen.count == self.count))
        return tuple(found)


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether a value has arrays and objects within each other beyond so many levels."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(part, dict | list) and (levels <= 1 or _is_deeper(part, levels - 1)) for part in parts)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False
    return True


def _is_of(kind: Type, value: Any) -> bool:
    if kind.name == "decimal" and type(value) is not int:
        return False  # 1.50 is a double unless the schema says decimal
    return misfit_of_value(kind, value, "") is None
