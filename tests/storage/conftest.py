"""Fixtures of the tests of storage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.storage.history import numbered_entries
from tests.support.storage.slow_reads import SlowReads


@pytest.fixture(scope="module")
def entries() -> list[bytes]:
    """Messages that fill a few segments."""
    return numbered_entries()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowReads]:
    """Files of history that are read when the test says so."""
    disk = SlowReads(monkeypatch)
    yield disk
    disk.open.set()
