"""Which schema may follow which.

A newer version may only widen: every entry that fits the older version fits the newer one, and every field that a
reader of the older version knows still exists, with a type that holds all its values. So a reader need not ask which
version an entry was written under.
"""

from __future__ import annotations

from penstock.schema.fields import Field, Schema, Type


def narrowing(older: Schema, newer: Schema) -> str | None:
    """Why a schema cannot follow an older one, or None if it only widens it."""
    return _narrowed_fields(older.fields, newer.fields, "")


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
