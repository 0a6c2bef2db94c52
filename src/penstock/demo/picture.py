"""The demo's picture as an SVG: clicks a minute by page, and how far behind the pipeline was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from penstock.demo.clicks import PAGES

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _GAP = 760, 240, 70, 110, 50
_COLOURS = ("#1b6ca8", "#c8553d", "#4a7c59", "#8a6fb0", "#b08d2e")


def draw(minutes: Mapping[tuple[str, str], int], behind: Points) -> str:
    """Both charts, one above the other."""
    order = sorted({minute for minute, _ in minutes})
    lines = {
        page: [(float(at), float(minutes.get((minute, page), 0))) for at, minute in enumerate(order)] for page in PAGES
    }
    across = [(float(at), minute[11:]) for at, minute in enumerate(order)]
    last = math.ceil(behind[-1][0]) if behind else 1
    step = max(last // 6, 1)
    seconds = [(float(at), f"{at} s") for at in range(0, last + 1, step)]
    height = 2 * _HEIGHT + _GAP
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        *_chart(0, "Clicks a minute, by page, by the clock of the clicks", lines, across),
        *_chart(_HEIGHT + _GAP, "Messages written and not yet read by the pipeline", {"": behind}, seconds),
        "</svg>\n",
    ])  # fmt: skip


def _chart(
    top: float, title: str, lines: Mapping[str, Points], across: Points | Sequence[tuple[float, str]]
) -> list[str]:
    highest = _round_up(max((value for points in lines.values() for _, value in points), default=1))
    widest = max((at for points in lines.values() for at, _ in points), default=1) or 1

    def x(at: float) -> float:
        return _LEFT + at / widest * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return top + _HEIGHT - 20 - value / highest * (_HEIGHT - 60)

    parts = [_text(_LEFT, top + 22, title, "start", size=14)]
    for quarter in range(5):
        value = highest * quarter / 4
        parts.append(
            f'<line x1="{_LEFT}" y1="{y(value):.1f}" x2="{_WIDTH - _RIGHT}" y2="{y(value):.1f}" stroke="#ddd"/>'
        )
        parts.append(_text(_LEFT - 6, y(value) + 4, f"{value:,g}", "end"))
    parts += [_text(x(at), y(0) + 18, str(label), "middle") for at, label in across if at <= widest]
    highest_label = math.inf
    names = sorted(lines, key=lambda name: lines[name][-1][1] if lines[name] else 0)
    for name, colour in zip(names, _COLOURS, strict=False):
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in lines[name])
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if name and lines[name]:
            highest_label = min(y(lines[name][-1][1]) + 4, highest_label - 14)  # lines that end together
            parts.append(_text(x(lines[name][-1][0]) + 8, highest_label, name, "start", colour))
    return parts


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten: quarters of it are short numbers."""
    power = 10.0 ** math.floor(math.log10(max(value, 1)))
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= value)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{text}</text>'
