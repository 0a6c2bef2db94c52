"""Clients and locks: who is connected, who waits for what, the LAZY queue, and the slow log."""

from __future__ import annotations

from typing import Any

from penstock.console.info import number, parse_info, parse_pairs
from penstock.console.json_bytes import NAME, cut, text
from penstock.console.request_context import RequestContext

MOST = 200
SLOW = 50
LAZY = ("queued", "bytes", "oldest_age_ms", "enqueued", "ran_actively", "ran_passively", "ran_inline", "failed")


async def clients(context: RequestContext) -> dict[str, Any]:
    """Each part is null if the user may not ask for it."""
    listed, locks, info, slow = await context.login.find_all([
        ("CLIENT", "LIST"),
        ("LOCKS",),
        ("INFO",),
        ("SLOWLOG", "GET", SLOW),
    ])  # fmt: skip
    rows = _clients(listed) if listed is not None else []
    known = {row["id"]: _short(row) for row in rows}
    words = context.given.words("filter").lower()
    chosen = [row for row in rows if not words or any(words in str(value).lower() for value in row.values())]
    chosen.sort(key=lambda row: (not row["waits"], row["idle"], row["id"]))
    return {
        "clients": [_short(row) for row in chosen[:MOST]] if listed is not None else None,
        "found": len(chosen),
        "count": len(rows),
        "locks": [_lock(row, known) for row in locks[:MOST]] if locks is not None else None,
        "lazy": _lazy(parse_info(info)) if info is not None else None,
        "slow": [_slow(row, bool(context.console.options.mask)) for row in slow] if slow is not None else None,
    }


def _clients(raw: Any) -> list[dict[str, Any]]:
    found = []
    for line in text(raw).splitlines():
        row = parse_pairs(line)
        if "id" not in row:
            continue
        library = " ".join(part for part in (row.get("lib-name", ""), row.get("lib-ver", "")) if part)
        found.append({
            "id": int(row["id"]),
            "address": row.get("addr", ""),
            "name": row.get("name", ""),
            "user": row.get("user", ""),
            "age": int(number(row, "age")),
            "idle": int(number(row, "idle")),
            "command": row.get("cmd", "").replace("|", " ").upper(),
            "waits": "b" in row.get("flags", ""),
            "database": int(number(row, "db")),
            "memory": number(row, "tot-mem"),
            "library": library,
        })  # fmt: skip
    return found


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A client chooses its names, and they may have megabytes."""
    return {
        name: f"{value[:NAME]}…" if isinstance(value, str) and len(value) > NAME else value
        for name, value in row.items()
    }


def _lock(row: dict[bytes, Any], known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    def named(numbers: list[int]) -> list[dict[str, Any]]:
        return [
            {"id": number, "name": client["name"] or client["address"], "command": client["command"]}
            if (client := known.get(number))
            else {"id": number, "name": "", "command": ""}
            for number in numbers[:10]
        ]

    return {
        "database": row[b"db"],
        "name": cut(row[b"key"]),
        "type": text(row[b"type"]),
        "milliseconds": row[b"milliseconds"],
        "holders": named(row[b"clients"]),
        "waiting": named(row[b"waiting"]),
        "waits": len(row[b"waiting"]),
    }


def _lazy(info: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {name: number(info, f"lazy_{name}") for name in LAZY}
    return {**found, "last_error": info.get("lazy_last_error", "")[:2000]}


def _slow(row: list[Any], is_masked: bool) -> dict[str, Any]:
    """A slow command. Its arguments are payloads: when payloads are hidden, only their number is shown."""
    number_, when, micros, words, *rest = row
    shown = [text(word[:200]) if isinstance(word, bytes) else str(word) for word in words]
    return {
        "id": number_,
        "time": when * 1000,
        "ms": micros / 1000,
        "command": f"{shown[0]} ({len(words) - 1} arguments)" if is_masked else " ".join(shown)[:600],
        "client": cut(rest[1]) or cut(rest[0]) if len(rest) > 1 else "",
    }
