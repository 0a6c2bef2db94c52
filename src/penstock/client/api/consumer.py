"""The old home of consumers, which are in penstock.client.consumer now."""

from __future__ import annotations

import warnings
from typing import Any

from penstock.client.consumer import aio, handlers, options, sync

_MOVED = {
    "AioConsumer": aio.AioConsumer,
    "Consumer": sync.Consumer,
    "OnError": handlers.OnError,
    "Terms": options.ConsumerSettings,
}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is in penstock.client.consumer now", DeprecationWarning, stacklevel=2)
    return _MOVED[name]
