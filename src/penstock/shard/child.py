"""The server as its agent sees it: a child process, a socket to talk over, and a clock that the two share.

The messages are described in replication/shard.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from penstock.engine.leadership import AGENT, SharedClock, now

logger = logging.getLogger("penstock.agent")
Message = dict[str, Any]


class OrderFailed(Exception):
    """The server could not do what it was told, or is gone."""


class Child:
    """One run of the server."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], on_message: Callable[[Message], None]
    ) -> None:
        self._command = command
        self._environment = environment
        self._on_message = on_message  # told of what the server says by itself, and of its end ({})
        self.clock: SharedClock
        self.is_ready = False  # it has loaded everything
        self.is_ending = False  # it was told to end, by a signal or by SHUTDOWN
        self.code: int | None = None  # how it ended
        self._process: asyncio.subprocess.Process
        self._writer: asyncio.StreamWriter
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._last_id = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        clock = SharedClock.make()
        self.clock = SharedClock(clock)
        try:
            descriptors = (theirs.fileno(), clock)
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environment, AGENT: ",".join(map(str, descriptors))},
                pass_fds=descriptors,
            )
        finally:
            theirs.close()
            os.close(clock)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._tasks = [asyncio.create_task(self._listen(reader)), asyncio.create_task(self._wait())]

    @property
    def pid(self) -> int:
        return self._process.pid

    def seconds_silent(self) -> float:
        """Since its last sign of life."""
        return (now() - self.clock.sign_of_life) / 1e9

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                message = json.loads(line)
                waiting = self._waiting.pop(message.get("re", 0), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
                elif "re" not in message:
                    self.is_ready = self.is_ready or "ready" in message
                    self.is_ending = self.is_ending or "ending" in message
                    self._on_message(message)

    async def _wait(self) -> None:
        self.code = await self._process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(OrderFailed("the server has ended"))
        self._waiting.clear()
        self._on_message({})

    def tell(self, **message: object) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def order(self, order: str, seconds: float, **fields: object) -> Message:
        """Have the server do something; what it answers. OrderFailed if it does not, or not in time."""
        self._last_id += 1
        waiting = self._waiting[self._last_id] = asyncio.get_running_loop().create_future()
        if self.code is not None:
            raise OrderFailed("the server has ended")
        number = self._last_id
        self.tell(id=number, order=order, **fields)
        try:
            async with asyncio.timeout(seconds):
                answer: Message = await waiting
        except TimeoutError:
            raise OrderFailed(f"the server does not answer the order to {order}") from None
        finally:
            self._waiting.pop(number, None)
        if answer["problem"] is not None:
            raise OrderFailed(str(answer["problem"]))
        return answer

    def end(self, number: signal.Signals, seconds: float) -> None:
        """Tell it to end; it is killed if it has not done so after this time."""
        self.signal(number)
        asyncio.get_running_loop().call_later(seconds, self._end_by_force, seconds)

    def _end_by_force(self, seconds: float) -> None:
        """It was stopped, or its disk does not answer."""
        if self.code is None:
            logger.error(
                "the server has not ended for %g seconds (shard-stop-timeout): killing it. What its log has is kept; a "
                "last snapshot, and what its disk refused, are not written",
                seconds,
            )
            self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def close(self) -> None:
        """It has ended: let go of what belonged to it."""
        self._writer.close()
        for task in self._tasks:
            task.cancel()
