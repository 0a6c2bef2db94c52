"""Imports point one way (docs/design/0001-layers.md), and no class holds more than one idea."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent / "src" / "penstock"

# What each layer may import of the others; its own modules it always may.
ALLOWED: dict[str, set[str]] = {
    "protocol": set(),
    "schema": set(),
    "types": {"schema"},
    "client": {"protocol", "schema"},
    "engine": {"protocol", "types"},
    "commands": {"protocol", "schema", "types", "engine"},
    "storage": {"protocol", "types", "engine", "commands"},
    "replication": {"protocol", "types", "engine", "commands", "storage"},
    "server": {"protocol", "types", "engine", "commands", "storage", "replication"},
    "shard": {"protocol", "engine"},
    "testing": {"protocol", "types", "engine", "server", "spark"},
    "spark": {"protocol", "schema", "client"},
    "bench": {"protocol", "client", "testing", "spark"},
    "demo": {"protocol"},
    "console": {"protocol", "schema", "client"},
    "cli": {
        "protocol",
        "schema",
        "client",
        "types",
        "engine",
        "commands",
        "storage",
        "server",
        "testing",
        "bench",
        "spark",
        "demo",
        "console",
        "shard",
    },
}


MOST_METHODS = 30
"""A class with more holds more than one idea: cut it where the seam is. No class is exempt."""


def _modules(path: Path) -> set[str]:
    """Modules that a module imports, and names of them, also inside functions and for types only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _imports(path: Path) -> set[str]:
    """Layers that a module imports."""
    return {name.split(".")[1] for name in _modules(path) if name.startswith("penstock.")}


def test_every_folder_is_a_layer() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert folders <= set(ALLOWED), "a new layer needs its row in ALLOWED"


@pytest.mark.parametrize("layer", ALLOWED)
def test_imports_point_one_way(layer: str) -> None:
    folders = set(ALLOWED)
    for path in (ROOT / layer).rglob("*.py"):
        wrong = (_imports(path) & folders) - ALLOWED[layer] - {layer}
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


def test_tests_share_by_way_of_support_alone() -> None:
    """A test or a conftest imports no other, and what they share, in tests/support, imports neither."""
    for path in TESTS.rglob("*.py"):
        is_shared = path.is_relative_to(TESTS / "support")
        is_test = path.name.startswith("test_") or path.name == "conftest.py"
        assert is_shared != is_test, f"{path.relative_to(TESTS)} is on the wrong side of tests/support"
        found = {name for name in _modules(path) if name.startswith("tests.")}
        wrong = {name for name in found if not f"{name}.".startswith("tests.support.")}
        assert not wrong, f"{path.relative_to(TESTS)} imports {', '.join(sorted(wrong))}"


def test_types_know_no_resp() -> None:
    for path in (ROOT / "types").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = isinstance(node, ast.Constant) and isinstance(node.value, bytes) and b"\r\n" in node.value
            assert not found, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} writes RESP"


def test_no_class_is_more_than_one_idea() -> None:
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
                assert len(methods) <= MOST_METHODS, f"{node.name} in {path.relative_to(ROOT)}: {len(methods)} methods"


def test_every_module_can_be_imported() -> None:
    """The search for doctests imports only modules with examples."""
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if not {"template", "project", "__main__"} & set(parts):
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
