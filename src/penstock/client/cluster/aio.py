"""The asyncio client of a Redis or Valkey Cluster; `penstock.aio.Cluster`.

    async with aio.Cluster("127.0.0.1", 7000) as cluster:
        async with cluster.pipeline() as pipe:
            await pipe.set("a", 1).incr("b").execute()

What sync.py is for threads, this is for tasks; the logic is the same. Tasks may share a client; a pipeline belongs to
one task.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Literal, Self, Unpack, cast

import redis
import redis.asyncio
from redis.asyncio.client import PubSub
from redis.asyncio.lock import Lock
from redis.commands import AsyncCoreCommands, AsyncRedisModuleCommands

from penstock.client.api.options import AioClusterOptions
from penstock.client.api.pipeline import told_of_all
from penstock.client.api.shortcuts import Shortcuts
from penstock.client.api.streams import StreamCommands
from penstock.client.cluster.aio_connections import AioNodePool
from penstock.client.cluster.call_bounds import PATROL
from penstock.client.cluster.calls import ClusterBase, ClusterPipelineBase
from penstock.client.cluster.core import ClusterCore, raise_first
from penstock.client.cluster.driver_requests import Exchange, Logic, Pause, Refresh, Room
from penstock.client.cluster.node_methods import NodeMethods
from penstock.client.cluster.plan import Call
from penstock.client.cluster.scripts import AioClusterScript
from penstock.client.cluster.slot_map import Address, SlotMap
from penstock.client.cluster.strategies import Strategy
from penstock.client.errors import NotSent


class Cluster(  # type: ignore[misc]
    ClusterBase, NodeMethods, StreamCommands, Shortcuts, AsyncRedisModuleCommands, AsyncCoreCommands
):
    """A client of a whole cluster; docs/cluster.md says what it does, and what its arguments mean."""

    _is_async_client: Literal[True] = True
    _event_dispatcher: Any = None

    def __init__(self, host: str | None = None, port: int = 6379, **arguments: Unpack[AioClusterOptions]) -> None:
        self.core = ClusterCore(host, port, **arguments)
        self._pool = AioNodePool(self.core.connection, self.core.rules, self.core.bounds, self.core.encoder)
        self._lock = asyncio.Lock()  # around the topology

    @classmethod
    def from_url(cls, url: str, **arguments: Unpack[AioClusterOptions]) -> Self:
        """`redis://user:password@host:port`, or `rediss://` with TLS; options may follow a question mark."""
        return cls(**ClusterCore.arguments_of(url, cast(dict[str, Any], arguments)))

    async def execute_command(self, *arguments: Any, **options: Any) -> Any:
        """Any command. `node=` ("host:port", "primaries", "replicas", "all") sends it to certain nodes instead."""
        core, pool = self.core, self._pool
        single = core.single_key_call(arguments, options)
        if single is None or (connection := pool.shared(single.address)) is None:
            return await self.drive(core.call(arguments, options))
        try:
            if not core.bounds.enter(single):
                return await self.drive(core.call(arguments, options))
            if single.until != math.inf:
                single.deadline = pool.loop_time(single.until)
            try:
                await connection.run(single)
            except NotSent as error:
                pool.refuse(single, error)
            reply = single.results[0]
            if isinstance(reply, Exception) or single.address in pool.outages:
                reply = await self.drive(core.after(single, pool.outcome(single, single.address, single.until)))
                pool.tell()
            else:
                core.bounds.leave_answered(single)
        finally:
            if single.is_held:
                core.bounds.leave(single)
        return core.read(arguments, options, reply)

    async def execute_many(self, commands: Sequence[Call], raise_on_error: bool = True) -> list[Any]:
        """Many ready commands, such as ("SET", "k", "v"), at once; replies as the server gives them, in call order."""
        with told_of_all(len(commands)):
            results: list[Any] = await self.drive(self.core.bulk(commands))
            if raise_on_error:
                raise_first(commands, results)
        return results

    def pipeline(
        self, transaction: bool = False, *, strategy: Strategy | str | None = None, split: bool | None = None
    ) -> ClusterPipeline:
        """Collect commands and run them together; docs/cluster.md says which strategy does what."""
        return ClusterPipeline(self, transaction, strategy, split)

    async def transaction(
        self,
        func: Callable[[ClusterPipeline], Any | Awaitable[Any]],
        *watches: Any,
        value_from_callable: bool = False,
        watch_delay: float | None = None,
    ) -> Any:
        """As that of penstock.Cluster; `func` may be a coroutine function."""
        async with self.pipeline(transaction=True) as pipe:
            while True:
                try:
                    if watches:
                        await pipe.watch(*watches)
                    value = func(pipe)
                    if inspect.isawaitable(value) and not isinstance(value, ClusterPipeline):
                        value = await value
                    results = await pipe.execute()
                    return value if value_from_callable else results
                except redis.WatchError:
                    await pipe.reset()
                    if watch_delay:
                        await asyncio.sleep(watch_delay)

    def register_script(self, script: str | bytes) -> AioClusterScript:  # type: ignore[override]
        """A script to be called, with its keys and arguments; redis-py's, which may be queued in our pipelines, too."""
        return AioClusterScript(self, script)  # type: ignore[arg-type]

    # -- nodes --------------------------------------------------------------------------------------------------

    async def slot_map(self) -> SlotMap:
        """The owner of each slot, as far as is known."""
        await self.drive(self.core.ready())
        return self.core.topology.map

    async def initialize(self) -> Self:
        """Ask for the topology now; otherwise the first command does."""
        await self.slot_map()
        return self

    def _known_map(self) -> SlotMap:
        if self.core.topology.table is None:
            raise NotSent("the nodes of the cluster are not known yet: await initialize() or any command first")
        return self.core.topology.map

    def node_client(self, address: Address) -> redis.asyncio.Redis:
        """A redis-py client of one node, for what concerns one node."""
        return self._pool.client(address)

    def keyslot(self, key: Any) -> int:
        return self.core.slot_of(key)

    def get_encoder(self) -> Any:
        return self.core.encoder

    async def pubsub(self, channel: Any = None, **arguments: Any) -> PubSub:
        """Messages published anywhere in the cluster; for sharded channels (ssubscribe) name one of them."""
        return self.node_client(self.core.node_for_channel(await self.slot_map(), channel)).pubsub(**arguments)

    def lock(self, name: Any, *arguments: Any, **options: Any) -> Lock:
        """redis-py's lock, on one key."""
        return Lock(self, name, *arguments, **options)  # type: ignore[arg-type]

    async def mget_nonatomic(self, keys: Any, *more: Any) -> list[Any]:
        """MGET of keys in any slots: one MGET for each node, so it is not atomic."""
        async with self.pipeline(split=True) as pipe:
            pipe.mget(keys, *more)
            values: list[Any] = (await pipe.execute())[0]
            return values

    async def mset_nonatomic(self, mapping: Mapping[Any, Any]) -> bool:
        """MSET of keys in any slots: one MSET for each node, so it is not atomic."""
        async with self.pipeline(split=True) as pipe:
            pipe.mset(mapping)
            return bool((await pipe.execute())[0])

    async def scan_iter(  # type: ignore[override]
        self, match: Any = None, count: int | None = None, _type: str | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """Every key of every master, one master after the other."""
        for address in (await self.slot_map()).masters:
            cursor = 0
            while True:
                cursor, keys = await self.scan(cursor, match, count, _type, node=address, **options)
                for key in keys:
                    yield key
                if cursor == 0:
                    break

    # -- driving ------------------------------------------------------------------------------------------------

    async def drive(self, logic: Logic) -> Any:
        """Do what the logic asks for until it ends."""
        result: Any = None
        try:
            while True:
                request = logic.send(result)
                if isinstance(request, Exchange):
                    result = await self._pool.exchange(request)
                elif isinstance(request, Refresh):
                    result = await self._refresh(request)
                elif isinstance(request, Pause):
                    await asyncio.sleep(request.seconds)
                    result = None
                else:
                    await self._wait_for_room(request)
                    result = None
        except StopIteration as end:
            return end.value
        finally:
            logic.close()

    async def _refresh(self, wanted: Refresh) -> SlotMap:
        topology, clock = self.core.topology, self.core.rules.clock
        if wanted.suspect is None and topology.table is not None:
            return topology.map
        try:
            async with asyncio.timeout(None if wanted.until == math.inf else wanted.until - clock()):
                await self._lock.acquire()  # a task that has waited here finds the answer that came in between
        except TimeoutError:
            if topology.table is None:
                raise topology.unknown("", wanted.until) from None
            return topology.map
        try:
            if topology.is_fresh(wanted.suspect):
                topology.learn(wanted.moves)
                return topology.map
            fresh: SlotMap = await self.drive(topology.refresh(wanted.moves, wanted.until))
            await self._pool.forget_departed(topology.addresses)
            return fresh
        finally:
            self._lock.release()

    async def _wait_for_room(self, room: Room) -> None:
        bounds, clock, woken = self.core.bounds, self.core.rules.clock, asyncio.Event()
        place = bounds.queue(room.hold, functools.partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set))
        try:
            while not room.hold.is_held:
                left = room.until - clock()
                if left <= 0:
                    raise bounds.full()
                try:
                    async with asyncio.timeout(min(left, PATROL)):
                        await woken.wait()
                except TimeoutError:
                    bounds.patrol()
        finally:
            del place  # whatever becomes of the exception and its frames

    async def aclose(self) -> None:
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if hasattr(self, "_pool") and self._pool.abandon():
            _warn(f"unclosed client {self!r}: use `async with`, or await aclose()", ResourceWarning, source=self)


