"""Many JSON entries as columns at once: pyarrow reads them joined by newlines, and what it refuses is cut in halves.

Each entry must get its own row. pyarrow only gives rows in order and does not say which came from where: an entry that
holds two objects would push the rows of all later entries on by one, and a blank one would pull them back. So all
entries are first seen to begin with `{` and to end with `}`. A `}`, a newline and a `{` can follow each other only
between two objects (a newline is not allowed in a string), so every entry is at least one object, and if there are as
many rows as entries, every entry is exactly one.

What pyarrow refuses may still fit, and what it reads it may read differently: it knows fewer types than `from_json` and
no rounding. `json_values.py` says what an entry means. What pyarrow accepts is arranged so that it means the same, and
the entries that it refuses are narrowed down by halving and read by `json_values.py`, few at a time. When too many are
refused, that reads all.

A first entry that is `null` would end the process in pyarrow 26 and earlier (apache/arrow#47409). It does not begin
with `{`.

Rejected: a parse for each entry (sixty times slower), and the row numbers in the error messages of pyarrow (only some
have one).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as is_

from penstock.schema.arrow_types import DEFAULT
from penstock.schema.arrow_values import int32s, scalar_of
from penstock.schema.json_values import Parser, TooDeep, kinds_in

_NEWLINE = scalar_of(b"\n", pa.string())
FEW = 32
"""Entries that are read one by one rather than halved again."""
ROWS_A_REFUSAL = 64
"""With more refusals than one in so many entries, halving costs more than it saves."""
_WHITESPACE = " \t\r\n"


class JsonEntries:
    """Reads entries under one schema, whose fields may have defaults (`arrow_types.DEFAULT`)."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._parser = Parser(schema)
        self._arrow = None if _is_beyond_arrow(schema) else _ArrowReader(schema)

    def read(self, entries: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        """A row for each entry, of nulls where an entry does not fit; and why it does not, by place."""
        if not len(entries):
            return pa.RecordBatch.from_pylist([], self.schema), {}
        if self._arrow is not None:
            try:
                return self._arrow.read(entries), {}
            except pa.ArrowException:
                pass
        nullable = pa.schema([field.with_nullable(True) for field in self.schema])
        refused: dict[int, str] = {}
        pieces = list(self._halved(entries, nullable, refused))
        return pa.Table.from_batches(pieces, nullable).combine_chunks().to_batches()[0], refused

    def _halved(self, entries: pa.Array, schema: pa.Schema, refused: dict[int, str]) -> Iterator[pa.RecordBatch]:
        """The rows in order. Invariant: a range on the stack was refused as a whole, or was not tried."""
        left = len(entries) // ROWS_A_REFUSAL + FEW  # refusals until halving is given up
        ranges = [(0, len(entries), True)]
        while ranges:
            start, stop, is_refused = ranges.pop()
            if self._arrow is None or left <= 0 or stop - start <= FEW:
                yield self._one_by_one(entries, start, stop, schema, refused)
                continue
            if not is_refused:
                try:
                    yield self._arrow.read(entries.slice(start, stop - start)).cast(schema)
                except pa.ArrowException:
                    left -= 1
                else:
                    continue
            middle = (start + stop) // 2
            ranges += ((middle, stop, False), (start, middle, False))

    def _one_by_one(
        self, entries: pa.Array, start: int, stop: int, schema: pa.Schema, refused: dict[int, str]
    ) -> pa.RecordBatch:
        rows: list[dict[str, Any]] = []
        for place, entry in enumerate(entries.slice(start, stop - start).to_pylist(), start):
            try:
                rows.append(self._parse(entry))
            except ValueError as error:
                refused[place] = str(error)
                rows.append({})
        return pa.RecordBatch.from_pylist(rows, schema)

    def _parse(self, entry: bytes) -> dict[str, Any]:
        try:
            return self._parser.parse(entry)
        except TooDeep as error:
            if self._arrow is not None:  # which has no limit, and must not give another result among others than alone
                try:
                    row: dict[str, Any] = self._arrow.read(pa.array([entry], pa.binary())).to_pylist()[0]
                    return row
                except (pa.ArrowException, OverflowError):
                    pass
            raise error


def _is_beyond_arrow(schema: pa.Schema) -> bool:
    """Whether pyarrow does not read a type from JSON, or not as it is meant: base64, maps, NOT NULL or a default inside
    of other types, a default that is no simple value.
    """
    kinds = list(kinds_in(schema))
    inner = [kind.field(at) for kind in kinds for at in range(kind.num_fields)]
    return (
        any(is_.is_binary(kind) or is_.is_map(kind) for kind in kinds)
        or any(not field.nullable or _has_default(field) for field in inner)
        or any(_has_default(field) and field.type.num_fields for field in schema)
    )


def _has_default(field: pa.Field) -> bool:
    return DEFAULT in (field.metadata or {})


class _ArrowReader:
    """Reads entries all at once; ArrowException unless each is one JSON object that certainly fits."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._defaults = _defaults(schema)
        self._required = [field.name for field in schema if not field.nullable]
        self._as_read = pa.schema([pa.field(field.name, _as_read(field.type)) for field in schema])
        self._refused = "|".join(pattern for has_kind, pattern in _MISREAD if any(map(has_kind, kinds_in(schema))))
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=self._as_read, newlines_in_values=True, unexpected_field_behavior="ignore"
        )

    def read(self, entries: pa.Array) -> pa.RecordBatch:
        text = _joined(entries)
        if self._refused and pc.match_substring_regex(text, self._refused).as_py():
            raise pa.ArrowInvalid("a value that might be misread")
        text = text.as_buffer()
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=max(text.size + 1, 1 << 16))
        table = pyarrow.json.read_json(pa.BufferReader(text), read_options=reading, parse_options=self._options)
        if table.num_rows != len(entries):
            raise pa.ArrowInvalid("an entry is not one JSON object")
        for name, default in self._defaults.items():
            if table.column(name).null_count:
                table = _filled(table, name, default, entries)
        for name in self._required:
            if table.column(name).null_count:
                raise pa.ArrowInvalid(f"a null in {name}")
        return table.cast(self._schema).combine_chunks().to_batches()[0]


def _joined(entries: pa.Array) -> pa.Scalar:
    """All entries with newlines between them; ArrowInvalid unless each looks like an object from the outside."""
    text = entries.cast(pa.string())  # which checks that it is UTF-8
    if not _look_like_objects(text):
        text = pc.ascii_trim(text, _WHITESPACE)
        if not _look_like_objects(text):
            raise pa.ArrowInvalid("an entry is not a JSON object")
    lines = pa.ListArray.from_arrays(int32s(0, len(text)), text)
    return pc.binary_join(lines, _NEWLINE)[0]


def _look_like_objects(text: pa.Array) -> bool:
    is_object = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))
    return bool(pc.all(is_object).as_py())


def _as_read(kind: pa.DataType) -> pa.DataType:
    """As what pyarrow has to read a type.

    Dates, and times that must have no zone, are read as text, whose conversion is strict. Decimals are read with more
    digits: the reader does not look at the precision.
    """
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return pa.string()
    if pa.types.is_decimal(kind):
        return pa.decimal256(76, kind.scale)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_read(field.type)) for field in kind])
    return kind


def _defaults(schema: pa.Schema) -> dict[str, pa.Scalar]:
    """The defaults of fields, as pyarrow would have read them."""
    fields = pa.schema([field for field in schema if _has_default(field)])
    values = Parser(fields).parse(b"{}")
    return {field.name: pa.array([values[field.name]], field.type).cast(_as_read(field.type))[0] for field in fields}


def _filled(table: pa.Table, name: str, default: pa.Scalar, entries: pa.Array) -> pa.Table:
    """A table with the default where an entry does not have the field. Where it says null, it is null."""
    column = table.column(name).combine_chunks()
    missing = column.is_null()
    may_say_null = pc.indices_nonzero(pc.and_(missing, pc.match_substring(entries, "null")))
    if len(may_say_null):
        try:
            said = {
                place
                for place, entry in zip(may_say_null.to_pylist(), entries.take(may_say_null).to_pylist(), strict=True)
                if name in json.loads(entry)
            }
        except RecursionError:
            raise pa.ArrowInvalid("nested too deeply to look for a null") from None
        missing = pc.and_(missing, pa.array([place not in said for place in range(len(entries))]))
    return table.set_column(table.column_names.index(name), name, pc.if_else(missing, default, column))


_MISREAD = (
    # More digits than 256 bits have, which pyarrow cuts off; without an exponent 76 fit.
    (pa.types.is_decimal, r"""\d{39}|[:,\["\s][+-]?\d[\d.]*[eE]"""),
    # A zone after something else than seconds, and one that is further from UTC than any.
    (pa.types.is_timestamp, r"""[T ]\d\d(?::\d\d)?(?:Z|[+-][\d:]+)"|:\d\d(?:\.\d+)?[+-](?:1[89]|2\d)(?::?\d\d)?\""""),
)
"""Patterns of text, by type, of values that pyarrow takes and reads as something else than they mean."""
