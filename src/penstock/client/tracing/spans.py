"""A span around each command and each pipeline of the clients, and around the work on each message of a consumer.

Names and attributes follow OpenTelemetry's conventions for databases. A command that fails has its error in the span,
and in `penstock.state` how far it came. Arguments are not recorded: they are the user's data. What a span measures is
a metric too (measures.py).

Rejected: a span inside the core. It would need the context of each caller, which only the calling method has; and every
program would pay for the question whether there are spans.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import redis

from penstock.client.engine.command_kinds import name_of
from penstock.client.events import Event, Listeners
from penstock.client.tracing.measures import Measures
from penstock.extras import install

_EXTRA = f"tracing needs OpenTelemetry's API; {install('otel')}"


class Described(NamedTuple):
    """The attributes of a span before its call."""

    name: str
    attributes: dict[str, Any]


def _described(client: Any, name: str) -> Described:
    attributes = {"db.system.name": "redis", "db.operation.name": name, **_address(client)}
    return Described(name, attributes)


def _address(client: Any) -> dict[str, Any]:
    """Where the commands go; the node of a cluster is not known before the call."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        return {}
    options = pool.connection_kwargs
    found = {"server.address": options.get("path") or options.get("host"), "server.port": options.get("port")}
    if "db" in options:
        found["db.namespace"] = str(options["db"] or 0)
    return {name: value for name, value in found.items() if value is not None}


def _command(client: Any, *arguments: Any, **options: Any) -> Described:
    return _described(client, name_of(arguments))


def _immediate(pipe: Any, *arguments: Any, **options: Any) -> Described | None:
    """A command while keys are watched. Others go through `execute_command` of the client, which has its own span."""
    if pipe.watching or arguments[0] == "WATCH":
        return _described(pipe, name_of(arguments))
    return None


def _many(client: Any, commands: Any, *arguments: Any, **options: Any) -> Described:
    return _batch(client, "PIPELINE", len(commands))


def _pipeline(pipe: Any, *arguments: Any, **options: Any) -> Described | None:
    if not pipe.command_stack:
        return None
    in_one = pipe.explicit_transaction or pipe.is_transaction
    return _batch(pipe, "MULTI" if in_one else "PIPELINE", len(pipe.command_stack))


def _cluster_pipeline(pipe: Any, *arguments: Any, **options: Any) -> Described | None:
    return _batch(pipe, "PIPELINE", len(pipe)) if len(pipe) else None


def _batch(client: Any, name: str, size: int) -> Described:
    described = _described(client, name)
    described.attributes["db.operation.batch.size"] = size
    return described


_PLACES: tuple[tuple[str, str, str, Callable[..., Described | None]], ...] = tuple(
    (f"penstock.client.{module}", owner, method, describe)
    for modules, owner, method, describe in (
        (("api.sync", "api.aio"), "Client", "execute_command", _command),
        (("api.sync", "api.aio"), "Client", "execute_many", _many),
        (("api.sync", "api.aio"), "Pipeline", "execute", _pipeline),
        (("api.sync", "api.aio"), "Pipeline", "immediate_execute_command", _immediate),
        (("cluster.sync", "cluster.aio"), "Cluster", "execute_command", _command),
        (("cluster.sync", "cluster.aio"), "Cluster", "execute_many", _many),
        (("cluster.sync", "cluster.aio"), "ClusterPipeline", "execute", _cluster_pipeline),
    )
    for module in modules
)
"""Module, class and method of every call that gets a span."""

_CONSUMERS = (
    ("penstock.client.consumer.sync", "Consumer", "middleware"),
    ("penstock.client.consumer.aio", "AioConsumer", "aio_middleware"),
)
"""Module and class of the consumers, and what makes a span around their body."""


class Providers(NamedTuple):
    """The providers that `instrument` got; None for the global ones."""

    tracer: Any = None
    meter: Any = None


_originals: dict[tuple[type, str], Any] = {}
"""The methods that were replaced; empty while nothing is traced. Changed by `instrument` and `uninstrument` only."""
_given: list[Providers] = []
_measures: list[Measures] = []
"""The instruments that are used, made when they are first needed."""


