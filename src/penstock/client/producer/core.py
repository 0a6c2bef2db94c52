"""A producer without I/O: messages go in, windows of writes and finished messages come out. `now` is in seconds.

Messages are gathered for `linger_ms`, or until they are `batch_bytes`, and become one TWRITE with a sequence number of
the producer. Up to `in_flight` such writes are a window, which is sent in one go. If a window is not answered whole,
what has no answer is sent again, in order and under the same numbers, and nothing newer before it: so the order is
kept, and the server, which remembers the last answers of a producer, writes nothing twice. (It remembers 8, and a
window has no more.) The same holds for what the server refuses for a while (BUSY, READONLY, OOM ...), unless a later
write of the window was executed: then it is too late for the earlier one, which would be FENCED.

The numbers begin at 1. A producer with a name of its own asks for its last number (TPRODUCER) and begins well above it,
somewhere in the next EPOCH: from its first write on, a predecessor that is still at work is refused with FENCED. Where
it begins is random, because two producers of one name may begin at the same time. If both began at the same number, the
server would take the write of one for a repeat of the other's.

Every message is finished once: with its offset, or with the error that says how far it came. The driver has a lock, if
it has threads. `add` is called by the threads of the callers, which may be interrupted at any step: it appends one
tuple, and all that is counted beside that is counted again when a window is cut.

Rejected: several windows under way. A window grows while the one before is on its way, so another one adds little, and
what an error in the first means for the second is hard to say. Rejected: FORMAT ARROW. Measured with batches of 100 to
5000 entries of 100 bytes it is as fast as ENTRIES, and half as fast with 1000 bytes.
"""

from __future__ import annotations

import math
import random
import re
import secrets
from collections.abc import Sequence
from copy import copy
from typing import Any

import redis

from penstock.client.consumer.outages import may_pass
from penstock.client.delivery import Settings, State
from penstock.client.engine.backoff import Backoff
from penstock.client.errors import BufferFull, ClientClosed, DeliveryError, NoReplyInTime, NotSentInTime, reply_error
from penstock.client.producer.options import ProducerSettings
from penstock.client.producer.outcomes import Outcomes
from penstock.client.producer.writes import Held, Write

EPOCH = 1 << 32
"""How many numbers a producer has before its successor's begin."""
SPAN = 0.1
"""The messages of one write came within this share of their timeout, so that none is given up much too early."""

Fenced = type(reply_error("FENCED"))
Misfit = type(reply_error("SCHEMAMISFIT"))
_BAD_ENTRY = re.compile(r"\bentry (\d+) does not fit")


