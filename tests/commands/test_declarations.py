"""The declarations of commands have one layout: the arguments in one order, placed by the formatter."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock.commands
from penstock.engine.declarations import command

FILES = sorted(Path(penstock.commands.__path__[0]).glob("*.py"))
ORDER = list(inspect.signature(command).parameters)


def declarations(path: Path) -> Iterator[ast.Call]:
    """Every use of `@command` in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "command":
                yield decorator


def test_declarations_are_found() -> None:
    assert sum(1 for path in FILES for _ in declarations(path)) > 300


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_arguments_have_the_order_of_the_signature(path: Path) -> None:
    for call in declarations(path):
        name, *others = map(ast.unparse, call.args)
        assert not others, f"{name}: only the name is positional"
        given = [keyword.arg for keyword in call.keywords]
        assert given == [word for word in ORDER if word in given], f"{name} declares {given}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_formatter_places_the_arguments(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for call in declarations(path):
        assert "fmt:" not in lines[(call.end_lineno or 0) - 1], f"line {call.lineno} is hidden from the formatter"
