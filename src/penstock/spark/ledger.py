"""Which flow has filled each table of files: a line in the project's state, for what Spark itself does not notice.

A table of files keeps with its files which numbers of batches it has, and a flow of another name begins with batch 0. So rows of a flow
that was renamed would be taken for rows that are there, and lost without a word. The ledger knows the name of the flow that the
table has its batches from; another is refused until the table is emptied.

A table that is new is entered before its first run, one that is emptied after: a run that dies in between leaves a ledger that is too
strict, never one that is too lax.

Rejected: looking into Spark's checkpoints. They say which flows there ever were, not which of them the table has its batches from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path


class Ledger:
    """The names of flows by table, both in full, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def flows(self) -> dict[str, str]:
        try:
            known: dict[str, str] = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return known

    def enter_new(self, flows: Mapping[str, str], emptied: Iterable[str]) -> None:
        """A run begins: tables that nobody has filled yet."""
        known = self.flows()
        left = set(emptied)
        self._write({**{table: flow for table, flow in flows.items() if table not in left}, **known})

    def enter_emptied(self, flows: Mapping[str, str], emptied: Iterable[str]) -> None:
        """A run has come to its end: tables that it emptied and filled anew."""
        self._write({**self.flows(), **{table: flows[table] for table in emptied if table in flows}})

    def _write(self, flows: Mapping[str, str]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(f".{os.getpid()}")  # renamed when it is whole
        fresh.write_text(json.dumps(flows, indent=1, sort_keys=True), encoding="utf-8")
        fresh.replace(self._file)
