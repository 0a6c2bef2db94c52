"""OpenTelemetry for the clients: `from penstock import tracing; tracing.instrument()`. docs/client.md has the guide."""

from __future__ import annotations

from penstock.client.tracing import *  # noqa: F403 (what it exports is what this is)
from penstock.client.tracing import __all__ as __all__
