"""Line charts over a logarithmic axis, for rows of the bench.

The SVG is written by hand: sixty lines instead of a plotting library that nothing else here needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 400, 60, 110, 40, 50
_COLOURS = ("#1b6ca8", "#c8553d", "#4a7c59")


def draw(title: str, axis: str, unit: str, across: Sequence[float], lines: Mapping[str, Sequence[float]]) -> str:
    """Up to three lines by name, each with a value for each position; the value axis is linear from 0."""
    places = [math.log10(value) for value in across]
    low, high = places[0], max(places[-1], places[0] + 0.1)
    top = _round_up(max(max(values) for values in lines.values()))

    def x(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{title}</text>',
        _text(_LEFT, _HEIGHT - 12, axis, "start"),
    ]
    for step in range(5):
        value = top * step / 4
        parts.append(_line(_LEFT, y(value), _WIDTH - _RIGHT, y(value), "#ddd"))
        parts.append(_text(_LEFT - 6, y(value) + 4, f"{value:g} {unit}", "end"))
    for place, value in zip(places, across, strict=True):
        parts.append(_line(x(place), y(0), x(place), y(0) + 5, "#555"))
        parts.append(_text(x(place), y(0) + 18, f"{value:,}", "middle"))
    at = -math.inf
    colours = dict(zip(lines, _COLOURS, strict=False))
    for name in sorted(lines, key=lambda name: lines[name][-1], reverse=True):
        points = [(x(place), y(value)) for place, value in zip(places, lines[name], strict=True)]
        path = " ".join(f"{right:.1f},{down:.1f}" for right, down in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{d:.1f}" r="3" fill="{colours[name]}"/>' for a, d in points]
        at = max(points[-1][1] + 4, at + 14)  # labels of lines that end together stand below each other
        parts.append(_text(points[-1][0] + 8, at, name, "start", colours[name]))
    return "\n".join([*parts, "</svg>\n"])


def stack(charts: Sequence[str]) -> str:
    """Several charts below each other as one."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT * len(charts)}">'
    place = f'<svg y="{{}}" width="{_WIDTH}" height="{_HEIGHT}" '
    parts = [chart.replace("<svg ", place.format(at * _HEIGHT), 1) for at, chart in enumerate(charts)]
    return "".join([head, "\n", *parts, "</svg>\n"])


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten: quarters of it are short numbers."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= value)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
