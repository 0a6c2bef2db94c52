"""Lua scripts that were registered (`register_script`), in pipelines of a cluster too.

A client sends a script's digest, and the script itself when a node does not know it. A pipeline cannot: it is told only when it has
run, and which nodes it will go to may change until then. So there the script travels whole (EVAL), which any node can run.

Rejected: to load the script on all masters before each pipeline. It costs a round trip more, and a replica that takes over has not got it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.commands.core import AsyncScript, Script

from penstock.client.cluster.calls import PipelineBody


class ClusterScript(Script):
    """For penstock.Cluster."""

    def __call__(self, keys: Sequence[Any] | None = None, args: Iterable[Any] | None = None, client: Any = None) -> Any:
        """Run it, or queue it in the pipeline that `client` is."""
        if isinstance(client, PipelineBody):
            return client.execute_command("EVAL", self.script, len(keys or ()), *(keys or ()), *(args or ()))
        return super().__call__(keys, args, client)


class AioClusterScript(AsyncScript):
    """For penstock.aio.Cluster."""

    async def __call__(
        self, keys: Sequence[Any] | None = None, args: Iterable[Any] | None = None, client: Any = None
    ) -> Any:
        """Run it, or queue it in the pipeline that `client` is."""
        if isinstance(client, PipelineBody):
            return await client.execute_command("EVAL", self.script, len(keys or ()), *(keys or ()), *(args or ()))
        return await super().__call__(keys, args, client)
