"""Registered scripts (scripts.py) on a cluster: its pipelines, too, are pipelines.

Rejected: to load a script on all masters before each pipeline. It costs a round trip more, and a replica that takes
over has not got it.
"""

from __future__ import annotations

from penstock.client.api.scripts import AioRegisteredScript, RegisteredScript
from penstock.client.cluster.calls import ClusterPipelineBase


class ClusterScript(RegisteredScript):
    """For penstock.Cluster."""

    pipelines = (ClusterPipelineBase,)


class AioClusterScript(AioRegisteredScript):
    """For penstock.aio.Cluster."""

    pipelines = (ClusterPipelineBase,)
