"""The logic that the blocking and the asyncio cluster client share: everything but the waiting.

Calls become logic (generators of requests, driver_requests.py); sync.py and aio.py only drive it. The law of this
file: nothing here blocks, and nothing here knows whether it is awaited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import redis
from redis.client import NEVER_DECODE
from redis.cluster import ClusterNode
from redis.connection import parse_url, to_bool
from redis.exceptions import ExecAbortError

from penstock.client.api.calls import read_reply
from penstock.client.api.pipeline import decoded_alone
from penstock.client.api.stream_replies import CALLBACKS
from penstock.client.cluster.call_bounds import CallBounds, ClusterCounters, Hold, held_bytes
from penstock.client.cluster.driver_requests import DriverRequest, NodeBatch, Outcome, Refresh, Room, Rules
from penstock.client.cluster.errors import NotRoutable
from penstock.client.cluster.pipeline import PackedPipeline
from penstock.client.cluster.plan import Call, Plan
from penstock.client.cluster.routing import CommandTable, encoded
from penstock.client.cluster.single_key_call import SingleKeyCall
from penstock.client.cluster.slot_map import Address, Remap, SlotMap, shown
from penstock.client.cluster.strategies import Strategy, make_plan, packed, sequential, single_slot, two_step
from penstock.client.cluster.topology import Topology
from penstock.client.cluster.transaction import Transaction
from penstock.client.delivery import Delivery, ReplayFilter, State
from penstock.client.drivers.connecting import number_from_query
from penstock.client.engine.command_kinds import name_of
from penstock.client.engine.encoding import count_words, pack
from penstock.client.errors import stated
from penstock.client.events import Listeners, Reconnected, Replayed
from penstock.client.tracing.spans import follow_redis_py
from penstock.protocol.slots import key_slot
from penstock.protocol.tuples import pack_tuple

Options = dict[str, Any]
Nodes = str | Address | ClusterNode | Iterable[Address | str | ClusterNode]


class ClusterCore:
    """State of a cluster client: rules, topology, how replies are read."""

    def __init__(
        self,
        host: str | None = None,
        port: int = 6379,
        *,
        startup_nodes: Iterable[Address | str | ClusterNode] = (),
        delivery: Delivery | str = Delivery.AT_LEAST_ONCE,
        replay_filter: ReplayFilter | None = None,
        patience: float = 30.0,
        read_from_replicas: bool = False,
        split: bool = False,
        address_remap: Remap | None = None,
        refresh_interval: float = 0.25,
        command_timeout: float | None = 60.0,
        max_connections: int | None = None,
        max_buffered_commands: int = 1_000_000,
        max_buffered_bytes: int = 256 * 1024 * 1024,
        when_full: Literal["block", "raise"] = "block",
        backoff_base: float = 0.01,
        backoff_cap: float = 1.0,
        on_reconnect: Callable[[Reconnected], object] | None = None,
        on_replay: Callable[[Replayed], object] | None = None,
        **connection: Any,
    ) -> None:
        """`host` and `port`, or `startup_nodes`, name nodes to start from; one that answers is enough. docs/cluster.md
        has the others.

        What is not named here is given to redis-py's connections: username, password, ssl, socket_timeout, protocol,
        decode_responses and the rest.
        """
        follow_redis_py()
        startup = [_address(node) for node in startup_nodes]
        if host is not None:
            startup.insert(0, (host, port))
        if not startup:
            raise ValueError(
                "a cluster client needs host and port, or startup_nodes, of at least one node to start from"
            )
        self.rules = Rules(
            delivery=Delivery.of(delivery),
            replay_filter=replay_filter,
            patience=patience,
            read_from_replicas=read_from_replicas,
            split=split,
            address_remap=address_remap,
            refresh_interval=refresh_interval,
            command_timeout=command_timeout,
            max_connections=max_connections or 100,
            max_buffered_commands=max_buffered_commands,
            max_buffered_bytes=max_buffered_bytes,
            when_full=when_full,
            backoff_base=backoff_base,
            backoff_cap=backoff_cap,
            listeners=Listeners(on_reconnect, on_replay),
        )
        self.bounds = CallBounds(self.rules)
        self.topology = Topology(startup, self.rules)
        self.connection = connection
        model = redis.Redis(**connection)  # connects to nothing; knows how redis-py reads replies
        self.response_callbacks: dict[str, Callable[..., Any]] = {**model.response_callbacks, **CALLBACKS}
        self.encoder = model.get_encoder()
        self.decodes = bool(self.encoder.decode_responses)

    @staticmethod
    def arguments_of(url: str, arguments: Options) -> Options:
        """The arguments in `redis://user:password@host:port?option=value`, and those given beside the URL."""
        options: Options = dict(parse_url(url))  # type: ignore[no-untyped-call]
        connection_class = options.pop("connection_class", None)
        if connection_class is not None and "SSL" in connection_class.__name__:
            options["ssl"] = True
        for name, value in options.items():
            if isinstance(value, str) and name in _FROM_QUERY:
                options[name] = number_from_query(name, value, _FROM_QUERY[name])
        return {**options, **arguments}

    # -- logic --------------------------------------------------------------------------------------------------

    def ready(self, until: float | None = None) -> Generator[DriverRequest, Any, tuple[SlotMap, CommandTable]]:
        """The topology, asked for before the first command."""
        if self.topology.table is None:
            yield Refresh(until=self.rules.until(self.rules.clock()) if until is None else until)
        assert self.topology.table is not None
        return self.topology.map, self.topology.table

    def single_key_call(self, arguments: tuple[Any, ...], options: Options) -> SingleKeyCall | None:
        """A command of one key, its first argument, that its master answers at once. None if it is another, which is
        for `call`.
        """
        table, rules = self.topology.table, self.rules
        if table is None or arguments[0] not in table.singles or len(arguments) < 2 or rules.read_from_replicas:
            return None
        if options and ("node" in options or "target_nodes" in options):
            return None
        packed = pack_tuple(arguments) or pack(arguments)
        key = arguments[1]
        owner = self.topology.map.owners[key_slot(key.encode() if key.__class__ is str else encoded(key))]
        timeout = math.inf if rules.command_timeout is None else rules.command_timeout
        if owner is None or timeout <= 0.0:
            return None
        single = SingleKeyCall(arguments, packed, owner, rules.clock() + timeout)
        if options and self.decodes and NEVER_DECODE in options:
            single.raw = _FIRST
        if rules.delivery is Delivery.AT_MOST_ONCE:
            single.repeats = False
        return single

    def after(self, single: SingleKeyCall, outcome: Outcome) -> Generator[DriverRequest, Any, Any]:
        """Handle a call with a single key whose first reply is an error or is missing."""
        done, topology, (arguments,) = ClusterCounters(), self.topology, single.commands
        assert topology.table is not None
        plan = make_plan([arguments], topology.table, False, topology.map, single.raw, single.repeats)
        first_round = NodeBatch(single.address, plan.packed, [0], raw=plan.raw)
        try:
            logic = PackedPipeline(plan, topology.map, self.rules, single.until, done)
            (reply,) = yield from logic.run_after(first_round, outcome)
        finally:
            self.bounds.leave(single, done)
        return reply

    def call(self, arguments: Call, options: Options) -> Generator[DriverRequest, Any, Any]:
        """One command, its reply as redis-py gives it."""
        started, repeats = self.rules.clock(), self.rules.repeats
        slot_map, table = yield from self.ready(self.rules.until(started))
        nodes = options.pop("target_nodes", None) or options.pop("node", None)
        plan = Plan(table, repeats)
        if nodes is not None:
            chosen = self.nodes(nodes, slot_map)
            plan.add_pinned(arguments, chosen, list)
        else:
            plan.add_all([arguments], self.rules.split, slot_map)
        if self.decodes and NEVER_DECODE in options:
            plan.keep_raw({0})
        (result,) = yield from self._held(plan, started, partial(packed, plan, slot_map, self.rules))
        if nodes is None:
            return self.read(arguments, options, result)
        replies = [self.read(arguments, options, reply) for reply in (result if isinstance(result, list) else [result])]
        return replies[0] if len(replies) == 1 else dict(zip(map(shown, chosen), replies, strict=True))

    def bulk(
        self, calls: Sequence[Call], raw: Container[int] | None = None
    ) -> Generator[DriverRequest, Any, list[Any]]:
        """Ready commands, their replies as the server gives them; errors among them, in their places."""
        started, repeats = self.rules.clock(), self.rules.repeats
        slot_map, table = yield from self.ready(self.rules.until(started))
        plan = make_plan(calls, table, self.rules.split, slot_map, raw, repeats)
        replies: list[Any] = yield from self._held(plan, started, partial(packed, plan, slot_map, self.rules))
        return replies

    def pipeline(
        self,
        calls: Sequence[Call],
        options: Sequence[Options],
        strategy: Strategy,
        transaction: Transaction | None,
        split: bool,
    ) -> Generator[DriverRequest, Any, Any]:
        """One result a call, in call order, as the server gave it."""
        started, repeats, rules = self.rules.clock(), self.rules.repeats, self.rules
        logic: _Body
        slot_map, table = yield from self.ready(rules.until(started))
        if transaction is not None:
            whole = Plan(table, repeats)
            for call in calls:
                whole.add_on_lane(call)
            logic = partial(transaction.execute, whole, slot_map, is_raw=self.decodes)
            replies: list[Any] = yield from self._held(whole, started, logic)
            return [self._decoded(reply, option) for reply, option in zip(replies, options, strict=True)]
        raw = (
            {number for number, option in enumerate(options) if NEVER_DECODE in option} if self.decodes else frozenset()
        )
        plan = make_plan(calls, table, split, slot_map, raw, repeats)
        if strategy is Strategy.SEQUENTIAL:
            logic = partial(sequential, calls, table, slot_map, rules, raw, split, repeats)
        elif strategy is Strategy.TWO_STEP:
            logic = partial(two_step, plan, slot_map, rules)
        else:
            logic = partial(packed, plan, slot_map, rules)
        if strategy is Strategy.SINGLE_SLOT:
            single_slot(plan)
        return (yield from self._held(plan, started, logic))

    def immediate(
        self, transaction: Transaction, arguments: Call, options: Options, watch: bool = False
    ) -> Generator[DriverRequest, Any, Any]:
        """WATCH, or a command between WATCH and MULTI."""
        started, repeats = self.rules.clock(), self.rules.repeats
        slot_map, table = yield from self.ready(self.rules.until(started))
        plan = Plan(table, repeats)
        plan.add_on_lane(arguments, is_watch=watch)
        if self.decodes and NEVER_DECODE in options:
            plan.keep_raw({0})
        reply = yield from self._held(plan, started, partial(transaction.immediate, plan, watch, slot_map))
        return self.read(arguments, options, reply)

    def _held(self, plan: Plan, started: float, logic: _Body) -> Generator[DriverRequest, Any, Any]:
        """Run logic within the bounds on what is held and within its time, and count what it does."""
        until, done, bounds = self.rules.until(started, plan.patience), ClusterCounters(), self.bounds
        hold = Hold(len(plan.packed), held_bytes(plan.packed, count_words(plan.commands)))
        try:
            if not bounds.enter(hold):
                if self.rules.when_full == "raise":
                    raise bounds.full()
                yield Room(hold, until)
            return (yield from logic(until=until, done=done))
        finally:
            try:
                bounds.leave(hold, done)
            except BaseException:  # an interrupt
                bounds.leave(hold)
                raise

    # -- replies ------------------------------------------------------------------------------------------------

    def read(self, arguments: Call, options: Options, reply: Any) -> Any:
        """A reply as redis-py gives it; an exception is raised."""
        return read_reply(arguments[0], reply, options, self.response_callbacks)

    def _decoded(self, reply: Any, options: Options) -> Any:
        """A reply that stood in that of EXEC, which is not decoded as a whole: one that cannot be is the loss of its
        command alone.
        """
        if not self.decodes or NEVER_DECODE in options or isinstance(reply, Exception):
            return reply
        return decoded_alone(reply, (self.encoder.encoding, self.encoder.encoding_errors))

    def read_all(self, calls: Sequence[Call], options: Sequence[Options], replies: list[Any]) -> list[Any]:
        """The replies of a pipeline as redis-py gives them; one that cannot be read becomes the exception
        in its place.
        """
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
                reply = error if hasattr(error, "state") else stated(error, State.REPLIED)
            results.append(reply)
        return results

    # -- nodes --------------------------------------------------------------------------------------------------

    def nodes(self, chosen: Nodes, slot_map: SlotMap) -> list[Address]:
        """`primaries`, `replicas`, `all`, `random`, `host:port`, an address, one of redis-py's nodes, or several."""
        if isinstance(chosen, str):
            masters = slot_map.masters
            groups: dict[str, tuple[Address, ...]] = {
                "primaries": masters, "all": slot_map.nodes, "random": masters[:1], "default-node": masters[:1],
                "replicas": tuple(node for node in slot_map.nodes if node not in masters),
            }  # fmt: skip
            if chosen in groups:
                return list(groups[chosen])
            if not chosen.rpartition(":")[2].isdigit():
                raise ValueError(f"node={chosen!r} is neither host:port nor one of {', '.join(groups)}")
            return [_address(chosen)]
        if isinstance(chosen, tuple | ClusterNode):
            return [_address(chosen)]
        return [_address(node) for node in (chosen.values() if isinstance(chosen, dict) else chosen)]

    def node_for_channel(self, slot_map: SlotMap, channel: Any) -> Address:
        """Where to subscribe: any master, or for a sharded channel the one that serves its slot."""
        address = slot_map.masters[0] if channel is None else slot_map.owners[self.slot_of(channel)]
        if address is None:
            raise NotRoutable(f"no node serves the slot of {channel!r}")
        return address

    def slot_of(self, key: Any) -> int:
        return key_slot(encoded(key))