functools.update_wrapper(Cluster.__init__, ClusterCore.__init__, assigned=("__doc__",), updated=())  # for help()


class ClusterPipeline(  # type: ignore[misc]
    ClusterPipelineBase, StreamCommands, Shortcuts, AsyncRedisModuleCommands, AsyncCoreCommands
):
    """Commands that wait for `execute`. After `watch` they run at once, until `multi`."""

    _is_async_client: Literal[True] = True
    _event_dispatcher: Any = None

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run what was called, and answer one result a call, in call order; the pipeline is empty again afterwards.

        The first error is raised, with `.states` and `.replies` of all commands; or with raise_on_error=False each
        stands in its place.
        """
        try:
            if not self.calls.commands:
                return []
            with told_of_all(len(self)):
                return self._results(await self._cluster.drive(self._running()), raise_on_error)
        finally:
            await self.reset()

    async def watch(self, *names: Any) -> bool:  # type: ignore[override]
        """Watch keys, all of one slot: `execute` then raises WatchError if one of them was changed."""
        return bool(await self._cluster.drive(self._watching(names)))

    async def unwatch(self) -> bool:  # type: ignore[override]
        """Forget what is watched."""
        self._release()
        return True

    async def discard(self) -> None:
        """Forget the commands and what is watched."""
        await self.reset()

    async def reset(self) -> None:  # type: ignore[override]
        self._forget()

    def __await__(self) -> Generator[Any, None, Self]:
        """Nothing is to be waited for: as in redis-py, `await pipe.set(...)` may be written."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.reset()
