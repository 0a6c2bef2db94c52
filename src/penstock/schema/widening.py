"""Which schema may follow which.

A newer version may only widen: every entry that fits the older version fits the newer one, and every field that a
reader of the older version knows still exists, with a type that holds all its values. So a reader need not ask which
version an entry was written under.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.schema.fields import Field, InvalidSchema, Schema, Type


def narrowing(older: Schema, newer: Schema) -> str | None:
    """Why a schema cannot follow an older one, or None if it only widens it."""
    return _narrowed_fields(older.fields, newer.fields, "")


def holds(wide: Type, narrow: Type) -> bool:
    """Whether a type has all values of another."""
    return _narrowed(narrow, wide, "") is None


def merged(one: Schema, other: Schema) -> Schema:
    """The narrowest schema that widens one and holds all fields of the other. InvalidSchema if there is none.

    >>> from penstock.schema.parser import parse
    >>> print(merged(parse("a int NOT NULL, b string"), parse("a bigint, c date NOT NULL")))
    a bigint NOT NULL, b string, c date
    """
    return Schema(_merged_fields(one.fields, other.fields, ""))


def _merged_fields(one: tuple[Field, ...], other: tuple[Field, ...], where: str) -> tuple[Field, ...]:
    others = {field.name: field for field in other}
    known = [
        replace(field, type=merged_types(field.type, others.pop(field.name).type, where + field.name))
        if field.name in others
        else field
        for field in one
    ]
    return (*known, *(replace(field, required=False) for field in others.values()))


def merged_types(one: Type, other: Type, where: str) -> Type:
    """The narrowest type that has all values of two. InvalidSchema, with the place, if there is none."""
    if holds(one, other):
        return one
    if holds(other, one):
        return other
    if one.name == other.name == "struct":
        return replace(one, fields=_merged_fields(one.fields, other.fields, f"{where}."))
    if one.name == other.name and one.parts:
        pairs = zip(one.parts, other.parts, strict=True)
        return replace(one, parts=tuple(merged_types(mine, theirs, f"{where}[]") for mine, theirs in pairs))
    for name in ("int", "bigint", "double"):
        if holds(Type(name), one) and holds(Type(name), other):
            return Type(name)
    if {one.name, other.name} <= {"decimal", *_DIGITS}:
        scale = max(one.scale, other.scale)
        before = max(_DIGITS.get(kind.name, kind.precision - kind.scale) for kind in (one, other))
        if before + scale <= 38:
            return Type("decimal", before + scale, scale)
    raise InvalidSchema(f"{where} is {one} and {other}, and no type holds both")


_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}  # that a decimal needs to hold them
_WIDER = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}


def _narrowed_fields(old: tuple[Field, ...], new: tuple[Field, ...], where: str) -> str | None:
    by_name = {field.name: field for field in new}
    for field in old:
        newer = by_name.pop(field.name, None)
        if newer is None:
            return f"the field {where}{field.name} is gone"
        if newer.required and not field.required:
            return f"the field {where}{field.name} was optional and is NOT NULL now"
        if field.default is not None and newer.default != field.default:
            return f"the default of {where}{field.name} was {field.default}"
        if why := _narrowed(field.type, newer.type, where + field.name):
            return why
    for field in by_name.values():
        if field.required and field.default is None:
            return f"the new field {where}{field.name} is NOT NULL without a DEFAULT; older entries do not have it"
    return None


def _narrowed(old: Type, new: Type, where: str) -> str | None:
    if old == new or new.name in _WIDER.get(old.name, ()):
        return None
    if old.name == new.name == "struct":
        return _narrowed_fields(old.fields, new.fields, f"{where}.")
    if old.name == new.name and old.parts:
        pairs = zip(old.parts, new.parts, strict=True)
        return next((why for one, other in pairs if (why := _narrowed(one, other, f"{where}[]"))), None)
    if new.name == "decimal" and (old.name == "decimal" or old.name in _DIGITS):
        before = _DIGITS.get(old.name, old.precision - old.scale)
        if new.precision - new.scale >= before and new.scale >= old.scale:
            return None
    return f"the field {where} was {old}, which {new} does not hold"
