"""OpenTelemetry's metrics of the clients: durations of commands and of the work on messages, outages, replays.

Names, units and bounds of buckets are those of OpenTelemetry's conventions; those that it has no name for begin with
`penstock.`. Without an SDK nothing is recorded.
"""

from __future__ import annotations

from typing import Any

from penstock.client.events import Event, Reconnected

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
"""Bounds of buckets; the defaults of SDKs are for milliseconds."""
_OF_COMMANDS = frozenset(
    {"db.system.name", "db.operation.name", "db.namespace", "server.address", "server.port", "error.type"}
)
_OF_MESSAGES = frozenset({
    "messaging.system", "messaging.operation.name", "messaging.destination.name", "messaging.consumer.group.name",
    "error.type",
})  # fmt: skip


class Measures:
    """The instruments, of one provider or of the global one."""

    def __init__(self, provider: Any = None) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter("penstock", meter_provider=provider)

        def seconds(name: str, description: str) -> Any:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_SECONDS)

        self._operations = seconds("db.client.operation.duration", "Duration of a command or a pipeline.")
        self._processing = seconds("messaging.process.duration", "Duration of the work on a message or a batch.")
        self._outages = seconds("penstock.client.outage.duration", "Time until a lost connection was replaced.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that a body was called with."
        )
        self._replayed = meter.create_counter(
            "penstock.client.replayed.commands", "{command}", "Commands that were written again."
        )

    def ran(self, seconds: float, attributes: dict[str, Any]) -> None:
        """A command or a pipeline has ended; the attributes are those of its span."""
        self._operations.record(seconds, _only(_OF_COMMANDS, attributes))

    def processed(self, seconds: float, messages: int, attributes: dict[str, Any]) -> None:
        """A body has ended; the attributes are those of its span."""
        kept = _only(_OF_MESSAGES, attributes)
        self._processing.record(seconds, kept)
        self._consumed.add(messages, kept)

    def happened(self, event: Event) -> None:
        """A client tells something about its connection."""
        attributes: dict[str, Any] = {}
        if event.node is not None:
            attributes = {"server.address": event.node[0], "server.port": event.node[1]}
        if isinstance(event, Reconnected):
            self._outages.record(event.outage, attributes)
        else:
            self._replayed.add(len(event.commands), attributes)


def _only(names: frozenset[str], attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes that have few values: each set of them is a series."""
    return {name: value for name, value in attributes.items() if name in names}
