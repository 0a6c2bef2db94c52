"""How one slow command, or several one after the other, affect other clients.

The bystanders, a few connections that GET, SET and PING one request at a time, are driven here. A process of its own
sends the slow commands, so that reading a reply of forty megabytes does not look like a stall of the server. The
measurement continues for a second after the reply, because work that a server defers also affects others.

Other programs on the machine make a wait longer. How long the server itself held a client up lies between two figures,
which are the same on a quiet machine. `held` is the processor time that the server used during the wait, and no more
than the wait without the time in which this program was ready to run and did not. It is too much if the server could
not run either. `loop` leaves out also the time in which the server's main thread, which serves its clients, was ready
to run and did not. It is too little if another thread of the server had the processor then.
"""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO

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
    idle_held: float  # of which the server's own, at most, in any request
    idle_loop: float  # and at least
    worst: float
    held: float
    loop: float
    nearly_worst: float  # 99.9 per cent of the requests took no longer
    rate: float  # requests a second
    command: float  # how long the slow commands themselves took


@dataclass(frozen=True, slots=True)
class Moment:
    """When a request was sent or answered, in seconds, and what three clocks that stop showed then."""

    time: float
    used: float  # processor time of the server
    delayed: float  # how long this program was ready to run and did not
    server_delayed: float  # the same of the server's main thread


@dataclass(frozen=True, slots=True)
class Wait:
    """A request of a bystander."""

    sent: Moment
    answered: Moment

    @property
    def seconds(self) -> float:
        return self.answered.time - self.sent.time

    @property
    def held(self) -> float:
        """Seconds of it that the server caused at most."""
        delayed = self.answered.delayed - self.sent.delayed
        return max(min(self.answered.used - self.sent.used, self.seconds - delayed), 0.0)

    @property
    def loop(self) -> float:
        """Seconds of it that the server caused at least."""
        delayed = self.answered.delayed - self.sent.delayed
        delayed += self.answered.server_delayed - self.sent.server_delayed
        return max(min(self.held, self.seconds - delayed), 0.0)


def notice_of(waits: Sequence[Wait], sent_at: float, seconds: float) -> Notice:
    """What these waits say about slow commands that were sent then and took so long."""
    before = [wait for wait in waits if wait.answered.time <= sent_at]
    beside = [wait for wait in waits if wait.answered.time > sent_at]
    took = sorted(wait.seconds for wait in beside)
    return Notice(
        idle=max((wait.seconds for wait in before), default=0.0) * 1e3,
        idle_held=max((wait.held for wait in before), default=0.0) * 1e3,
        idle_loop=max((wait.loop for wait in before), default=0.0) * 1e3,
        worst=took[-1] * 1e3,
        held=max(wait.held for wait in beside) * 1e3,
        loop=max(wait.loop for wait in beside) * 1e3,
        nearly_worst=took[int(len(took) * 0.999)] * 1e3,
        rate=len(took) / (beside[-1].answered.time - sent_at),
        command=seconds * 1e3,
    )


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
        waits, sent_at, seconds = _bystand(server, slow)
    if slow.returncode:
        raise ChildProcessError("the slow command failed; the reason is above")
    return notice_of(waits, sent_at, seconds)


def table_of_notices(notices: Mapping[str, Sequence[Notice]]) -> str:
    """A line a name, of the medians of its rounds."""
    titles = ("idle", "idle held", "idle loop", "worst", "held", "loop", "p99.9", "others/s", "command")
    lines = [f"{'median of rounds, ms':>22}" + "".join(f" {title:>9}" for title in titles)]
    for name, rounds in notices.items():
        *waits, rate, command = (
            statistics.median(getattr(notice, figure) for notice in rounds) for figure in Notice.__slots__
        )
        lines.append(f"{name:>22}" + "".join(f" {wait:>9.2f}" for wait in waits) + f" {rate:>9,.0f} {command:>9,.0f}")
    return "\n".join(lines)


def _schedule(process: int | str) -> FileIO:
    """The scheduler's figures of the main thread of a process."""
    return FileIO(f"/proc/{process}/schedstat")


def _delayed(schedule: FileIO) -> float:
    """Seconds that the thread was ready to run and did not."""
    return int(os.pread(schedule.fileno(), 100, 0).split()[1]) / 1e9


def _bystand(server: Running, slow: subprocess.Popen[bytes]) -> tuple[list[Wait], float, float]:
    """Every request, when the slow command was sent, and how many seconds it took."""
    assert slow.stdin is not None and slow.stdout is not None
    clock = time.perf_counter
    sockets = {sock.fileno(): (sock, request) for sock, request in ((connect(server.port), one) for one in REQUESTS)}
    waits: list[Wait] = []
    seconds = sent_at = 0.0
    with select.epoll() as poll, _schedule("self") as own, _schedule(server.pid) as servers:

        def now() -> Moment:
            return Moment(clock(), server.processor_time(), _delayed(own), _delayed(servers))

        sent = dict.fromkeys(sockets, now())
        send_at, stop_at = clock() + BEFORE, clock() + 10 * PATIENCE
        for descriptor, (sock, request) in sockets.items():
            poll.register(descriptor, select.EPOLLIN)
            sock.sendall(request)
        poll.register(slow.stdout, select.EPOLLIN)
        while clock() < stop_at:
            if not sent_at and clock() > send_at:
                slow.stdin.write(b"\n")
                slow.stdin.flush()
                sent_at = clock()
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
                answered = now()
                waits.append(Wait(sent[descriptor], answered))
                sent[descriptor] = answered
                sock.sendall(request)
    for sock, _ in sockets.values():
        sock.close()
    return waits, sent_at, seconds
