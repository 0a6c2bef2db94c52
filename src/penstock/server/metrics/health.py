"""/healthz and /readyz: whether this process lives, and whether clients should be sent to it.

That /healthz is answered is the whole answer: the loop turns. A server that is busy with one long command answers late.
"""

from __future__ import annotations

from penstock.engine.dispatch import Engine


def not_ready(engine: Engine, halted: bool) -> str | None:
    """Why clients should not be sent here; None if they should."""
    if halted:
        return "shutting down"
    if engine.loading:
        return "loading its data"
    if engine.stale:
        return "a replica without its leader, and replica-serve-stale-data is no"
    if engine.write_error is not None:
        return f"writes are refused: {engine.write_error}"
    if engine.streams_full is not None:
        return f"new messages are refused: {engine.streams_full}"
    return None
