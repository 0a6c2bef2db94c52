"""Messages that a producer holds, and those of them that are written together."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.client.delivery import State

MESSAGE_BYTES = 300
"""What a held message costs beside its tag and entry, with the future of its caller."""


class Held(NamedTuple):
    """A message that is held."""

    tag: bytes
    entry: bytes
    slot: Any
    """What its caller waits with; the core does not know how. None: no caller waits."""
    size: int
    since: float


class Write:
    """Messages that are written together."""

    __slots__ = ("deadline", "messages", "reached", "refused", "sequence", "size")

    def __init__(self, messages: list[Held], sequence: int, timeout: float) -> None:
        self.messages, self.sequence = messages, sequence
        self.size = sum(held.size for held in messages)
        self.deadline = messages[0].since + timeout
        self.reached = State.QUEUED
        self.refused: list[tuple[Held, Exception]] = []
        """Messages that were left out of it, and why; finished with it, so that messages finish in their order."""
