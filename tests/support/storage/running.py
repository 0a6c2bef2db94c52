"""A server on a folder, and what it says of its snapshots and logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from penstock import Server


@contextmanager
def running(folder: Path, **directives: object) -> Iterator[tuple[Server, redis.Redis]]:
    with Server(dir=folder, **directives) as server, redis.Redis.from_url(server.url) as client:
        yield server, client


def info(server: Server) -> dict[str, int | str]:
    return server.call(lambda app: app.persistence.info())


def turn_the_loop(server: Server) -> None:
    """Return when a reply that the server was free to send has left: its loop sends within two turns."""
    for _ in range(3):
        server.call(lambda app: None)
