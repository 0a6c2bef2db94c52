"""Penstock: an event log that speaks the Redis protocol, a client that knows what was delivered, and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Server", "__version__"]

if TYPE_CHECKING:
    from penstock.server.embedded import Server


def __getattr__(name: str) -> Any:
    """`penstock.Server` without making every import of the package load the whole server."""
    if name == "Server":
        from penstock.server.embedded import Server

        return Server
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
