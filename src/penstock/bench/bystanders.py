"""How one slow command, or several one after the other, affect other clients.

The bystanders, a few connections that GET, SET and PING one request at a time, are driven here. A process of its own
sends the slow commands, so that reading a reply of forty megabytes does not look like a stall of the server. The
measurement continues for a second after the reply, because work that a server defers also affects others.

Other programs on the machine make a wait longer. They do not change the processor time that the server used during
it, which is how long the client would have waited on a quiet machine, so that is measured too.
"""

from __future__ import annotations

import select
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.bench.load import PATIENCE, connect
from penstock.bench.servers import Running
from penstock.protocol.resp import pack

BEFORE, AFTER = 1.0, 1.0  # seconds to watch
REQUESTS = [
    pack(b"GET", b"bystander"),
    pack(b"SET", b"bystander", b"value"),
    pack(b"PING"),
    pack(b"GET", b"bystander"),
]

_SLOW_CLIENT = """
import socket, sys, time
port, count = map(int, sys.argv[1:])
lines = [sys.stdin.readline().split() for _ in range(count)]
work = [(bytes.fromhex(request), int(size)) for request, size in lines]
sock = socket.create_connection(("127.0.0.1", port))
print("ready", flush=True)
sys.stdin.readline()
started = time.perf_counter()
buffer = bytearray(1 << 20)
for request, size in work:
    sock.sendall(request)
    is_first = True
    while size > 0:
        got = sock.recv_into(buffer)
        if not got or is_first and buffer[:1] == b"-":
            sys.exit("the slow command failed: %r" % bytes(buffer[:200]))
        size -= got
        is_first = False
print(time.perf_counter() - started, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Notice:
    """What the bystanders measured, in milliseconds, from when the first slow command was sent."""

    idle: float  # the worst before that: the machine's own delays
    worst: float
    busy: float  # the most processor time of the server during one request
    nearly_worst: float  # 99.9 per cent of the requests took no longer
    rate: float  # requests a second
    command: float  # how long the slow commands themselves took


def watch(server: Running, work: Sequence[tuple[bytes, int]]) -> Notice:
    """Run slow commands, each with the size of its reply in bytes, or with less for one that comes in one piece."""
    slow = subprocess.Popen(
        [sys.executable, "-c", _SLOW_CLIENT, str(server.port), str(len(work))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert slow.stdin is not None and slow.stdout is not None
    with slow:
        slow.stdin.writelines(b"%s %d\n" % (request.hex().encode(), size) for request, size in work)
        slow.stdin.flush()
        slow.stdout.readline()
        spans, sent_at, seconds = _bystand(server, slow)
    if slow.returncode:
        raise ChildProcessError("the slow command failed; the reason is above")
    took = sorted(end - start for start, end, _ in spans if end > sent_at)
    return Notice(
        idle=max((end - start for start, end, _ in spans if end <= sent_at), default=0.0) * 1e3,
        worst=took[-1] * 1e3,
        busy=max(busy for _, end, busy in spans if end > sent_at) * 1e3,
        nearly_worst=took[int(len(took) * 0.999)] * 1e3,
        rate=len(took) / (spans[-1][1] - sent_at),
        command=seconds * 1e3,
    )


def table_of_notices(notices: Mapping[str, Sequence[Notice]]) -> str:
    """A line a name, of the medians of its rounds."""
    titles = ("idle", "worst", "busy", "p99.9", "others/s", "command")
    lines = [f"{'median of rounds, ms':>22}" + "".join(f" {title:>9}" for title in titles)]
    for name, rounds in notices.items():
        idle, worst, busy, nearly, rate, command = (
            statistics.median(getattr(notice, figure) for notice in rounds) for figure in Notice.__slots__
        )
        figures = f"{idle:>9.1f} {worst:>9.1f} {busy:>9.1f} {nearly:>9.2f} {rate:>9,.0f} {command:>9,.0f}"
        lines.append(f"{name:>22} {figures}")
    return "\n".join(lines)


def _bystand(server: Running, slow: subprocess.Popen[bytes]) -> tuple[list[tuple[float, float, float]], float, float]:
    """Every request, when the slow command was sent, and how many seconds it took.

    A request has its start, its end, and the processor time that the server used in between.
    """
    assert slow.stdin is not None and slow.stdout is not None
    clock = time.perf_counter
    sockets = {sock.fileno(): (sock, request) for sock, request in ((connect(server.port), one) for one in REQUESTS)}
    started = dict.fromkeys(sockets, (clock(), server.processor_time()))
    spans: list[tuple[float, float, float]] = []
    seconds = sent_at = 0.0
    send_at, stop_at = clock() + BEFORE, clock() + 10 * PATIENCE
    with select.epoll() as poll:
        for descriptor, (sock, request) in sockets.items():
            poll.register(descriptor, select.EPOLLIN)
            sock.sendall(request)
        poll.register(slow.stdout, select.EPOLLIN)
        while (now := clock()) < stop_at:
            if not sent_at and now > send_at:
                slow.stdin.write(b"\n")
                slow.stdin.flush()
                sent_at = now
            events = poll.poll(PATIENCE)
            if not events:
                raise TimeoutError(f"the server on port {server.port} answers no client")
            for descriptor, _ in events:
                if descriptor not in sockets:
                    seconds = float(slow.stdout.readline() or "nan")
                    poll.unregister(slow.stdout)
                    stop_at = clock() + AFTER
                    continue
                sock, request = sockets[descriptor]
                sock.recv(1 << 10)
                now, used = clock(), server.processor_time()
                since, before = started[descriptor]
                spans.append((since, now, used - before))
                started[descriptor] = now, used
                sock.sendall(request)
    for sock, _ in sockets.values():
        sock.close()
    return spans, sent_at, seconds
