"""One or more commands that are encoded, queued, written and finished together: what the core's FIFO is made of.

A single command is a batch of one. A pipeline is a batch of many whose replies count one by one. A transaction is an
atomic batch: MULTI, its commands and EXEC, which is replayed whole or not at all.

The encoded commands are one piece of bytes, `data`, with the length of each: a million small ones stay within the
memory that `max_buffered_bytes` allows, and are written without being put together again.

Rejected: an object for each command of a pipeline. At ten thousand commands it costs more than packing them; what is
known of one command (its state) is computed from byte positions when it is needed, which is when something failed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from penstock.client.delivery import Command, ReplayFilter, State
from penstock.client.engine.command_kinds import Kind, as_command
from penstock.client.engine.encoding import Packed, pack
from penstock.client.errors import NoReplyInTime, NotReplayed, NotSent, NotSentInTime, OutcomeUnknown

BATCH_BYTES = 700
"""What a held batch costs beside its commands, with the caller that waits for it; tests/client/test_bounds.py measures
it.
"""
COMMAND_BYTES = 8
"""What a held command costs beside its words."""
WORD_BYTES = 54
"""What each word of a command, its name included, costs beside its bytes, which are there twice: as given and encoded.
"""


class Batch:
    """Commands on their way. Owned by the core between `submit` and finishing; then by the caller that waits for it.

    Most fields keep their defaults, which are the class's: one is made for every call.
    """

    atomic = False
    raw: Collection[int] | None = None
    """Indices of the commands whose replies are not decoded, whatever decode_responses says."""
    patience = 0.0
    """Seconds the commands may wait on the server; added to every limit."""
    blocks = False
    """It waits on the server until other clients do something. Given up, it must be cancelled there: it would run
    later, for no caller.
    """
    notable: dict[int, Kind] | None = None
    """Commands that change the connection, by index."""
    lengths: Sequence[int] | None = None
    """How long each command is in `data`; None for the only one."""
    is_handshake = False
    """One of the core's own, which a new connection begins with."""
    is_submitted = False
    """The core has taken it."""
    is_at_most_once = False
    """It was submitted at that level, which stays its promise if the level is raised later."""
    is_finished = False
    """It has its results. If it is in the FIFO still, it is passed over: no caller waits for its replies."""
    results: list[Any]
    """When finished, one for each command: a reply, an error the server replied, or a DeliveryError."""
    attempts = 0
    """How often it was written."""
    connection = 0
    """On which of the core's connections it was written last, with the next three:"""
    first = 0
    """Its first command that was written there."""
    start = 0
    """Where that began in the stream of the connection."""
    end = 0
    reached: list[State] | State = State.QUEUED
    """The furthest each command came on earlier connections; one state for all of a transaction."""
    skipped: dict[int, Any] | None = None
    """Commands that must not be written again, and their results: mostly what they fail with."""
    refused: dict[int, State] | None = None
    """Commands that the server could not run, by their replies, and whether they ran all the same
    (refused_by_replica.py).
    """
    waits_for_leader = False
    """A server did not run it, or did not get it, because it does not lead: it waits for the leader at every level."""
    numbered: tuple[object, int] | None = None
    """The OnceNumbers that gave it its numbers, and the last of them."""
    learned = 0
    """How many of its replies the session has looked at."""
    deadline: float | None = None
    """When it is given up; a driver may set it where no command_timeout does."""
    waiter: Any = None
    """For the driver: what to wake."""

    def __init__(self, command: Sequence[Any], data: bytes) -> None:
        """A batch of one command."""
        self.commands: Sequence[Sequence[Any]] = (command,)
        self.data = data
        """All commands, encoded."""
        self.count = 1
        self.size = BATCH_BYTES + COMMAND_BYTES + len(command) * WORD_BYTES + 2 * len(data)
        self.replies: list[Any] = []
        """What has come; replies are counted after the batch was given up, too, so that later batches find theirs."""

    @classmethod
    def of(cls, commands: Sequence[Sequence[Any]], packed: Packed) -> Batch:
        """A batch of any number of commands."""
        batch = cls((), packed.data)
        batch.commands, batch.lengths = commands, packed.lengths
        batch.count = count = len(commands)
        batch.size = BATCH_BYTES + count * COMMAND_BYTES + packed.words * WORD_BYTES + 2 * len(packed.data)
        return batch

    @classmethod
    def handshake(cls, *command: Any, raw: bool = False) -> Batch:
        """A command of the core's own."""
        batch = cls(command, pack(command))
        batch.is_handshake = True
        batch.raw = (0,) if raw else None
        return batch

    def pieces(self) -> list[bytes]:
        """The bytes of each command."""
        data, lengths = self.data, self.lengths
        if lengths is None:
            return [data]
        ends = list(accumulate(lengths))
        return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def encoded(self, index: int) -> bytes:
        """The bytes of one command."""
        if self.lengths is None:
            return self.data
        begin = sum(self.lengths[:index])
        return self.data[begin : begin + self.lengths[index]]

    def outstanding(self) -> tuple[int, bytes]:
        """The commands without a reply, their number and their bytes: all, or those after the replies that came."""
        done, skipped = len(self.replies), self.skipped
        if skipped:
            pieces = [piece for index, piece in enumerate(self.pieces()) if index >= done and index not in skipped]
            return len(pieces), b"".join(pieces)
        if not done:
            return self.count, self.data
        assert self.lengths is not None
        return self.count - done, self.data[sum(self.lengths[:done]) :]

    def state(self, index: int) -> State:
        """How far a command came, as of the last lost connection or finishing."""
        known = self.results if self.is_finished else () if self.atomic else self.replies
        if index < len(known):
            result = known[index]
            return getattr(result, "state", State.REPLIED) if isinstance(result, Exception) else State.REPLIED
        return self.reached if isinstance(self.reached, State) else self.reached[index]

    @property
    def states(self) -> list[State]:
        return [self.state(index) for index in range(self.count)]

    def remember(self, handed: int, sent: int) -> None:
        """Keep how far each command came on a connection that is gone: `handed` bytes may have left, `sent` did."""
        if self.start >= handed:
            return  # no byte of it
        if self.atomic or self.count == 1:
            assert isinstance(self.reached, State)
            self.reached = max(self.reached, State.WRITTEN if self.end <= sent else State.WRITING)
            return
        states = [self.reached] * self.count if isinstance(self.reached, State) else self.reached
        assert self.lengths is not None
        position, skipped = self.start, self.skipped or ()
        for index in range(self.first, self.count):
            if index not in skipped:
                begin, position = position, position + self.lengths[index]
                state = State.WRITTEN if position <= sent else State.WRITING if begin < handed else State.QUEUED
                states[index] = max(states[index], state)
        self.reached = states

    @property
    def was_written(self) -> bool:
        """Whether any of what is outstanding may have left this program."""
        if isinstance(self.reached, State):
            return self.reached > State.QUEUED
        return any(state > State.QUEUED for state in self.reached[len(self.replies) :])

    def unanswered(self) -> range:
        """The commands without a reply, as their caller knows them: without the MULTI and the EXEC of a transaction."""
        return range(1, self.count - 1) if self.atomic else range(len(self.replies), self.count)

    def described(self, index: int) -> Command:
        return as_command(self.commands[index], self.state(index))

    def failure(self, index: int, why: str, unsent: type[NotSent], unknown: type[OutcomeUnknown]) -> Exception:
        """The error for a command that gets no reply; which one depends on how far it came."""
        command = self.described(index)
        if command.state is State.QUEUED:
            return unsent(f"{command.name} was not sent: {why}", command=command.name)
        text = f"{command.name} was sent, and its reply did not come ({why}): it may have run"
        return unknown(text, command.state, command.name)

    def failures(
        self, why: str, unsent: type[NotSent], unknown: type[OutcomeUnknown], instead: Exception | None = None
    ) -> list[Any]:
        """The results if no more replies come; commands of a transaction fail together. `instead` is for those not
        sent.
        """
        if self.atomic:
            failed = self.failure(self.count - 1, why, unsent, unknown)
            return [instead if instead is not None and isinstance(failed, NotSent) else failed] * self.count
        results, skipped = list(self.replies), self.skipped or {}
        for index in range(len(results), self.count):
            failed = skipped[index] if index in skipped else self.failure(index, why, unsent, unknown)
            results.append(instead if instead is not None and isinstance(failed, NotSent) else failed)
        return results

    def skip(self, failures: dict[int, Any]) -> None:
        """Some commands are not to be written again; if that is the end of a transaction, it is of all of it."""
        if self.atomic:
            self.replies[:] = [next(iter(failures.values()))] * self.count
        else:
            self.skipped = {**(self.skipped or {}), **failures}
            self.take_skipped()

    def take_skipped(self) -> None:
        """Put the errors of skipped commands in their places, as far as replies have come."""
        assert self.skipped is not None
        while len(self.replies) in self.skipped:
            self.replies.append(self.skipped[len(self.replies)])

    def filter(
        self, wanted: ReplayFilter, why: str = "the replay filter forbids to send it again", also_unsent: bool = False
    ) -> int:
        """Skip what the filter says must not be written again; how many commands that are. One that fails lets nothing
        through.
        """
        hits: dict[int, Exception] = {}
        for index in self.unanswered():
            if (self.state(index) is State.QUEUED and not also_unsent) or index in (self.skipped or ()):
                continue
            cause = None
            try:
                if not wanted(self.described(index)):
                    continue
            except Exception as error:
                cause = error
            hits[index] = self.failure(index, why, NotSent, NotReplayed)
            hits[index].__cause__ = cause
        if hits:
            self.skip(hits)
        return self.count if hits and self.atomic else len(hits)

    def fail_first(self, why: str) -> None:
        """The first command without a reply, or the whole transaction, is not to be written again: its time is up."""
        index = self.count - 1 if self.atomic else len(self.replies)
        failure = self.failure(index, why, NotSentInTime, NoReplyInTime)
        if self.atomic:
            self.replies.clear()
        self.skip({index: failure})


def lay_out(kind: type[Batch], first: Batch) -> None:
    """Give the first instance of a class all attributes it may have.

    CPython keeps the attributes of an object in its place, without a dict, if their names were among those of the first
    thirty objects of the class. Which those have depends on what a program did first: without this, a batch could cost
    460 bytes more from its first wait on.
    """
    for ancestor in kind.__mro__:
        for name, value in vars(ancestor).items():
            if not (name.startswith("__") or callable(value) or hasattr(value, "__get__")):
                setattr(first, name, value)
    first.results = []
    assert len(vars(first)) <= 30, "CPython gives the objects of a class with more attributes a dict each"


lay_out(Batch, Batch((), b""))
