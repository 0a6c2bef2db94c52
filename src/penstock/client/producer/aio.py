"""The producer of penstock.aio.Client: what sync.py is for threads, this is for tasks. A task of its own sends.

    async with client.producer("clicks") as clicks:
        future = await clicks.write("user-7", entry)    # waits for room only; `await future` is the offset
        await clicks.send("user-8", entry)

It belongs to one event loop. `write` is a coroutine because it waits for room; a future that is cancelled does not take
its message back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock.client.engine.encoding import as_bytes
from penstock.client.producer.core import ProducerCore
from penstock.client.producer.options import ProducerSettings
from penstock.client.producer.sync import OnDelivery
from penstock.client.producer.writes import MESSAGE_BYTES

_logger = logging.getLogger(__name__)


class AioProducer:
    """See the top of this file."""

    def __init__(self, client: Any, settings: ProducerSettings) -> None:
        self._core = ProducerCore(settings)
        self._client = client
        self._waiters: deque[asyncio.Future[None]] = deque()  # tasks that wait for room, or for the end of messages
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False  # the task has ended
        self._wake = asyncio.Event()
        self._process = os.getpid()
        as_bytes(settings.key)

    @property
    def name(self) -> str:
        """Its id on the server."""
        return self._core.name

    @property
    def counters(self) -> dict[str, int]:
        """Messages that were written, failed and are held, and the writes that were sent."""
        return self._core.counters()

    # -- for callers ------------------------------------------------------------------------------------------

    async def write(self, tag: Any, entry: Any, timeout: float | None = None) -> asyncio.Future[int | None]:
        """Have a message written; the future of its offset. See penstock.client.producer.sync.Producer."""
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        await self._put(tag, entry, future, timeout)
        return future

    async def send(
        self, tag: Any, entry: Any, on_delivery: OnDelivery | None = None, timeout: float | None = None
    ) -> None:
        """Have a message written without waiting for it; `on_delivery` is called with the offset, or the error."""
        await self._put(tag, entry, on_delivery, timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Send what is held at once, and return when all of it is written or has failed; raises as the sync one."""
        self._check_place()
        target = self._core.flush()
        self._wake.set()
        await self._wait_for(lambda: self._core.outcomes.ended >= target, timeout)
        self._raise_unheard()

    async def aclose(self, timeout: float | None = None) -> None:
        """As `flush`, and then end."""
        if self._process != os.getpid():
            return  # its messages are the parent's
        self._core.close()
        self._wake.set()
        if self._task is not None:
            await self._wait_for(lambda: self._is_over, timeout)
        self._raise_unheard()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- messages ---------------------------------------------------------------------------------------------

    def _check_place(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(
                f"this producer belongs to the process {self._process}, which holds its messages; make one here"
            )
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this producer belongs to another event loop; make one for each loop")

    async def _put(self, tag: Any, entry: Any, slot: Any, timeout: float | None) -> None:
        if self._task is None or self._task.get_loop() is not asyncio.get_running_loop():
            self._check_place()
        tag = tag if type(tag) is bytes else as_bytes(tag)
        entry = entry if type(entry) is bytes else as_bytes(entry)
        size = MESSAGE_BYTES + len(tag) + len(entry)
        core = self._core
        if not core.has_room(size):
            try:
                async with asyncio.timeout(core.settings.timeout if timeout is None else timeout):
                    while not core.has_room(size):
                        core.refuse()
                        await self._next_end()
            except TimeoutError:
                raise core.full() from None
        assert self._loop is not None
        if core.add(tag, entry, slot, size, self._loop.time()):
            self._wake.set()
        if self._task is None:
            self._task = self._loop.create_task(self._work(), name=f"penstock-{self.name}")

    def _next_end(self) -> asyncio.Future[None]:
        """Done when messages have been finished."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    async def _wait_for(self, is_done: Callable[[], bool], timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not is_done():
                    await self._next_end()
        except TimeoutError:
            raise TimeoutError(f"messages are still held after {timeout} s: {self.counters['held']}") from None

    def _raise_unheard(self) -> None:
        error = self._core.outcomes.take_unheard()
        if error is not None:
            raise error

    # -- the task that sends ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        client = self._client.for_producer(self._core.settings.timeout)
        core, loop = self._core, asyncio.get_running_loop()
        try:
            while not (core.is_closed and core.is_empty):
                await self._turn(client, loop)
        except BaseException as error:
            core.fail_all(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            raise
        finally:
            self._tell()
            await client.aclose()
            self._is_over = True
            self._let_look()

    async def _turn(self, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Send one window, or wait until there is one."""
        core, now = self._core, loop.time()
        at = core.act_at(now)
        if at > now:
            await self._sleep_until(at, loop)
            return
        if commands := core.take(now):
            client.settings.command_timeout = core.patience(now)
            core.answered(await client.execute_many(commands, raise_on_error=False), loop.time())
        self._tell()

    async def _sleep_until(self, at: float, loop: asyncio.AbstractEventLoop) -> None:
        timer = None if at == math.inf else loop.call_at(at, self._wake.set)
        try:
            await self._wake.wait()
            self._wake.clear()
        finally:
            if timer is not None:
                timer.cancel()

    def _tell(self) -> None:
        for slot, outcome in self._core.outcomes.take_finished():
            is_error = isinstance(outcome, Exception)
            if isinstance(slot, asyncio.Future):
                if not slot.done():
                    (slot.set_exception if is_error else slot.set_result)(outcome)
                continue
            try:
                slot(None if is_error else outcome, outcome if is_error else None)
            except Exception:
                _logger.exception("the on_delivery of a message has failed")
        self._let_look()

    def _let_look(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
