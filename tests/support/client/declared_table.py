"""Writes src/penstock/client/engine/declared.py from the declarations of the server's commands.

.venv/bin/python -m tests.support.client.declared_table
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import penstock.client.engine
from penstock import commands
from penstock.commands.once import may_run_once
from penstock.engine.declarations import REGISTRY, Command, Flag

PATH = Path(penstock.client.engine.__file__).parent / "declared.py"

_HEAD = '''"""Facts from the declarations of Penstock's commands that a client needs before it asks a server.

Written by `python -m tests.support.client.declared_table`; tests/client/test_declared.py compares it with the
declarations. The client does not import them: it does not need the server (docs/design/0001-layers.md). Commands that
only Redis and Valkey have are listed where this table is used.
"""

from __future__ import annotations
'''


def _counted(command: Command) -> tuple[int, int | None] | None:
    """Where the number of keys stands, and where one more key does."""
    counted = [spec.count_at for spec in command.keys if spec.count_at]
    fixed = [spec.first for spec in command.keys if not spec.movable]
    return (counted[0], fixed[0] if fixed else None) if counted else None


def text() -> str:
    """What the file should hold."""
    commands.load()
    own = [command for command in REGISTRY.by_name.values() if not command.of_module]
    subcommands = [sub for command in own for sub in command.subcommands.values()]
    lines = [_HEAD]

    def names(name: str, found: Iterable[str], what: str) -> None:
        rows = "".join(f'        "{word}",\n' for word in sorted(found))
        lines.append(f'\n{name} = frozenset(\n    {{\n{rows}    }}\n)\n"""{what}"""\n')

    def table(name: str, kind: str, rows: dict[str, object], what: str) -> None:
        text = "".join(f'    "{word}": {value},\n' for word, value in sorted(rows.items()))
        lines.append(f'\n{name}: dict[str, {kind}] = {{\n{text}}}\n"""{what}"""\n')

    names(
        "CONTAINERS",
        [command.name for command in own if command.subcommands],
        "Commands whose second word names a subcommand.",
    )
    names(
        "BLOCKING",
        [command.name for command in (*own, *subcommands) if Flag.BLOCKING in command.flags],
        "Commands that may wait on the server.",
    )
    table(
        "KEYED_SUBCOMMANDS",
        "tuple[int, int, int]",
        {sub.name: (spec.first, spec.last, spec.step) for sub in subcommands for spec in sub.keys[:1]},
        "Subcommands with keys: the place of the first and of the last key (negative: from the end), and the step.",
    )
    table(
        "COUNTED_KEYS",
        "tuple[int, int | None]",
        {command.name: found for command in own if (found := _counted(command))},
        "Commands with `numkeys key [key ...]`: the place of numkeys, and that of one more key.",
    )
    table(
        "PREFIXES",
        "int",
        {command.name: spec.inner for command in own for spec in command.keys if spec.inner},
        "Commands that run another command: the place of its name.",
    )
    names(
        "FOUND_KEYS",
        [command.name for command in own if any(spec.find for spec in command.keys)],
        "Commands whose keys only their options tell.",
    )
    names(
        "UNFLAGGED_WRITES",
        [each.name for each in (*own, *subcommands) if Flag.WRITE not in each.flags and may_run_once(each)],
        "Commands that run what they are given, or reach others: writes for ONCE, although COMMAND does not say so.",
    )
    names(
        "COMMANDS",
        [each.name for each in (*own, *subcommands)],
        "All commands and subcommands.",
    )
    names(
        "WRITES",
        [each.name for each in (*own, *subcommands) if each.writes],
        "Those of them that COMMAND calls writes.",
    )
    return "".join(lines)


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
