"""One entry as Spark's `from_json` would read it: the specification of what a JSON entry means under a schema.

`Parser.parse` gives the value of each field, in the form in which pyarrow builds arrays (dates as days, timestamps as
microseconds), or says why the entry does not fit. It is an entry's meaning by itself, so it cannot depend on the
entries around it. `json_entries.py` reads many entries at once, and must give the same.

A test compares this with a real `from_json`. It is stricter in a few places where Spark guesses: text after the object,
quotes of the kind '...', a number too large for a tinyint or smallint (Spark takes its last bits), an entry that is
empty or null.

Rejected: options for a lenient and a strict mode. An entry would mean something else in each query.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.types as is_

from penstock.schema import json_times
from penstock.schema.arrow_types import DEFAULT, type_name

Reader = Callable[[Any], Any]
"""Makes a value of a column of what json.loads gave, which is not null; ValueError if it does not fit."""
_BITS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
_NOT_FINITE = {
    "NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "+INF": math.inf,
    "-Infinity": -math.inf, "-INF": -math.inf,
}  # fmt: skip
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_PAIRS = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")
_EXACT = Context(prec=400)
_SHOWN = 60


class Parser:
    """Reads entries under one schema. A field that an entry does not have gets its default (`arrow_types.DEFAULT`)."""

    def __init__(self, fields: pa.Schema) -> None:
        exact = any(map(is_.is_decimal, kinds_in(fields)))
        self._decoder = json.JSONDecoder(parse_float=Decimal if exact else None)
        self._read = _struct_reader(fields, "", self._decoder)

    def parse(self, entry: bytes) -> dict[str, Any]:
        """The fields of an entry; ValueError says why it does not fit."""
        try:
            value = self._decoder.decode(entry.decode())
        except ValueError as error:
            raise ValueError(f"the entry is not JSON: {error}") from None
        except RecursionError:
            raise TooDeep("the entry is not JSON: its brackets are nested too deeply") from None
        if not isinstance(value, dict):
            raise ValueError(f"the entry is not a JSON object but {_shown(value)}")
        found: dict[str, Any] = self._read(value)
        return found


class TooDeep(ValueError):
    """An entry that Python's own parser cannot read, and another one might."""


def kinds_in(fields: Iterable[pa.Field]) -> Iterator[pa.DataType]:
    """The types of fields, and all types in them."""
    for field in fields:
        yield field.type
        yield from kinds_in(field.type.field(at) for at in range(field.type.num_fields))


# -- readers of types ---------------------------------------------------------------------------------------------


def _reader(kind: pa.DataType, path: str, decoder: json.JSONDecoder) -> Reader:
    if is_.is_struct(kind):
        return _struct_reader(kind, f"{path}.", decoder)
    if is_.is_list(kind):
        return _array_reader(_field_reader(kind.value_field, f"an element of {path}", decoder))
    if is_.is_map(kind):
        return _map_reader(_field_reader(kind.item_field, f"a value of {path}", decoder))
    if is_.is_decimal(kind):
        return _decimal_reader(kind.precision, kind.scale)
    if kind in _BITS:
        return _integer_reader(2 ** _BITS[kind])
    if is_.is_timestamp(kind):
        return _timestamp if kind.tz is not None else _timestamp_without_zone
    return _READERS[kind]


def _field_reader(field: pa.Field, path: str, decoder: json.JSONDecoder) -> Reader:
    """Adds the path of the field to what is wrong with its value."""
    read, kind = _reader(field.type, path, decoder), type_name(field.type)

    def read_field(value: Any) -> Any:
        if value is None:
            if not field.nullable:
                raise ValueError(f"there is no {path}, which is NOT NULL in the schema")
            return None
        try:
            return read(value)
        except _Misfit as error:
            raise ValueError(f"{path} is {error}, which is no {kind}") from None

    return read_field


class _Misfit(ValueError):
    """A value that is not of its type; the text shows the value. The nearest field adds its name."""

    def __init__(self, value: Any) -> None:
        super().__init__(_shown(value))


