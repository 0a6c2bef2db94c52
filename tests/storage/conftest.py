"""Fixtures of the tests of storage."""

from __future__ import annotations

import pytest
from tests.support.storage.history import numbered_entries


@pytest.fixture(scope="module")
def entries() -> list[bytes]:
    """Messages that fill a few segments."""
    return numbered_entries()
