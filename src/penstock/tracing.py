"""OpenTelemetry for the clients: `from penstock import tracing; tracing.instrument()`. docs/client.md has the guide."""

from __future__ import annotations

from penstock.client.tracing import Instrumentor, carry, context_of, instrument, process_span, uninstrument

__all__ = ["Instrumentor", "carry", "context_of", "instrument", "process_span", "uninstrument"]
