"""The stream and options of a consumer. They are checked when the consumer is made, not when a body fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from penstock.client.api.reply_types import Key


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay that grows with every attempt, up to a cap, and varies a little so that retries do not come together.

    >>> [Backoff(100, jitter=0).delay_ms(attempts) for attempts in (1, 2, 3, 20)]
    [100, 200, 400, 60000]
    """

    first_ms: int = 1000
    factor: float = 2.0
    cap_ms: int = 60_000
    jitter: float = 0.1
    """The part of a delay that is random."""

    def delay_ms(self, attempts: int) -> int:
        """The delay after so many attempts."""
        grown = self.first_ms * self.factor ** min(attempts - 1, 64)
        return round(min(grown, self.cap_ms) * (1 + self.jitter * random.uniform(-1, 1)))


class GiveUp:
    """The type of GIVE_UP."""

    def __repr__(self) -> str:
        return "GIVE_UP"


GIVE_UP = GiveUp()
"""In `ConsumerSettings.retry`: do not try again. The message goes to the dead letters at once, with the error as the
reason.
"""

Delay = int | Backoff | GiveUp
"""What follows a failure: a retry after milliseconds, one after a growing delay, or none."""


_INTERRUPTS = (asyncio.CancelledError, KeyboardInterrupt)
"""The body was interrupted. The message is as good as it was, and another member may have it at once."""
RESERVE_MS = 3000
"""Many times as long as fetched messages wait for their body."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The stream and options of a consumer."""

    key: Any
    group: Any
    start: int | str = 0
    """Where the group begins if it does not exist yet: an offset, 0 for the first message there is, "$" for new ones.
    """
    count: int = 500
    """The most messages to fetch at a time. How many are fetched depends on the time that the body takes."""
    max_bytes: int | None = 4 << 20
    """The most bytes to fetch at a time; one message is always fetched."""
    retry_ms: int = 30_000
    """How long the server waits for a consumer that is silent, before others get its messages. The body may take
    longer: the consumer extends the leases of messages whose body runs.
    """
    expire_ms: int = 0
    """So long after its first attempt a message is given up; 0 is never."""
    max_attempts: int | None = None
    """A message is given up after so many attempts; None: there is no limit."""
    dead_letter: Any = None
    """The stream to which messages that are given up go."""
    retry_delay_ms: int | Backoff = 1000
    """How long a message waits that the body failed on."""
    retry: Mapping[type[Exception], Delay] = field(default_factory=dict)
    """What follows an exception of a type, or of a subclass of it, if it is not `retry_delay_ms`."""
    block_ms: int = 1000
    """How long one read waits; also how soon an idle consumer notices `stop`."""
    patience: float | None = None
    """Seconds to wait for a server that does not answer, before the error is raised; None: for ever."""
    grace_ms: int | None = 20_000
    """After `stop`, SIGTERM or Ctrl-C: how long bodies may go on. Then their messages are given back. None: for ever.
    """
    ordered_by: Literal["tag"] | None = None
    """"tag": messages of one tag are processed one after the other, in order; other tags side by side."""
    manual: bool = False
    """Messages are acknowledged by `message.ack()` alone, not when the body returns."""
    name: str | None = None
    """The name of this member, shown by TGROUP LIST."""
    release: bool = False
    """What this member holds is given back as soon as its connection ends. It needs a name, or makes one."""

    def __post_init__(self) -> None:
        least = (
            (1, ("count", "retry_ms", "block_ms", "max_bytes", "max_attempts")),
            (0, ("expire_ms", "retry_delay_ms", "grace_ms")),
        )
        for smallest, names in least:
            for name in names:
                self._check_number(name, smallest)
        if self.patience is not None and not (isinstance(self.patience, int | float) and self.patience >= 0):
            raise ValueError(f"patience={self.patience!r}: it is a number of seconds, or None to wait for ever")
        if self.ordered_by not in (None, "tag"):
            raise ValueError(f"ordered_by={self.ordered_by!r}: messages are ordered by 'tag', or not at all (None)")
        if self.ordered_by and self.manual:
            raise ValueError("manual=True excludes ordered_by: the next message of a tag begins when the body ends")
        gives_up = self._gives_up() or bool(self.expire_ms) or self.max_attempts is not None
        if self.dead_letter is not None and not gives_up:
            raise ValueError(
                f"dead_letter={self.dead_letter!r} needs expire_ms, max_attempts or a GIVE_UP in retry: without one no "
                "message is ever given up"
            )

    def _check_number(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is None and name in ("max_bytes", "max_attempts", "grace_ms"):
            return
        if name == "retry_delay_ms" and isinstance(value, Backoff):
            return
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r}: a consumer needs an int of at least {least}")

    def _gives_up(self) -> bool:
        for kind, delay in self.retry.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"retry={{{kind!r}: ...}}: its keys are types of exceptions")
            if not isinstance(delay, int | Backoff | GiveUp):
                raise TypeError(f"retry={{...: {delay!r}}}: its values are milliseconds, a Backoff or GIVE_UP")
        return GIVE_UP in self.retry.values()

    @property
    def reserve_ms(self) -> int:
        """How long messages are held that are fetched and not begun. A read whose reply is lost costs so much, and not
        `retry_ms`. In order they wait in their lanes for longer, so that they are held as the others.
        """
        return self.retry_ms if self.ordered_by else min(self.retry_ms, RESERVE_MS)

    def after(self, error: BaseException, attempts: int) -> int | None:
        """Milliseconds until the next attempt; None: give it up."""
        delay: Delay = 0 if isinstance(error, _INTERRUPTS) else self.retry_delay_ms
        for kind in type(error).__mro__:
            if kind in self.retry:
                delay = self.retry[kind]
                break
        if isinstance(delay, GiveUp) or (self.max_attempts is not None and attempts >= self.max_attempts):
            return None
        return delay.delay_ms(attempts) if isinstance(delay, Backoff) else delay


class ConsumerOptions(TypedDict, total=False):
    """The options of `client.consumer`, for type checkers: those of ConsumerSettings."""

    start: int | str
    count: int
    max_bytes: int | None
    retry_ms: int
    expire_ms: int
    max_attempts: int | None
    dead_letter: Key | None
    retry_delay_ms: int | Backoff
    retry: Mapping[type[Exception], Delay]
    block_ms: int
    patience: float | None
    grace_ms: int | None
    ordered_by: Literal["tag"] | None
    manual: bool
    name: str | None
    release: bool
