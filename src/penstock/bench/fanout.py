"""One writer and many waiting readers: how much is delivered, and how soon.

Each reader asks for the next message as soon as it has one; the writer writes the next when all have asked. Ids are
fixed, so that every request is made before the clock starts.
"""

from __future__ import annotations

import select
import statistics
import time
from itertools import pairwise
from typing import Literal

from penstock.bench.load import PATIENCE, connect, exchange
from penstock.bench.messages import KEY, TAG, entry, redis_id
from penstock.bench.row import Measure
from penstock.bench.servers import Running
from penstock.protocol.resp import pack

READERS = 64


def fan_out(figure: Literal["rate", "latency"]) -> Measure:
    """Messages delivered a second, or the median microseconds from a write to its arrival at a reader."""

    def measure(server: Running, scale: float) -> float:
        count = max(int(500 * scale), 20)
        seconds, latencies = _run(server, count)
        return count * READERS / seconds if figure == "rate" else statistics.median(latencies) * 1e6

    return measure


def _requests(server: Running, number: int) -> tuple[bytes, bytes]:
    """The write of a message, and a read that waits for it."""
    if server.is_ours:
        return pack(b"TWRITE", KEY, TAG, entry(number)), pack(b"TREAD", KEY, b"%d" % number, b"1", b"BLOCK", b"0")
    wait = pack(b"XREAD", b"COUNT", b"1", b"BLOCK", b"0", b"STREAMS", KEY, redis_id(number - 1))
    return pack(b"XADD", KEY, redis_id(number), TAG, entry(number)), wait


def _run(server: Running, count: int) -> tuple[float, list[float]]:
    requests = [_requests(server, number) for number in range(1, count + 2)]
    writer = connect(server.port)
    readers = {sock.fileno(): sock for sock in (connect(server.port) for _ in range(READERS))}
    latencies: list[float] = []
    poll = select.epoll()
    try:
        for descriptor, sock in readers.items():
            poll.register(descriptor, select.EPOLLIN)
            sock.sendall(requests[0][1])
        exchange(writer, pack(b"PING"), 1)
        started = time.perf_counter()
        for (write, _), (_, next_read) in pairwise(requests):
            sent = time.perf_counter()
            writer.sendall(write)
            left = READERS
            while left:
                events = poll.poll(PATIENCE)
                if not events:
                    raise TimeoutError(f"{left} of {READERS} readers on port {server.port} got nothing more")
                for descriptor, _ in events:
                    # A message of 100 bytes arrives whole: the reply is far smaller than a packet of the loopback
                    # device.
                    readers[descriptor].recv(4096)
                    latencies.append(time.perf_counter() - sent)
                    readers[descriptor].sendall(next_read)
                    left -= 1
            writer.recv(4096)
        return time.perf_counter() - started, latencies
    finally:
        poll.close()
        for sock in (writer, *readers.values()):
            sock.close()
