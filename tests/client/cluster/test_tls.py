"""The cluster clients over TLS: a proxy before each node speaks TLS to the client and plain Redis to the node."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client.cluster.clients import Connect
from tests.support.tls import Authority

from penstock.client.cluster.slot_map import Address
from penstock.testing.cluster import RedisCluster


class TlsDoors:
    """One listener a node, in a thread of its own."""

    def __init__(self, cluster: RedisCluster, context: ssl.SSLContext) -> None:
        self._nodes = [node.address for node in cluster.nodes]
        self._context = context
        self.addresses: dict[Address, Address] = {}
        self._open = 0
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TlsDoors:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        servers = []
        for node in self._nodes:
            server = await asyncio.start_server(
                lambda reader, writer, node=node: self._pass(reader, writer, node), "127.0.0.1", 0, ssl=self._context
            )
            servers.append(server)
            self.addresses[node] = ("localhost", server.sockets[0].getsockname()[1])
        self._ready.set()
        await self._stop.wait()
        for server in servers:
            server.close()
        while self._open:  # the clients have closed theirs
            await asyncio.sleep(0.01)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: Address) -> None:
        self._open += 1
        inner_reader, inner_writer = await asyncio.open_connection(*node)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()

        tasks = [asyncio.create_task(copy(reader, inner_writer)), asyncio.create_task(copy(inner_reader, writer))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            inner_writer.close()
            writer.close()
            for closing in (inner_writer, writer):
                with contextlib.suppress(OSError):
                    await closing.wait_closed()
            self._open -= 1


@pytest.fixture
def doors(cluster: RedisCluster, tmp_path: Path) -> Iterator[TlsDoors]:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with TlsDoors(cluster, context) as doors:
        yield doors


def test_a_pipeline_over_tls(doors: TlsDoors, make: Connect, tmp_path: Path) -> None:
    client = make(
        startup_nodes=list(doors.addresses.values()),
        address_remap=lambda address: doors.addresses.get(address, address),
        ssl=True,
        ssl_ca_certs=str(tmp_path / "authority.pem"),
    )
    big = b"x" * 500_000
    with client.pipeline() as pipe:
        for number in range(20):
            pipe.set(f"big{number}", big)
        for number in range(20):
            pipe.get(f"big{number}")
        assert pipe.execute() == [True] * 20 + [big] * 20
    assert client.execute_many([("INCR", f"n{number}") for number in range(3000)]) == [1] * 3000
