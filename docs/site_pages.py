"""A hook of mkdocs: files from outside of docs/, and the lists of pages in the navigation.

ARCHITECTURE.md and CONTRIBUTING.md are in the root, where contributors look for them. The site shows them too, and so
it does with the examples that guides link to. A folder in the navigation (`commands/`) stands for all of its pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md"}


def on_config(config: Any) -> None:
    """Replace each folder in the navigation by its pages."""
    _expand(config.nav)


def _expand(entries: list[Any]) -> None:
    for entry in entries:
        for title, target in entry.items():
            if isinstance(target, list):
                _expand(target)
            elif target.endswith("/"):
                folder = ROOT / "docs" / target
                pages = sorted(folder.glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
                entry[title] = [f"{target}{page.name}" for page in pages]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, whose links begin in the root, and the examples."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, its_page in PAGES.items():
            text = text.replace(f"]({other})", f"]({its_page})")
        files.append(File.generated(config, page, content=text))
    for example in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{example.name}", content=example.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """In the repository these files are beside docs/, on the site they are inside."""
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../{name})", f"]({page})")
    return markdown.replace("](../examples/", "](examples/")
