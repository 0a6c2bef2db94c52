"""The right to write to the socket that threads share: one thread at a time has it, or unsent bytes keep it.

All methods are called with the lock of the connection held. The right is taken before the bytes are taken from the
core: if the thread is interrupted in between, no other thread writes later bytes to this socket before the connection
is ended.
"""

from __future__ import annotations

from threading import get_ident
from typing import NamedTuple

from penstock.client.drivers.socket_io import ClientSocket
from penstock.client.engine.connection import ConnectionCore


class Write(NamedTuple):
    """Bytes that one thread has the right to write, and the socket."""

    data: bytes
    sock: ClientSocket


class WriteTurn:
    """See the top of this file."""

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self.is_taken = False
        self.rest = b""
        """Bytes that the socket did not take."""
        self.sending: ClientSocket | None = None
        """The socket that a thread is in `send` on."""
        self._sender = 0

    def claim(self, sock: ClientSocket | None) -> Write | None:
        """What this thread is to write now; None if another thread writes, or there is nothing to write."""
        if self.is_taken or sock is None:
            return None
        return self.take(sock)

    def claim_rest(self, sock: ClientSocket | None) -> Write | None:
        """The bytes that the socket did not take earlier, or else new ones."""
        rest, self.rest = self.rest, b""
        if rest and sock is not None:
            return self.take(sock, rest)
        return self.claim(sock)

    def take(self, sock: ClientSocket, rest: bytes = b"") -> Write | None:
        """Take the right, which this thread may have already, and the bytes."""
        self.is_taken, self.sending, self._sender = True, sock, get_ident()
        data = rest or self._core.output()
        if not data:
            self.is_taken, self.sending = False, None
            return None
        self._core.writer.begin_write(len(data))
        return Write(data, sock)

    def sent(self, data: bytes, count: int, now: float) -> bool:
        """The socket has taken `count` bytes. False if it is full: the rest keeps the right to write."""
        self.sending = None
        self._core.writer.end_write(count)
        if count < len(data):
            self.rest = data[count:]
            if count:
                self._core.timeouts.heard = now  # a server that reads something long is not silent
            return False
        self.is_taken = False
        return True

    def end(self) -> None:
        """The socket is done with."""
        self.is_taken, self.rest = False, b""

    def is_sent_by(self, *threads: int) -> bool:
        """Whether one of these threads was the last to send."""
        return self._sender in threads
