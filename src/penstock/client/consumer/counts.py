"""The counters of a consumer since it was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Counters of a consumer, all its workers together. Changed under its lock, read at any time."""

    fetched: int = 0
    """Messages that came."""
    done: int = 0
    """Messages that were acknowledged."""
    failed: int = 0
    """Times that a body failed on a message."""
    given_back: int = 0
    """Messages that no body began with here, because other members may be quicker or the consumer stopped."""
    given_up: int = 0
    """Messages that were made dead letters by this consumer (GIVE_UP)."""
    stale: int = 0
    """Messages that the server gave to another member while they were held here; their acknowledgement came too late.
    """
    extended: int = 0
    """Times that the lease of a message was extended."""
    outages: int = 0
    """Times that the server stopped answering."""
    repeated: int = 0
    """Commands that were sent again because the server did not answer."""
