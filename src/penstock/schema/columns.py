"""The columns of a message beside the fields of its entry, and how a field is called that has one of their names.

A message has stream, offset, time, tag and entry. An entry may have a field `time` as well: its column is `entry_time`,
when rows are read and when they are written. A field that is itself called `entry_time` becomes `entry_entry_time`, so
no two fields share a column. Case does not tell names apart: Spark does not.

Rejected: to refuse such streams. `time` and `tag` are names that entries often have.
"""

from __future__ import annotations

import re

OWN = ("stream", "offset", "time", "tag", "entry")
_PREFIX = "entry_"
_TAKEN = re.compile(f"(?:{_PREFIX})*(?:{'|'.join(OWN)})", re.IGNORECASE)
_MOVED = re.compile(f"(?:{_PREFIX})+(?:{'|'.join(OWN)})", re.IGNORECASE)


def column_of(field: str) -> str:
    """The name of the column that has a field.

    >>> column_of("user"), column_of("time"), column_of("entry_time")
    ('user', 'entry_time', 'entry_entry_time')
    """
    return _PREFIX + field if _TAKEN.fullmatch(field) else field


def field_of(column: str) -> str:
    """The name of the field that a column has.

    >>> field_of("user"), field_of("entry_time"), field_of("entry_entry_time")
    ('user', 'time', 'entry_time')
    """
    return column[len(_PREFIX) :] if _MOVED.fullmatch(column) else column
