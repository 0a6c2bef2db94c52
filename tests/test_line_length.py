"""Lines are short where ruff does not look: in prose, Cython, Lua and the console's JavaScript."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST = 120
GENERATED = "<!-- Written by `make docs`"
"""How a page begins that penstock/reference.py writes, with a paragraph of a docstring in a line."""

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
SOURCES = [path for kind in ("pyx", "lua", "js") for path in (ROOT / "src").rglob(f"*.{kind}")]


def _prose(page: str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a page, without tables, code, pictures and lines that are one long word, such as an address."""
    in_code = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and " " in line.strip() and not re.match(r"\||    |!\[", line):
            yield number, line


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", sorted(PAGES), ids=_name)
def test_no_line_of_prose_is_longer_than_a_line_of_python(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if not text.startswith(GENERATED):
        assert [f"{page.name}:{number}" for number, line in _prose(text) if len(line) > LONGEST] == []


@pytest.mark.parametrize("source", sorted(SOURCES), ids=_name)
def test_no_line_of_cython_lua_or_javascript_is_longer_than_one_of_python(source: Path) -> None:
    lines = enumerate(source.read_text(encoding="utf-8").splitlines(), 1)
    assert [f"{source.name}:{number}" for number, line in lines if len(line) > LONGEST] == []
