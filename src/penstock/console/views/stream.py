"""One stream: its figures, its groups, and its graph."""

from __future__ import annotations

import time
from typing import Any

from penstock.console.history import Point
from penstock.console.json_bytes import WHOLE, cut, text
from penstock.console.login import Login, quietly
from penstock.console.long_names import LongNames
from penstock.console.request_context import RequestContext
from penstock.console.sampler import StreamSample
from penstock.protocol.dead_letters import Letter

MOST_GROUPS = 100
MOST_LETTERS = 5
"""Dead letter streams that are linked."""
SHORT = 60
"""Characters of the names of members, and of groups in a graph."""
LEASES = 200
"""Leases of a group that are looked at for the most attempts."""
NEAR = 4
"""Seconds."""


async def stream(context: RequestContext) -> dict[str, Any]:
    key, login = context.given.key(), context.login
    info = await login.stream(key)
    sampler = context.sampler
    await sampler.refresh([key])
    groups = sorted(info[b"groups"], key=lambda group: -group[b"lag"])
    shown = groups[:MOST_GROUPS]
    leases = await _leases(login, key, shown)
    sample = sampler.streams.get(key)
    schema = await quietly(login.call("TSCHEMA", "GET", key))
    return {
        **context.names.named(key),
        "first": info[b"first"],
        "last": info[b"last"],
        "length": info[b"length"],
        "bytes": info[b"bytes-stored"],
        "raw": info[b"bytes-raw"],
        "history": {name.decode(): value for name, value in info[b"history"].items()},
        "retention": {name.decode(): value for name, value in info[b"retention"].items()},
        "producers": info[b"producers"],
        "stages": info[b"stages"],
        "delayed": info[b"delayed"],
        "schema": _schema(schema),
        "rate": round(sample.rate, 1) if sample else 0,
        "groups": [_group(group, held, sample, context.names) for group, held in zip(shown, leases, strict=True)],
        "more_groups": len(groups) - len(shown),
        "letters": [context.names.named(name) for name in _dead_letters(groups, schema)],
    }


async def _leases(login: Login, key: bytes, groups: list[dict[bytes, Any]]) -> list[Any]:
    """The pending leases of each group, up to a limit."""
    pending = [group[b"name"] for group in groups if group[b"pending"]]
    replies = await login.find_all([("TGROUP", "PENDING", key, name, "COUNT", LEASES) for name in pending])
    found = dict(zip(pending, replies, strict=True))
    return [found.get(group[b"name"]) for group in groups]


def _group(group: dict[bytes, Any], leases: Any, sample: StreamSample | None, names: LongNames) -> dict[str, Any]:
    rate = next((each.rate for each in sample.groups if each.name == group[b"name"]), 0) if sample else 0
    return {
        **{name: value for name, value in names.named(group[b"name"]).items() if name != "key"},
        "id": names.id(group[b"name"]),
        "position": group[b"position"],
        "lag": group[b"lag"],
        "behind": group[b"lag-ms"],
        "pending": group[b"pending"],
        "delayed": group[b"delayed"],
        "acknowledged": group[b"acknowledged"],
        "lost": group[b"lost"],
        "next_retry": group[b"next-retry"],
        "rate": round(rate, 1),
        "attempts": max((lease[2] for lease in leases), default=None) if leases else None,
        "oldest": min((lease[3] for lease in leases if lease[3]), default=None) if leases else None,
        "consumers": [
            {"name": cut(member[b"name"], SHORT), "idle": member[b"idle"], "pending": member[b"pending"]}
            for member in group[b"consumers"][:20]
        ],
    }


def _dead_letters(groups: list[dict[bytes, Any]], schema: Any) -> list[bytes]:
    """The streams that get what the groups give up, and what does not fit the schema."""
    found = dict.fromkeys(name for group in groups for name in group[b"dead-letters"])
    if schema and isinstance(name := schema.get(b"deadletter"), bytes):
        found[name] = None
    return list(found)[:MOST_LETTERS]


