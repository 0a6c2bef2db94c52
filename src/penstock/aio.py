"""The asyncio client: `from penstock import aio; aio.Client.from_url(...)`."""

from __future__ import annotations

from penstock.client.aio import Client, Pipeline

__all__ = ["Client", "Pipeline"]
