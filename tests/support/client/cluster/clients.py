"""Both cluster clients behind one blocking interface, and a cluster with a fault proxy before each node."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.support.client.clients import fall_silent

import penstock
from penstock import aio
from penstock.client.cluster.slot_map import Address
from penstock.testing.cluster import ClusterNode, RedisCluster
from penstock.testing.proxy import FaultProxy

Connect = Callable[..., Any]
"""The type of the fixtures that make clients."""


class AioFace:
    """An aio.Cluster with blocking methods, in a loop of its own thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.real = self.do(lambda: aio.Cluster(*arguments, **options))

    def do(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            result = function()
            if inspect.isasyncgen(result):
                return [item async for item in result]
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            result = self.do(lambda: value(*arguments, **options))
            return _PipelineFace(self, result) if isinstance(result, aio.ClusterPipeline) else result

        return call

    def fall_silent(self) -> None:
        self.do(lambda: fall_silent(self.real))

    def close_real(self) -> None:
        """The client, and not the loop."""
        self.do(self.real.aclose)

    def close(self) -> None:
        self.close_real()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _PipelineFace:
    def __init__(self, client: AioFace, real: aio.ClusterPipeline) -> None:
        self._client, self._real = client, real

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            result = self._client.do(lambda: value(*arguments, **options))
            return self if result is self._real else result

        return call

    def __len__(self) -> int:
        return len(self._real)

    def __enter__(self) -> _PipelineFace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.reset()


MAKERS: dict[str, Callable[..., Any]] = {"sync": penstock.Cluster, "aio": AioFace}


class Proxied:
    """A fault proxy before each node of a cluster; `remap` leads a client through them."""

    def __init__(self, cluster: RedisCluster) -> None:
        self.cluster = cluster
        self._stack = ExitStack()
        self._proxies = {node.port: self._stack.enter_context(FaultProxy(node.address)) for node in cluster.nodes}

    def remap(self, address: Address) -> Address:
        proxy = self._proxies.get(address[1])
        return proxy.address if proxy is not None else address

    def before(self, node: ClusterNode) -> FaultProxy:
        return self._proxies[node.port]

    @property
    def addresses(self) -> list[Address]:
        return [self._proxies[node.port].address for node in self.cluster.nodes if node.is_running]

    def forwarded(self, command: bytes) -> int:
        """Over all nodes."""
        return sum(proxy.forwarded[command] for proxy in self._proxies.values())

    def clear(self) -> None:
        for proxy in self._proxies.values():
            proxy.clear()
            proxy.cut_connections()

    def close(self) -> None:
        self._stack.close()
