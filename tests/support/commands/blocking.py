"""Clients of a real server that wait for keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from tests.support.comparison import reply_of


@contextmanager
def waiting(client: redis.Redis, *commands: str) -> Iterator[list[Any]]:
    """Connections on which these commands were sent, in this order, and wait for keys; at the end none waits."""
    others = redis.Redis(connection_pool=redis.ConnectionPool(**client.connection_pool.connection_kwargs))
    connections = []
    try:
        for number, text in enumerate(commands, 1):
            connection = others.connection_pool.get_connection()
            connections.append(connection)
            connection.send_command(*text.split())
            until_blocked(client, number)
        yield connections
    finally:
        for connection in connections:
            connection.disconnect()
        until_blocked(client, 0)  # one that the server has not yet seen leave would be served in the next test


def until_blocked(client: redis.Redis, count: int) -> None:
    until = time.monotonic() + 60
    while (blocked := sum("b" in row["flags"] for row in client.client_list())) != count:
        assert time.monotonic() < until, f"{blocked} clients are blocked, not {count}"


def answer(connection: Any) -> Any:
    return connection.read_response(disable_decoding=True, timeout=60)


def call(client: redis.Redis, text: str) -> Any:
    return reply_of(client, text.encode().split())
