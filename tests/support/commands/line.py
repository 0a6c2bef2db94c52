"""One connection, for commands that belong together."""

from __future__ import annotations

from typing import Any

import redis


class Line:
    """One connection of a client, for commands that belong together; errors come back as values."""

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()

    def __call__(self, *argv: Any) -> Any:
        self._connection.send_command(*argv)
        return self.read()

    def read(self) -> Any:
        try:
            return _plain(self._connection.read_response(disable_decoding=True))
        except redis.ResponseError as error:
            return _plain(error)

    def close(self) -> None:
        self._connection.disconnect()
        self._pool.release(self._connection)


def _plain(reply: Any) -> Any:
    if isinstance(reply, redis.ResponseError):
        return f"{type(reply).__name__} {reply}"
    return [_plain(item) for item in reply] if isinstance(reply, list) else reply
