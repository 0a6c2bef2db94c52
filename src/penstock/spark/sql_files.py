"""Finds the declarations in a project's SQL files: names, targets and lines, for messages and for the lint.

Spark itself parses these files, on its server, and does not tell what it found. This reads only the heads of
statements, so a few patterns do; a statement they do not know is left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NOT_CODE = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAME = r"(?P<name>(?:`[^`]+`|\w+)(?:\s*\.\s*(?:`[^`]+`|\w+))*)"
_FLOW = re.compile(
    rf"\s*CREATE\s+FLOW\s+{_NAME}.*?\bINSERT\s+INTO\s+(?:ONCE\s+)?{_NAME.replace('name', 'target')}", re.I | re.S
)
_TABLE = re.compile(
    r"\s*CREATE\s+(?:OR\s+REFRESH\s+)?(?P<kind>STREAMING\s+TABLE|MATERIALIZED\s+VIEW|TEMPORARY\s+VIEW)"
    rf"\s+(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}",
    re.I | re.S,
)
_QUERY = re.compile(r"\bAS\s*(?:\(|SELECT\b|WITH\b|FROM\b|TABLE\b|VALUES\b)", re.I)
_FORMAT = re.compile(r"\bUSING\s+(\w+)", re.I)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that declares a table, a view or a flow."""

    line: int
    begins: int  # the line on which the statement before it ends: Spark counts the lines of a statement from there
    flow: str | None  # the name of the flow it declares, if it declares one
    target: str  # the table or view it declares or writes to
    table: bool  # it declares one, or a materialized view
    streaming_table: bool
    format: str | None = None


def statements(text: str) -> Iterator[Statement]:
    """The declarations of a file.

    >>> [each.flow for each in statements("CREATE STREAMING TABLE t; CREATE FLOW f AS INSERT INTO t BY NAME SELECT 1")]
    [None, 'f']
    """
    code = _NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    at = 0
    for part in code.split(";"):
        begins = code.count("\n", 0, at) + 1
        line = code.count("\n", 0, at + len(part) - len(part.lstrip())) + 1
        at += len(part) + 1
        if flow := _FLOW.match(part):
            yield Statement(
                line, begins, plain(flow["name"]), plain(flow["target"]), table=False, streaming_table=False
            )
        elif table := _TABLE.match(part):
            head = part[table.end() :]
            query = _QUERY.search(head)
            format = _FORMAT.search(head[: query.start()] if query else head)
            name = plain(table["name"])
            kind = table["kind"].upper()
            yield Statement(
                line,
                begins,
                name if query else None,
                name,
                table=not kind.startswith("TEMPORARY"),
                streaming_table=kind.startswith("STREAMING"),
                format=format[1] if format else None,
            )


def plain(name: str) -> str:
    """A name without the quotes around its parts.

    >>> plain("`spark_catalog` . default.`a b`")
    'spark_catalog.default.a b'
    """
    return ".".join(part.strip().strip("`") for part in name.split("."))


def short(name: str) -> str:
    """A table's name without the default catalog and database.

    >>> short("spark_catalog.default.clicks"), short("lake.sales.clicks")
    ('clicks', 'lake.sales.clicks')
    """
    return name.removeprefix("spark_catalog.").removeprefix("default.")
