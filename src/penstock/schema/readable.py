"""Whether a field of a stream's schema can be read as a type that a reader asks for.

A reader may ask for another type than the schema has: a number as text, a text as a time. Only what can never be read
is a contradiction; a value that does not fit by itself is a bad entry.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as is_

from penstock.schema.fields import Type

_FORMS = {
    "boolean": "boolean", "string": "text", "binary": "text", "date": "text", "timestamp": "text",
    "timestamp_ntz": "text", "array": "array", "map": "object", "struct": "object",
}  # fmt: skip
"""What the values of a type are in JSON; those of all others are numbers."""


def can_be_read(kind: Type, wanted: pa.DataType) -> bool:
    """Whether some values of a type of a schema can be read as a type of Arrow, by the rules of `json_values.py`."""
    form = _FORMS.get(kind.name, "number")
    if is_.is_string(wanted):
        return True
    if is_.is_boolean(wanted):
        return form == "boolean"
    if is_.is_list(wanted):
        return kind.name == "array" and can_be_read(kind.parts[0], wanted.value_type)
    if is_.is_map(wanted):
        values = kind.parts[1:] or tuple(field.type for field in kind.fields)
        return form == "object" and all(can_be_read(value, wanted.item_type) for value in values)
    if is_.is_struct(wanted):
        inner = {field.name: field.type for field in kind.fields}
        asked = {field.name: field.type for field in wanted}
        return form == "object" and all(
            can_be_read(inner.get(name, kind.parts[-1] if kind.parts else Type("string")), asked[name])
            for name in asked
            if name in inner or kind.parts
        )
    if is_.is_decimal(wanted) or (is_.is_timestamp(wanted) and wanted.tz is not None):
        return form in ("number", "text")
    return form == ("text" if is_.is_binary(wanted) or is_.is_temporal(wanted) else "number")
