"""A network between two programs that can be cut or paused: what is sent is lost or late, and neither side is told.

Not a FaultProxy (proxy.py): that reads the Redis protocol, so it can make one command fail, and it closes connections.
A Relay passes any bytes (etcd's too), and its connections stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

BEGINNING = 1000
"""Bytes by which a connection can be told from others."""


class Relay:
    """`with Relay(port) as relay:` listens at `relay.port` and passes everything to a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self._is_cut = False  # in one direction at least
        self._only = b""  # of connections whose first bytes have this in them
        self._drops_to_target = self._drops_from_target = False
        self._pause_after: int | None = None  # bytes from the target that a connection still passes
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stopping: asyncio.Event
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))

    def cut(self, to_target: bool = True, from_target: bool = True, only: bytes = b"") -> None:
        """From now on nothing passes, or nothing in one direction. Connections stay, and new ones are taken.

        `only` is what the side that connects says at its beginning: other connections stay whole.
        """
        self._drops_to_target, self._drops_from_target, self._only = to_target, from_target, only
        self._is_cut = True

    def mend(self) -> None:
        """End the connections that have lost something, and let everything pass again."""
        if self._is_cut:
            asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result(60)
            self._is_cut = False

    def pause(self, after: int) -> None:
        """From now on each connection passes at most so many bytes from the target in all, until `resume`."""
        self._pause_after = after

    def resume(self) -> None:
        """Pass what a pause has kept back, and all that follows."""
        self._pause_after = None

    def __enter__(self) -> Relay:
        self._thread.start()
        self._listening.wait(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(lambda: self._stopping.set())
        self._thread.join(60)
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stopping.wait()
        for listening in server.sockets:
            self._loop.remove_reader(listening.fileno())  # `close` would lose a connection that is just being taken
        self._is_cut, self._pause_after = False, None
        while len(asyncio.all_tasks()) > 1:
            await self._end_all()
            await asyncio.sleep(0.01)
        server.close()

    def _cuts(self, said: bytearray) -> bool:
        return self._is_cut and self._only in said

    async def _end_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            upstream, onward = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(onward)
        try:
            said = bytearray()
            await asyncio.gather(self._pass(reader, onward, True, said), self._pass(upstream, writer, False, said))
        finally:
            for each in (writer, onward):
                self._writers.discard(each)
                each.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_target: bool, said: bytearray
    ) -> None:
        """`said` is what the side that connects said at the beginning."""
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                passed += len(data)
                while not to_target and self._pause_after is not None and passed > self._pause_after:
                    await asyncio.sleep(0.01)
                if to_target and len(said) < BEGINNING:
                    said += data
                if not (self._cuts(said) and (self._drops_to_target if to_target else self._drops_from_target)):
                    writer.write(data)
                    await writer.drain()
        while self._cuts(said):  # the end of a connection does not pass either
            await asyncio.sleep(0.05)
        writer.transport.abort()
