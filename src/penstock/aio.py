"""The asyncio client: `from penstock import aio; aio.Client.from_url(...)`."""

from __future__ import annotations

from penstock.client.api.aio import Client, Pipeline
from penstock.client.cluster.aio import Cluster, ClusterPipeline

__all__ = ["Client", "Cluster", "ClusterPipeline", "Pipeline"]
