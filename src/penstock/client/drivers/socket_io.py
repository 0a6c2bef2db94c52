"""One open socket of the sync driver: sending and receiving that never wait, also with TLS, which must not do both at
once.

redis-py's connection object opens it and shakes hands (see connecting.py); then it only keeps the socket for us.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from typing import Any

import redis

from penstock.client.drivers.connecting import as_lost, close_half_open, give_up_soon, limit_opening
from penstock.client.drivers.polling import POLLIN, new_poll

READ = 128 * 1024
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ClientSocket:
    """See the top of this file."""

    __slots__ = ("_tls", "raw", "redis_connection")

    def __init__(self, redis_connection: Any, seconds: float | None, silence: float | None) -> None:
        """Open it within so many seconds. Raises what redis-py raises; whatever ends it, also an interrupt, leaves
        nothing open.
        """
        self.redis_connection = redis_connection
        limit_opening(redis_connection, seconds)
        try:
            redis_connection.connect()
            self.raw = redis_connection._sock
            self.raw.setblocking(False)
            give_up_soon(self.raw, silence)
            self._tls = threading.Lock() if isinstance(self.raw, ssl.SSLSocket) else None
        except BaseException as error:
            redis_connection.disconnect()
            close_half_open(error)
            raise

    @staticmethod
    def is_usable(redis_connection: Any) -> bool:
        """See pool_handoff.Driver: one that is still there has nothing to say."""
        poll = new_poll()
        poll.register(redis_connection._sock, POLLIN)
        return not poll.poll(0)

    @staticmethod
    def discard(redis_connection: Any) -> None:
        """See pool_handoff.Driver."""
        redis_connection.disconnect()

    @property
    def has_more(self) -> bool:
        """Whether bytes are here that `poll` does not know of."""
        return self._tls is not None and self.raw.pending() > 0

    def send(self, data: bytes) -> int:
        """How many bytes it has taken."""
        try:
            if self._tls is None:
                return self.raw.send(data)  # type: ignore[no-any-return]
            with self._tls:
                return self.raw.send(data)  # type: ignore[no-any-return]
        except _WOULD_BLOCK:
            pass
        except OSError:
            self.shut_down()  # a thread that waits for this socket is woken by that
        return 0

    def receive(self, room: memoryview | None) -> Any:
        """Receive bytes, or their number if they are in `room`; None if there are none.

        Raises redis-py's errors at the end of the connection.
        """
        try:
            if self._tls is None:
                data = self.raw.recv(READ) if room is None else self.raw.recv_into(room)
            else:
                with self._tls:
                    data = self.raw.recv(READ) if room is None else self.raw.recv_into(room)
        except _WOULD_BLOCK:
            return None
        except OSError as error:
            raise as_lost(error) from error
        if not data:
            raise redis.ConnectionError("the server closed the connection")
        return data

    def shut_down(self) -> None:
        """End it; its number stays taken until `close`."""
        with contextlib.suppress(OSError):
            self.raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.raw.close()
        self.redis_connection._sock = None
        self.redis_connection.disconnect()

    def close_in_child(self) -> None:
        """After a fork: the connection is the parent's, and only our number for it is closed."""
        with contextlib.suppress(OSError):
            os.close(self.raw.detach())
