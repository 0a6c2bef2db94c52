"""Doctests are looked for only where there are examples.

`--doctest-modules` imports every module in every process of pytest and searches its classes, and one file in nine has
an example. test_layers.py imports the others, once.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[Any], list[Any]]:
    found = yield
    if not any(isinstance(each, DoctestModule) for each in found) or ">>>" in file_path.read_text(encoding="utf-8"):
        return found
    return [each for each in found if not isinstance(each, DoctestModule)]
