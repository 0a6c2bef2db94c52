"""Both clients behind one interface, so that one set of tests runs on both: the asyncio one in a loop of its own
thread.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import redis

import penstock
from penstock import aio
from penstock.client.engine.connection import ConnectionCore

Connect = Callable[..., Any]
"""The type of the fixtures that make clients."""


class AioFace:
    """An aio.Client with blocking methods; calls may come from any thread."""

    def __init__(self, url: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.real = self._do(lambda: aio.Client.from_url(url, **options))

    def _do(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            result = function()
            return await result if inspect.isawaitable(result) and not isinstance(result, aio.Pipeline) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if not callable(value):
            return value
        return lambda *args, **options: self._face(self._do(lambda: value(*args, **options)))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name == "real":
            super().__setattr__(name, value)
        else:
            self._do(lambda: setattr(self.real, name, value))

    def _face(self, result: Any) -> Any:
        return PipelineFace(self, result) if isinstance(result, aio.Pipeline) else result

    def fall_silent(self) -> None:
        self._do(lambda: fall_silent(self.real))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._do(self.real.aclose)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class PipelineFace:
    def __init__(self, client: AioFace, real: aio.Pipeline) -> None:
        self._client, self._real = client, real

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            result = self._client._do(lambda: value(*args, **options))
            return self if result is self._real else result

        return call

    def __enter__(self) -> PipelineFace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.reset()


MAKERS: dict[str, Callable[..., Any]] = {"sync": penstock.Client.from_url, "aio": AioFace}


def fall_silent(client: Any) -> None:
    """Make it so that nothing has come for longer than a server may be silent, on first connections where a
    reply is owed.
    """

    def age(core: ConnectionCore, now: float) -> None:
        if core._awaiting and not core.counters.reconnects:
            core.timeouts.heard, core.timeouts.next_tick = -1e9, now

    is_cluster = hasattr(client, "_pool")
    for connection in list(client._pool._shared.values()) if is_cluster else client._connections():  # others add to it
        connection.change(age)


SHORT_TIMES = (0.5, 2.0, 8.0, 32.0)
"""Timeouts for a call whose time must run out at a chosen point: if a slow machine does not get there, the next is
tried.
"""


def raised(call: Callable[[], Any]) -> Any:
    """The error of a call, None if there is none."""
    try:
        call()
    except redis.RedisError as error:
        return error
    return None


def result_of_silence(client: Any, running: Future[Any]) -> Any:
    """What comes of a call that waits for a server which has fallen silent, without leaving anything to the clock."""
    silence = getattr(client, "fall_silent", partial(fall_silent, client))
    while not running.done():  # what had come before may be read in between, and then it was not silent
        silence()
        time.sleep(0.001)
    return running.result()
