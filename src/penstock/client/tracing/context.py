"""Trace context that travels in a message, so that the work on it belongs to the trace that wrote it.

A message is a tag and an entry, and both are the user's: nothing is added to them unless the writer asks for it. An
entry that is a JSON object can carry the context in the fields that W3C names, traceparent and tracestate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.client.tracing.spans import get_tracer

FIELDS = ("traceparent", "tracestate", "baggage")
_LONGEST = 1 << 20
"""Larger entries are not searched for a context: parsing them would cost more than the span is worth."""


def carry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an entry, and those that carry the current trace context.

    client.twrite("orders", "ada", json.dumps(tracing.carry({"item": "tea"})))
    """
    from opentelemetry import propagate

    fields = dict(entry)
    propagate.inject(fields)
    return fields


def context_of(message: Any) -> Any:
    """The trace context that a message carries; an empty one if it carries none."""
    from opentelemetry import context, propagate

    return propagate.extract(_carrier(message.entry), context.Context())


def _carrier(entry: bytes | str) -> dict[str, str]:
    mark = "traceparent" if isinstance(entry, str) else b"traceparent"
    if len(entry) > _LONGEST or mark not in entry:  # type: ignore[operator]
        return {}
    try:
        fields = json.loads(entry)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict):
        return {}
    return {name: value for name in FIELDS if isinstance(value := fields.get(name), str)}


@contextmanager
def process_span(message: Any, stream: str, group: str | None = None) -> Iterator[Any]:
    """A span for the work on one message: a child of the span that wrote it if the message carries its context.

    with tracing.process_span(message, "orders"):
        cook(message)
    """
    from opentelemetry.trace import SpanKind

    attributes: dict[str, Any] = {
        "messaging.system": "penstock",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": stream,
        "messaging.message.id": str(message.offset),
        "messaging.message.body.size": len(message.entry),
    }
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    carried = context_of(message)
    parent = carried if carried else None  # without one the current span is the parent
    with get_tracer().start_as_current_span(
        f"process {stream}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            raise
