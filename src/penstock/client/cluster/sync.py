"""The blocking client of a Redis or Valkey Cluster; `penstock.Cluster`.

    cluster = penstock.Cluster("127.0.0.1", 7000)
    with cluster.pipeline() as pipe:
        for n in range(10_000):
            pipe.set(f"key:{n}", n)
        pipe.execute()

Every command method of redis-py is here, because its command classes are; the execution is ours (core.py and what it
stands on). Threads may share a client: the topology is a snapshot replaced under a lock, and what they call at the same
time travels together, over one connection a node. A pipeline belongs to one thread.

Rejected: a subclass of redis-py's RedisCluster. It brings a second slot cache and a second set of retries, which is
where its duplicate executions come from.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, Unpack, cast

import redis
from redis.client import Monitor, PubSub
from redis.cluster import ClusterNode
from redis.commands import CoreCommands, RedisModuleCommands
from redis.lock import Lock

from penstock.client.api.options import ClusterOptions
from penstock.client.api.pipeline import told_of_all
from penstock.client.api.shortcuts import Shortcuts
from penstock.client.api.streams import StreamCommands
from penstock.client.cluster.call_bounds import PATROL
from penstock.client.cluster.calls import ClusterBase, ClusterPipelineBase
from penstock.client.cluster.core import ClusterCore, raise_first
from penstock.client.cluster.driver_requests import Exchange, Logic, Pause, Refresh, Room
from penstock.client.cluster.interrupt_safe_lock import InterruptSafeLock
from penstock.client.cluster.node_methods import NodeMethods
from penstock.client.cluster.plan import Call
from penstock.client.cluster.scripts import ClusterScript
from penstock.client.cluster.slot_map import Address, SlotMap
from penstock.client.cluster.strategies import Strategy
from penstock.client.cluster.sync_connections import SyncNodePool
from penstock.client.drivers.sync import Reentered
from penstock.client.errors import NotSent


class Cluster(ClusterBase, NodeMethods, StreamCommands, Shortcuts, RedisModuleCommands, CoreCommands):
    """A client of a whole cluster; docs/cluster.md says what it does, and what its arguments mean."""

    _is_async_client: Literal[False] = False
    _event_dispatcher: Any = None

    def __init__(self, host: str | None = None, port: int = 6379, **arguments: Unpack[ClusterOptions]) -> None:
        self.core = ClusterCore(host, port, **arguments)
        self._pool = SyncNodePool(self.core.connection, self.core.rules, self.core.bounds, self.core.encoder)
        self._topology_lock = InterruptSafeLock()
        _clusters.add(self)

    @classmethod
    def from_url(cls, url: str, **arguments: Unpack[ClusterOptions]) -> Self:
        """`redis://user:password@host:port`, or `rediss://` with TLS; options may follow a question mark."""
        return cls(**ClusterCore.arguments_of(url, cast(dict[str, Any], arguments)))

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        """Any command. `node=` ("host:port", "primaries", "replicas", "all") sends it to certain nodes instead."""
        core, pool = self.core, self._pool
        single = core.single_key_call(arguments, options)
        if single is None or (connection := pool.shared(single.address)) is None:
            return self.drive(core.call(arguments, options))
        try:
            if not core.bounds.enter(single):
                return self.drive(core.call(arguments, options))
            single.deadline = single.until
            try:
                connection.run(single)
            except NotSent as error:
                pool.refuse(single, error)
            except Reentered:
                core.bounds.leave(single)
                return self.drive(core.call(arguments, options))
            reply = single.results[0]
            if isinstance(reply, Exception) or single.address in pool.outages:
                reply = self.drive(core.after(single, pool.outcome(single, single.address, single.until)))
                pool.tell()
            else:
                core.bounds.leave_answered(single)
        finally:
            if single.is_held:
                core.bounds.leave(single)
        return core.read(arguments, options, reply)

    def execute_many(self, commands: Sequence[Call], raise_on_error: bool = True) -> list[Any]:
        """Many ready commands, such as ("SET", "k", "v"), at once; replies as the server gives them, in call order."""
        with told_of_all(len(commands)):
            results: list[Any] = self.drive(self.core.bulk(commands))
            if raise_on_error:
                raise_first(commands, results)
        return results

    def pipeline(
        self, transaction: bool = False, *, strategy: Strategy | str | None = None, split: bool | None = None
    ) -> ClusterPipeline:
        """Collect commands and run them together; docs/cluster.md says which strategy does what."""
        return ClusterPipeline(self, transaction, strategy, split)

    def transaction(
        self,
        func: Callable[[ClusterPipeline], Any],
        *watches: Any,
        value_from_callable: bool = False,
        watch_delay: float | None = None,
    ) -> Any:
        """Call `func` with a pipeline that watches `watches`, again until no other client changed them during the call.

        In between it waits `watch_delay` seconds.
        """
        with self.pipeline(transaction=True) as pipe:
            while True:
                try:
                    if watches:
                        pipe.watch(*watches)
                    value = func(pipe)
                    results = pipe.execute()
                    return value if value_from_callable else results
                except redis.WatchError:
                    pipe.reset()
                    if watch_delay:
                        time.sleep(watch_delay)

    def register_script(self, script: str | bytes) -> ClusterScript:  # type: ignore[override]
        """A script to be called, with its keys and arguments; redis-py's, which may be queued in our pipelines, too."""
        return ClusterScript(self, script)  # type: ignore[arg-type]

    # -- nodes --------------------------------------------------------------------------------------------------

    @property
    def slot_map(self) -> SlotMap:
        """The owner of each slot, as far as is known."""
        self.drive(self.core.ready())
        return self.core.topology.map

    def _known_map(self) -> SlotMap:
        return self.slot_map

    def node_client(self, address: Address) -> redis.Redis:
        """A redis-py client of one node, for what concerns one node."""
        return self._pool.client(address)

    def keyslot(self, key: Any) -> int:
        return self.core.slot_of(key)

    def get_encoder(self) -> Any:
        return self.core.encoder

    def pubsub(self, channel: Any = None, **arguments: Any) -> PubSub:
        """Messages published anywhere in the cluster; for sharded channels (ssubscribe) name one of them."""
        client = self.node_client(self.core.node_for_channel(self.slot_map, channel))
        subscriptions: PubSub = client.pubsub(**arguments)  # type: ignore[no-untyped-call]
        return subscriptions

    def lock(self, name: Any, *arguments: Any, **options: Any) -> Lock:
        """redis-py's lock, on one key."""
        return Lock(self, name, *arguments, **options)

    def monitor(self, target_node: ClusterNode | None = None) -> Monitor:
        """Watch the commands of one node, the first master unless given."""
        node = target_node if target_node is not None else self.get_default_node()
        watching: Monitor = self.get_redis_connection(node).monitor()
        return watching

    def mget_nonatomic(self, keys: Any, *more: Any) -> list[Any]:
        """MGET of keys in any slots: one MGET for each node, so it is not atomic."""
        with self.pipeline(split=True) as pipe:
            pipe.mget(keys, *more)
            values: list[Any] = pipe.execute()[0]
            return values

    def mset_nonatomic(self, mapping: Mapping[Any, Any]) -> bool:
        """MSET of keys in any slots: one MSET for each node, so it is not atomic."""
        with self.pipeline(split=True) as pipe:
            pipe.mset(mapping)
            return bool(pipe.execute()[0])

    def scan_iter(
        self, match: Any = None, count: int | None = None, _type: str | None = None, **options: Any
    ) -> Iterator[Any]:
        """Every key of every master, one master after the other."""
        for address in self.slot_map.masters:
            cursor = 0
            while True:
                cursor, keys = self.scan(cursor, match, count, _type, node=address, **options)
                yield from keys
                if cursor == 0:
                    break

    # -- driving ------------------------------------------------------------------------------------------------

    def drive(self, logic: Logic) -> Any:
        """Do what the logic asks for until it ends."""
        result: Any = None
        try:
            while True:
                request = logic.send(result)
                if isinstance(request, Exchange):
                    result = self._pool.exchange(request)
                elif isinstance(request, Refresh):
                    result = self._refresh(request)
                elif isinstance(request, Pause):
                    time.sleep(request.seconds)
                    result = None
                else:
                    self._wait_for_room(request)
                    result = None
        except StopIteration as end:
            return end.value
        finally:
            logic.close()

    def _refresh(self, wanted: Refresh) -> SlotMap:
        topology, clock = self.core.topology, self.core.rules.clock
        if wanted.suspect is None and topology.table is not None:
            return topology.map
        # a thread that has waited here finds the answer that came in between
        ownership = self._topology_lock.acquire(wanted.until - clock())
        if ownership is None:
            if topology.table is None:
                raise topology.unknown("", wanted.until)
            return topology.map
        try:
            if topology.is_fresh(wanted.suspect):
                topology.learn(wanted.moves)
                return topology.map
            fresh: SlotMap = self.drive(topology.refresh(wanted.moves, wanted.until))
            self._pool.forget(topology.addresses)
            return fresh
        finally:
            ownership.release()

    def _wait_for_room(self, room: Room) -> None:
        bounds, clock, woken = self.core.bounds, self.core.rules.clock, threading.Lock()
        woken.acquire()
        place = bounds.queue(room.hold, woken.release)
        try:
            while not room.hold.is_held:
                left = room.until - clock()
                if left <= 0:
                    raise bounds.full()
                if not woken.acquire(timeout=min(left, PATROL)):
                    bounds.patrol()
        finally:
            del place  # whatever becomes of the exception and its frames

    def after_fork(self) -> None:
        """In a child: threads that are not there may have had the lock."""
        self._topology_lock = InterruptSafeLock()
        self.core.bounds.after_fork()
        self._pool.after_fork()

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


