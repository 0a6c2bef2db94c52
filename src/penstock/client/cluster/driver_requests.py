"""The four requests that the logic of a cluster makes of its driver, and their results.

Each request that may take long says until when its call can wait (`until`, on the clock of the rules). The driver ends
the request then, and answers with what there is; the logic decides what that means for each command.

The logic (pipeline.py, transaction.py, topology.py) is generators that yield a request and are sent its result. sync.py
does them with blocking sockets, aio.py with asyncio, the unit tests with a script; there is one body of logic.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.client.cluster.slot_map import Address, Remap, SlotMap
from penstock.client.delivery import Delivery, DeliverySettings, State, check_called
from penstock.client.engine.command_kinds import as_command
from penstock.client.errors import ExactlyOnceUnavailable
from penstock.client.events import Listeners


@dataclass(slots=True, eq=False)
class Lane:
    """A connection that several batches share, one after the other, because it remembers something (WATCH)."""

    connection: Any = None
    """The driver's; None before the first batch, and again when the connection failed."""
    address: Address | None = None
    """Where it leads; a batch for another node gets a new one."""


@dataclass(slots=True)
class NodeBatch:
    """Commands for one node, written as one; each piece has one reply."""

    address: Address
    pieces: list[bytes]
    indices: list[int]
    """Which command of the pipeline each piece is; -1 for what is sent along, such as ASKING."""
    from_replica: bool = False
    """The connection must be in the READONLY state."""
    patience: float | None = 0.0
    """Seconds a blocking command in it may wait, beside the usual silence; None is for ever."""
    lane: Lane | None = None
    raw: frozenset[int] = frozenset()
    """Pieces whose replies are not decoded, whatever decode_responses says."""

    def joined(self) -> memoryview:
        """All pieces, as they are written."""
        return memoryview(self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces))


@dataclass(slots=True)
class Outcome:
    """The result of a batch: the replies that came, in order."""

    replies: list[Any]
    error: Exception | None = None
    """Why there are no more replies: the connection failed."""
    accepted: int = 0
    """How many bytes the operating system took; counts only with an error."""
    connected: bool = True
    """There was a connection to write to."""
    is_written: bool = True
    """The operating system took all of it."""
    reached: list[State] | None = None
    """How far each piece without a reply came, where `accepted` does not say it."""

    def take_over(self, other: Outcome) -> None:
        """Become what another one is."""
        self.replies, self.error, self.accepted = other.replies, other.error, other.accepted
        self.connected, self.is_written, self.reached = other.connected, other.is_written, other.reached

    @property
    def left(self) -> bool:
        """Some of it may have left this program."""
        return bool(self.accepted) if self.reached is None else any(self.reached)

    def states(self, batch: NodeBatch) -> list[State]:
        """How far each piece without a reply came."""
        if self.reached is not None:
            return self.reached
        position = sum(map(len, batch.pieces[: len(self.replies)]))
        states = []
        for piece in batch.pieces[len(self.replies) :]:
            end = position + len(piece)
            whole, begun = self.accepted >= end, self.accepted > position
            states.append(State.WRITTEN if whole else State.WRITING if begun else State.QUEUED)
            position = end
        return states


Then = Callable[[NodeBatch, Outcome], Sequence[NodeBatch]]


@dataclass(slots=True)
class Exchange:
    """Write every batch, then read their replies; the result is a list of Outcomes, one a batch."""

    batches: Sequence[NodeBatch]
    then: Then | None = None
    """Called with each batch and its outcome as soon as that is there. It may answer with more batches, which are part
    of the exchange (and of whose outcomes it is told too); each waits until nothing else in the exchange is under way
    to its node."""
    until: float = math.inf


@dataclass(slots=True)
class Refresh:
    """The map may be wrong; the result is the newest SlotMap, asked for anew unless that was done just now."""

    moves: Mapping[int, Address] = field(default_factory=dict)
    """What MOVED said."""
    suspect: SlotMap | None = None
    """The map that proved wrong: if there is a newer one already, no node is asked."""
    until: float = math.inf


@dataclass(slots=True)
class Pause:
    """Wait; there is no result."""

    seconds: float


@dataclass(slots=True)
class Room:
    """Wait until so much more may be held, and hold it; BufferFull if that is not before `until`."""

    hold: Any
    """A bounds.Hold."""
    until: float = math.inf


DriverRequest = Exchange | Refresh | Pause | Room
Logic = Generator[DriverRequest, Any, Any]


@dataclass(slots=True, kw_only=True)
class Rules(DeliverySettings):
    """How a cluster client behaves; every field is an argument of Cluster."""

    patience: float = 30.0
    """Seconds without any progress before a pipeline, or a single command, gives up; 0 follows no redirect and tries
    nothing again.
    """
    read_from_replicas: bool = False
    split: bool = False
    """MGET, MSET, DEL, UNLINK, TOUCH and EXISTS over several slots become one command a slot."""
    address_remap: Remap | None = None
    refresh_interval: float = 0.25
    """Least seconds between two questions for the topology."""
    max_connections: int = 100
    """To one node."""
    backoff_base: float = 0.01
    backoff_cap: float = 1.0
    listeners: Listeners = field(default_factory=Listeners)
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        DeliverySettings.__post_init__(self)
        if self.delivery is Delivery.EXACTLY_ONCE:
            raise ExactlyOnceUnavailable(
                "delivery=exactly-once needs a server that knows ONCE on every node, which no Redis Cluster has: "
                "use at-least-once with commands that may run twice, at-most-once, or one Penstock server"
            )
        if self.patience < 0:
            raise ValueError(f"patience={self.patience}: seconds cannot be less than 0")
        if self.max_connections < 1:
            raise ValueError(f"max_connections={self.max_connections}: at least 1 is needed to reach a node")
        check_called("address_remap", self.address_remap)

    def until(self, started: float, patience: float | None = 0.0) -> float:
        """When a call's time is up, if blocking commands in it may wait for so long (None: for ever)."""
        return (
            math.inf if self.command_timeout is None or patience is None else started + self.command_timeout + patience
        )

    @property
    def repeats(self) -> bool:
        """The level lets commands that lost their replies be sent again."""
        return self.delivery is not Delivery.AT_MOST_ONCE

    def late(self) -> str:
        """Why a command is given up by the clock."""
        return f"its time is up, command_timeout={self.command_timeout:g}"

    def why_not_again(self, arguments: Sequence[Any], state: State) -> str | None:
        """Why a command that was sent may not be sent again, at a level that repeats; None if it may."""
        command = as_command(arguments, state)
        if command.name == "SHUTDOWN":
            return "it is not sent to a server that has come back"
        try:
            if self.replay_filter is not None and self.replay_filter(command):
                return "the replay filter keeps it from being sent again"
        except Exception as error:  # one that fails lets nothing through
            return f"the replay filter failed on it ({type(error).__name__}: {error})"
        return None

    def backoff(self, attempt: int) -> float:
        """Seconds to wait before the attempt after this one: doubling to the cap, half of it by chance."""
        bound = min(self.backoff_cap, self.backoff_base * 2.0 ** min(attempt - 1, 30))
        return bound * (0.5 + 0.5 * self.jitter())
