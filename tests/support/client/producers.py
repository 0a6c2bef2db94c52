"""Both producers behind one interface, so that one set of tests runs on both: that of threads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from tests.support.client.clients import AioFace


class AioProducerFace:
    """An AioProducer with the methods of the other one."""

    def __init__(self, face: AioFace, key: Any, terms: dict[str, Any]) -> None:
        self._loop = face._loop
        self.real = face.real.producer(key, **terms)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def write(self, tag: Any, entry: Any, timeout: float | None = None) -> Future[Any]:
        future = self._do(self.real.write(tag, entry, timeout))

        async def wait() -> Any:
            return await future

        return asyncio.run_coroutine_threadsafe(wait(), self._loop)

    def send(self, *args: Any, **options: Any) -> None:
        self._do(self.real.send(*args, **options))

    def flush(self, timeout: float | None = None) -> None:
        self._do(self.real.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        self._do(self.real.aclose(timeout))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __enter__(self) -> AioProducerFace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def producer_of(client: Any, key: Any, **terms: Any) -> Any:
    """A producer of either client."""
    return AioProducerFace(client, key, terms) if isinstance(client, AioFace) else client.producer(key, **terms)
