"""The first page: is the server well, and what needs attention."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

from penstock.console.history import Point
from penstock.console.info import number, parse_info
from penstock.console.request_context import RequestContext
from penstock.console.sampler import Sampler
from penstock.console.views.streams import row

TOP = 5
HOUR, SHORTEST = 3600, 600
"""Seconds that a graph shows: an hour, or less if there are no older points."""
SECTIONS = ("INFO",)


async def overview(context: RequestContext) -> dict[str, Any]:
    sampler = context.sampler
    await sampler.wait_for_round(0.15)
    raw, count, log = await context.login.find_all([SECTIONS, ("DBSIZE",), ("ACL", "LOG", 0)])
    streams = list(sampler.streams.values())
    info = parse_info(raw) if raw is not None else None
    points = (await context.console.history.read(time.time(), b"", HOUR)).get(b"", []) if info is not None else []
    return {
        "server": _server(info) if info is not None else None,
        "keys": count,
        "streams": {
            "count": sampler.total if sampler.total is not None else len(streams),
            "rate": sum(stream.rate for stream in streams),
            "bytes": sum(stream.size for stream in streams),
            "behind": [
                row(stream, context.names) for stream in sorted(streams, key=lambda s: -s.lag)[:TOP] if stream.lag
            ],
            "busiest": [
                row(stream, context.names) for stream in sorted(streams, key=lambda s: -s.rate)[:TOP] if stream.rate
            ],
        },
        "alerts": _alerts(info or {}, sampler),
        "graph": _graph(points),
        "actions": context.console.actions.latest(8, None if log is not None else context.session.user),
        "recording": context.console.is_recording,
    }


def _server(info: dict[str, str]) -> dict[str, Any]:
    return {
        "version": info.get("penstock_version") or f"Redis {info.get('redis_version', '')}",
        "role": info.get("role", ""),
        "uptime": number(info, "uptime_in_seconds"),
        "memory": number(info, "used_memory"),
        "memory_most": number(info, "maxmemory"),
        "rss": number(info, "used_memory_rss"),
        "clients": number(info, "connected_clients"),
        "clients_most": number(info, "maxclients"),
        "blocked": number(info, "blocked_clients"),
        "commands": number(info, "instantaneous_ops_per_sec"),
        "in_kbps": number(info, "instantaneous_input_kbps"),
        "out_kbps": number(info, "instantaneous_output_kbps"),
        "lazy": number(info, "lazy_queued"),
        "locked": number(info, "locked_keys_write") + number(info, "locked_keys_read"),
        "lock_waits": number(info, "lock_waiting_clients"),
        "log": info.get("aof_enabled") == "1",
        "replicas": number(info, "connected_slaves"),
    }


def _alerts(info: dict[str, str], sampler: Sampler) -> list[dict[str, str]]:
    """Alerts for the operator, the worst first."""
    found: list[tuple[str, str, str]] = []
    if info and "penstock_version" not in info:
        found.append(("bad", "This server is Redis, not Penstock: most pages have nothing to show.", "/nodes"))
    for name, what in (
        ("aof_last_write_status", "The last write to the log failed. The server refuses writes until one succeeds."),
        ("rdb_last_bgsave_status", "The last snapshot failed."),
        ("aof_last_bgrewrite_status", "The last rewrite of the log failed."),
        ("history_last_write_status", "The last write to the files of history failed."),
    ):
        if info.get(name, "ok") != "ok":
            found.append(("bad", what, "/nodes"))
    if info.get("master_link_status", "up") != "up":
        found.append(("bad", "This replica has lost its leader.", "/nodes"))
    most, used = number(info, "maxmemory"), number(info, "used_memory")
    if most and used > 0.9 * most:
        found.append(("bad", f"{used / most:.0%} of maxmemory is used. Writes are refused at 100%.", "/keys"))
    clients, most_clients = number(info, "connected_clients"), number(info, "maxclients")
    if most_clients and clients > 0.9 * most_clients:
        found.append(("warn", f"{clients:,.0f} of at most {most_clients:,.0f} clients are connected.", "/clients"))
    if waiting := number(info, "lock_waiting_clients"):
        found.append(("warn", f"Clients that wait for a locked key: {waiting:,.0f}.", "/clients"))
    if info.get("lazy_last_error"):
        found.append(("warn", "A queued LAZY command failed.", "/clients"))
    lost = [s for s in sampler.streams.values() if any(group.lost for group in s.groups)]
    if lost:
        found.append(
            (
                "warn",
                f"Streams with groups that lost messages to eviction before they read them: {len(lost):,}.",
                "/streams",
            )
        )
    stuck = [s for s in sampler.streams.values() if s.lag and not any(group.rate for group in s.groups) and s.rate]
    if stuck:
        found.append(
            ("warn", f"Streams that grow while a group behind reads nothing: {len(stuck):,}.", "/streams?sort=lag")
        )
    return [{"level": level, "text": text, "link": link} for level, text, link in found]


def _graph(points: list[Point]) -> dict[str, Any]:
    """Commands a second and memory."""
    times, commands, memory = [], [], []
    for before, point in pairwise(points):
        times.append(point.time)
        passed = point.values[0] - before.values[0]
        seconds = max(point.time - before.time, 1)
        commands.append(round(passed / seconds, 1) if passed >= 0 else None)  # the server was restarted
        memory.append(point.values[1])
    now = int(time.time())
    return {
        "from": max(now - HOUR, min([now - SHORTEST, *times[:1]])),
        "to": now,
        "times": times,
        "commands": commands,
        "memory": memory,
    }
