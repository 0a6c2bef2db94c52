"""Projects that `penstock run` runs: what each told the server of its flows. Read in parts, up to a bound."""

from __future__ import annotations

from typing import Any

from penstock.console.json_bytes import cut
from penstock.console.login import Login
from penstock.console.masking import Mask
from penstock.console.request_context import RequestContext
from penstock.protocol.pipelines import KEY, SILENT_MS, PipelineReport

PART = 50
MOST = 200
"""Projects on the page."""
LARGEST = 64 << 10
"""Bytes of a report."""
READ_BYTES = 1 << 20
MOST_FLOWS = 200


async def pipelines(context: RequestContext) -> dict[str, Any]:
    found, has_more = await _reports(context.login)
    now = await context.login.call("TIME")
    milliseconds = int(now[0]) * 1000 + int(now[1]) // 1000
    mask = context.console.options.mask
    rows = [row for name, raw, size in found if (row := _row(name, raw, size, milliseconds, mask)) is not None]
    rows.sort(key=lambda row: -row["started"])
    return {"rows": rows[:MOST], "more": has_more or len(rows) > MOST}


async def _reports(login: Login) -> tuple[list[Any], bool]:
    """Name, report and size of each; and whether there are more. Reports are cut at LARGEST."""
    found: dict[bytes, Any] = {}  # a report may come twice while the hash changes
    cursor, read = b"0", 0
    while True:
        reply = await login.find("PEEK", KEY, cursor, "COUNT", PART, "BYTES", LARGEST)
        cursor, rows = reply or (b"0", [])
        found.update((row[0], row) for row in rows)
        read += sum(len(row[0]) + len(row[1]) for row in rows)
        if not int(cursor) or read > READ_BYTES or len(found) > MOST:
            return list(found.values()), bool(int(cursor))


def _row(name: bytes, raw: bytes, size: int, now: int, mask: Mask) -> dict[str, Any] | None:
    try:
        report = PipelineReport.decode(raw)
    except ValueError:
        if len(raw) == size:
            return None  # of another version, or not ours
        report = PipelineReport(cut(name), "", 0, 0, "failed", "Its report is too large to be shown.")
    is_silent = report.state == "running" and now - report.updated > SILENT_MS
    return {
        "id": cut(name),
        "name": report.name[:500],
        "place": report.place[:500],
        "state": "silent" if is_silent else report.state[:100],
        "started": report.started,
        "updated": report.updated,
        "error": mask.reason(report.error[:20_000]),
        "flows": report.flows[:MOST_FLOWS],
    }
