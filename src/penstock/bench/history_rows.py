"""The rows of history: streams that are longer than memory, against the same server with all in memory, against Redis's
log and against NATS JetStream.

The servers have a folder of their own and use every core, because history is written and read by threads. `--scale` is
the size (history_load.py), and the reports say it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.bench import nats_peer
from penstock.bench.bystanders import Notice, table_of_notices, watch
from penstock.bench.history_length import HistoryLengths
from penstock.bench.history_load import (
    cold_places,
    filled,
    filled_redis,
    forget,
    hot_places,
    length,
    memory,
    messages,
    persistence,
    reads,
    seconds_each,
    server_with,
    started_again,
    wait_until_idle,
    write,
)  # fmt: skip
from penstock.bench.load import drive
from penstock.bench.messages import KEY
from penstock.bench.row import Measure, Row
from penstock.bench.servers import Running, StoredServer
from penstock.client.api.sync import Client

WRITTEN = 10_000_000
FILLED = 5_000_000
_READS = 300
_AT_REST = 3.0
"""Seconds in which a server compresses what was written last, and returns unused memory to the system."""


class Moved(NamedTuple):
    """What was written or read."""

    messages: int
    seconds: float
    busy: float  # processor time of the server


class Compared:
    """Messages a second with history and with all in memory.

    The report has the processor time of the server for a message, which other programs on the machine change less.
    """

    def __init__(self, count: int, move: Callable[[Running, int, float], Moved]) -> None:
        self._count = count
        self._move = move  # (server, messages to have, scale)
        self._busy: dict[str, list[float]] = {"with history": [], "all in memory": []}

    def measure(self, has_history: bool) -> Measure:
        def measure(server: Running, scale: float) -> float:
            count = messages(scale, self._count)
            with server_with(memory(scale) if has_history else 0) as stored:
                moved, seconds, busy = self._move(stored.running, count, scale)
                assert length(stored.running) == count
                assert bool(persistence(stored.running)["history_files"]) == has_history
            self._busy["with history" if has_history else "all in memory"].append(busy / moved * 1e6)
            return moved / seconds

        return measure

    def report(self) -> str:
        return "\n".join(
            f"{name:>15} {statistics.median(figures):.3f} us of the server for a message ({min(figures):.3f}-"
            f"{max(figures):.3f})"
            for name, figures in self._busy.items()
        )


def _written(server: Running, count: int, scale: float) -> Moved:
    """What is in memory at the end may still be uncompressed, in both; so many are written that this is little."""
    before = server.processor_time()
    return Moved(count, write(server, count), server.processor_time() - before)


def _read(server: Running, count: int, scale: float) -> Moved:
    """Four clients read the newest, 1000 a read."""
    write(server, count)
    wait_until_idle(server, count)
    work = reads(server, hot_places(count), 20)
    assert len({size for _, size in work}) == 1
    rounds = max(int(10_000 * scale), 20)
    before = server.processor_time()
    seconds = drive(server.port, [request for request, _ in work], 4, rounds, work[0][1], None)
    return Moved(rounds * 1000, seconds, server.processor_time() - before)


class Restart:
    """Seconds from a start after kill -9 to the first answer. The report has the processor time too."""

    def __init__(self, is_rewritten: bool) -> None:
        self._is_rewritten = is_rewritten
        self._lines: dict[str, tuple[float, float]] = {}
        self._count = 0

    def measure(self, server: Running, scale: float) -> float:
        self._count = count = messages(scale)
        if not server.is_ours:
            return self._peer(count)
        with server_with(memory(scale)) as empty:
            empty.kill()
            self._started("penstock, empty", empty, 0)
        stored = filled(count, memory(scale))
        stored.kill()
        return self._started("penstock", stored, count)

    def _peer(self, count: int) -> float:
        stored = filled_redis(count, self._is_rewritten)
        try:
            return self._started("redis", stored, count)
        finally:
            stored.kill()  # it takes memory as large as the stream

    def _started(self, name: str, stored: StoredServer, count: int) -> float:
        seconds = started_again(stored, count) if count else stored.start()
        self._lines[name] = seconds, stored.running.processor_time()
        return seconds

    def report(self) -> str:
        lines = [f"{self._count:,} messages of 100 bytes; the last round", f"{'':>18} {'seconds':>9} {'processor':>9}"]
        lines += [f"{name:>18} {seconds:>9.2f} {busy:>9.2f}" for name, (seconds, busy) in self._lines.items()]
        return "\n".join(lines)


class Memory:
    """Megabytes of a server's process, whose files of history take ten times its `stream-memory`, after it has come
    to rest; the report has the most while it was written.
    """

    def __init__(self) -> None:
        self._line = ""

    def measure(self, server: Running, scale: float) -> float:
        allowed = memory(scale)
        with server_with(allowed) as stored:
            running = stored.running
            step, count, peak = messages(scale, FILLED // 5), 0, 0
            while persistence(running)["history_bytes"] < 10 * allowed:
                write(running, step)
                count += step
                peak = max(peak, running.resident_memory())
            wait_until_idle(running, count)
            time.sleep(_AT_REST)
            stored_bytes = persistence(running)["history_bytes"]
            self._line = (
                f"stream-memory {allowed / 1e6:.0f} MB, {count:,} messages, {stored_bytes / 1e6:.0f} MB of files; "
                f"at most {peak / 1e6:.0f} MB while they were written"
            )
            return running.resident_memory() / 1e6

    def bound(self, server: Running, scale: float) -> float:
        with server_with(memory(scale)) as empty:
            return (empty.running.resident_memory() + memory(scale)) / 1e6

    def report(self) -> str:
        return self._line


def _median_read(places: Callable[[int], Iterator[int]]) -> Measure:
    """Milliseconds of a TREAD of 1000, the median."""

    def measure(server: Running, scale: float) -> float:
        count = messages(scale)
        stored = filled(count, memory(scale))
        forget(stored.folder)
        work = reads(stored.running, places(count), _READS)
        return statistics.median(seconds_each(stored.running, work)) * 1e3

    return measure


class Bystanders:
    """The worst wait of other clients in milliseconds, beside one that reads history, or what is new.

    Each reads for about a second, so that the others wait as often beside both.
    """

    def __init__(self) -> None:
        self._notices: dict[str, list[Notice]] = {}

    def beside(self, name: str, places: Callable[[int], Iterator[int]], most: int) -> Measure:
        def measure(server: Running, scale: float) -> float:
            count = messages(scale)
            stored = filled(count, memory(scale))
            forget(stored.folder)
            notice = watch(stored.running, reads(stored.running, places(count), most))
            self._notices.setdefault(name, []).append(notice)
            return notice.worst

        return measure

    def report(self) -> str:
        return table_of_notices(self._notices)


def _replay(server: Running, scale: float) -> float:
    """Messages a second into tables of pyarrow, from the first to the last, 100,000 a read."""
    count = messages(scale)
    stored = filled(count, memory(scale))
    forget(stored.folder)
    with Client(port=stored.running.port) as client:
        return nats_peer.rate(count, lambda: sum(table.num_rows for table in client.read_tables(KEY, 1, count)))


def _rows() -> list[Row]:
    rate = "messages/s"
    writing, reading = Compared(WRITTEN, _written), Compared(FILLED, _read)
    restart, rewritten, size, others, lengths = Restart(False), Restart(True), Memory(), Bystanders(), HistoryLengths()
    return [
        Row("history.write", "TWRITE ARROW of 10M, history / all in memory", rate, 0.9, writing.measure(True),
            baseline=writing.measure(False), report=writing.report),
        Row("history.hot", "TREAD 1000 of the newest, history / all in memory", rate, 0.9, reading.measure(True),
            baseline=reading.measure(False), report=reading.report),
        Row("history.restart", "start with 2 GB of history / Redis loads 2 GB of XADD", "s", 0.05, restart.measure,
            True, report=restart.report, most=3, rounds=2),
        Row("history.restart.base", "the same / Redis loads its rewritten log", "s", None, rewritten.measure, True,
            report=rewritten.report, rounds=1),
        Row("history.memory", "RSS, history 10x stream-memory / that + an empty server", "MB", 1.15, size.measure, True,
            baseline=size.bound, report=size.report),
        Row("history.cold", "TREAD 1000 in the middle of 2 GB of history / hot", "ms", None, _median_read(cold_places),
            True, baseline=_median_read(hot_places), most=5),
        Row("history.stall", "worst wait of others, beside cold TREADs / hot ones", "ms", 1.5,
            others.beside("cold reads", cold_places, 300), True, baseline=others.beside("hot reads", hot_places, 3000),
            report=others.report, rounds=5),
        Row("history.replay", "replay of 2 GB of history, ARROW / NATS JetStream, nats-py", rate, 5, _replay,
            baseline=nats_peer.replay),
        Row("history.length", "write, RSS, start, at 20M messages / at 2M", "mean", 1.3, lengths.longest, True,
            baseline=lengths.shortest, report=lengths.report, rounds=1),
    ]  # fmt: skip


HISTORY_ROWS = _rows()
