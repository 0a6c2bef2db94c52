"""The commands of a consumer: their words, the messages they are about, and what became of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from penstock.client.api.streams import spans
from penstock.client.consumer.delivered import Row
from penstock.client.consumer.holdings import Lease, Verdict
from penstock.client.consumer.options import ConsumerSettings

Kind = Literal["read", "begin", "extend", "ack", "nack", "give up", "ask"]
LONGEST_REASON = 4000
"""Characters of an exception that a dead letter keeps."""
NOT_GIVEN_UP = 5000
"""Milliseconds after which a message is tried again for whose dead letter the server had no memory."""


class Order:
    """One command."""

    __slots__ = ("is_repeated", "kind", "lease", "reply", "rows", "words")

    def __init__(
        self, kind: Kind, words: tuple[Any, ...], rows: list[Row] | None = None, lease: Lease | None = None
    ) -> None:
        self.kind = kind
        self.words = words
        self.rows = rows or []
        """The messages that it is about."""
        self.lease = lease
        """That of these messages; if they have several, one of them: they have the same token."""
        self.reply: Any = None
        self.is_repeated = False
        """It may have been executed before, so its reply may count less than it did."""

    @property
    def settles(self) -> bool:
        return self.kind in ("ack", "nack", "give up")


class Orders:
    """Makes the commands."""

    def __init__(self, settings: ConsumerSettings, leases: Mapping[int, Lease]) -> None:
        self._settings = settings
        self._leases = leases
        self._place = (settings.key, settings.group)
        self._options = _read_options(settings)

    def read(self, count: int, block_ms: int | None) -> Order:
        """Fetch messages without beginning them."""
        settings = self._settings
        block = () if block_ms is None else ("BLOCK", block_ms)
        return Order("read", ("TREAD", settings.key, settings.start, count, *block, *self._options))

    def read_again(self, count: int) -> Order:
        """Fetch messages that were delivered before, all at once."""
        words = list(self._options)
        if "MAXBYTES" in words:
            at = words.index("MAXBYTES")
            del words[at : at + 2]
        return Order("read", ("TREAD", self._settings.key, self._settings.start, count, *words))

    def ask_pending(self) -> tuple[Order, Order]:
        """What the group holds, and what time it is on the server."""
        return Order("ask", ("TGROUP", "PENDING", *self._place, "COUNT", 1_000_000)), Order("ask", ("TIME",))

    def begin(self, rows: list[Row]) -> list[Order]:
        """Count an attempt of each."""
        return [
            Order("begin", self._hold(lease, ("BEGIN",), ranges), held, lease)
            for lease, ranges, held in self._by_token(rows)
        ]

    def extend(self, rows: list[Row]) -> list[Order]:
        """Hold on to messages."""
        return [
            Order("extend", self._hold(lease, (), ranges), held, lease) for lease, ranges, held in self._by_token(rows)
        ]

    def _hold(self, lease: Lease, more: tuple[str, ...], ranges: Sequence[Any]) -> tuple[Any, ...]:
        return ("TEXTEND", *self._place, self._settings.retry_ms, "TOKEN", lease.token, *more, *ranges)

    def settle(self, done: list[Row], settled: Iterable[tuple[Row, Verdict]]) -> list[Order]:
        """Acknowledge messages that are done, and acknowledge, give back or give up others."""
        back: dict[int, list[Row]] = {}
        orders: list[Order] = []
        for row, verdict in settled:
            if verdict is None:
                done.append(row)
            elif isinstance(verdict, BaseException):
                orders.append(self.give_up(row, verdict))
            else:
                back.setdefault(verdict, []).append(row)
        for lease, ranges, held in self._by_token(done):
            orders.append(Order("ack", ("TACK", *self._place, "TOKEN", lease.token, *ranges), held))
        for delay, rows in back.items():
            words = ("DELAY", delay) if delay else ()
            for lease, ranges, held in self._by_token(rows):
                orders.append(Order("nack", ("TNACK", *self._place, "TOKEN", lease.token, *ranges, *words), held))
        return orders

    def give_up(self, row: Row, error: BaseException) -> Order:
        """The server writes the dead letter, if this member still holds the message."""
        why = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
        words = ("TGIVEUP", *self._place, "TOKEN", self._leases[row[0]].token, "REASON", why, row[0])
        return Order("give up", words, [row])

    def _by_token(self, rows: list[Row]) -> list[tuple[Lease, list[Any], list[Row]]]:
        """Messages that were delivered together: a lease of theirs, the ranges of their offsets, and the messages."""
        if not rows:
            return []
        offsets = [row[0] for row in rows]
        leases = set(map(self._leases.__getitem__, offsets))
        if len(leases) == 1:
            return [(leases.pop(), _ranges(offsets), rows)]
        by_token: dict[int, list[Row]] = {}
        for row in rows:
            by_token.setdefault(self._leases[row[0]].token, []).append(row)
        return [(self._leases[held[0][0]], _ranges([row[0] for row in held]), held) for held in by_token.values()]


def give_back_later(order: Order) -> Order:
    """In place of a message that could not be given up: it is tried again."""
    _, key, group, *_, token, _, _, offset = order.words
    return Order("nack", ("TNACK", key, group, "TOKEN", token, offset, "DELAY", NOT_GIVEN_UP), order.rows)


def _read_options(settings: ConsumerSettings) -> tuple[Any, ...]:
    words: list[Any] = ["GROUP", settings.group, "RETRY", settings.reserve_ms, settings.expire_ms]
    if settings.max_attempts is not None:
        words += ["MAXATTEMPTS", settings.max_attempts]
    releases = settings.release
    if settings.name is not None or releases:
        words += ["CONSUMER", settings.name or f"{socket.gethostname()}-{os.getpid()}-{id(settings):x}"]
    if releases:
        words.append("RELEASE")
    if settings.max_bytes is not None:
        words += ["MAXBYTES", settings.max_bytes]
    if settings.dead_letter is not None:
        words += ["DEADLETTER", settings.dead_letter]
    return (*words, "RESERVE", "WITHLEASE")


def _ranges(offsets: list[int]) -> list[Any]:
    """Offsets as words of a command."""
    first, last = min(offsets), max(offsets)
    if last - first + 1 == len(offsets):
        return [first if first == last else f"{first}-{last}"]
    return spans(sorted(offsets))
