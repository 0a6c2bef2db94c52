"""What the blocking and the asyncio client of a cluster have in common: everything but the waiting.

Calls become logic (generators of effects, effects.py); sync.py and aio.py only drive it. The law of this
file: nothing here blocks, and nothing here knows whether it is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import redis
from redis.client import EMPTY_RESPONSE, NEVER_DECODE
from redis.connection import parse_url
from redis.exceptions import ExecAbortError

from penstock.client.cluster.effects import Effect, Refresh, Rules
from penstock.client.cluster.errors import NotRoutable
from penstock.client.cluster.plan import Call, Plan
from penstock.client.cluster.routing import CommandTable, encoded
from penstock.client.cluster.slot_map import Address, Remap, SlotMap, shown
from penstock.client.cluster.strategies import Strategy, make_plan, packed, sequential, single_slot, two_step
from penstock.client.cluster.topology import Topology
from penstock.client.cluster.transaction import Transaction
from penstock.client.commands import name_of
from penstock.client.delivery import Delivery, ReplayFilter, State
from penstock.client.errors import DeliveryError
from penstock.client.streams import CALLBACKS
from penstock.protocol.slots import key_slot

Options = dict[str, Any]
Nodes = str | Address | list[Address]


class ClusterCore:
    """State of a cluster client: rules, topology, how replies are read."""

    def __init__(
        self,
        host: str | None = None,
        port: int = 6379,
        *,
        startup_nodes: Iterable[Address] = (),
        delivery: Delivery | str = Delivery.AT_LEAST_ONCE,
        replay_filter: ReplayFilter | None = None,
        attempts: int = 32,
        patience: float = 30.0,
        read_from_replicas: bool = False,
        split: bool = False,
        address_remap: Remap | None = None,
        refresh_interval: float = 0.25,
        **connection: Any,
    ) -> None:
        """`host` and `port`, or `startup_nodes`, name nodes to start from; one that answers is enough.

        What is not named here is given to redis-py's connections: username, password, ssl, socket_timeout, protocol,
        decode_responses and the rest.
        """
        startup = [(str(node[0]), int(node[1])) for node in startup_nodes]
        if host is not None:
            startup.insert(0, (host, port))
        if not startup:
            raise ValueError(
                "a cluster client needs host and port, or startup_nodes, of at least one node to start from"
            )
        self.rules = Rules(
            Delivery.of(delivery), replay_filter, attempts, patience, read_from_replicas, split, address_remap, refresh_interval
        )  # fmt: skip
        self.topology = Topology(startup, self.rules)
        self.connection = connection
        model = redis.Redis(**connection)  # connects to nothing; knows how redis-py reads replies
        self.response_callbacks: dict[str, Callable[..., Any]] = {**model.response_callbacks, **CALLBACKS}
        self.encoder = model.get_encoder()
        self.decodes = bool(self.encoder.decode_responses)

    @staticmethod
    def arguments_of(url: str, arguments: Options) -> Options:
        """Of `redis://user:password@host:port?option=value`, and what was given beside it."""
        options: Options = dict(parse_url(url))  # type: ignore[no-untyped-call]
        connection_class = options.pop("connection_class", None)
        if connection_class is not None and "SSL" in connection_class.__name__:
            options["ssl"] = True
        return {**options, **arguments}

    def with_split(self, split: bool) -> ClusterCore:
        """The same, with another rule for commands over several slots."""
        other = copy(self)
        other.rules = replace(self.rules, split=split)
        return other

    # -- logic --------------------------------------------------------------------------------------------------

    def ready(self) -> Generator[Effect, Any, tuple[SlotMap, CommandTable]]:
        """The topology, asked for before the first command."""
        if self.topology.table is None:
            yield Refresh()
        assert self.topology.table is not None
        return self.topology.map, self.topology.table

    def call(self, arguments: Call, options: Options) -> Generator[Effect, Any, Any]:
        """One command, its reply as redis-py gives it."""
        slot_map, table = yield from self.ready()
        nodes = options.pop("target_nodes", None) or options.pop("node", None)
        plan = Plan(table)
        if nodes is not None:
            chosen = self.nodes(nodes, slot_map)
            plan.add_pinned(arguments, chosen, list)
        else:
            plan.add_all([arguments], self.rules.split, slot_map)
        if self.decodes and NEVER_DECODE in options:
            plan.keep_raw({0})
        (result,) = yield from packed(plan, slot_map, self.rules)
        if nodes is None:
            return self.read(arguments, options, result)
        replies = [self.read(arguments, options, reply) for reply in (result if isinstance(result, list) else [result])]
        return replies[0] if len(replies) == 1 else dict(zip(map(shown, chosen), replies, strict=True))

    def bulk(self, calls: Sequence[Call], raw: Container[int] | None = None) -> Generator[Effect, Any, list[Any]]:
        """Ready commands, their replies as the server gives them; errors among them, in their places."""
        slot_map, table = yield from self.ready()
        return (yield from packed(make_plan(calls, table, self.rules, slot_map, raw), slot_map, self.rules))

    def pipeline(
        self, calls: Sequence[Call], options: Sequence[Options], strategy: Strategy, transaction: Transaction | None
    ) -> Generator[Effect, Any, list[Any]]:
        """One result a call, in call order, as the server gave it."""
        slot_map, table = yield from self.ready()
        if transaction is not None:
            whole = Plan(table)
            for call in calls:
                whole.add_on_lane(call)
            return (yield from transaction.execute(whole, slot_map))
        raw = (
            {number for number, option in enumerate(options) if NEVER_DECODE in option} if self.decodes else frozenset()
        )
        if strategy is Strategy.SEQUENTIAL:
            return (yield from sequential(calls, table, slot_map, self.rules, raw))
        plan = make_plan(calls, table, self.rules, slot_map, raw)
        if strategy is Strategy.TWO_STEP:
            return (yield from two_step(plan, slot_map, self.rules))
        if strategy is Strategy.SINGLE_SLOT:
            single_slot(plan)
        return (yield from packed(plan, slot_map, self.rules))

    def immediate(
        self, transaction: Transaction, arguments: Call, options: Options, watch: bool = False
    ) -> Generator[Effect, Any, Any]:
        """WATCH, or a command between WATCH and MULTI."""
        slot_map, table = yield from self.ready()
        plan = Plan(table)
        plan.add_on_lane(arguments, is_watch=watch)
        reply = yield from transaction.immediate(plan, watch, slot_map)
        return self.read(arguments, options, reply)

    # -- replies ------------------------------------------------------------------------------------------------

    def read(self, arguments: Call, options: Options, reply: Any) -> Any:
        """A reply as redis-py gives it; an exception is raised."""
        if isinstance(reply, Exception):
            if EMPTY_RESPONSE in options and isinstance(reply, redis.ResponseError):
                return options[EMPTY_RESPONSE]
            raise reply
        callback = self.response_callbacks.get(arguments[0])
        if callback is None:
            return reply
        if options:
            options = {name: value for name, value in options.items() if name not in _NOT_FOR_CALLBACKS}
        return callback(reply, **options)

    def read_all(self, calls: Sequence[Call], options: Sequence[Options], replies: list[Any]) -> list[Any]:
        """The replies of a pipeline as redis-py gives them; one that cannot be read becomes the exception in its place."""
        find = self.response_callbacks.get
        results: list[Any] = []
        for arguments, option, reply in zip(calls, options, replies, strict=True):
            callback = find(arguments[0])
            try:
                if option or callback is None or isinstance(reply, Exception):
                    reply = self.read(arguments, option, reply)
                else:
                    reply = callback(reply)
            except Exception as error:
                reply = error
            results.append(reply)
        return results

    # -- who is who ---------------------------------------------------------------------------------------------

    def nodes(self, chosen: Nodes, slot_map: SlotMap) -> list[Address]:
        """`primaries`, `replicas`, `all`, `random`, `host:port`, an address, or several addresses."""
        if isinstance(chosen, str):
            masters = slot_map.masters
            groups: dict[str, tuple[Address, ...]] = {
                "primaries": masters, "all": slot_map.nodes, "random": masters[:1], "default-node": masters[:1],
                "replicas": tuple(node for node in slot_map.nodes if node not in masters),
            }  # fmt: skip
            if chosen in groups:
                return list(groups[chosen])
            host, _, port = chosen.rpartition(":")
            if not port.isdigit():
                raise ValueError(f"node={chosen!r} is neither host:port nor one of {', '.join(groups)}")
            return [(host, int(port))]
        return [chosen] if isinstance(chosen, tuple) else chosen

    def node_for_channel(self, slot_map: SlotMap, channel: Any) -> Address:
        """Where to subscribe: any master, or for a sharded channel the one that serves its slot."""
        address = slot_map.masters[0] if channel is None else slot_map.owners[self.slot_of(channel)]
        if address is None:
            raise NotRoutable(f"no node serves the slot of {channel!r}")
        return address

    def slot_of(self, key: Any) -> int:
        return key_slot(encoded(key))


_NOT_FOR_CALLBACKS = frozenset({"keys", "target_nodes", "node", EMPTY_RESPONSE, NEVER_DECODE})


def raise_first(calls: Sequence[Call], results: list[Any]) -> None:
    """The first error of a pipeline, with the states and results of all: what ran, what did not, what nobody knows."""
    if not any(issubclass(kind, Exception) for kind in set(map(type, results))):
        return
    errors = [(position, result) for position, result in enumerate(results) if isinstance(result, Exception)]
    reasons = [row for row in errors if not isinstance(row[1], ExecAbortError)]  # "aborted" says less than why
    position, error = (reasons or errors)[0]
    error.args = (f"command {position + 1} ({name_of(calls[position])}) of the pipeline: {error}",)
    error.states = [state_of(result) for result in results]  # type: ignore[attr-defined]
    error.replies = results  # type: ignore[attr-defined]
    raise error


def state_of(result: Any) -> State:
    """How far the command with this result came."""
    return result.state if isinstance(result, DeliveryError) else State.REPLIED
