"""The load: redis-benchmark if it is installed and supports the request, otherwise a generator of our own.

Ours (`drive`) sends prepared batches over many sockets from one epoll loop and counts reply bytes instead of parsing
them, so that it spends less on a request than any server does. The caller says how the replies are counted.
"""

from __future__ import annotations

import csv
import io
import random
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

import hiredis

from penstock.protocol.resp import pack

KEYSPACE = 100_000
PATIENCE = 60.0  # seconds without a byte before a server counts as stuck
_MORE = object()


@dataclass(frozen=True, slots=True)
class Work:
    """What one request does; `{r}` stands for a random twelve-digit number below KEYSPACE."""

    name: str
    template: tuple[str, ...]
    mark: bytes = b"\n"  # what every reply has exactly once
    fill: tuple[str, ...] = ()  # run for every number first, untimed: the data to read

    def command(self, number: int) -> bytes:
        return _packed(self.template, number)

    def prepare(self, port: int) -> None:
        """Fill the keyspace, if this work reads one."""
        if self.fill:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                for start in range(0, KEYSPACE, 1000):
                    sock.sendall(b"".join(_packed(self.fill, number) for number in range(start, start + 1000)))
                    waiting = 1000
                    while waiting > 0:
                        waiting -= sock.recv(1 << 16).count(b"\n")


def _packed(template: tuple[str, ...], number: int) -> bytes:
    return pack(*(part.replace("{r}", f"{number:012d}").encode() for part in template))


WORKS = {
    work.name: work
    for work in (
        Work("set", ("SET", "key:{r}", "xxx")),
        Work("get", ("GET", "key:{r}"), mark=b"$", fill=("SET", "key:{r}", "xxx")),  # the reply is "$3\r\nxxx\r\n"
        Work("incr", ("INCR", "counter:{r}")),
        Work("lpush", ("LPUSH", "mylist", "xxx")),
        Work("sadd", ("SADD", "myset", "element:{r}")),
        Work("hset", ("HSET", "myhash", "element:{r}", "xxx")),
        Work("zadd", ("ZADD", "myzset", "{r}", "element:{r}")),
    )
}


def requests_per_second(port: int, work: Work, clients: int, depth: int, requests: int) -> float:
    """Run `requests` requests and answer the rate."""
    program = shutil.which("redis-benchmark")
    if program is not None:
        return _redis_benchmark(program, port, work, clients, depth, requests)
    return _own(port, work, clients, depth, requests)


def generator() -> str:
    """Which generator is used, for the report."""
    return "redis-benchmark" if shutil.which("redis-benchmark") else "the generator of penstock bench"


def _redis_benchmark(program: str, port: int, work: Work, clients: int, depth: int, requests: int) -> float:
    command = [part.replace("{r}", "__rand_int__") for part in work.template]
    numbers = {"-p": port, "-c": clients, "-P": depth, "-n": requests, "-r": KEYSPACE}
    options = [word for option, number in numbers.items() for word in (option, str(number))]
    output = subprocess.run(
        [program, *options, "--csv", *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(output)))
    return float(rows[-1]["rps"])


def _own(port: int, work: Work, clients: int, depth: int, requests: int) -> float:
    rng = random.Random(1)
    batches = [b"".join(work.command(rng.randrange(KEYSPACE)) for _ in range(depth)) for _ in range(64)]
    rounds = max(requests // depth, clients)
    return rounds * depth / drive(port, batches, clients, rounds, depth, work.mark)


def drive(port: int, batches: Sequence[bytes], clients: int, rounds: int, wanted: int, mark: bytes | None) -> float:
    """Send `rounds` batches, each client one at a time, and answer the seconds it took.

    A batch is complete when `wanted` of `mark` came back, or so many bytes without a mark.
    """
    sockets = [connect(port) for _ in range(clients)]
    by_descriptor = {sock.fileno(): sock for sock in sockets}
    received = dict.fromkeys(by_descriptor, 0)
    unsent: dict[int, memoryview] = {}  # what a socket did not take yet; the others continue
    poll = select.epoll()
    for sock in sockets:
        sock.setblocking(False)
        poll.register(sock, select.EPOLLIN)
    buffer = bytearray(1 << 18)
    sent = done = 0

    def send(descriptor: int, data: memoryview) -> None:
        """As much as the socket takes; the rest when it takes more."""
        try:
            rest = data[by_descriptor[descriptor].send(data) :]
        except BlockingIOError:
            rest = data
        if rest:
            unsent[descriptor] = rest
            poll.modify(descriptor, select.EPOLLIN | select.EPOLLOUT)
        elif unsent.pop(descriptor, None):
            poll.modify(descriptor, select.EPOLLIN)

    started = time.perf_counter()
    try:
        for descriptor in list(by_descriptor)[:rounds]:
            send(descriptor, memoryview(batches[sent % len(batches)]))
            sent += 1
        while done < rounds:
            events = poll.poll(PATIENCE)
            if not events:
                raise TimeoutError(f"the server on port {port} answered {done} of {rounds} batches, then nothing more")
            for descriptor, event in events:
                if event & select.EPOLLOUT:
                    send(descriptor, unsent[descriptor])
                if not event & ~select.EPOLLOUT:
                    continue
                size = by_descriptor[descriptor].recv_into(buffer)
                if not size:
                    raise ConnectionError("the server closed a connection under load")
                received[descriptor] += size if mark is None else buffer.count(mark, 0, size)
                if received[descriptor] >= wanted:
                    received[descriptor] = 0
                    done += 1
                    if sent < rounds:
                        send(descriptor, memoryview(batches[sent % len(batches)]))
                        sent += 1
        return time.perf_counter() - started
    finally:
        poll.close()
        for sock in sockets:
            sock.close()


def connect(port: int) -> socket.socket:
    """A connection for ready-made requests."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def exchange(sock: socket.socket, request: bytes, replies: int) -> int:
    """Send a batch, wait for its replies, and answer how many bytes they are; an error among them is raised."""
    reader = hiredis.Reader(notEnoughData=_MORE)
    sock.sendall(request)
    size = 0
    while replies:
        data = sock.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        size += len(data)
        reader.feed(data)
        while replies and (reply := reader.gets()) is not _MORE:
            if isinstance(reply, Exception):
                raise reply
            replies -= 1
    return size
