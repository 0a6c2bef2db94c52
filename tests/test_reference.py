"""The reference pages say what the declarations say, and nothing is undocumented."""

from __future__ import annotations

from pathlib import Path

from penstock import commands
from penstock.engine.declarations import REGISTRY
from penstock.engine.directives import DIRECTIVES
from penstock.reference import pages

DOCS = Path(__file__).parent.parent / "docs"


def test_pages_on_disk_are_what_the_declarations_say() -> None:
    for name, text in pages().items():
        assert (DOCS / name).exists(), f"docs/{name} is missing: run `make docs`"
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"docs/{name} is out of date: run `make docs`"


def test_no_page_is_left_of_a_command_that_went() -> None:
    assert {f"commands/{path.name}" for path in (DOCS / "commands").glob("*.md")} == {
        name for name in pages() if name.startswith("commands/")
    }


def test_every_command_has_a_heading_a_syntax_and_a_cost() -> None:
    commands.load()
    for command in REGISTRY.walk():
        if not command.subcommands:
            page = (DOCS / "commands" / f"{command.group}.md").read_text(encoding="utf-8")
            assert f"## {command.name}\n" in page, f"{command.name} has no page: run `make docs`"
            assert command.summary and command.cost, command.name


def test_every_directive_is_documented() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    for directive in DIRECTIVES.values():
        assert f"## {directive.name}\n" in page, f"{directive.name} is undocumented: run `make docs`"
        assert directive.help.endswith("."), directive.name
