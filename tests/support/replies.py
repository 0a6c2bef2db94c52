"""Replies as they came, without what redis-py makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import redis


def error_of(client: redis.Redis, *argv: Any) -> str:
    """The text of the error that a command must get."""
    with pytest.raises(redis.ResponseError) as caught:
        client.execute_command(*argv)
    return str(caught.value)


def raw(client: redis.Redis, *argv: str) -> Any:
    """A reply that no response callback has touched."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*argv)
        return connection.read_response()
    finally:
        client.connection_pool.release(connection)
