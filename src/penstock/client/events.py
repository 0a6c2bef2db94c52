"""The events that a client reports to on_reconnect and on_replay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.client.delivery import Command, check_called

_logger = logging.getLogger(__name__)

Node = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """A connection took the place of a lost one."""

    outage: float
    """Seconds without a connection."""
    attempts: int
    node: Node | None = None
    """Of a cluster: the node that answers again."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Commands that were written before and are written again."""

    commands: list[Command]
    node: Node | None = None
    """Of a cluster: the node that they are written to now."""


Event = Reconnected | Replayed


@dataclass(frozen=True, slots=True)
class Listeners:
    """The callbacks for events of connections."""

    on_reconnect: Callable[[Reconnected], object] | None = None
    on_replay: Callable[[Replayed], object] | None = None

    def __post_init__(self) -> None:
        check_called("on_reconnect", self.on_reconnect)
        check_called("on_replay", self.on_replay)

    def tell(self, event: Event) -> None:
        """Call the listener. One that fails is logged: it must not keep callers from their replies."""
        try:
            if isinstance(event, Reconnected):
                if self.on_reconnect is not None:
                    self.on_reconnect(event)
            elif self.on_replay is not None:
                self.on_replay(event)
        except Exception:
            _logger.exception("a listener failed on %s", type(event).__name__)
