"""A replica's connection to its leader: connect, log in, ask, and read replies."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from penstock.engine.dispatch import Engine
from penstock.engine.session import Nowhere, Session
from penstock.protocol.errors import ProtocolError, ReplyError
from penstock.protocol.resp import pack
from penstock.replication.link import CAPABILITY

LONGEST_LINE = 1 << 20
MOST_UNREAD = 1 << 20
"""Bytes that wait to be read before no more is taken from the socket."""
LARGEST = 16 << 20
"""Bytes of a reply, and elements of a list: more than any that is asked for."""
DEEPEST = 2
"""Lists in lists."""
NOT_REDIS = "the other side does not speak Redis's protocol"

_number = re.compile(rb"-?\d{1,18}").fullmatch


class LeaderConnection(asyncio.Protocol):
    """Commands and replies, in order; after PSYNC the feed.

    What comes is kept in the pieces in which it came, so that the feed is not copied. asyncio's StreamReader copies it
    three times, which is a fifth of what a replica does while it catches up.
    """

    def __init__(self, seconds: float) -> None:
        self._transport: asyncio.Transport
        self._seconds = seconds  # of silence after which a reply is not waited for any more
        self._unread: deque[bytes] = deque()
        self._size = 0  # of these
        self._waiter: asyncio.Future[None] | None = None  # of the task that waits for more
        self._is_paused = False
        self._has_ended = False
        self._problem = "the connection was closed"
        self.take_at_once: Callable[[bytes], bool] = lambda data: False  # of the feed; False: for the task that reads

    @classmethod
    async def open(
        cls, host: str, port: int, user: str, password: str, tls: ssl.SSLContext | None, seconds: float
    ) -> LeaderConnection:
        """Connect and log in; OSError or ReplyError if that fails."""
        async with asyncio.timeout(seconds):
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: cls(seconds), host, port, ssl=tls)
        try:
            login = pack(b"AUTH", *([user.encode()] if user else []), password.encode()) if password else b""
            connection._transport.write(login + pack(b"REPLCONF", b"capa", CAPABILITY.encode()))
            if login:
                await connection.reply()
            await connection.reply()
        except BaseException:
            connection.close()
            raise
        return connection

    def as_client(self, engine: Engine) -> Session:
        """The leader as a client of this server, which it is to CLIENT LIST and CLIENT KILL."""
        session = Session.of_server(engine)
        session.leads = True
        session.output = _Leader(self)
        info = self._transport.get_extra_info
        session.peer, session.local = _shown(info("peername")), _shown(info("sockname"))
        session.file_number = info("socket").fileno()
        return session

    # -- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done() and not self._unread and self.take_at_once(data):
            return
        self._unread.append(data)
        self._size += len(data)
        if self._waiter is not None:
            self._wake()
        elif self._size > MOST_UNREAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._has_ended = True
        if error is not None and str(error):
            self._problem = str(error)
        if self._waiter is not None:
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _more(self) -> None:
        """Wait until more has come; ConnectionResetError if nothing will."""
        if self._has_ended:
            raise ConnectionResetError(self._problem)
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        await waiter

    # -- commands and replies ---------------------------------------------------------------------------------

    def say(self, *words: str | bytes | int) -> None:
        """Send a command whose reply is read later, or has none."""
        if self._transport.is_closing():  # the task that reads will find that out
            return
        self._transport.write(pack(*[word if isinstance(word, bytes) else str(word).encode() for word in words]))

    async def ask(self, *words: str | bytes | int) -> Any:
        """Send a command and return its reply; ReplyError if that is one."""
        self.say(*words)
        return await self.reply()

    async def reply(self) -> Any:
        """The next reply: bytes, an integer, a list, or None. TimeoutError if it does not come."""
        async with asyncio.timeout(self._seconds):
            return await self._reply(DEEPEST)

    async def _reply(self, depth: int) -> Any:
        line = await self._line()
        if not line.endswith(b"\r\n"):
            raise ProtocolError(NOT_REDIS)
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
            size = int(rest) + len(b"\r\n")
            while self._size < size:
                await self._more()
            return self._take(size)[:-2]
        if kind == b"*" and number is not None and depth and int(rest) <= LARGEST:
            return [await self._reply(depth - 1) for _ in range(int(rest))]
        raise ProtocolError(f"this is not a reply: {line[:20]!r}")

    async def _line(self) -> bytes:
        """The next line; ProtocolError if it does not end."""
        while not (size := self._size_of_line()):
            if self._size > LONGEST_LINE:
                raise ProtocolError(NOT_REDIS)
            await self._more()
        return self._take(size)

    def _size_of_line(self) -> int:
        """The size of the next line; 0 if its end has not arrived."""
        size = 0
        for piece in self._unread:
            found = piece.find(b"\n") + 1
            if found:
                return size + found
            size += len(piece)
        return 0

    def _take(self, size: int) -> bytes:
        """The first bytes, which are here."""
        self._size -= size
        taken = []
        while size:
            piece = self._unread.popleft()
            if len(piece) > size:
                self._unread.appendleft(piece[size:])
                piece = piece[:size]
            taken.append(piece)
            size -= len(piece)
        return b"".join(taken)

    async def read(self) -> bytes:
        """The next bytes of the feed, whenever they come; ConnectionResetError at its end, and after `abort`."""
        while not self._unread:
            await self._more()
        data = self._unread.popleft()
        self._size -= len(data)
        return data

    @property
    def has_unread(self) -> bool:
        """Whether more has come than was read."""
        return self._size > 0

    def abort(self, problem: str) -> None:
        """Close the connection at once; its reader gets the reason."""
        self._problem = problem
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()


def _shown(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Leader(Nowhere):
    """It gets no replies."""

    def __init__(self, connection: LeaderConnection) -> None:
        self._connection = connection

    def close(self, after_reply: bool) -> None:
        self._connection.abort("closed by a client")
