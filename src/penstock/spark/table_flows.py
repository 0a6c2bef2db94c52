"""The file that says which flow has filled each table of files, because Spark itself does not notice.

A table of files keeps the numbers of its batches with its files, and a flow of another name begins with batch 0. Spark
would take the rows of a renamed flow for rows that the table has, and lose them without an error. This file has the
name of the flow that filled the table; a flow of another name is refused until the table is emptied.

A new table is entered before its first run, an emptied one after its run. If a run dies in between, the file refuses
too much, never too little.

Rejected: looking into Spark's checkpoints. They say which flows there ever were, not which of them filled the table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path


class TableFlows:
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
        """A run begins: enter the tables that no flow has filled yet."""
        known = self.flows()
        left = set(emptied)
        self._write({**{table: flow for table, flow in flows.items() if table not in left}, **known})

    def enter_emptied(self, flows: Mapping[str, str], emptied: Iterable[str]) -> None:
        """A run has ended: enter the tables that it emptied and filled again."""
        self._write({**self.flows(), **{table: flows[table] for table in emptied if table in flows}})

    def _write(self, flows: Mapping[str, str]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(f".{os.getpid()}")  # renamed when it is whole
        fresh.write_text(json.dumps(flows, indent=1, sort_keys=True), encoding="utf-8")
        fresh.replace(self._file)
