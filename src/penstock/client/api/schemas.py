"""The schemas of streams as methods: TSCHEMA, and tables with typed columns as entries.

A table is written as JSON, one object a row, in the form that the server's check and Spark's `from_json` read: dates
and times as ISO 8601, bytes as base64, decimals as numbers with all their digits.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.client.api.reply_fields import map_fields, text
from penstock.client.api.reply_types import Key, command_method


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A version of a stream's schema. `check` and `dead_letter` are those of the stream, whatever the version."""

    version: int
    since: int  # the first offset that can have been written under it
    fields: str
    check: str | None = None
    dead_letter: Any = None


class SchemaCommands:
    """TSCHEMA and what goes by it. The server must be a Penstock server."""

    execute_command: Callable[..., Any]
    write_arrow: Callable[..., Any]

    @command_method
    def tschema_set(self, key: Key, fields: Any, *, check: str | None = None, dead_letter: Key | None = None) -> int:
        """Say which fields the entries of a stream have; the number of the version.

        `fields` is text as Spark writes columns, such as "user string NOT NULL, ms bigint", or a pyarrow schema.
        `check` is "off", "refuse" or "deadletter", the last with `dead_letter`, the name of a stream.
        """
        words: list[Any] = ["TSCHEMA SET", key, fields if isinstance(fields, str) else _text_of(fields)]
        if dead_letter is not None and check != "deadletter":
            raise ValueError(f"dead_letter={dead_letter!r} needs check='deadletter'")
        if check is not None:
            words += ["CHECK", check]
        return self.execute_command(*words, *([dead_letter] if dead_letter is not None else []))

    @command_method
    def tschema_get(self, key: Key, version: int | None = None) -> SchemaInfo | None:
        """The newest schema of a stream, or a version of it: a SchemaInfo, or None if there is none."""
        return self.execute_command("TSCHEMA GET", key, *([version] if version is not None else []))

    @command_method
    def tschema_versions(self, key: Key) -> list[SchemaInfo]:
        """All versions of a stream's schema, oldest first."""
        return self.execute_command("TSCHEMA VERSIONS", key)

    @command_method
    def tschema_del(self, key: Key) -> int:
        """Forget the schema of a stream; how many versions there were."""
        return self.execute_command("TSCHEMA DEL", key)

    @command_method
    def write_table(
        self,
        key: Key,
        table: Any,
        *,
        tag: str | None = None,
        backlog: int | None = None,
        producer: tuple[Key, int] | None = None,
    ) -> int:
        """Append the rows of a table, each as one JSON object with the columns as fields; the first one's offset.

        A pyarrow Table, or anything that `pyarrow.table` takes: a data frame of pandas or Polars, a dict of columns.
        `tag` names the column whose values are the tags; it is also a field of the entry.
        """
        import pyarrow as pa

        if not isinstance(table, pa.Table | pa.RecordBatch):
            table = pa.table(table)
        if tag is not None and tag not in table.column_names:
            raise ValueError(f"tag={tag!r} is no column; there are {', '.join(table.column_names)}")
        tags = [_tag(value) for value in table.column(tag).to_pylist()] if tag is not None else [b""] * table.num_rows
        rows = {"tag": pa.array(tags, pa.binary()), "entry": pa.array(entries_of(table), pa.binary())}
        return self.write_arrow(key, pa.table(rows), backlog=backlog, producer=producer)


def _text_of(schema: Any) -> str:
    from penstock.schema.arrow_types import fields_of

    return fields_of(schema)


def entries_of(table: Any) -> list[bytes]:
    """The rows of a table with typed columns as JSON objects."""
    from penstock.schema.arrow_values import python_values

    names = [json.dumps(name, ensure_ascii=False) for name in table.column_names]
    columns: list[list[str]] = []
    for at, field in enumerate(table.schema):
        write = _writer(field.type, field.name)
        columns.append(
            ["null" if value is None else write(value) for value in python_values(table.column(at), field.name)]
        )
    if not columns:
        raise ValueError("the table has no columns")
    return [_object(names, row).encode() for row in zip(*columns, strict=True)]


def _object(names: Iterable[str], values: Iterable[str]) -> str:
    return "{" + ",".join([f"{name}:{value}" for name, value in zip(names, values, strict=True)]) + "}"


def _writer(kind: Any, where: str) -> Callable[[Any], str]:
    """A function that writes a value of an Arrow type as JSON. It is not called for nulls."""
    import pyarrow.types as is_

    if is_.is_boolean(kind) or is_.is_integer(kind):
        return json.dumps
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return lambda value: json.dumps(value, ensure_ascii=False)
    if is_.is_floating(kind):
        return _number
    if is_.is_decimal(kind):
        return lambda value: f"{value:f}"
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_binary_view(kind) or is_.is_fixed_size_binary(kind):
        return lambda value: json.dumps(base64.b64encode(value).decode())
    if is_.is_date(kind) or is_.is_timestamp(kind):
        return lambda value: json.dumps(value.isoformat())
    if is_.is_map(kind):
        inner = _nullable(_writer(kind.item_type, f"{where}[]"))
        return lambda pairs: _object([json.dumps(str(key)) for key, _ in pairs], [inner(value) for _, value in pairs])
    if is_.is_struct(kind):
        names = [json.dumps(field.name, ensure_ascii=False) for field in kind]
        parts = [(field.name, _nullable(_writer(field.type, f"{where}.{field.name}"))) for field in kind]
        return lambda value: _object(names, [write(value[name]) for name, write in parts])
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        element = _nullable(_writer(kind.value_type, f"{where}[]"))
        return lambda values: "[" + ",".join(map(element, values)) + "]"
    if is_.is_dictionary(kind):
        return _writer(kind.value_type, where)
    raise TypeError(f"the column {where} is {kind}, which is not written as JSON; cast it to another type")


def _number(value: float) -> str:
    """A number, or one of the words in NOT_FINITE (penstock/schema/fitting.py): JSON has no other way to write it."""
    if math.isfinite(value):
        return json.dumps(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _nullable(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "null" if value is None else write(value)


def _tag(value: Any) -> bytes:
    return value if isinstance(value, bytes) else b"" if value is None else str(value).encode()


# -- replies ------------------------------------------------------------------------------------------------------


def _described(reply: Any) -> SchemaInfo | None:
    if reply is None:
        return None
    fields = map_fields(reply)
    check = text(fields["check"]) if "check" in fields else None
    return SchemaInfo(fields["version"], fields["since"], text(fields["fields"]), check, fields.get("deadletter"))


SCHEMA_CALLBACKS: dict[str, Callable[..., Any]] = {
    "TSCHEMA GET": _described,
    "TSCHEMA VERSIONS": lambda reply: [_described(version) for version in reply],
}
"""By command name as the methods above spell it."""
