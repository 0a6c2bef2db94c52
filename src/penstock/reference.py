"""The reference pages in docs/, written from the declarations: `python -m penstock.reference docs`.

A page cannot rot: tests/test_reference.py fails when the pages on disk are not what this writes.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from penstock import commands
from penstock.engine.concurrency.lazy_rules import never, sometimes
from penstock.engine.declarations import REGISTRY, Access, Command
from penstock.engine.directives import DIRECTIVES
from penstock.server import log_events
from penstock.server.metrics.collector import families

NOTE = "<!-- Written by `make docs` from the declarations in the source; changes made here are lost. -->\n"

GROUPS = {
    "string": "Strings",
    "bitmap": "Bitmaps",
    "hash": "Hashes",
    "list": "Lists",
    "set": "Sets",
    "sorted-set": "Sorted sets",
    "xstream": "Redis streams (without groups)",
    "once": "Exactly once",
    "stream": "Streams",
    "generic": "Keys of any type",
    "transactions": "Transactions",
    "pubsub": "Publish and subscribe",
    "scripting": "Scripts",
    "connection": "Connection and clients",
    "cluster": "Cluster",
    "server": "Server",
}


def pages() -> dict[str, str]:
    """Path below docs/ to text."""
    commands.load()
    found = sorted(REGISTRY.walk(), key=lambda command: (command.group, command.name))
    written = {
        "configuration.md": _directives(), "commands/index.md": _index(found), "lazy-commands.md": _lazy(found),
        "metrics-list.md": _metrics(), "log-events.md": _log_events(),
    }  # fmt: skip
    for group, members in groupby(found, key=lambda command: command.group):
        written[f"commands/{group}.md"] = _group(group, [command for command in members if not command.subcommands])
    return written


def _index(found: list[Command]) -> str:
    lines = [NOTE, "# Commands\n"]
    for group, members in groupby(found, key=lambda command: command.group):
        lines.append(f"## [{_title(group)}]({group}.md)\n")
        for command in members:
            if not command.subcommands:
                lines.append(f"- [{command.name}]({group}.md#{_anchor(command)}): {command.summary}")
        lines.append("")
    return "\n".join(lines)


def _title(group: str) -> str:
    return GROUPS.get(group, group.replace("-", " ").capitalize())


def _anchor(command: Command) -> str:
    return command.name.lower().replace(" ", "-")


def _group(group: str, members: list[Command]) -> str:
    return "\n".join([NOTE, f"# {_title(group)}\n", *(_command(command) for command in members)])


def _command(command: Command) -> str:
    facts = [("Cost", command.cost), ("Since", command.since)]
    if command.keys:
        facts.append(("Keys", ", ".join(_access(spec.access) for spec in command.keys)))
    if command.flags.words:
        facts.append(("Flags", ", ".join(command.flags.words)))
    facts.append(("ACL categories", ", ".join(f"@{name}" for name in sorted(command.categories))))
    rows = "\n".join(f"- **{name}:** {text}" for name, text in facts)
    return f"## {command.name}\n\n    {f'{command.name} {command.syntax}'.rstrip()}\n\n{command.summary}\n\n{rows}\n"


def _lazy(found: list[Command]) -> str:
    lines = [
        NOTE,
        "# Which commands may be LAZY\n",
        "A command may be [LAZY](lazy.md) if it changes only keys that its arguments name, and its result depends only",
        "on these keys and the arguments. The others are refused, with the reason given here.\n",
        "| command | may be LAZY |",
        "|---|---|",
    ]
    for command in found:
        if not command.subcommands:
            why, exceptions = never(command), sometimes(command)
            verdict = f"no: it {why}" if why is not None else "yes"
            verdict += "".join(f"; not when it {each}" for each in exceptions) if why is None else ""
            lines.append(f"| [{command.name}](commands/{command.group}.md#{_anchor(command)}) | {verdict} |")
    return "\n".join(lines) + "\n"


def _metrics() -> str:
    lines = [
        NOTE,
        "# Every metric\n",
        "[Metrics](metrics.md) says how to turn them on, and what their labels are. Names that begin with `redis_` are",
        "those of redis_exporter, and mean the same as there.\n",
        "| metric | kind | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {kind} | {text} |" for name, kind, text in families()),
    ]
    return "\n".join(lines) + "\n"


def _log_events() -> str:
    lines = [
        NOTE,
        "# Every event of the log\n",
        "With `log-format json` each line of the server's log is an object. `event` is one of these names, which do",
        "not change; the fields have the values of the text. [More](metrics.md#logs)\n",
        "| event | level | fields | text | meaning |",
        "|---|---|---|---|---|",
    ]
    for event in log_events.ALL:
        fields = ", ".join(f"`{field}`" for field in event.fields)
        lines.append(f"| `{event.name}` | {event.level} | {fields} | {event.text} | {event.help} |")
    return "\n".join(lines) + "\n"


def _access(access: Access) -> str:
    return {Access.READ: "read", Access.WRITE: "written", Access.UPDATE: "read and written"}[access]


def _directives() -> str:
    lines = [
        NOTE,
        "# Configuration\n",
        "Directives are set in a file, one a line (`port 7000`), or on the command line (`penstock serve --port",
        "7000`), which wins. `CONFIG GET` shows them, `CONFIG SET` changes those marked *at run time*, and",
        "`CONFIG REWRITE` writes them back to the file.\n",
    ]
    for directive in DIRECTIVES.values():
        when = "at run time" if directive.mutable else "at start only"
        lines.append(f"## {directive.name}\n\n{directive.help}\n\n- **Value:** {directive.kind.name}")
        lines.append(f"- **Default:** `{directive.default_text}`\n- **Changes:** {when}\n")
    return "\n".join(lines)


def main(folder: str) -> None:
    """Write every page, and remove pages of commands that are no more."""
    root = Path(folder)
    written = pages()
    for stale in (root / "commands").glob("*.md"):
        if f"commands/{stale.name}" not in written:
            stale.unlink()
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
