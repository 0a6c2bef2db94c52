"""Lua scripts that were registered (`register_script`).

A call sends the script's digest (EVALSHA). If the server does not know it, the script itself is sent (EVAL), which runs
it and makes it known. A pipeline learns that only when it has run, so there the script always travels whole.

Rejected: SCRIPT LOAD and EVALSHA again, as redis-py does it. A server that dies in between is followed by one that does
not know the script, and NOSCRIPT reaches the caller. Rejected: SCRIPT LOAD before each pipeline, for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import redis
from redis.commands.core import AsyncScript, Script
from redis.exceptions import NoScriptError


def _words(keys: Sequence[Any] | None, args: Iterable[Any] | None) -> list[Any]:
    """The arguments behind the script or its digest."""
    return [len(keys or ()), *(keys or ()), *(args or ())]


class RegisteredScript(Script):
    """For clients with blocking calls."""

    pipelines: ClassVar[tuple[type, ...]] = (redis.client.Pipeline,)

    def __call__(self, keys: Sequence[Any] | None = None, args: Iterable[Any] | None = None, client: Any = None) -> Any:
        """Run it, or queue it in the pipeline that `client` is."""
        client, words = client or self.registered_client, _words(keys, args)
        if not isinstance(client, self.pipelines):
            try:
                return client.evalsha(self.sha, *words)
            except NoScriptError:
                pass
        return client.eval(self.script, *words)


class AioRegisteredScript(AsyncScript):
    """For clients of asyncio."""

    pipelines: ClassVar[tuple[type, ...]] = (redis.asyncio.client.Pipeline,)

    async def __call__(
        self, keys: Sequence[Any] | None = None, args: Iterable[Any] | None = None, client: Any = None
    ) -> Any:
        """Run it, or queue it in the pipeline that `client` is."""
        client, words = client or self.registered_client, _words(keys, args)
        if not isinstance(client, self.pipelines):
            try:
                return await client.evalsha(self.sha, *words)
            except NoScriptError:
                pass
        return await client.eval(self.script, *words)
