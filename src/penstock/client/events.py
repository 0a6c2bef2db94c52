"""What an engine tells besides replies: for on_reconnect and on_replay."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.delivery import Command


@dataclass(frozen=True, slots=True)
class Reconnected:
    """A connection took the place of a lost one."""

    outage: float
    """Seconds without a connection."""
    attempts: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """Commands that were written before and are written again."""

    commands: list[Command]


Event = Reconnected | Replayed
