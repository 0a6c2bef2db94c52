"""Servers whose streams are longer than memory, and what they hold."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from penstock import Server

MESSAGES = 12_000
SMALL = 200_000
"""Bytes of memory for streams: two or three nodes of these messages."""


def until(condition: Callable[[], Any]) -> None:
    """Wait for something that the server does when it has time."""
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def started(folder: Path, **directives: Any) -> Server:
    settings = {
        "appendonly": True, "stream_memory": SMALL, "stream_hot_nodes": 1, "stream_compression_rest": 0, "hz": 100,
    }  # fmt: skip
    return Server(dir=str(folder), **{**settings, **directives})


def numbered_entries() -> list[bytes]:
    random.seed(7)
    return [b"%d " % n + random.randbytes(30).hex().encode() for n in range(1, MESSAGES + 1)]


def write(client: redis.Redis, entries: list[bytes], key: str = "s") -> None:
    for at in range(0, len(entries), 1000):
        part = [word for entry in entries[at : at + 1000] for word in (b"", entry)]
        client.execute_command("TWRITE", key, "ENTRIES", *part)


def fill(client: redis.Redis, entries: list[bytes], key: str = "s") -> None:
    """Write them, and wait until most are in files."""
    write(client, entries, key)
    until(lambda: history(client, key)["length"] >= len(entries) - 5000)
    until(lambda: client.info("persistence")["stream_memory_held"] <= SMALL)
    client.config_set("stream-memory", "50mb")  # no more move
    folder = Path(client.config_get("dir")["dir"])
    until(lambda: not client.info("persistence")["history_write_in_progress"])
    until(lambda: client.info("persistence")["history_files"] == len(files(folder)))


def history(client: redis.Redis, key: str = "s") -> dict[str, int]:
    info = client.execute_command("TINFO", key)
    found = info[b"history"] if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))[b"history"]
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {name.decode(): number for name, number in pairs}


def all_of(client: redis.Redis, key: str = "s") -> list[bytes]:
    return [row[2] for row in client.execute_command("TREAD", key, 1, 10**6) if row is not None]


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "history").glob("*")}


def connected(server: Server) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=100)
