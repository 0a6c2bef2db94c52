"""Entries in Avro: each is one datum of a record schema, in the binary encoding, without a header or after the five
bytes of Confluent's serializers: a zero, and the number that a registry gave to the schema.

fastavro decodes and encodes. It trusts its input here and there, so the schema is rewritten before it decodes by it:

- A record that contains itself is refused: a hostile datum of a few kilobytes would overflow the stack of C.
- An array whose elements have no bytes (of null, say) is refused: a datum of five bytes could claim 2**60 of them. All
  other counts and lengths end where the bytes of the entry end.
- Enums are read as the numbers that they are, so that a negative one is no symbol counted from the end; decimals as
  their bytes, so that one with too many digits is not rounded; timestamps as numbers, which is also faster.

Bytes after the datum are refused. fastavro takes a few encodings that no encoder makes: numbers with more bytes than
they need, and a branch of a union counted from the end. They mean what the same value in proper encoding means.

Types are those of Spark's `from_avro`, without unions of several types: such a field is refused unless no column asks
for it. A logical type that is not listed in `_LOGICAL` is read as the type below it, as the specification says.

Rejected: a decoder in Python. The one that fastavro has takes twice as long as its C.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Context, Decimal
from itertools import count
from typing import Any

import fastavro
import fastavro.read
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, expand_schema

from penstock.schema.entry_format import BadDatum, DecodedEntries, Row, check_to_read, rows_to_write, to_write
from penstock.schema.fields import InvalidSchema

_NAME = "Avro schema"
_PRIMITIVE = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "bytes": pa.binary(), "enum": pa.string(), "fixed": pa.binary(),
}  # fmt: skip
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_OF_MILLIS = ("timestamp-millis", "local-timestamp-millis")
_ZERO = b"\0"
_HEADER_BYTES = 5
_MOST_TYPES, _DEEPEST = 20_000, 100
_MOST_DIGITS = 38
"""Of a decimal in Spark and in Arrow."""


class AvroEntries:
    """Reads and writes entries of one schema. `schema_id` is its number, for entries that are framed."""

    def __init__(self, text: str, is_framed: bool = False, schema_id: int | None = None) -> None:
        """InvalidSchema unless the text is the schema of a record that can be read safely."""
        try:
            given = json.loads(text)
            named: dict[str, Any] = {}
            self._parsed: Any = fastavro.parse_schema(given, named)
            _check_size(self._parsed, named)
            tree: Any = expand_schema(given)
            _check_safe(tree, "")
            _set_defaults(self._parsed, named)
            self._reading: Any = fastavro.parse_schema(_to_read(tree, count()))
        except (
            SchemaParseException,
            UnknownType,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OverflowError,
        ) as error:
            raise InvalidSchema(f"it is no {_NAME}: {type(error).__name__}: {error}") from None
        except RecursionError:
            raise InvalidSchema(f"it is no {_NAME} that can be read: it is nested too deeply") from None
        if not isinstance(tree, dict) or tree["type"] != "record":
            raise InvalidSchema(f"the {_NAME} of entries must be that of a record")
        self._is_framed = is_framed
        self._header = _ZERO + schema_id.to_bytes(4, "big") if schema_id is not None else b""
        self._fields: dict[str, Any] = {field["name"]: field for field in tree["fields"]}

    def fields(self, names: Iterable[str] | None = None) -> pa.Schema:
        wanted = list(self._fields) if names is None else list(names)
        if unknown := [name for name in wanted if name not in self._fields]:
            raise InvalidSchema(f"the {_NAME} has no field {unknown[0]}; it has {', '.join(self._fields)}")
        return pa.schema([_arrow_field(self._fields[name], name) for name in wanted])

    def reader(self, columns: pa.Schema) -> DecodedEntries:
        check_to_read(columns, self.fields(columns.names), _NAME)
        return DecodedEntries(self._decode, columns)

    def _decode(self, entry: bytes) -> Row:
        source = io.BytesIO(entry)
        if self._is_framed:
            self._check_header(source.read(_HEADER_BYTES))
        try:
            row: Any = fastavro.schemaless_reader(source, self._reading, None)
        except EOFError:
            raise BadDatum(f"it is no datum of the {_NAME}: it ends too early") from None
        except IndexError:  # of a number, or of the branches
            raise BadDatum(
                f"it is no datum of the {_NAME}: it ends too early, or has a branch of a union that the schema does "
                "not have"
            ) from None
        except Exception as error:  # whatever the library says about bytes that it cannot read
            raise BadDatum(f"it is no datum of the {_NAME}: {error}") from None
        if left := len(entry) - source.tell():
            raise BadDatum(f"{left} bytes follow the datum of the {_NAME}")
        return row  # type: ignore[no-any-return]

    def _check_header(self, header: bytes) -> None:
        if len(header) < _HEADER_BYTES or not header.startswith(_ZERO):
            raise BadDatum("it does not begin with the five bytes that Confluent's serializers write")
        if self._header and header != self._header:
            number, wanted = (int.from_bytes(each[1:], "big") for each in (header, self._header))
            raise BadDatum(f"it was written by the schema with the number {number}, not {wanted}")

    def writer(self, columns: pa.Schema) -> Callable[[pa.RecordBatch], list[bytes]]:
        if self._is_framed and not self._header:
            raise InvalidSchema("the number of the schema is needed to write with Confluent's framing (avroSchemaId)")
        prepare = to_write(columns, self.fields(columns.names), _NAME)
        required = [name for name, field in self._fields.items() if not _may_be_null(field["type"])]
        for name in required:
            if name not in prepare and "default" not in self._fields[name]:
                raise InvalidSchema(
                    f"there is no column {name}, which is neither null nor has a default in the {_NAME}"
                )

        def entries_of(rows: pa.RecordBatch) -> list[bytes]:
            for name in required:
                if name in prepare and rows.column(name).null_count:
                    raise ValueError(f"a row does not fit the {_NAME}: {name} must not be null")
            return [self._encode(row) for row in rows_to_write(rows, prepare)]

        return entries_of

    def _encode(self, row: Row) -> bytes:
        sink = io.BytesIO()
        sink.write(self._header)
        try:
            fastavro.schemaless_writer(sink, self._parsed, row)
        except Exception as error:  # of many kinds
            raise ValueError(f"a row does not fit the {_NAME}: {error}") from None
        return sink.getvalue()


def _kind(tree: Any) -> str:
    """The name of a type; union for a list of them."""
    if isinstance(tree, list):
        return "union"
    kind: str = tree if isinstance(tree, str) else tree["type"]
    return kind


def _may_be_null(tree: Any) -> bool:
    return "null" in map(_kind, tree) if isinstance(tree, list) else _kind(tree) == "null"


def _parts(tree: Any, where: str) -> list[tuple[Any, str]]:
    """The types inside a type, each with its place in an entry."""
    kind = _kind(tree)
    if kind == "union":
        return [(branch, where) for branch in tree]
    if kind == "array":
        return [(tree["items"], f"{where}[]")]
    if kind == "map":
        return [(tree["values"], f"{where}[]")]
    if kind == "record":
        return [(field["type"], f"{where}.{field['name']}" if where else field["name"]) for field in tree["fields"]]
    return []


def _check_safe(tree: Any, where: str) -> None:
    """InvalidSchema for types whose values may be far larger than their bytes."""
    if _kind(tree) not in {*_PRIMITIVE, "null", "union", "array", "map", "record"}:  # a name that was not expanded
        raise InvalidSchema(f"field {where} of the {_NAME} contains itself ({_kind(tree)}), which is no column")
    if _kind(tree) == "array" and not _least_bytes(tree["items"]):
        raise InvalidSchema(f"field {where} of the {_NAME} is an array of elements without bytes, which is not read")
    if isinstance(tree, dict) and not isinstance(tree.get("logicalType", ""), str):
        raise InvalidSchema(f"field {where} of the {_NAME} has a logical type that is no name")
    if _kind(tree) == "fixed" and (not isinstance(tree["size"], int) or tree["size"] < 0):
        raise InvalidSchema(f"field {where} of the {_NAME} has the size {tree['size']!r}")
    if _is_decimal(tree) and tree["precision"] < 1:
        raise InvalidSchema(f"field {where} of the {_NAME} is a decimal without digits")
    if _kind(tree) == "record":
        counts = Counter(field["name"] for field in tree["fields"])
        if wrong := [name for name in counts if not isinstance(name, str) or counts[name] > 1]:
            raise InvalidSchema(f"a record of the {_NAME} has the field {wrong[0]!r} twice, or it is no name")
    for part, place in _parts(tree, where):
        _check_safe(part, place)


def _least_bytes(tree: Any) -> int:
    """A bound of the bytes of a value: 0 only if it may have none."""
    kind = _kind(tree)
    if kind == "record":
        return max((_least_bytes(field["type"]) for field in tree["fields"]), default=0)
    if kind == "fixed":
        return int(tree["size"])
    return 0 if kind == "null" else 1


def _check_size(parsed: Any, named: dict[str, Any]) -> None:
    """InvalidSchema for a schema that is far larger, or deeper, where its names stand for their types.

    Records that name each other twice are a tree of any size, made of a text of any smallness.
    """
    sizes: dict[str, tuple[int, int]] = {}

    def measure(tree: Any) -> tuple[int, int]:
        """The types that a type has, and how deeply they are nested."""
        name = tree if isinstance(tree, str) else tree.get("name") if isinstance(tree, dict) else None
        if isinstance(tree, str) and tree not in named:
            return 1, 1
        if name is not None and name in sizes:
            return sizes[name]
        if name is not None:
            sizes[name] = 1, 1  # for a record that contains itself, which is refused elsewhere
        inner = [measure(part) for part, _ in _parts(named[tree] if isinstance(tree, str) else tree, "")]
        found = 1 + sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)
        if name is not None:
            sizes[name] = found
        return found

    size, depth = measure(parsed)
    if size > _MOST_TYPES or depth > _DEEPEST:
        raise InvalidSchema(
            f"the {_NAME} has {size} types that are nested {depth} times; at most {_MOST_TYPES} are read, nested "
            f"{_DEEPEST} times"
        )


def _set_defaults(parsed: Any, named: dict[str, Any]) -> None:
    """Defaults of bytes are text in a schema, a character for each byte; fastavro wants the bytes to write them."""
    for field in parsed["fields"] if _kind(parsed) == "record" else ():
        first = field["type"][0] if isinstance(field["type"], list) and field["type"] else field["type"]
        first = named.get(first, first) if isinstance(first, str) else first
        if _kind(first) in ("bytes", "fixed") and isinstance(field.get("default"), str):
            field["default"] = field["default"].encode("latin-1")
    for part, _ in _parts(parsed, ""):
        _set_defaults(part, named)


def _is_decimal(tree: Any) -> bool:
    return isinstance(tree, dict) and tree["type"] in ("bytes", "fixed") and tree.get("logicalType") == "decimal"


def _arrow_field(field: Any, where: str) -> pa.Field:
    return pa.field(field["name"], _arrow_type(field["type"], where), _may_be_null(field["type"]))


def _arrow_type(tree: Any, where: str) -> pa.DataType:
    """The type of a column that has a field; InvalidSchema if there is none."""
    kind = _kind(tree)
    if kind == "union":
        branches = [branch for branch in tree if _kind(branch) != "null"]
        if len(branches) == 1:
            return _arrow_type(branches[0], where)
    elif kind == "array":
        return pa.list_(_inner_field("element", tree["items"], f"{where}[]"))
    elif kind == "map":
        return pa.map_(pa.string(), _inner_field("value", tree["values"], f"{where}[]"))
    elif kind == "record" and tree["fields"]:
        return pa.struct([_arrow_field(field, f"{where}.{field['name']}") for field in tree["fields"]])
    elif _is_decimal(tree):
        if tree["precision"] <= _MOST_DIGITS:
            return pa.decimal128(tree["precision"], tree.get("scale", 0))
        kind = f"a decimal of {tree['precision']} digits"
    elif kind in _PRIMITIVE:
        logical = tree.get("logicalType", "") if isinstance(tree, dict) else ""
        return _LOGICAL.get((kind, logical), _PRIMITIVE[kind])
    what = f"a union of {', '.join(map(_kind, tree))}" if isinstance(tree, list) else kind
    raise InvalidSchema(f"field {where} of the {_NAME} is {what}, which is no column; name the columns to read")


def _inner_field(name: str, tree: Any, where: str) -> pa.Field:
    return pa.field(name, _arrow_type(tree, where), _may_be_null(tree))


def _to_read(tree: Any, numbers: Iterable[int]) -> Any:
    """The schema by which entries are decoded: the same bytes, as values that Arrow takes."""
    kind = _kind(tree)
    if kind == "union":
        return [_to_read(branch, numbers) for branch in tree]
    if kind == "array":
        return {"type": "array", "items": _to_read(tree["items"], numbers)}
    if kind == "map":
        return {"type": "map", "values": _to_read(tree["values"], numbers)}
    if kind == "record":
        fields = [{"name": field["name"], "type": _to_read(field["type"], numbers)} for field in tree["fields"]]
        return {"type": "record", "name": _new_name(numbers), "fields": fields}
    if kind == "enum":
        return {"type": "int", "logicalType": _ENUM, _DETAIL: list(tree["symbols"])}
    plain: dict[str, Any] = {"type": kind}
    if kind == "fixed":
        plain |= {"name": _new_name(numbers), "size": tree["size"]}
    if _is_decimal(tree) and tree["precision"] <= _MOST_DIGITS:  # others are no columns
        plain |= {"logicalType": _DECIMAL, _DETAIL: [tree["precision"], tree.get("scale", 0)]}
    elif kind == "long" and isinstance(tree, dict) and tree.get("logicalType") in _OF_MILLIS:
        plain["logicalType"] = _MILLIS
    return plain


def _new_name(numbers: Iterable[int]) -> str:
    """A type that is used twice is there twice, and two types need two names."""
    return f"type{next(iter(numbers))}"


_ENUM, _DECIMAL, _MILLIS, _DETAIL = "penstock-enum", "penstock-decimal", "penstock-millis", "penstock-detail"
"""Logical types of our own, and the attribute that says more about them."""


def _symbol(number: int, schema: Any, _: Any = None) -> str:
    symbols: list[str] = schema[_DETAIL]
    if not 0 <= number < len(symbols):
        raise ValueError(f"{number} is the number of no symbol of an enum")
    return symbols[number]


_EXACT = Context(prec=_MOST_DIGITS)


def _decimal(unscaled: bytes, schema: Any, _: Any = None) -> Decimal:
    precision, scale = schema[_DETAIL]
    number = int.from_bytes(unscaled, "big", signed=True)
    if abs(number) >= 10**precision:
        raise ValueError(f"a decimal has more than {precision} digits")
    return Decimal(number).scaleb(-scale, _EXACT)


def _microseconds(milliseconds: int, *_: Any) -> int:
    return milliseconds * 1000


fastavro.read.LOGICAL_READERS |= {
    f"int-{_ENUM}": _symbol,
    f"bytes-{_DECIMAL}": _decimal,
    f"fixed-{_DECIMAL}": _decimal,
    f"long-{_MILLIS}": _microseconds,
}