def _address(node: Address | str | ClusterNode) -> Address:
    """The address of a node in any accepted form: ("host", port), "host:port", or one of redis-py's."""
    parts: Any = node
    if isinstance(node, ClusterNode):
        parts = (node.host, node.port)
    elif isinstance(node, str):
        parts = node.rpartition(":")[::2]
    try:
        host, port = parts
        address = (str(host), int(port))
    except (TypeError, ValueError):
        address = ("", 0)
    if not address[0]:
        raise ValueError(f'{node!r} is no address of a node: give ("host", port) or "host:port"')
    return address


_FROM_QUERY: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("max_buffered_commands", "max_buffered_bytes"), int),
    **dict.fromkeys(("patience", "refresh_interval", "command_timeout", "backoff_base", "backoff_cap"), float),
    **dict.fromkeys(("split", "read_from_replicas"), to_bool),
}
_Body = Callable[..., Generator[DriverRequest, Any, Any]]
"""Logic that takes `until` and `done`."""
_FIRST = frozenset({0})


def raise_first(calls: Sequence[Call], results: list[Any]) -> None:
    """The first error of a pipeline, with the states and results of all: what ran, what did not, and what
    is not known.
    """
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
    return getattr(result, "state", State.REPLIED) if isinstance(result, Exception) else State.REPLIED
