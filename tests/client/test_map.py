"""The map of the client's modules, in the docstring of the package, is complete."""

from __future__ import annotations

import re
from pathlib import Path

import penstock.client


def test_the_map_names_every_module_and_nothing_else() -> None:
    folder = Path(penstock.client.__file__).parent
    modules = {path.stem for path in folder.rglob("*.py") if "cluster" not in path.parts and path.stem != "__init__"}
    text = (penstock.client.__doc__ or "").partition("Arrows point")[2]
    named = {word for word in re.findall(r"[a-z_]+", text) if (word in modules)}
    assert named == modules
    first_words = re.findall(r"^        (\w+)  ", text, re.MULTILINE)
    assert set(first_words) <= modules
