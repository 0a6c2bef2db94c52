"""A replica's connection to its leader: connect, log in, ask, and read replies."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Any

from penstock.engine.dispatch import Engine
from penstock.engine.session import Nowhere, Session
from penstock.protocol.errors import ProtocolError, ReplyError
from penstock.protocol.resp import pack

LONGEST_LINE = 1 << 20
LARGEST = 16 << 20
"""Bytes of a reply, and elements of a list: more than any that is asked for."""
DEEPEST = 2
"""Lists in lists."""

_number = re.compile(rb"-?\d{1,18}").fullmatch


class LeaderConnection:
    """Commands and replies, in order; after PSYNC the feed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
        self._reader = reader
        self._writer = writer
        self._seconds = seconds  # of silence after which a reply is not waited for any more
        self._problem = "the connection was closed"

    @classmethod
    async def open(
        cls, host: str, port: int, user: str, password: str, tls: ssl.SSLContext | None, seconds: float
    ) -> LeaderConnection:
        """Connect and log in; OSError or ReplyError if that fails."""
        async with asyncio.timeout(seconds):
            connection = cls(*await asyncio.open_connection(host, port, ssl=tls, limit=LONGEST_LINE), seconds)
        try:
            if password:
                await connection.ask("AUTH", *([user] if user else []), password)
            await connection.ask("PING")
        except BaseException:
            connection.close()
            raise
        return connection

    def as_client(self, engine: Engine) -> Session:
        """The leader as a client of this server, which it is to CLIENT LIST and CLIENT KILL."""
        session = Session.of_server(engine)
        session.leads = True
        session.output = _Leader(self)
        session.peer, session.local = (_shown(self._writer.get_extra_info(name)) for name in ("peername", "sockname"))
        session.file_number = self._writer.get_extra_info("socket").fileno()
        return session

    def say(self, *words: str | bytes | int) -> None:
        """Send a command whose reply is read later, or has none."""
        self._writer.write(pack(*[word if isinstance(word, bytes) else str(word).encode() for word in words]))

    async def ask(self, *words: str | bytes | int) -> Any:
        """Send a command and return its reply; ReplyError if that is one."""
        self.say(*words)
        return await self.reply()

    async def reply(self) -> Any:
        """The next reply: bytes, an integer, a list, or None. TimeoutError if it does not come."""
        async with asyncio.timeout(self._seconds):
            return await self._reply(DEEPEST)

    async def _reply(self, depth: int) -> Any:
        try:
            line = await self._reader.readline()
        except ValueError:
            raise ProtocolError("the other side does not speak Redis's protocol") from None
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the connection was closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise ReplyError(rest.decode("utf-8", "replace"))
        number = _number(rest)
        if kind == b":" and number is not None:
            return int(number[0])
        if kind == b"$" and number is not None and int(rest) <= LARGEST:
            if int(rest) < 0:
                return None
            data = await self._reader.readexactly(int(rest) + 2)
            return data[:-2]
        if kind == b"*" and number is not None and depth and int(rest) <= LARGEST:
            return [await self._reply(depth - 1) for _ in range(int(rest))]
        raise ProtocolError(f"this is not a reply: {line[:20]!r}")

    async def read(self, size: int) -> bytes:
        """The next bytes of the feed, whenever they come; ConnectionResetError at its end, and after `abort`."""
        data = await self._reader.read(size)
        if not data:
            raise ConnectionResetError(self._problem)
        return data

    def abort(self, problem: str) -> None:
        """End the connection without waiting for anything; who reads from it is told why."""
        self._problem = problem
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


def _shown(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Leader(Nowhere):
    """It gets no replies."""

    def __init__(self, connection: LeaderConnection) -> None:
        self._connection = connection

    def close(self, after_reply: bool) -> None:
        self._connection.abort("closed by a client")
