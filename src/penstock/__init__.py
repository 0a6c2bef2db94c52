"""Penstock: an event log that speaks the Redis protocol, a client that knows what was delivered, and Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "GIVE_UP", "Backoff", "BufferFull", "Client", "ClientClosed", "Cluster", "Delivery", "DeliveryError",
    "ExactlyOnceUnavailable", "Message", "NoReplyInTime", "NotEncodable", "NotReplayed", "NotSent", "NotSentInTime",
    "NotSharable", "OutcomeUnknown", "Server", "State", "TransactionLost", "__version__",
]  # fmt: skip

if TYPE_CHECKING:
    from penstock.client.api.stream_replies import Message
    from penstock.client.api.sync import Client
    from penstock.client.cluster.sync import Cluster
    from penstock.client.consumer.options import GIVE_UP, Backoff
    from penstock.client.delivery import Delivery, State
    from penstock.client.errors import (
        BufferFull,
        ClientClosed,
        DeliveryError,
        ExactlyOnceUnavailable,
        NoReplyInTime,
        NotEncodable,
        NotReplayed,
        NotSent,
        NotSentInTime,
        NotSharable,
        OutcomeUnknown,
        TransactionLost,
    )
    from penstock.server.embedded import Server

_HOMES = {
    "GIVE_UP": "penstock.client.consumer.options",
    "Backoff": "penstock.client.consumer.options",
    "Client": "penstock.client.api.sync",
    "Cluster": "penstock.client.cluster.sync",
    "Delivery": "penstock.client.delivery",
    "Message": "penstock.client.api.stream_replies",
    "Server": "penstock.server.embedded",
    "State": "penstock.client.delivery",
}
_ERRORS = "penstock.client.errors"  # the home of all other names

if not TYPE_CHECKING:  # a checker must see that penstock.Cliient does not exist

    def __getattr__(name: str) -> Any:
        """`penstock.Server` and the like without making every import of the package load all of it."""
        if name in __all__:
            return getattr(importlib.import_module(_HOMES.get(name, _ERRORS)), name)
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
