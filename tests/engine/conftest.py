"""An engine without sockets whose slow commands are done when the test says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.engine.lock_world import Slow, World


@pytest.fixture
def world(slow: Slow) -> Iterator[World]:
    world = World()
    yield world
    slow.go.set()
    world.engine.lazy.check()
    world.close()
