"""A client that sends exactly the given bytes, for tests of the protocol itself, without a library in between."""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from penstock.protocol.resp import pack


class Closed(Exception):
    """The server closed the connection."""


class RawClient:
    """`with RawClient(port) as client: client.ask("PING")`. Errors are returned, as hiredis.ReplyError, not raised."""

    def __init__(self, port: int, timeout: float = 60) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._reader = hiredis.Reader(notEnoughData=self)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def command(self, *words: str | bytes) -> None:
        self.send(pack(*(word.encode() if isinstance(word, str) else word for word in words)))

    def read(self) -> Any:
        """The next reply; Closed when there is none to come."""
        while (reply := self._reader.gets()) is self:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Closed
            self._reader.feed(data)
        return reply

    def ask(self, words: str) -> Any:
        """The reply to a command written with spaces; an error as its text."""
        self.command(*words.split())
        reply = self.read()
        return str(reply) if isinstance(reply, hiredis.ReplyError) else reply

    def is_closed(self) -> bool:
        """Whether the server closes the connection; replies before that are skipped."""
        try:
            while True:
                self.read()
        except Closed:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
