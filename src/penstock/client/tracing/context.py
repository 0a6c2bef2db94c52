"""Trace context that travels in a message, so that the work on it belongs to the trace that wrote it.

A message is a tag and an entry, and both are the user's: nothing is added to them unless the writer asks for it. An
entry that is a JSON object can carry the context in the fields that W3C names, traceparent and tracestate.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from penstock.client.tracing.spans import get_measures, get_tracer

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
def process_span(messages: Any, stream: str, group: str | None = None) -> Iterator[Any]:
    """A span for the work on a message, on a list of them, or on a table; its duration is a metric.

    The span of one message is a child of the span that wrote it, if the message carries its context. The span of a list
    is linked to the spans that wrote the messages.

    with tracing.process_span(message, "orders"):
        cook(message)
    """
    from opentelemetry import trace

    attributes: dict[str, Any] = {
        "messaging.system": "penstock",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": stream,
    }
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    parent, links, count = None, [], 1
    if hasattr(messages, "num_rows"):
        count = attributes["messaging.batch.message_count"] = messages.num_rows
    elif isinstance(messages, list):
        count = attributes["messaging.batch.message_count"] = len(messages)
        carried = [trace.get_current_span(context_of(message)).get_span_context() for message in messages]
        links = [trace.Link(context) for context in carried if context.is_valid]
    else:
        attributes["messaging.message.id"] = str(messages.offset)
        attributes["messaging.message.body.size"] = len(messages.entry)
        parent = context_of(messages) or None  # without one the current span is the parent
    began = perf_counter()
    with get_tracer().start_as_current_span(
        f"process {stream}", context=parent, links=links, kind=trace.SpanKind.CONSUMER, attributes=attributes
    ) as span:
        try:
            yield span
        except Exception as error:
            attributes["error.type"] = type(error).__qualname__
            span.set_attribute("error.type", attributes["error.type"])
            raise
        finally:
            get_measures().processed(perf_counter() - began, count, attributes)


def middleware(stream: str, group: str | None = None) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """For `run` of a consumer: a span around the body. After `instrument`, `run` has one without this.

    client.consumer("orders", "kitchen").run(cook, middleware=[tracing.middleware("orders", "kitchen")])
    """

    def run(messages: Any, body: Callable[[Any], Any]) -> Any:
        with process_span(messages, stream, group):
            return body(messages)

    run.makes_spans = True  # type: ignore[attr-defined]
    return run


def aio_middleware(stream: str, group: str | None = None) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """As `middleware`, for the consumer of an aio.Client."""

    async def run(messages: Any, body: Callable[[Any], Any]) -> Any:
        with process_span(messages, stream, group):
            result = body(messages)
            return await result if inspect.isawaitable(result) else result

    run.makes_spans = True  # type: ignore[attr-defined]
    return run
