"""The commands of a consumer: their words, the messages they are about, and what became of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from penstock.client.api.streams import spans
from penstock.client.consumer.delivered import Delivered
from penstock.client.consumer.terms import Terms

Kind = Literal["read", "begin", "extend", "ack", "nack", "give up", "ask"]
Verdict = int | None | BaseException
LONGEST_REASON = 4000
"""Characters of an exception that a dead letter keeps."""
NOT_GIVEN_UP = 5000
"""Milliseconds after which a message is tried again for whose dead letter the server had no memory."""


class Order:
    """One command."""

    __slots__ = ("is_repeated", "kind", "messages", "reply", "words")

    def __init__(self, kind: Kind, words: tuple[Any, ...], messages: Sequence[Delivered] = ()) -> None:
        self.kind = kind
        self.words = words
        self.messages = messages
        self.reply: Any = None
        self.is_repeated = False
        """It may have been executed before, so its reply may count less than it did."""

    @property
    def settles(self) -> bool:
        return self.kind in ("ack", "nack", "give up")


class Orders:
    """Makes the commands."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._place = (terms.key, terms.group)
        self._options = _read_options(terms)

    def read(self, count: int, block_ms: int | None) -> Order:
        """Fetch messages without beginning them."""
        terms = self._terms
        block = () if block_ms is None else ("BLOCK", block_ms)
        return Order("read", ("TREAD", terms.key, terms.start, count, *block, *self._options))

    def read_again(self, count: int) -> Order:
        """Fetch messages that were delivered before, all at once."""
        words = list(self._options)
        if "MAXBYTES" in words:
            at = words.index("MAXBYTES")
            del words[at : at + 2]
        return Order("read", ("TREAD", self._terms.key, self._terms.start, count, *words))

    def ask_pending(self) -> tuple[Order, Order]:
        """What the group holds, and what time it is on the server."""
        return Order("ask", ("TGROUP", "PENDING", *self._place, "COUNT", 1_000_000)), Order("ask", ("TIME",))

    def begin(self, messages: list[Delivered]) -> list[Order]:
        """Count an attempt of each."""
        return [Order("begin", self._hold(token, "BEGIN", ranges), held) for token, ranges, held in _by_token(messages)]

    def extend(self, messages: list[Delivered]) -> list[Order]:
        """Hold on to messages."""
        return [Order("extend", self._hold(token, None, ranges), held) for token, ranges, held in _by_token(messages)]

    def _hold(self, token: int, word: str | None, ranges: Sequence[Any]) -> tuple[Any, ...]:
        words = () if word is None else (word,)
        return ("TEXTEND", *self._place, self._terms.retry_ms, "TOKEN", token, *words, *ranges)

    def settle(self, done: list[Delivered], settled: Iterable[tuple[Delivered, Verdict]]) -> list[Order]:
        """Acknowledge messages that are done, and acknowledge, give back or give up others."""
        back: dict[int, list[Delivered]] = {}
        orders: list[Order] = []
        for message, verdict in settled:
            if verdict is None:
                done.append(message)
            elif isinstance(verdict, BaseException):
                orders.append(self._give_up(message, verdict))
            else:
                back.setdefault(verdict, []).append(message)
        for token, ranges, held in _by_token(done):
            orders.append(Order("ack", ("TACK", *self._place, "TOKEN", token, *ranges), held))
        for delay, messages in back.items():
            words = ("DELAY", delay) if delay else ()
            for token, ranges, held in _by_token(messages):
                orders.append(Order("nack", ("TNACK", *self._place, "TOKEN", token, *ranges, *words), held))
        return orders

    def _give_up(self, message: Delivered, error: BaseException) -> Order:
        """The server writes the dead letter, if this member still holds the message."""
        why = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
        words = ("TGIVEUP", *self._place, "TOKEN", message.lease.token, "REASON", why, message.offset)
        return Order("give up", words, [message])


def give_back_later(order: Order) -> Order:
    """In place of a message that could not be given up: it is tried again."""
    _, key, group, *_, token, _, _, offset = order.words
    return Order("nack", ("TNACK", key, group, "TOKEN", token, offset, "DELAY", NOT_GIVEN_UP), order.messages)


def _read_options(terms: Terms) -> tuple[Any, ...]:
    words: list[Any] = ["GROUP", terms.group, "RETRY", terms.reserve_ms, terms.expire_ms]
    if terms.max_attempts is not None:
        words += ["MAXATTEMPTS", terms.max_attempts]
    releases = terms.release
    if terms.name is not None or releases:
        words += ["CONSUMER", terms.name or f"{socket.gethostname()}-{os.getpid()}-{id(terms):x}"]
    if releases:
        words.append("RELEASE")
    if terms.max_bytes is not None:
        words += ["MAXBYTES", terms.max_bytes]
    if terms.dead_letter is not None:
        words += ["DEADLETTER", terms.dead_letter]
    return (*words, "RESERVE", "WITHLEASE")


def _by_token(messages: list[Delivered]) -> list[tuple[int, list[Any], list[Delivered]]]:
    """Messages that were delivered together: the token, the ranges of their offsets, and the messages."""
    if not messages:
        return []
    if len({message.lease for message in messages}) == 1:
        return [(messages[0].lease.token, _ranges(messages), messages)]
    found: dict[int, list[Delivered]] = {}
    for message in messages:
        found.setdefault(message.lease.token, []).append(message)
    return [(token, _ranges(held), held) for token, held in found.items()]


def _ranges(messages: Sequence[Delivered]) -> list[Any]:
    """The offsets of messages as words of a command."""
    offsets = [message[0] for message in messages]
    first, last = min(offsets), max(offsets)
    if last - first + 1 == len(offsets):
        return [first if first == last else f"{first}-{last}"]
    return spans(sorted(offsets))
