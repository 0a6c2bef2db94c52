"""What a pipeline has collected, and whether it may be sent: the part that blocking and asyncio pipelines share."""

from __future__ import annotations

from typing import TypeVar

import redis

from penstock.client.cluster.core import Options
from penstock.client.cluster.effects import Rules
from penstock.client.cluster.plan import Call
from penstock.client.cluster.strategies import Strategy
from penstock.client.cluster.transaction import Transaction

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
