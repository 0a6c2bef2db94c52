"""How the commands of a consumer are sent: again, until the server answers, for as long as the settings say.

All workers of a consumer, and its keeper, use one Sender. With a token each command has the same effect twice as once;
only its reply may count less the second time, so what is repeated is not counted as stale.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import redis

from penstock.client.consumer.counts import Counts
from penstock.client.consumer.options import ConsumerSettings
from penstock.client.consumer.orders import Order, give_back_later
from penstock.client.consumer.outages import NO_MEMORY, Outages, may_have_run, may_pass
from penstock.client.consumer.steps import Call, Wait

_logger = logging.getLogger("penstock.consumer")

Calls = Generator[Call | Wait, Any, None]


class Sender:
    """See the top of this file."""

    def __init__(self, settings: ConsumerSettings, counts: Counts, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self.counts = counts
        self.outages = Outages(repr(settings.key), settings.patience)
        self.is_stopping = False
        self.stop_at: float | None = None
        """When settlements are not repeated any more; None: there is no such time."""
        self.interrupted: list[Order] = []
        """Settlements whose replies were not awaited: to be sent again."""
        self.has_lost_read = False
        """A read of a consumer that keeps order had no reply."""

    def send(self, orders: Sequence[Order], once: bool = False) -> Calls:
        """Have commands executed; those without a reply again, unless `once`. After `stop`, only settlements are
        repeated, and only until the grace is over. A message that the server has no memory to give up is given back
        for a while; a consumer that keeps order has no reply then, and holds the message.
        """
        pending = list(orders)
        while pending:
            try:
                replies = yield Call([order.words for order in pending])
            except BaseException:  # an interrupt, a cancellation
                self._interrupt(pending)
                raise
            failed: list[Order] = []
            last: Exception | None = None
            for order, reply in zip(pending, replies, strict=True):
                if order.kind == "give up" and isinstance(reply, NO_MEMORY):
                    _logger.warning("message %d is not given up yet, and comes again: %s", order.rows[0][0], reply)
                    if not self._settings.ordered_by:
                        failed.append(give_back_later(order))
                elif isinstance(reply, Exception):
                    if order.kind == "ask":
                        if _is_nothing_there(reply):
                            continue
                        _name_permission(order, reply)
                    if not may_pass(reply):
                        raise reply
                    order.is_repeated |= may_have_run(reply)
                    last = reply
                    failed.append(order)
                else:
                    order.reply = reply
                    self._note(order)
            pending = failed
            if last is None:
                self.outages.answered(self._clock())
                continue
            try:
                is_repeated = yield from self._may_repeat(last, once)
            except BaseException:
                self._interrupt(pending)
                raise
            if not is_repeated:
                return
            if self.is_stopping:
                pending = [order for order in pending if order.settles]
            elif self._settings.ordered_by and any(order.kind == "read" and order.is_repeated for order in pending):
                self.has_lost_read = True  # what it fetched, if it did, comes before new messages
                pending = [order for order in pending if order.kind != "read"]
            self.counts.repeated += len(pending)

    def _interrupt(self, orders: Iterable[Order]) -> None:
        for order in orders:
            order.is_repeated = True
            if order.settles:
                self.interrupted.append(order)

    def _may_repeat(self, error: Exception, once: bool) -> Generator[Call | Wait, Any, bool]:
        now = self._clock()
        try:
            pause = self.outages.failed(error, now)
        finally:
            self.counts.outages = self.outages.count
        if once:
            return False
        if self.stop_at is not None and now + pause >= self.stop_at:
            _logger.warning("the server does not answer, and the time to stop is over: messages held will come again")
            return False
        yield Wait(pause)
        return True

    def _note(self, order: Order) -> None:
        """Count what a settlement did. A repeated one may have been done by the first."""
        if not order.settles:
            return
        count = len(order.rows) if order.is_repeated else order.reply
        if order.kind == "ack":
            self.counts.done += count
        elif order.kind == "give up" and count:
            self.counts.given_up += count
            (row,) = order.rows
            _logger.warning("message %d is given up after %d attempts", row[0], row[4] + 1)
        if count < len(order.rows):
            self.note_stale(len(order.rows) - count)

    def note_stale(self, count: int) -> None:
        self.counts.stale += count
        _logger.warning(
            "%d messages of %r were held for too long: other members of %r have them now",
            count, self._settings.key, self._settings.group,
        )  # fmt: skip


def _is_nothing_there(error: Exception) -> bool:
    """Whether a question has no answer because there is no such stream or group yet."""
    return isinstance(error, redis.ResponseError) and str(error).startswith(("no such key", "no such group"))


def _name_permission(question: Order, error: Exception) -> None:
    """Raise what a user needs to know whose server refuses a question."""
    if isinstance(error, redis.exceptions.NoPermissionError):
        name = " ".join(question.words[:2] if question.words[0] == "TGROUP" else question.words[:1])
        raise redis.exceptions.NoPermissionError(
            f"ordered_by needs the permission to run {name}: a consumer that keeps order asks what is pending before "
            f"it reads ({error})"
        ) from error
