"""The cost of TWRITE, TREAD and TEVICT as a stream grows: a small table, and a drawing of it."""

from __future__ import annotations

import functools
import random
import statistics
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from penstock.bench.drawing import draw
from penstock.bench.load import connect, drive, exchange
from penstock.bench.messages import ARROW_ROWS, KEY, TAG, arrow_command
from penstock.bench.servers import Running
from penstock.protocol.resp import pack

LENGTHS = (10_000, 100_000, 1_000_000, 5_000_000, 20_000_000)
FILE = Path("bench-length.svg")
_DEPTH = 100
_BATCHES = 20


class Point(NamedTuple):
    """Microseconds a command, at a length."""

    length: int
    twrite: float
    tread: float
    tevict: float


@functools.cache
def _small_messages() -> bytes:
    """Short ones, so that a long stream is filled in seconds."""
    entries = [b"reading %08d" % number for number in range(ARROW_ROWS)]
    return arrow_command(pa.table({"tag": [TAG] * ARROW_ROWS, "entry": entries}))


def lengthen(server: Running, messages: int) -> None:
    """Append so many short messages, a multiple of ARROW_ROWS."""
    drive(server.port, [_small_messages()], 1, messages // ARROW_ROWS, 1, b"\n")


class Lengths:
    """The measurement: `longest` grows a stream and records the costs on the way, `shortest` measures a short one."""

    def __init__(self) -> None:
        self._points: list[Point] = []

    def longest(self, server: Running, scale: float) -> float:
        """Mean cost of the three commands at the greatest length."""
        self._points = []
        held = 0
        for length in LENGTHS:
            wanted = max(int(length * min(scale, 1)) // ARROW_ROWS, 1) * ARROW_ROWS
            lengthen(server, wanted - held)
            held = wanted
            self._points.append(_costs(server, wanted))
        return _mean(self._points[-1])

    def shortest(self, server: Running, scale: float) -> float:
        lengthen(server, ARROW_ROWS)
        return _mean(_costs(server, ARROW_ROWS))

    def report(self) -> str:
        """The table; writes the drawing too."""
        FILE.write_text(_drawn(self._points), encoding="utf-8")
        lines = [f"{'messages':>12} {'TWRITE':>9} {'TREAD 1':>9} {'TEVICT':>9}   us a command, pipelined {_DEPTH} deep"]
        lines += [
            f"{point.length:>12,} {point.twrite:>9.2f} {point.tread:>9.2f} {point.tevict:>9.2f}"
            for point in self._points
        ]
        return "\n".join([*lines, f"drawn in {FILE}"])


def _drawn(points: list[Point]) -> str:
    lines = {name.upper(): [getattr(point, name) for point in points] for name in ("twrite", "tread", "tevict")}
    title = "Cost of a command against the length of its stream"
    return draw(title, "messages in the stream", "us", [point.length for point in points], lines)


def _mean(point: Point) -> float:
    return (point.twrite + point.tread + point.tevict) / 3


def _costs(server: Running, length: int) -> Point:
    """Costs at about a length. Reads are of the newest thousands, which are hot at every length."""
    rng = random.Random(1)
    total = _DEPTH * _BATCHES
    with connect(server.port) as sock:
        exchange(sock, pack(b"TREAD", KEY, b"%d" % (length - 4_999), b"5000"), 1)  # what is hot is ready from then on
    with server.client() as client:
        (first, _), *_ = client.execute_command("TREAD", KEY, 1, 0, "WITHINFO")
    writes = [pack(b"TWRITE", KEY, TAG, b"reading %08d" % number) for number in range(total)]
    reads = [pack(b"TREAD", KEY, b"%d" % rng.randrange(length - 4_000, length), b"1") for _ in range(total)]
    evictions = [pack(b"TEVICT", KEY, b"%d" % (first + number)) for number in range(total)]
    return Point(length, _cost(server, writes, 1), _cost(server, reads, 7), _cost(server, evictions, 1))


def _cost(server: Running, requests: list[bytes], lines: int) -> float:
    """The median batch: a few in a row may meet a busy moment of the machine."""
    batches = [b"".join(requests[at : at + _DEPTH]) for at in range(0, len(requests), _DEPTH)]
    return (
        statistics.median(drive(server.port, [batch], 1, 1, _DEPTH * lines, b"\n") for batch in batches) / _DEPTH * 1e6
    )
