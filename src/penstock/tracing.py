"""OpenTelemetry for the clients: `from penstock import tracing; tracing.instrument()`. docs/client.md has the guide."""

from __future__ import annotations

from penstock.client.tracing import (
    Instrumentor,
    aio_middleware,
    carry,
    context_of,
    instrument,
    middleware,
    process_span,
    uninstrument,
)

__all__ = [
    "Instrumentor",
    "aio_middleware",
    "carry",
    "context_of",
    "instrument",
    "middleware",
    "process_span",
    "uninstrument",
]
