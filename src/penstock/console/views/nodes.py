"""The server and its replicas, what is on disk, and the files of history."""

from __future__ import annotations

from typing import Any

from penstock.console.errors import Refused
from penstock.console.info import number, parse_info, parse_pairs
from penstock.console.request_context import RequestContext


async def nodes(context: RequestContext) -> dict[str, Any]:
    (raw,) = await context.login.find_all([("INFO",)])
    if raw is None:
        raise Refused(f"The user {context.session.user} may not run INFO, from which this page is made.")
    info = parse_info(raw)
    offset = number(info, "master_repl_offset")
    return {
        "place": context.console.options.place,
        "role": info.get("role", ""),
        "offset": offset,
        "shard": _shard(info) if info.get("shard") else None,
        "leader": _leader(info) if info.get("role") == "slave" else None,
        "replicas": [
            _replica(parse_pairs(value, ","), offset)
            for name, value in info.items()
            if name.startswith("slave") and name[5:].isdigit()
        ],
        "disk": {
            "log": info.get("aof_enabled") == "1",
            "log_bytes": number(info, "aof_current_size"),
            "log_ok": info.get("aof_last_write_status", "ok") == "ok",
            "rewriting": info.get("aof_rewrite_in_progress") == "1",
            "snapshot_ok": info.get("rdb_last_bgsave_status", "ok") == "ok",
            "snapshot_time": number(info, "rdb_last_save_time") * 1000,
            "saving": info.get("rdb_bgsave_in_progress") == "1",
            "changes": number(info, "rdb_changes_since_last_save"),
        },
        "history": {
            "enabled": info.get("history_enabled") == "1",
            "files": number(info, "history_files"),
            "bytes": number(info, "history_bytes"),
            "ok": info.get("history_last_write_status", "ok") == "ok",
            "held": number(info, "stream_memory_held"),
            "limit": number(info, "stream_memory_limit"),
        },
    }


def _shard(info: dict[str, str]) -> dict[str, Any]:
    return {
        "name": info["shard"],
        "node": info.get("node", ""),
        "epoch": number(info, "epoch"),
        "lease": number(info, "lease_ms_left") / 1000,
        "in_sync": [member for member in info.get("in_sync", "").split(",") if member],
    }


def _leader(info: dict[str, str]) -> dict[str, Any]:
    return {
        "address": f"{info.get('master_host', '')}:{info.get('master_port', '')}",
        "up": info.get("master_link_status") == "up",
        "silent": number(info, "master_last_io_seconds_ago"),
        "syncing": info.get("master_sync_in_progress") == "1",
    }


def _replica(row: dict[str, str], offset: float) -> dict[str, Any]:
    return {
        "address": f"{row.get('ip', '')}:{row.get('port', '')}",
        "state": row.get("state", ""),
        "behind": max(offset - number(row, "offset"), 0),
        "silent": number(row, "lag"),
    }
