"""A replica's connection to its leader: connect, log in, ask, and read replies."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from penstock.protocol.errors import ProtocolError, ReplyError
from penstock.protocol.resp import pack


class LeaderConnection:
    """Commands and replies, in order; after PSYNC the feed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(
        cls, host: str, port: int, user: str, password: str, tls: ssl.SSLContext | None, seconds: float
    ) -> LeaderConnection:
        """Connect and log in; OSError or ReplyError if that fails."""
        async with asyncio.timeout(seconds):
            connection = cls(*await asyncio.open_connection(host, port, ssl=tls, limit=1 << 20))
            try:
                if password:
                    await connection.ask("AUTH", *([user] if user else []), password)
                await connection.ask("PING")
            except BaseException:
                connection.close()
                raise
        return connection

    def say(self, *words: str | bytes | int) -> None:
        """Send a command whose reply is read later, or has none."""
        self._writer.write(pack(*[word if isinstance(word, bytes) else str(word).encode() for word in words]))

    async def ask(self, *words: str | bytes | int) -> Any:
        """Send a command and return its reply; ReplyError if that is one."""
        self.say(*words)
        return await self.reply()

    async def reply(self) -> Any:
        """The next reply: bytes, an integer, a list, or None."""
        line = await self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the connection was closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise ReplyError(rest.decode("utf-8", "replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if rest == b"-1":
                return None
            data = await self._reader.readexactly(int(rest) + 2)
            return data[:-2]
        if kind == b"*":
            return [await self.reply() for _ in range(int(rest))]
        raise ProtocolError(f"this is not a reply: {line[:20]!r}")

    async def read(self, size: int) -> bytes:
        """The next bytes of the feed; ConnectionResetError at its end."""
        data = await self._reader.read(size)
        if not data:
            raise ConnectionResetError("the connection was closed")
        return data

    def close(self) -> None:
        self._writer.close()
