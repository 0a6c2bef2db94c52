"""What TWRITE, TREAD and TEVICT cost as a stream grows: a small table, and the same as a drawing.

The drawing is an SVG written by hand: sixty lines against a plotting library that nothing else here needs.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

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
    """The measurement: `longest` grows a stream and notes the costs on the way, `shortest` measures a short one."""

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
        FILE.write_text(draw(self._points), encoding="utf-8")
        lines = [f"{'messages':>12} {'TWRITE':>9} {'TREAD 1':>9} {'TEVICT':>9}   us a command, pipelined {_DEPTH} deep"]
        lines += [f"{point.length:>12,} {point.twrite:>9.2f} {point.tread:>9.2f} {point.tevict:>9.2f}" for point in self._points]  # fmt: skip
        return "\n".join([*lines, f"drawn in {FILE}"])


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
    """Of the median batch: a few in a row may meet a busy moment of the machine."""
    batches = [b"".join(requests[at : at + _DEPTH]) for at in range(0, len(requests), _DEPTH)]
    return (
        statistics.median(drive(server.port, [batch], 1, 1, _DEPTH * lines, b"\n") for batch in batches) / _DEPTH * 1e6
    )


# -- The drawing ----------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 400, 60, 110, 40, 50
_COLOURS = {"twrite": "#1b6ca8", "tread": "#c8553d", "tevict": "#4a7c59"}


def draw(points: list[Point]) -> str:
    """An SVG: lengths on a logarithmic axis, microseconds on a plain one from 0."""
    lengths = [math.log10(point.length) for point in points]
    low, high = math.floor(lengths[0]), max(math.ceil(lengths[-1]), math.floor(lengths[0]) + 1)
    top = _round_up(max(max(point[1:]) for point in points))

    def x(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">Cost of a command against the length of its stream</text>',
        _text(_LEFT, _HEIGHT - 12, "messages in the stream", "start"),
    ]
    for step in range(5):
        value = top * step / 4
        parts.append(_line(_LEFT, y(value), _WIDTH - _RIGHT, y(value), "#ddd"))
        parts.append(_text(_LEFT - 6, y(value) + 4, f"{value:g} us", "end"))
    for power in range(low, high + 1):
        parts.append(_line(x(power), y(0), x(power), y(0) + 5, "#555"))
        parts.append(_text(x(power), y(0) + 18, f"{10**power:,}", "middle"))
    labels = sorted(_COLOURS, key=lambda name: getattr(points[-1], name), reverse=True)
    at = -math.inf
    for name in labels:
        places = [(x(place), y(getattr(point, name))) for place, point in zip(lengths, points, strict=True)]
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_COLOURS[name]}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{d:.1f}" r="3" fill="{_COLOURS[name]}"/>' for a, d in places]
        at = max(places[-1][1] + 4, at + 14)  # labels of lines that end together stand below each other
        parts.append(_text(places[-1][0] + 8, at, name.upper(), "start", _COLOURS[name]))
    return "\n".join([*parts, "</svg>\n"])


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten: quarters of it are short numbers."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= value)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
