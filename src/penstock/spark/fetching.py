"""Large replies, one after the other, as fast as a socket gives them: the next is asked for while the last is worked on.

A reply of many megabytes goes through redis-py in pieces of 64 KB, each copied twice. Here it is received into one block of
the size that its header tells, and nothing is copied. That, and asking ahead, is what this is for; connecting, logging in and
TLS are redis-py's.
"""

from __future__ import annotations

from typing import Any

import redis

Words = tuple[str | bytes | int, ...]
_HEADER = 64  # bytes that certainly have the length of a bulk string, or the beginning of an error
_END = b"\r\n"


class Fetcher:
    """One connection; commands whose replies are bulk strings."""

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self._ahead: Words | None = None  # asked for, and not read yet

    def ask_ahead(self, words: Words) -> None:
        """Send a command that `fetch` will be called for next. A failure shows then."""
        try:
            self._send(words)
        except (OSError, redis.ConnectionError, redis.TimeoutError):
            self.close()

    def fetch(self, words: Words) -> memoryview:
        """The reply to a command."""
        try:
            if self._ahead != words:
                if self._ahead is not None:
                    self.close()  # whatever is on its way is no longer wanted
                self._send(words)
            reply = self._receive()
        except OSError as error:
            self.close()
            raise redis.ConnectionError(str(error)) from error
        except (redis.ConnectionError, redis.TimeoutError):
            self.close()
            raise
        self._ahead = None
        return reply

    def _send(self, words: Words) -> None:
        if self._connection is None:
            self._connection = self._pool.get_connection()
        self._connection.send_command(*words, check_health=False)
        self._ahead = words

    def _receive(self) -> memoryview:
        sock = self._connection._sock
        head = b""
        while _END not in head:
            piece = sock.recv(_HEADER)
            if not piece:
                raise redis.ConnectionError("the server closed the connection")
            head += piece
        line, _, rest = head.partition(_END)
        if not line.startswith(b"$"):
            self._ahead = None
            raise redis.ResponseError(line[1:].decode(errors="replace"))
        size = int(line[1:])
        block = bytearray(size + len(_END))
        block[: len(rest)] = rest
        view, filled = memoryview(block), len(rest)
        while filled < len(block):
            received = sock.recv_into(view[filled:])
            if not received:
                raise redis.ConnectionError("the server closed the connection in the middle of a reply")
            filled += received
        return view[:size]

    def close(self) -> None:
        """Give the connection up."""
        if self._connection is not None:
            self._connection.disconnect()
            self._pool.release(self._connection)
        self._connection = self._ahead = None
