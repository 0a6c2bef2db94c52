"""OpenTelemetry: spans and metrics of commands and of the work on messages, and trace context that travels in
messages. An optional extra.

    pip install '.[otel]'

    from penstock import tracing
    tracing.instrument()        # or start the program with opentelemetry-instrument

`instrument` replaces the few methods that run commands (spans.py) by ones that make a span around the call, so a
program that does not use it pays nothing. Only OpenTelemetry's API is needed; without an SDK the spans and the metrics
(measures.py) go nowhere.

The instrumentation of redis-py wraps methods of redis.Redis, which our clients override: it would record nothing of
them, and say nothing. So a client that is made while redis-py is instrumented calls `instrument` by itself.
"""

from __future__ import annotations

from penstock.client.tracing.context import aio_middleware, carry, context_of, middleware, process_span
from penstock.client.tracing.spans import Instrumentor, instrument, uninstrument

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