def get_tracer() -> Any:
    """The tracer for our spans, of the provider that `instrument` was given or of the global one."""
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    return trace.get_tracer("penstock", tracer_provider=_given[-1].tracer if _given else None)


def get_measures() -> Measures:
    """The instruments of our metrics, likewise."""
    if not _measures:
        _measures.append(Measures(_given[-1].meter if _given else None))
    return _measures[-1]


def instrument(tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Make spans and metrics for the commands of all clients of this process, and for the messages of consumers that
    are run (`run`), with these providers or the global ones.
    """
    uninstrument()
    _given.append(Providers(tracer_provider, meter_provider))
    tracer, measures = get_tracer(), get_measures()
    span = functools.partial(_span, tracer, measures)
    for module, owner, method, describe in _PLACES:
        _replace(module, owner, method, functools.partial(_traced, describe=describe, span=span))
    for module, owner, layer in _CONSUMERS:
        _replace(module, owner, "run", functools.partial(_with_spans, layer=layer))
    _replace(Listeners.__module__, "Listeners", "tell", functools.partial(_measured, measures=measures))


def _replace(module: str, owner: str, method: str, make: Callable[[Any], Any]) -> None:
    cls = getattr(importlib.import_module(module), owner)
    original = _originals[cls, method] = cls.__dict__[method]
    setattr(cls, method, make(original))


def uninstrument() -> None:
    """Make no more spans and metrics."""
    _given.clear()
    _measures.clear()
    while _originals:
        (cls, method), original = _originals.popitem()
        setattr(cls, method, original)


def follow_redis_py() -> None:
    """Make spans if redis-py is instrumented: its instrumentation cannot see our clients."""
    wrapped = hasattr(redis.Redis.execute_command, "__wrapped__")
    if wrapped and not _originals:
        instrument()


class Instrumentor:
    """The entry point opentelemetry_instrumentor, which `opentelemetry-instrument` loads."""

    def instrument(self, tracer_provider: Any = None, meter_provider: Any = None, **others: Any) -> None:
        """Make spans and metrics from here on."""
        instrument(tracer_provider, meter_provider)

    def uninstrument(self, **others: Any) -> None:
        """Make no more of them."""
        uninstrument()


def _traced(original: Any, describe: Callable[..., Described | None], span: Callable[[Described], Any]) -> Any:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def run_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            described = describe(self, *args, **kwargs)
            if described is None:
                return await original(self, *args, **kwargs)
            with span(described):
                return await original(self, *args, **kwargs)

        return run_async

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        described = describe(self, *args, **kwargs)
        if described is None:
            return original(self, *args, **kwargs)
        with span(described):
            return original(self, *args, **kwargs)

    return run


def _with_spans(original: Any, layer: str) -> Any:
    """`run` of a consumer, with a span around its body, unless the caller has put one there."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, middleware: Any = (), **kwargs: Any) -> Any:
        if not any(getattr(each, "makes_spans", False) for each in middleware):
            make = getattr(importlib.import_module("penstock.client.tracing.context"), layer)
            settings = self._core.settings
            middleware = [make(_text(settings.key), _text(settings.group)), *middleware]
        return original(self, *args, middleware=middleware, **kwargs)

    return run


def _text(name: Any) -> str:
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)


def _measured(original: Any, measures: Measures) -> Any:
    @functools.wraps(original)
    def tell(self: Listeners, event: Event) -> None:
        measures.happened(event)
        original(self, event)

    return tell


@contextmanager
def _span(tracer: Any, measures: Measures, described: Described) -> Iterator[None]:
    from opentelemetry.trace import SpanKind

    name, attributes = described
    began = perf_counter()
    with tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes) as span:
        try:
            yield
        except Exception as error:
            attributes["error.type"] = type(error).__qualname__
            span.set_attribute("error.type", attributes["error.type"])
            state = getattr(error, "state", None)
            if state is not None:
                span.set_attribute("penstock.state", state.name)
            raise
        finally:
            measures.ran(perf_counter() - began, attributes)
