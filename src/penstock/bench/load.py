"""The load: redis-benchmark where there is one, otherwise a generator of our own.

Ours sends ready-made batches over many sockets from one epoll loop and counts reply bytes instead of parsing them, so
that it spends less on a request than any server does. It knows only commands whose replies have a known end.
"""

from __future__ import annotations

import csv
import io
import random
import re
import select
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass

from penstock.protocol.resp import pack

KEYSPACE = 100_000


@dataclass(frozen=True, slots=True)
class Work:
    """What one request does; `{r}` stands for a random twelve-digit number below KEYSPACE."""

    name: str
    template: tuple[str, ...]

    def command(self, number: int) -> bytes:
        return pack(*(part.replace("{r}", f"{number:012d}").encode() for part in self.template))


WORKS = {
    work.name: work
    for work in (
        Work("set", ("SET", "key:{r}", "xxx")),
        Work("get", ("GET", "key:{r}")),
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
    output = subprocess.run(
        [program, "-p", str(port), "-c", str(clients), "-P", str(depth), "-n", str(requests), "-r", str(KEYSPACE), "--csv", *command],
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
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
    poll = select.epoll()
    state: dict[int, tuple[socket.socket, list[int]]] = {}
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(sock.fileno(), select.EPOLLIN)
        state[sock.fileno()] = (sock, [0])
    count_replies = re.compile(rb"[+:$-][^\r\n]*\r\n").findall if work.name != "get" else None
    rounds = max(requests // depth, clients)
    sent = done = 0
    started = time.perf_counter()
    for sock in sockets:
        sock.sendall(batches[sent % 64])
        sent += 1
    try:
        while done < rounds:
            for descriptor, _ in poll.poll(10):
                sock, waiting = state[descriptor]
                data = sock.recv(1 << 18)
                if not data:
                    raise ConnectionError("the server closed a connection under load")
                # A bulk reply of GET is "$3\r\nxxx\r\n" or "$-1\r\n": every reply has exactly one '$'.
                waiting[0] += data.count(b"$") if count_replies is None else data.count(b"\n")
                if waiting[0] >= depth:
                    waiting[0] = 0
                    done += 1
                    if sent < rounds:
                        sock.sendall(batches[sent % 64])
                        sent += 1
        return done * depth / (time.perf_counter() - started)
    finally:
        poll.close()
        for sock in sockets:
            sock.close()