functools.update_wrapper(Cluster.__init__, ClusterCore.__init__, assigned=("__doc__",), updated=())  # for help()


class ClusterPipeline(ClusterPipelineBase, StreamCommands, Shortcuts, RedisModuleCommands, CoreCommands):
    """Commands that wait for `execute`. After `watch` they run at once, until `multi`."""

    _is_async_client: Literal[False] = False
    _event_dispatcher: Any = None

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run what was called, and answer one result a call, in call order; the pipeline is empty again afterwards.

        The first error is raised, with `.states` and `.replies` of all commands; or with raise_on_error=False each
        stands in its place.
        """
        try:
            if not self.calls.commands:
                return []
            with told_of_all(len(self)):
                return self._results(self._cluster.drive(self._running()), raise_on_error)
        finally:
            self.reset()

    def watch(self, *names: Any) -> bool:  # type: ignore[override]
        """Watch keys, all of one slot: `execute` then raises WatchError if one of them was changed."""
        return bool(self._cluster.drive(self._watching(names)))

    def unwatch(self) -> bool:  # type: ignore[override]
        """Forget what is watched."""
        self._release()
        return True

    def discard(self) -> None:
        """Forget the commands and what is watched."""
        self.reset()

    def reset(self) -> None:  # type: ignore[override]
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.reset()


_clusters: weakref.WeakSet[Cluster] = weakref.WeakSet()


def _after_fork() -> None:
    for cluster in list(_clusters):
        cluster.after_fork()


os.register_at_fork(after_in_child=_after_fork)
