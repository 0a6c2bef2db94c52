"""Calls that asyncio tasks make in one turn of the loop: one batch a node, instead of one connection a call.

Only what is sure to go to one node and to answer at once is gathered: commands of one key, sent to its master. Those for
one node share a fate until they are answered (a slot that moves, a dead node); those for other nodes do not wait for it.
Whoever is cancelled leaves the others alone: two calls or more run in a task of their own.

Rejected: gathering until the batch before is answered, on one connection a node. A call that has to wait (TRYAGAIN) would hold up
all that come later, and not only those of its own turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.client.cluster.core import ClusterCore
from penstock.client.cluster.effects import Logic
from penstock.client.cluster.plan import Call
from penstock.client.cluster.slot_map import Address
from penstock.client.encoding import pack

Drive = Callable[[Logic], Awaitable[Any]]
Waiting = list[tuple[Call, bool, "asyncio.Future[Any]"]]
"""Calls, whether their replies stay raw, and who waits for them."""


class Gathering:
    """The calls of this turn, by node."""

    def __init__(self, core: ClusterCore) -> None:
        self._core = core
        self._waiting: dict[tuple[asyncio.AbstractEventLoop, Address], Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself would forget them

    def node_of(self, arguments: Call) -> Address | None:
        """Where a call goes if it may be gathered, else None."""
        topology, rules = self._core.topology, self._core.rules
        table = topology.table
        if table is None or arguments[0] not in table.singles or len(arguments) < 2 or rules.read_from_replicas:
            return None
        return topology.map.owners[self._core.slot_of(arguments[1])]

    async def reply(self, node: Address, arguments: Call, is_raw: bool, drive: Drive) -> Any:
        """What the server replies to a call, or the exception that says how far it came."""
        pack(arguments)  # what has no wire form fails here, and only its caller
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        others = self._waiting.get((loop, node))
        if others is not None:
            others.append((arguments, is_raw, future))
            return await future
        waiting = self._waiting[loop, node] = [(arguments, is_raw, future)]
        try:
            await asyncio.sleep(0)  # the rest of the turn
        except BaseException:
            future.cancel()
            raise
        finally:
            del self._waiting[loop, node]
            if len(waiting) > 1:
                task = loop.create_task(self._run(waiting, drive))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if len(waiting) > 1:
            return await future
        return (await drive(self._core.bulk([arguments], {0} if is_raw else None)))[0]

    async def _run(self, waiting: Waiting, drive: Drive) -> None:
        wanted = [row for row in waiting if not row[2].done()]  # less those that were cancelled meanwhile
        raw = {number for number, row in enumerate(wanted) if row[1]}
        try:
            results = await drive(self._core.bulk([row[0] for row in wanted], raw))
        except Exception as error:
            results = [error] * len(wanted)
        except BaseException:
            for _, _, future in wanted:
                future.cancel()
            raise
        for (_, _, future), result in zip(wanted, results, strict=True):
            if not future.done():
                future.set_result(result)
