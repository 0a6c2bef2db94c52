"""Servers with history for the bench: filled, idle, and read in the middle.

`--scale` is the size: at 1 it is two gigabytes (20 million messages), at 2.5 it is five. Less would not do for the
restart: Redis loads a gigabyte in twelve times the time in which an empty server of ours starts. Messages are those of
messages.py. What is called cold here is not in the page cache of the system either.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import socket
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.bench.load import connect, drive
from penstock.bench.messages import ARROW_ROWS, KEY, arrow_write, reply_size, xadd
from penstock.bench.servers import Running, StoredServer
from penstock.protocol.resp import pack

LONG = 20_000_000
"""Messages of 100 bytes at scale 1."""
MEMORY = 64 << 20
"""`stream-memory` at scale 1 and above."""
READ = 1000
"""Messages of a read."""
_WRITERS = 4
_PATIENCE = 3600.0


def messages(scale: float, of: int = LONG) -> int:
    """How many messages a row uses at a scale: whole commands, and enough for hot and old ones."""
    return max(int(of * scale) // ARROW_ROWS, 10) * ARROW_ROWS


def memory(scale: float) -> int:
    """`stream-memory` at a scale."""
    return max(int(MEMORY * min(scale, 1)), 1 << 20)


def server_with(stream_memory: int) -> StoredServer:
    """Ours with the log on; 0 keeps all messages in memory."""
    return StoredServer("penstock", appendonly="yes", stream_memory=str(stream_memory))


def write(server: Running, count: int) -> float:
    """Append so many messages, 10,000 a command in Arrow's form, four commands at a time; answers the seconds."""
    return drive(server.port, [arrow_write()], _WRITERS, count // ARROW_ROWS, 1, b"\n")


def length(server: Running) -> int:
    with server.client() as client:
        words = client.execute_command("TINFO", KEY)
    return int(dict(zip(words[::2], words[1::2], strict=True))[b"length"])


def persistence(server: Running) -> dict[str, Any]:
    """INFO persistence."""
    with server.client() as client:
        info: dict[str, Any] = client.info("persistence")
        return info


def wait_until_idle(server: Running, count: int) -> None:
    """Wait until the server has nothing more to move or to rewrite; checks that it has so many messages."""
    assert length(server) == count, f"{length(server)} messages, {count} were written"
    while (info := persistence(server))["history_write_in_progress"] or info["aof_rewrite_in_progress"]:
        time.sleep(0.05)


@functools.cache
def filled(count: int, stream_memory: int) -> StoredServer:
    """Ours with so many messages, most of them in files; the rows share it. It runs until the bench ends."""
    stored = server_with(stream_memory)
    atexit.register(stored.close)
    stored.start()
    write(stored.running, count)
    wait_until_idle(stored.running, count)
    assert persistence(stored.running)["history_files"], "nothing went to files"
    return stored


@functools.cache
def filled_redis(count: int, is_rewritten: bool) -> StoredServer:
    """Redis, stopped, with so many messages in its log: as XADDs, or as the base that BGREWRITEAOF writes."""
    stored = StoredServer("redis", appendonly="yes", auto_aof_rewrite_percentage="0")
    atexit.register(stored.close)
    stored.start()
    batches = [b"".join(xadd(at * 1000 + n) for n in range(1000)) for at in range(64)]
    drive(stored.running.port, batches, _WRITERS, count // 1000, 1000, b"$")
    with stored.running.client() as client:
        assert client.xlen(KEY) == count
        if is_rewritten:
            client.bgrewriteaof()
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.1)
    stored.kill()  # Redis has given each command to the system before it replied
    return stored


def started_again(stored: StoredServer, count: int) -> float:
    """Seconds from a start to the first answer; checks that all messages are there."""
    seconds = stored.start(_PATIENCE)
    with stored.running.client() as client:
        held = length(stored.running) if stored.running.is_ours else client.xlen(KEY)
    assert held == count, f"{held} messages after the start, {count} before"
    return seconds


def forget(folder: Path) -> None:
    """Have the system let go of what it holds of the files of a folder, as far as it is on disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


# -- Reads ----------------------------------------------------------------------------------------------------


def cold_places(count: int) -> Iterator[int]:
    """Offsets in the middle of history, in no order and none near an earlier one: at most a read for each node."""
    nodes = [*range(count // READ // 5, count // READ // 2)]
    random.Random(1).shuffle(nodes)
    return (node * READ + READ // 2 for node in nodes)


def hot_places(count: int) -> Iterator[int]:
    """Offsets of the newest messages, again and again."""
    newest = range(count - 7 * READ, count - READ, READ // 4)
    return (newest[at % len(newest)] for at in range(count))


def reads(server: Running, places: Iterator[int], most: int) -> list[tuple[bytes, int]]:
    """TREADs of 1000 at the first places, each with the size of its reply."""
    chosen = [*islice(places, most)]
    size = reply_size(server, _read(1)) - _digits(1)
    return [(_read(place), size + _digits(place)) for place in chosen]


def _read(place: int) -> bytes:
    return pack(b"TREAD", KEY, b"%d" % place, b"%d" % READ)


def _digits(place: int) -> int:
    """Bytes of the offsets in a reply, which are the only ones that differ in size."""
    return sum(len(str(offset)) for offset in range(place, place + READ))


def seconds_each(server: Running, work: list[tuple[bytes, int]]) -> list[float]:
    """How long each of these took, one after the other on one connection."""
    seconds = []
    with connect(server.port) as sock:
        for request, size in work:
            started = time.perf_counter()
            sock.sendall(request)
            _receive(sock, size)
            seconds.append(time.perf_counter() - started)
    return seconds


def _receive(sock: socket.socket, size: int) -> None:
    while size > 0:
        got = len(sock.recv(1 << 18))
        if not got:
            raise ConnectionError("the server closed the connection")
        size -= got