def _struct_reader(fields: Iterable[pa.Field], prefix: str, decoder: json.JSONDecoder) -> Reader:
    readers = [
        (field.name, _default(field, decoder), _field_reader(field, prefix + field.name, decoder)) for field in fields
    ]

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _Misfit(value)
        return {name: read_field(value.get(name, default)) for name, default, read_field in readers}

    return read


def _default(field: pa.Field, decoder: json.JSONDecoder) -> Any:
    """What stands for a field that is missing, as the decoder has it."""
    text = (field.metadata or {}).get(DEFAULT)
    return decoder.decode(text.decode()) if text is not None else None


def _array_reader(read_element: Reader) -> Reader:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _Misfit(value)
        return [read_element(each) for each in value]

    return read


def _map_reader(read_value: Reader) -> Reader:
    def read(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _Misfit(value)
        return [(_string(key), read_value(each)) for key, each in value.items()]

    return read


def _integer_reader(limit: int) -> Reader:
    def read(value: Any) -> int:
        if type(value) is not int or not -limit <= value < limit:
            raise _Misfit(value)
        return value

    return read


def _decimal_reader(precision: int, scale: int) -> Reader:
    unit, limit = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)

    def read(value: Any) -> Decimal:
        if type(value) is str and _NUMBER.fullmatch(plain := value.replace(",", "")):
            exact = Decimal(plain)
        elif type(value) in (int, Decimal):
            exact = Decimal(value)
        else:
            raise _Misfit(value)
        try:
            rounded = exact.quantize(unit, ROUND_HALF_UP, _EXACT)
        except InvalidOperation:
            raise _Misfit(value) from None
        if rounded.copy_abs() >= limit:  # abs() would round it to 28 digits
            raise _Misfit(value)
        return rounded

    return read


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _Misfit(value)
    return value


def _double(value: Any) -> float:
    if type(value) in (float, Decimal):
        return float(value)
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise _Misfit(value)


def _string(value: Any) -> str:
    """A string as it is; anything else as compact JSON."""
    text = value if type(value) is str else _compact(value)
    # Half a surrogate pair is no character. Java writes a question mark for it.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _compact(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_compact(key)}:{_compact(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    if isinstance(value, (float, Decimal)):
        return _as_java_writes(float(value))
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() else _PAIRS.sub(_escaped, text)


def _escaped(character: re.Match[str]) -> str:
    """A character as two surrogates, the way Java has it in memory."""
    units = character[0].encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _as_java_writes(number: float) -> str:
    if not math.isfinite(number):
        return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, _ = Decimal(repr(number)).as_tuple()
    exponent = Decimal(repr(number)).adjusted()
    mantissa = "".join(map(str, digits)).rstrip("0") or "0"
    return f"{'-' if sign else ''}{mantissa[0]}.{mantissa[1:] or '0'}E{exponent}"


def _binary(value: Any) -> bytes:
    if type(value) is not str:
        raise _Misfit(value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise _Misfit(value) from None


def _date(value: Any) -> int:
    if type(value) is not str:
        raise _Misfit(value)
    try:
        found = json_times.days(value)
    except ValueError:
        raise _Misfit(value) from None
    if not -(2**31) <= found < 2**31:  # what a date of Arrow holds
        raise _Misfit(value)
    return found


def _timestamp(value: Any) -> int:
    if type(value) is int and abs(value) < 2**63 // 1_000_000:
        return value * 1_000_000
    return _microseconds(value, with_zone=True)


def _timestamp_without_zone(value: Any) -> int:
    return _microseconds(value, with_zone=False)


def _microseconds(value: Any, with_zone: bool) -> int:
    if type(value) is not str:
        raise _Misfit(value)
    try:
        found = json_times.microseconds(value, with_zone)
    except ValueError:
        raise _Misfit(value) from None
    if not -(2**63) <= found < 2**63:
        raise _Misfit(value)
    return found


_READERS: dict[pa.DataType, Reader] = {
    pa.bool_(): _boolean, pa.float32(): _double, pa.float64(): _double, pa.string(): _string, pa.binary(): _binary,
    pa.date32(): _date,
}  # fmt: skip


def _shown(value: Any) -> str:
    text = _compact(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
