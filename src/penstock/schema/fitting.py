"""Whether an entry fits a schema.

An entry fits if it is one JSON object, has every field that is NOT NULL and has no default, and each of its values has
the field's type: 12 is not a string, and "12" is not a number. "NaN" is a float or a double, because JSON cannot write
it otherwise. Fields that the schema does not name are allowed, because an older server must accept what a newer program
writes.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from penstock.schema.fields import Field, Schema, Type


def misfit(schema: Schema, entry: bytes) -> str | None:
    """Why an entry does not fit, or None if it does."""
    try:
        decoder = DECODER if len(entry) <= LONG else _PATIENT
        value = decoder.decode(entry.decode())
    except RecursionError:
        return "it is nested too deeply"
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except ArithmeticError:
        return "it has a number with too large an exponent"
    except ValueError as error:
        return f"it is not JSON: {error}"
    if not isinstance(value, dict):
        return "it is not a JSON object"
    return _misfit_of_fields(schema.fields, value, "")


def misfit_of_value(kind: Type, value: Any, where: str) -> str | None:
    """Why a value that is not null is not of a type, or None if it is."""
    return _MISFITS[kind.name](kind, value, where)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant)
"""Reads JSON with its decimal numbers as they are written."""


def _to_decimal(text: str) -> Decimal:
    return Decimal(text)


def _to_integer(text: str) -> int:
    return int(text)


def _unchanged(value: dict[str, Any]) -> dict[str, Any]:
    return value


LONG: Final = 8192
"""Bytes of an entry that is read in steps."""
_PATIENT = json.JSONDecoder(
    parse_float=_to_decimal, parse_int=_to_integer, parse_constant=_no_constant, object_hook=_unchanged
)
"""Reads the same as DECODER, and other threads can run meanwhile: at every number and every object it calls a function
in Python. Only long rows of strings, true, false and null are read in one go, a megabyte in about 20 ms.
"""


def _misfit_of_fields(fields: tuple[Field, ...], value: dict[str, Any], where: str) -> str | None:
    for field in fields:
        found = value.get(field.name, _MISSING)
        if found is _MISSING:
            if field.required and field.default is None:
                return f"{where}{field.name} is missing"
        elif found is None:
            if field.required:
                return f"{where}{field.name} must not be null"
        elif why := _MISFITS[field.type.name](field.type, found, where + field.name):
            return why
    return None


_MISSING = object()


def _integers(bits: int) -> Callable[[Type, Any, str], str | None]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def misfit(kind: Type, value: Any, where: str) -> str | None:
        if type(value) is not int:
            return f"{where} must be of type {kind}"
        return None if low <= value <= high else f"{where} is out of the range of {kind}"

    return misfit


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""How a float or a double that is no number is written in JSON, as by Spark's to_json: in quotes."""


def _floating(kind: Type, value: Any, where: str) -> str | None:
    if type(value) not in (int, Decimal):
        return None if value in NOT_FINITE else f"{where} must be a number"
    largest = _LARGEST[kind.name]
    return None if -largest <= value <= largest else f"{where} is out of the range of {kind}"


_LARGEST = {"float": Decimal(2**128 - 2**104), "double": Decimal(2**1024 - 2**971)}


def _decimal(kind: Type, value: Any, where: str) -> str | None:
    if type(value) not in (int, Decimal):
        return f"{where} must be a number"
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    if not any(digits):
        return None
    trailing = len(digits) - len("".join(map(str, digits)).rstrip("0"))  # 1.50 has one digit after the point
    after = max(0, -exponent - trailing)
    before = max(0, len(digits) + exponent)
    if after > kind.scale:
        return f"{where} has {after} digits after the point, and {kind} has {kind.scale}"
    if before > kind.precision - kind.scale:
        return f"{where} has {before} digits before the point, and {kind} has {kind.precision - kind.scale}"
    return None


def _exactly(python: type, what: str) -> Callable[[Type, Any, str], str | None]:
    return lambda kind, value, where: None if type(value) is python else f"{where} must be {what}"


def _parsed(parse: Callable[[str], Any], what: str) -> Callable[[Type, Any, str], str | None]:
    def misfit(kind: Type, value: Any, where: str) -> str | None:
        if type(value) is not str:
            return f"{where} must be {what}"
        try:
            parse(value)
        except (ValueError, binascii.Error):
            return f"{where} must be {what}"
        return None

    return misfit


_DAY = r"\d{4}-\d\d-\d\d"
_CLOCK = r"[T ]\d\d:\d\d"
_SECONDS = r"(?::\d\d(?:\.\d+)?)"
_ZONE = r"(?:Z|[+-](?:(?:0\d|1[0-7])(?::?[0-5]\d)?|18(?::?00)?))"


def _iso(kind: type[date], form: str) -> Callable[[str], Any]:
    """Reads dates or times of one form of ISO 8601: the one that every reader knows (`json_times.py`)."""
    is_known = re.compile(form, re.ASCII).fullmatch

    def parse(text: str) -> date:
        if not is_known(text):
            raise ValueError(text)
        return kind.fromisoformat(text)

    return parse


def _array(kind: Type, value: Any, where: str) -> str | None:
    return (
        _misfit_of_all(kind.parts[0], enumerate(value), where) if type(value) is list else f"{where} must be an array"
    )


def _map(kind: Type, value: Any, where: str) -> str | None:
    return _misfit_of_all(kind.parts[1], value.items(), where) if type(value) is dict else f"{where} must be an object"


def _misfit_of_all(kind: Type, values: Iterable[tuple[Any, Any]], where: str) -> str | None:
    misfit = _MISFITS[kind.name]
    for at, value in values:
        if value is not None and (why := misfit(kind, value, f"{where}[{at}]")):
            return why
    return None


def _struct(kind: Type, value: Any, where: str) -> str | None:
    return _misfit_of_fields(kind.fields, value, f"{where}.") if type(value) is dict else f"{where} must be an object"


_MISFITS: dict[str, Callable[[Type, Any, str], str | None]] = {
    "boolean": _exactly(bool, "true or false"),
    "tinyint": _integers(8),
    "smallint": _integers(16),
    "int": _integers(32),
    "bigint": _integers(64),
    "float": _floating,
    "double": _floating,
    "string": _exactly(str, "a string"),
    "binary": _parsed(lambda text: base64.b64decode(text, validate=True), "a string of base64"),
    "date": _parsed(_iso(date, _DAY), "a date such as 2026-01-31"),
    "timestamp": _parsed(
        _iso(datetime, f"{_DAY}(?:{_CLOCK}(?:{_SECONDS}{_ZONE}?)?)?"), "a time such as 2026-01-31T12:00:00Z"
    ),
    "timestamp_ntz": _parsed(_iso(datetime, f"{_DAY}(?:{_CLOCK}{_SECONDS}?)?"), "a time such as 2026-01-31T12:00:00"),
    "decimal": _decimal,
    "array": _array,
    "map": _map,
    "struct": _struct,
}
