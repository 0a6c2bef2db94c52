"""Penstock: an event log that speaks the Redis protocol, a client that knows what was delivered, and Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Client", "Cluster", "Delivery", "Server", "State", "__version__"]

if TYPE_CHECKING:
    from penstock.client.api.sync import Client
    from penstock.client.cluster.sync import Cluster
    from penstock.client.delivery import Delivery, State
    from penstock.server.embedded import Server

_HOMES = {
    "Client": "penstock.client.api.sync",
    "Cluster": "penstock.client.cluster.sync",
    "Delivery": "penstock.client.delivery",
    "Server": "penstock.server.embedded",
    "State": "penstock.client.delivery",
}


def __getattr__(name: str) -> Any:
    """`penstock.Server` and the like without making every import of the package load all of it."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
