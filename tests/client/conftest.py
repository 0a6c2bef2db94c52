"""`connect(url, **options)` makes a client, sync and then asyncio, and closes it when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.clients import MAKERS
from tests.client.door import Door

Connect = Callable[..., Any]


@pytest.fixture(params=list(MAKERS))
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    made: list[Any] = []

    def make(url: str, **options: Any) -> Any:
        made.append(MAKERS[request.param](url, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Connect, peer: str) -> Any:
    """A client of an empty server: ours and a real Redis, sync and asyncio."""
    made = connect(peer)
    made.flushall()
    return made


@pytest.fixture
def door(peer: str) -> Iterator[Door]:
    with Door(int(peer.rpartition(":")[2].split("/")[0])) as made:
        yield made
