"""The calls that a pipeline has collected, and the parts of clients and pipelines that threads and asyncio share."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Literal, NoReturn, TypeVar

import redis

from penstock.client.cluster.call_bounds import ClusterCounters
from penstock.client.cluster.core import ClusterCore, Options, raise_first
from penstock.client.cluster.driver_requests import DriverRequest, Rules
from penstock.client.cluster.errors import NotRoutable
from penstock.client.cluster.plan import Call
from penstock.client.cluster.slot_map import shown
from penstock.client.cluster.strategies import Strategy
from penstock.client.cluster.transaction import Transaction
from penstock.client.delivery import Delivery, ReplayFilter, check_called

_Pipeline = TypeVar("_Pipeline")


class PipelineCalls:
    """Calls in order, the strategy, and the transaction once something is watched."""

    __slots__ = ("_is_transaction", "_multi", "commands", "options", "strategy", "transaction")

    def __init__(self, transaction: bool, strategy: Strategy | str | None) -> None:
        chosen = Strategy.of(strategy or (Strategy.SINGLE_SLOT if transaction else Strategy.PACKED))
        if transaction and chosen is not Strategy.SINGLE_SLOT:
            raise ValueError(
                f"transaction=True needs strategy='single-slot', not {chosen.value!r}: a transaction runs on one node"
            )
        self.strategy = chosen
        self.commands: list[Call] = []
        self.options: list[Options] = []
        self.transaction: Transaction | None = None
        self._is_transaction = transaction
        self._multi = False

    def add(self, pipeline: _Pipeline, arguments: Call, options: Options) -> _Pipeline:
        if options:
            options.pop("keys", None)  # for redis-py's cache, which has no part in a pipeline
        self.commands.append(arguments)
        self.options.append(options)
        return pipeline

    @property
    def is_immediate(self) -> bool:
        """Something is watched and `multi` was not called yet."""
        return self.transaction is not None and not self._multi

    def watching(self) -> Transaction:
        assert self.transaction is not None
        return self.transaction

    def start_watching(self, rules: Rules) -> Transaction:
        if not self._is_transaction:
            raise redis.RedisError("watch() needs pipeline(transaction=True)")
        if self._multi or self.commands:
            raise redis.RedisError("watch() comes before the commands of the transaction and before multi()")
        if self.transaction is None:
            self.transaction = Transaction(rules)
        return self.transaction

    def multi(self) -> None:
        if not self._is_transaction:
            raise redis.RedisError("multi() needs pipeline(transaction=True)")
        if self._multi:
            raise redis.RedisError("multi() was called already")
        self._multi = True

    def for_execute(self, rules: Rules) -> Transaction | None:
        """The transaction to end with EXEC, if this is one."""
        if not self._is_transaction:
            return None
        return self.transaction or Transaction(rules)

    def end_transaction(self) -> Transaction | None:
        transaction, self.transaction, self._multi = self.transaction, None, False
        return transaction

    def clear(self) -> None:
        self.commands, self.options = [], []


class ClusterBase:
    """Delivery settings and counters of both cluster clients.

    The settings may be changed at any time, and then apply to commands that have no reply yet.
    """

    core: ClusterCore

    @property
    def delivery(self) -> Delivery:
        """The level: at-least-once or at-most-once."""
        return self.core.rules.delivery

    @delivery.setter
    def delivery(self, level: Delivery | str) -> None:
        self.core.rules.delivery = replace(self.core.rules, delivery=Delivery.of(level)).delivery  # checked

    @property
    def replay_filter(self) -> ReplayFilter | None:
        """True for commands that must not be sent again; they then fail with their state."""
        return self.core.rules.replay_filter

    @replay_filter.setter
    def replay_filter(self, replay_filter: ReplayFilter | None) -> None:
        check_called("replay_filter", replay_filter)
        self.core.rules.replay_filter = replay_filter

    @property
    def counters(self) -> ClusterCounters:
        """The counters of this client, over all nodes; see ClusterCounters."""
        return replace(self.core.bounds.counters, refreshes=self.core.topology.refreshes)

    def consumer(self, *arguments: Any, **terms: Any) -> NoReturn:
        """Refused: no server of a cluster has TREAD and TACK."""
        _refuse_stream_client("consumer")

    def producer(self, *arguments: Any, **terms: Any) -> NoReturn:
        """Refused: no server of a cluster has TWRITE."""
        _refuse_stream_client("producer")

    def follow(self, *arguments: Any, **terms: Any) -> NoReturn:
        """Refused: no server of a cluster has TREAD."""
        _refuse_stream_client("follow")

    def __repr__(self) -> str:
        nodes = ", ".join(map(shown, self.core.topology.startup))
        return f"<{type(self).__module__}.{type(self).__qualname__}({nodes})>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a client is its connections, which cannot be pickled or copied; "
            "make one from its arguments where it is used"
        )


def _refuse_stream_client(name: str) -> NoReturn:
    raise NotRoutable(
        f"Cluster has no {name}(): Redis and Valkey Cluster have no Penstock streams, and Penstock servers form no "
        f"cluster. Connect to the Penstock server that has the stream: penstock.Client(host, port).{name}(...)"
    )


class ClusterPipelineBase:
    """What the blocking and the asyncio pipeline share: all but the driving."""

    _queues_commands: Literal[True] = True  # reply_types.AnyPipeline

    def __init__(self, cluster: Any, transaction: bool, strategy: Strategy | str | None, split: bool | None) -> None:
        self.calls = PipelineCalls(transaction, strategy)
        self._cluster = cluster
        self._core: ClusterCore = cluster.core
        self._split = split

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        if self.calls.is_immediate:
            return self._cluster.drive(self._core.immediate(self.calls.watching(), arguments, options))
        return self.calls.add(self, arguments, options)

    def multi(self) -> None:
        """After `watch` and the reading: commands from here on wait for `execute`."""
        self.calls.multi()

    def _running(self) -> Generator[DriverRequest, Any, list[Any]]:
        """The generator that the driver runs for `execute`."""
        calls = self.calls
        logic: Generator[DriverRequest, Any, list[Any]] = self._core.pipeline(
            calls.commands, calls.options, calls.strategy, calls.for_execute(self._core.rules),
            self._core.rules.split if self._split is None else self._split,
        )  # fmt: skip
        return logic

    def _results(self, replies: list[Any], raise_on_error: bool) -> list[Any]:
        results: list[Any] = self._core.read_all(self.calls.commands, self.calls.options, replies)
        if raise_on_error:
            raise_first(self.calls.commands, results)
        return results

    def _watching(self, names: tuple[Any, ...]) -> Generator[DriverRequest, Any, Any]:
        """The generator that the driver runs for `watch`."""
        transaction = self.calls.start_watching(self._core.rules)
        logic: Generator[DriverRequest, Any, Any] = self._core.immediate(transaction, ("WATCH", *names), {}, watch=True)
        return logic

    def _release(self) -> None:
        transaction = self.calls.end_transaction()
        if transaction is not None:
            self._cluster._pool.release(transaction.lane.connection, transaction.lane.address)

    def _forget(self) -> None:
        self._release()
        self.calls.clear()

    def __len__(self) -> int:
        return len(self.calls.commands)

    def __bool__(self) -> bool:
        return True