class ProducerCore:
    """See the top of this file."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self.name = settings.name or f"producer-{secrets.token_hex(8)}"
        self.last: tuple[int, int | None] | None = None
        """Of a producer that was here before: its last number, and the offset that was answered, if there was one."""
        self.is_closed = False
        self.failure: Exception | None = None
        """Why it can write no more."""
        self.outcomes = Outcomes(self.name)
        self.writes = 0
        self._linger = settings.linger_ms / 1000
        self._open: list[Held] = []
        self._open_bytes = 0
        self._unanswered: list[Write] = []  # cut, in order; those of the window first
        self._is_away = False  # a window is under way
        self._cut = 0  # messages that left `_open`
        self._flush_to = 0
        self._next = 1
        self._is_begun = False
        self._check = "off"
        reconnecting = Settings(backoff_base=settings.backoff_base, backoff_cap=settings.backoff_cap)
        self._backoff = Backoff(reconnecting, random.random)
        self._not_before = 0.0
        self._why = "there was no connection"

    # -- messages ---------------------------------------------------------------------------------------------

    @property
    def accepted(self) -> int:
        """How many messages were taken since it was made."""
        return self._cut + len(self._open)

    @property
    def held_bytes(self) -> int:
        return self._open_bytes + sum(write.size for write in self._unanswered)

    def refuse(self) -> None:
        """Raise if no message can be taken any more."""
        if self.failure is not None:
            raise copy(self.failure)
        if self.is_closed:
            raise ClientClosed("the producer is closed")

    def has_room(self, size: int) -> bool:
        """Whether a message of this size fits; one that is larger than all the room fits alone."""
        held = self.held_bytes
        return not held or held + size <= self.settings.max_bytes

    def full(self) -> BufferFull:
        return BufferFull(
            f"the message was not taken: {self.held_bytes} bytes wait to be written, and max_bytes is "
            f"{self.settings.max_bytes} ({self._why})"
        )

    def counters(self) -> dict[str, int]:
        """Messages that were written, failed and are held, and the writes that were sent."""
        outcomes = self.outcomes
        held = self.accepted - outcomes.ended
        return {"written": outcomes.written, "failed": outcomes.failed, "held": held, "writes": self.writes}

    def add(self, tag: bytes, entry: bytes, slot: Any, size: int, now: float) -> bool:
        """Take a message for which there is room. Whether the driver is to look when to act."""
        self.refuse()
        before = self._open_bytes
        self._open.append(Held(tag, entry, slot, size, now))
        self._open_bytes = before + size
        return not before or before < self.settings.batch_bytes <= before + size

    def flush(self) -> int:
        """Let what was taken wait no longer; it is finished when `outcomes.ended` is at least the answer."""
        self._flush_to = self.accepted
        return self._flush_to

    def close(self) -> None:
        """Take nothing any more, and let what was taken wait no longer."""
        self.is_closed = True
        self.flush()

    # -- what to do -------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self._open and not self._unanswered

    def act_at(self, now: float) -> float:
        """When `take` has something to give, or a message is to be given up; infinity: not before one comes."""
        if self._is_away:
            return math.inf
        if self._unanswered:
            return max(self._not_before, now)
        if not self._open:
            return math.inf
        is_due = self._flush_to > self._cut or self._open_bytes >= self.settings.batch_bytes
        first = 0.0 if is_due else self._open[0].since + self._linger
        return max(first, self._not_before)

    def take(self, now: float) -> list[tuple[Any, ...]]:
        """The commands to send now, in one go; `answered` gets their replies. Empty: all was given up."""
        self._give_up(now)
        if self.is_empty:
            return []
        self._is_away = True
        if not self._is_begun:
            key, last = self.settings.key, [("TPRODUCER", self.settings.key, self.name)] if self.settings.name else []
            return [("TSCHEMA GET", key), *last]
        if not self._unanswered:
            self._cut_window()
        return [self._command(write) for write in self._unanswered]

    def patience(self, now: float) -> float:
        """Seconds that the commands of a window have."""
        first = self._unanswered[0].deadline if self._unanswered else self._open[0].since + self.settings.timeout
        return max(first - now, 0.01)

    def _cut_window(self) -> None:
        """Cut writes off the messages that wait, as many as a window has."""
        limit, held, begin = self.settings.batch_bytes, self._open, 0
        most = 1 if self._check == "refuse" else self.settings.in_flight
        while begin < len(held) and len(self._unanswered) < most:
            end, size, latest = begin, 0, held[begin].since + self.settings.timeout * SPAN
            while end < len(held) and (not size or size + held[end].size <= limit) and held[end].since <= latest:
                size += held[end].size
                end += 1
            self._unanswered.append(self._numbered(held[begin:end]))
            begin = end
        self._left_open(begin)

    def _numbered(self, messages: list[Held]) -> Write:
        write = Write(messages, self._next, self.settings.timeout)
        self._next += 1
        return write

    def _left_open(self, count: int) -> None:
        """The first so many messages that waited do not wait any more."""
        del self._open[:count]
        self._cut += count
        self._open_bytes = sum(held.size for held in self._open)

    def _command(self, write: Write) -> tuple[Any, ...]:
        self.writes += 1
        words: list[bytes] = []
        for tag, entry, *_ in write.messages:
            words += (tag, entry)
        return ("TWRITE", self.settings.key, "PRODUCER", self.name, write.sequence, "WHOLE", "ENTRIES", *words)

    # -- what became of it ------------------------------------------------------------------------------------

    def answered(self, replies: Sequence[Any], now: float) -> None:
        """The replies to the commands of `take`, or the errors that they failed with."""
        self._is_away = False
        if not self._is_begun:
            self._begin(replies, now)
            return
        lost = len(replies)
        while lost and _may_repeat(replies[lost - 1]):
            lost -= 1
        window, self._unanswered = self._unanswered, []
        for at in range(lost):
            again = self._take_reply(window[at], replies[at], is_last=at + 1 == len(window))
            if self.failure is not None:
                for write in window[at + 1 :]:
                    self.outcomes.fail(write, self.failure)
                return
            if again is not None:
                self._unanswered.append(again)
        for at in range(lost, len(window)):
            if not _was_refused(replies[at]):
                window[at].reached = max(window[at].reached, getattr(replies[at], "state", State.WRITTEN))
            self._unanswered.append(window[at])
        if lost < len(window):
            self._lost(replies[lost], now)
        else:
            self._backoff.failures, self._not_before = 0, 0.0
        self._give_up(now)

    def fail_all(self, error: Exception) -> None:
        """It can write no more: this is the end of all messages, and of later ones."""
        self.failure, self._is_away = error, False
        writes, self._unanswered = self._unanswered, []
        for write in writes:
            self.outcomes.fail(write, error)
        self._fail_open(len(self._open), error)

    def _begin(self, replies: Sequence[Any], now: float) -> None:
        """Whether the stream checks its entries, and which number comes next."""
        for reply in replies:
            if _may_repeat(reply):
                self._lost(reply, now)
                self._give_up(now)
                return
        self._check = _check_of(replies[0])
        if len(replies) > 1 and self._next == 1:
            last = replies[1]
            if isinstance(last, Exception):
                self.fail_all(last)
                return
            before = 0
            if last:
                self.last = last[0], last[1]
                before = (last[0] // EPOCH + 1) * EPOCH
            self._next = before + secrets.randbelow(EPOCH // 2) + 1
        self._is_begun = True

    def _lost(self, error: Any, now: float) -> None:
        """Nothing was answered from some command on; it is sent again after a while."""
        self._why = str(error)
        self._not_before = self._backoff.failed(now)

    def _take_reply(self, write: Write, reply: Any, is_last: bool) -> Write | None:
        """Finish the messages of a write that was answered; answers what is to be written in its place."""
        if not isinstance(reply, Exception):
            self.outcomes.succeed(write, reply)
        elif isinstance(reply, Fenced):
            self.outcomes.fail(write, reply)
            self.fail_all(reply)
        elif isinstance(reply, Misfit) and len(write.messages) > 1 and (found := _BAD_ENTRY.search(str(reply))):
            self._check = "refuse"  # from now on one write at a time, so that what is left of one keeps its place
            if is_last:
                return self._without(write, int(found[1]) - 1, reply)
            self.outcomes.fail(write, reply)
        else:
            self.outcomes.fail(write, reply)
        return None

    def _without(self, write: Write, place: int, why: Exception) -> Write:
        """The rest of a write that was refused because of one message."""
        messages = list(write.messages)
        bad = messages.pop(place)
        rest = self._numbered(messages)
        rest.refused = [*write.refused, (bad, why)]
        return rest

    def _fail_open(self, count: int, error: Exception) -> None:
        """The first messages that wait have failed."""
        messages = self._open[:count]
        self._left_open(count)
        self.outcomes.fail_unsent(messages, error)

    def _give_up(self, now: float) -> None:
        """Fail the messages whose time is up."""
        while self._unanswered and self._unanswered[0].deadline <= now:
            write = self._unanswered.pop(0)
            if write.reached is State.QUEUED:
                self.outcomes.fail(
                    write, NotSentInTime(f"the message was not sent within {self.settings.timeout} s: {self._why}")
                )
            else:
                text = (
                    f"the message was sent, and not answered within {self.settings.timeout} s: it may have been written"
                )
                self.outcomes.fail(write, NoReplyInTime(f"{text} ({self._why})", write.reached))
        late = now - self.settings.timeout
        if self._open and self._open[0].since <= late:
            count = next((at for at, held in enumerate(self._open) if held.since > late), len(self._open))
            error = NotSentInTime(f"the message was not sent within {self.settings.timeout} s: {self._why}")
            self._fail_open(count, error)


def _may_repeat(reply: Any) -> bool:
    """Whether a command did not run, or its reply was lost, so that it is sent again."""
    if isinstance(reply, redis.AuthenticationError | redis.exceptions.AuthorizationError):
        return False
    return isinstance(reply, DeliveryError | redis.ConnectionError | redis.TimeoutError) or _was_refused(reply)


def _was_refused(reply: Any) -> bool:
    """Whether the server answered that it does not run the command now."""
    is_lost = isinstance(reply, DeliveryError | redis.ConnectionError | redis.TimeoutError)
    return isinstance(reply, Exception) and not is_lost and may_pass(reply)


def _check_of(schema: Any) -> str:
    """The CHECK of a TSCHEMA GET reply: off, refuse or deadletter. In RESP2 the map is an array."""
    pairs = dict(zip(schema[::2], schema[1::2], strict=False)) if isinstance(schema, list) else schema
    check = (pairs.get(b"check") or pairs.get("check") or b"off") if isinstance(pairs, dict) else b"off"
    return check.decode() if isinstance(check, bytes) else str(check)
