"""The list of streams: filtered, sorted, and a page of it. All of it comes from memory (sampler.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.console.errors import Wrong
from penstock.console.json_bytes import cut
from penstock.console.long_names import LongNames
from penstock.console.request_context import RequestContext
from penstock.console.sampler import StreamSample
from penstock.console.views.stream_filter import FIGURES, passes

ROWS = 50
SHORT = 60
"""Characters of the name of a group in the list."""
SORTS: dict[str, Callable[[StreamSample], Any]] = {"name": lambda stream: stream.key, **FIGURES}


async def streams(context: RequestContext) -> dict[str, Any]:
    given = context.given
    sort, order = given.text("sort", "name"), given.text("order", "up")
    if sort not in SORTS or order not in ("up", "down"):
        raise Wrong(f"Streams are sorted by {', '.join(SORTS)}, up or down.")
    sampler = context.sampler
    await sampler.wait_for_round(0.15)
    if sampler.problem is not None and not sampler.streams:
        raise sampler.problem
    chosen = _chosen(list(sampler.streams.values()), given.words("filter"), given.text("only", ""))
    chosen.sort(key=lambda stream: stream.key)
    if sort != "name" or order == "down":
        chosen.sort(key=SORTS[sort], reverse=order == "down")
    last_page = max((len(chosen) - 1) // ROWS, 0)
    page = min(given.number("page", 0), last_page)
    shown = chosen[page * ROWS : (page + 1) * ROWS]
    await sampler.refresh([stream.key for stream in shown])
    return {
        "rows": [row(sampler.streams.get(stream.key, stream), context.names) for stream in shown],
        "found": len(chosen),
        "count": len(sampler.streams),
        "complete": sampler.total is not None,
        "page": page,
        "pages": last_page + 1,
    }


def _chosen(found: list[StreamSample], words: str, only: str) -> list[StreamSample]:
    """Streams that pass a filter; `only` those behind, busy or pending."""
    if words:
        found = list(filter(passes(words), found))
    if only == "behind":
        return [stream for stream in found if stream.lag]
    if only == "busy":
        return [stream for stream in found if stream.rate]
    if only == "pending":
        return [stream for stream in found if stream.pending]
    return found


def row(stream: StreamSample, names: LongNames) -> dict[str, Any]:
    return {
        **names.named(stream.key),
        "length": stream.length,
        "first": stream.first,
        "last": stream.last,
        "bytes": stream.size,
        "rate": round(stream.rate, 1),
        "lag": stream.lag if stream.groups else None,
        "behind": stream.behind if stream.groups else None,
        "pending": stream.pending if stream.groups else None,
        "groups": [
            {"name": cut(group.name, SHORT), "lag": group.lag, "pending": group.pending}
            for group in sorted(stream.groups, key=lambda group: -group.lag)[:3]
        ],
        "more_groups": max(len(stream.groups) - 3, 0),
    }