def _schema(found: Any) -> dict[str, Any] | None:
    if not found:
        return None
    return {
        "fields": cut(found[b"fields"], WHOLE),
        "version": found.get(b"version"),
        "check": text(found[b"check"]) if isinstance(found.get(b"check"), bytes) else None,
    }


async def kind(context: RequestContext) -> dict[str, Any]:
    """Whether the newest message is a dead letter: then the stream is one of dead letters."""
    key = context.given.key()
    info = await context.login.find("TINFO", key)
    if info is None or not info[b"length"]:
        return {"letters": False}
    found = await context.login.call("TREAD", key, info[b"last"], 1)
    return {"letters": any(_is_letter(message[2]) for message in found if message)}


def _is_letter(raw: bytes) -> bool:
    if len(raw) > 1 << 20:
        return False
    try:
        letter = Letter.decode(raw)
    except ValueError:
        return False
    return letter.why is not None or letter.offset is not None


async def graph(context: RequestContext) -> dict[str, Any]:
    """Writes and reads a second, and the lag of each group, over time."""
    key, seconds = context.given.key(), context.given.number("seconds", 3600, 60, 14 * 86400)
    await context.login.stream(key)  # the user may see it, and it is there
    sampler = context.sampler
    await sampler.refresh([key])
    series = await context.console.history.read(time.time(), key, seconds)
    now = int(time.time())
    if (sample := sampler.streams.get(key)) is not None:
        taken = int(sample.taken)
        _append(series.setdefault(b"", []), Point(taken, (sample.last, sample.size, sample.length)))
        for group in sample.groups:
            values = (group.position, group.lag, group.pending, group.behind)
            _append(series.setdefault(group.name, []), Point(taken, values))
    times = sorted({point.time for points in series.values() for point in points})
    live = {group.name for group in sample.groups} if sample else set()
    return {
        "from": now - seconds,
        "to": now,
        "times": times[1:],
        "written": _rates(series.get(b"", []), times),
        "bytes": _values(series.get(b"", []), times, 1)[1:],
        "groups": [
            {
                "name": cut(name, SHORT),
                "read": _rates(points, times),
                "lag": _values(points, times, 1)[1:],
                "behind": _behind(points, times)[1:],
            }
            for name, points in sorted(series.items())
            if name in live
        ][:6],
    }


def _append(points: list[Point], newest: Point) -> None:
    """The newest point, unless it is too near to the last one to tell a rate."""
    if not points or newest.time - points[-1].time >= NEAR:
        points.append(newest)


def _values(points: list[Point], times: list[int], which: int) -> list[float | None]:
    """A value at each time: the last one known by then."""
    found: list[float | None] = []
    at, known = 0, None
    for moment in times:
        while at < len(points) and points[at].time <= moment:
            known = points[at].values[which]
            at += 1
        found.append(known)
    return found


def _behind(points: list[Point], times: list[int]) -> list[float | None]:
    """Seconds that a group was behind at each time. While it stands still it falls behind as time passes."""
    found: list[float | None] = []
    at, last = 0, None
    for moment in times:
        while at < len(points) and points[at].time <= moment:
            last = points[at]
            at += 1
        known = last is not None and len(last.values) > 3  # an earlier version did not record it
        if last is None or not known:
            found.append(None)
        else:
            found.append(round(last.values[3] / 1000 + moment - last.time, 1) if last.values[1] else 0.0)
    return found


def _rates(points: list[Point], times: list[int]) -> list[float | None]:
    """How fast a number grew between the times. None where it is not known, and where it went back."""
    values = _values(points, times, 0)
    rates: list[float | None] = []
    for at in range(1, len(times)):
        before, now = values[at - 1], values[at]
        grown = None if before is None or now is None or now < before else now - before
        rates.append(None if grown is None else round(grown / max(times[at] - times[at - 1], 1), 2))
    return rates
