"""Delivery: the three levels, the four states of a command, and the settings that go with them."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from penstock.client.choice_by_name import chosen


class Delivery(enum.Enum):
    """How often a command runs if connections fail. docs/client.md says what each level promises at each stage."""

    AT_MOST_ONCE = "at-most-once"
    """What was written is never written again; nothing is held while there is no connection."""
    AT_LEAST_ONCE = "at-least-once"
    """What has no reply is written again, in order, on the next connection; new commands are held until then."""
    EXACTLY_ONCE = "exactly-once"
    """As AT_LEAST_ONCE, and each write carries a number (ONCE) by which the server knows that it has run already."""

    @classmethod
    def of(cls, value: Delivery | str) -> Delivery:
        """A level by itself or by name; `at_most_once` and `AT-MOST-ONCE` are the same name."""
        return chosen(cls, value, f"delivery={value!r} is no delivery level; the levels are")


class State(enum.IntEnum):
    """How far a command has come. Only QUEUED is provably unsent, only REPLIED provably executed."""

    QUEUED = 0
    """No byte of it was given to the operating system, on any connection."""
    WRITING = 1
    """Some of it may be on its way."""
    WRITTEN = 2
    """All of it was given to the operating system; whether it ran is not known."""
    REPLIED = 3
    """Its reply has arrived."""


class Command(NamedTuple):
    """A command as a replay filter sees it."""

    name: str
    """Upper case, with its subcommand if it has one: `DECR`, `CLIENT SETNAME`."""
    arguments: tuple[Any, ...]
    state: State


ReplayFilter = Callable[[Command], bool]
"""True for a command that must not be replayed. It then fails, with its state."""


@dataclass(slots=True)
class DeliverySettings:
    """Settings that the clients of one server and of a cluster share."""

    delivery: Delivery = Delivery.AT_LEAST_ONCE
    replay_filter: ReplayFilter | None = None
    command_timeout: float | None = 60.0
    """Seconds from the call to the reply, reconnecting and redirects included; None waits for ever."""
    max_buffered_commands: int = 1_000_000
    max_buffered_bytes: int = 256 * 1024 * 1024
    when_full: Literal["block", "raise"] = "block"
    backoff_base: float = 0.05
    backoff_cap: float = 2.0

    def __post_init__(self) -> None:
        self.delivery = Delivery.of(self.delivery)
        if self.when_full not in ("block", "raise"):
            raise ValueError(f"when_full={self.when_full!r}: it is 'block' (wait for room) or 'raise' (BufferFull)")
        for name in ("max_buffered_commands", "max_buffered_bytes"):
            if _number(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1 is needed to send anything")
        for name in ("command_timeout", "backoff_base", "backoff_cap"):
            if getattr(self, name) is not None and _number(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: seconds cannot be less than 0")
        check_called("replay_filter", self.replay_filter)


@dataclass(slots=True)
class Settings(DeliverySettings):
    """The settings of a core; `delivery` and `replay_filter` are changed through the core, which acts on the change."""

    silence_timeout: float | None = 5.0
    """Seconds without a byte, while replies are owed, after which a connection counts as lost (redis-py's
    socket_timeout).
    """
    health_check_interval: float = 15.0
    """Seconds without traffic after which a PING must be answered before anything else is sent; 0 never asks."""


def _number(settings: DeliverySettings, name: str) -> float:
    value = getattr(settings, name)
    if not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is no number")
    return value


def check_called(name: str, given: Any) -> None:
    """Refuse what cannot be called in the middle of the work, when it is given and not when it is needed."""
    if given is not None and not callable(given):
        raise TypeError(f"{name}={given!r} is no function")
    if inspect.iscoroutinefunction(given):
        raise TypeError(
            f"{name}={given!r} is a coroutine function, which would not be awaited: "
            "give a plain function, which may create a task"
        )


MOST_LARGE = 256
"""Commands with large replies that are remembered."""


@dataclass(slots=True)
class ServerContact:
    """What all connections of a client, and of clients made from it, know of the server together."""

    finds_leader: bool = False
    """Its pool looks for the leader of a shard before each connection: another one may lead to another server."""
    leader: tuple[str, int] | None = None
    """The server that the last connection was opened to."""
    leader_doubts: int = 0
    """How often one of them learned that another server leads: all others ask theirs before the next command."""
    was_reached: bool = False
    """One of them was open at some time: from then on commands wait for a server that is away."""
    large: dict[Any, None] = field(default_factory=dict)
    """Commands, by name and first argument, whose last reply was large: they step aside before it comes."""

    def note_large(self, command: Sequence[Any]) -> None:
        """A large reply to this command is coming in."""
        with suppress(TypeError):  # an argument of some other type
            self.large[tuple(command[:2])] = None
            if len(self.large) > MOST_LARGE:
                self.large.pop(next(iter(self.large)), None)

    def was_large(self, commands: Sequence[Sequence[Any]]) -> bool:
        """Whether the reply to such a command was large the last time."""
        try:
            return len(commands) == 1 and tuple(commands[0][:2]) in self.large
        except TypeError:
            return False


@dataclass(slots=True)
class Counters:
    """The counters of a core since it was made."""

    sent: int = 0
    """Commands written for the first time."""
    replied: int = 0
    replayed: int = 0
    """Commands written again on a later connection."""
    filtered: int = 0
    """Commands the replay filter kept from being written again."""
    failed: int = 0
    """Commands that ended without a reply."""
    reconnects: int = 0
    buffered_commands: int = 0
    """Commands held now: queued, or written and without a reply."""
    buffered_bytes: int = 0
