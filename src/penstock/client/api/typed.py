"""The entries of a table as typed columns, by the schema of their stream.

The server sends the schema with the messages (TREAD ... FORMAT ARROW WITHINFO), so one reply has both: no message in it
can have been written under a newer version. That also lets a pipeline ask for typed columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BAD_ENTRIES = ("fail", "null", "drop")
"""What to do about entries that do not fit."""


class BadEntry(ValueError):
    """An entry that is not what the schema of its stream says; names the stream and the offset."""


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """Makes typed columns of the entries of tables that were read with WITHINFO."""

    key: Any
    bad_entries: str = "fail"

    def __post_init__(self) -> None:
        if self.bad_entries not in BAD_ENTRIES:
            raise ValueError(f"bad_entries={self.bad_entries!r}: it is one of {', '.join(BAD_ENTRIES)}")

    def check_group(self, retry_ms: int | None) -> None:
        """ValueError for a read by a group that could lose messages whose entries do not fit."""
        if retry_ms is None:
            raise ValueError(
                "typed=True with a group needs retry_ms: without it the server takes the messages for done before "
                "their entries are read, and one that does not fit would lose the others too"
            )
        if self.bad_entries == "drop":
            raise ValueError(
                "bad_entries='drop' with a group would hide offsets that must be acknowledged; use 'null' and look at "
                "the rows"
            )

    def of(self, table: Any) -> Any:
        """The columns offset, time, tag, and the fields of the schema.

        BadEntry, or ValueError if there is no schema.
        """
        import pyarrow as pa

        from penstock.schema.arrow_types import arrow_schema
        from penstock.schema.columns import column_of
        from penstock.schema.json_entries import JsonEntries
        from penstock.schema.parser import parse

        info = table.schema.metadata or {}
        if info and b"schema" not in info:
            raise ValueError(
                f"the stream {self._name()} has no schema: set one with tschema_set, or read raw entries, without typed"
            )
        fields = arrow_schema(parse(info[b"schema"].decode())) if info else pa.schema([])  # no info: nothing came
        raw = table.combine_chunks()
        columns: list[Any] = [raw.column(name) for name in ("offset", "time", "tag")]
        columns[1] = columns[1].cast(pa.timestamp("ms", tz="UTC"))
        bad: dict[int, str] = {}
        if len(fields):
            rows, bad = JsonEntries(fields).read(_entries(raw))
            columns += rows.columns
        if bad and self.bad_entries == "fail":
            at, why = min(bad.items())
            raise self._bad(raw, at, why)
        names = ["offset", "time", "tag", *(column_of(field.name) for field in fields)]
        kinds = [column.type for column in columns]
        is_nullable = [False, False, False, *(field.nullable or self.bad_entries == "null" for field in fields)]
        wanted = pa.schema(list(map(pa.field, names, kinds, is_nullable)), info or None)
        if bad and self.bad_entries == "drop":
            fits = pa.array([at not in bad for at in range(raw.num_rows)], pa.bool_())
            columns = [column.filter(fits) for column in columns]
        return pa.Table.from_arrays(columns, schema=wanted)

    def _bad(self, raw: Any, at: int, why: str) -> BadEntry:
        offset, entry = raw.column("offset")[at].as_py(), raw.column("entry")[at].as_py()
        return BadEntry(
            f"stream {self._name()}, offset {offset}: {why}. The entry begins with {entry[:80]!r}. "
            "bad_entries='null' gives nulls for it, 'drop' no row"
        )

    def _name(self) -> str:
        return repr(self.key.decode(errors="replace") if isinstance(self.key, bytes) else self.key)


def _entries(table: Any) -> Any:
    import pyarrow as pa

    column = table.column("entry")
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
