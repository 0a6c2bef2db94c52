"""OpenTelemetry: a span for each command and pipeline, and context that travels in messages."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.support.client.clients import Connect

import penstock
from penstock import Server, aio, tracing
from penstock.client.api.stream_replies import Message
from penstock.testing.cluster import RedisCluster
from penstock.testing.proxy import FaultProxy


class Recorded:
    """The providers that a test gives, the spans that ended, and the metrics."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self._reader])

    def points(self, name: str) -> list[Any]:
        """What was recorded of a metric, by its attributes."""
        found = self._reader.get_metrics_data()
        scopes = [scope for each in (found.resource_metrics if found else ()) for scope in each.scope_metrics]
        return [
            point for scope in scopes for metric in scope.metrics if metric.name == name
            for point in metric.data.data_points
        ]  # fmt: skip

    def take(self) -> list[ReadableSpan]:
        spans = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return spans

    def names(self) -> list[str]:
        return [span.name for span in self.take()]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    made = Recorded()
    tracing.instrument(made.provider, made.meter_provider)
    yield made
    tracing.uninstrument()


def test_a_command_has_a_span_that_says_where_it_went(ours: Server, connect: Connect, recorded: Recorded) -> None:
    client = connect(ours.url)
    client.set("key", "secret")
    (span,) = recorded.take()
    assert (span.name, span.kind) == ("SET", SpanKind.CLIENT)
    assert dict(span.attributes or {}) == {
        "db.system.name": "redis",
        "db.operation.name": "SET",
        "db.namespace": "0",
        "server.address": "127.0.0.1",
        "server.port": ours.port,
    }


def test_a_pipeline_is_one_span_with_its_size(ours: Server, connect: Connect, recorded: Recorded) -> None:
    client = connect(ours.url)
    for is_transaction, name in ((False, "PIPELINE"), (True, "MULTI")):
        pipe = client.pipeline(transaction=is_transaction)
        pipe.set("a", 1)
        pipe.get("a")
        pipe.execute()
        (span,) = recorded.take()
        assert (span.name, (span.attributes or {})["db.operation.batch.size"]) == (name, 2)
    client.execute_many([("SET", "a", 1)] * 3)
    (span,) = recorded.take()
    assert (span.name, (span.attributes or {})["db.operation.batch.size"]) == ("PIPELINE", 3)


def test_commands_under_watch_have_spans(ours: Server, recorded: Recorded) -> None:
    with penstock.Client.from_url(ours.url) as client, client.pipeline() as pipe:
        pipe.watch("a")
        pipe.get("a")
        pipe.multi()
        pipe.set("a", 1)
        pipe.execute()
    assert recorded.names() == ["WATCH", "GET", "MULTI"]


def test_a_failed_command_says_how_far_it_came(ours: Server, connect: Connect, recorded: Recorded) -> None:
    client = connect(ours.url)
    client.set("text", "x")
    with pytest.raises(redis.ResponseError):
        client.incr("text")
    span = recorded.take()[-1]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["penstock.state"] == "REPLIED"
    away = connect("redis://127.0.0.1:1", socket_connect_timeout=1)
    with pytest.raises(redis.ConnectionError):
        away.get("key")
    span = recorded.take()[-1]
    assert (span.attributes or {})["error.type"] == "NotSent"
    assert (span.attributes or {})["penstock.state"] == "QUEUED"


def test_a_cluster_has_spans(cluster: RedisCluster, recorded: Recorded) -> None:
    url = f"redis://127.0.0.1:{cluster.nodes[0].port}"
    with penstock.Cluster.from_url(url) as client, client.pipeline() as pipe:
        client.set("a", 1)
        pipe.get("a")
        pipe.get("b")
        pipe.execute()

    async def tasks() -> None:
        async with aio.Cluster.from_url(url) as client:
            await client.get("a")

    asyncio.run(tasks())
    assert recorded.names() == ["SET", "PIPELINE", "GET"]


def test_uninstrument_ends_it(ours: Server, recorded: Recorded) -> None:
    before = penstock.Client.__dict__["execute_command"]
    tracing.uninstrument()
    assert penstock.Client.__dict__["execute_command"] is not before
    with penstock.Client.from_url(ours.url) as client:
        client.get("key")
    assert recorded.take() == []


def test_the_work_on_a_message_belongs_to_the_trace_that_wrote_it(ours: Server, recorded: Recorded) -> None:
    with penstock.Client.from_url(ours.url) as client:
        client.delete("orders")
        with recorded.provider.get_tracer("test").start_as_current_span("order"):
            client.twrite("orders", "ada", json.dumps(tracing.carry({"item": "tea"})))
        (message,) = client.tread("orders", 1, 1)
    recorded_spans = {span.name: span for span in recorded.take()}
    assert set(json.loads(message.entry)) == {"item", "traceparent"}
    with pytest.raises(ValueError), tracing.process_span(message, "orders", "kitchen"):
        raise ValueError("no tea")
    (span,) = recorded.take()
    order = recorded_spans["order"]
    assert order.context is not None and span.parent is not None
    assert span.parent.span_id == order.context.span_id
    assert (span.name, span.kind, span.status.status_code) == ("process orders", SpanKind.CONSUMER, StatusCode.ERROR)
    attributes = span.attributes or {}
    assert attributes["messaging.consumer.group.name"] == "kitchen"
    assert attributes["messaging.message.id"] == "1"


def test_a_consumer_makes_a_span_for_each_message(ours: Server, recorded: Recorded) -> None:
    with penstock.Client.from_url(ours.url) as client:
        client.delete("orders")
        client.twrite("orders", "ada", json.dumps(tracing.carry({"item": "tea"})))
        consumer = client.consumer("orders", "kitchen")
        consumer.run(lambda message: consumer.stop(), middleware=[tracing.middleware("orders", "kitchen")])
    assert "process orders" in recorded.names()


def test_an_asyncio_consumer_makes_a_span_until_its_body_ends(ours: Server, recorded: Recorded) -> None:
    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client:
            await client.delete("orders")
            await client.twrite("orders", "ada", "tea")
            consumer = client.consumer("orders", "kitchen")

            async def cook(message: Message) -> None:
                await client.ping()
                consumer.stop()

            await consumer.run(cook, middleware=[tracing.aio_middleware("orders", "kitchen")])

    asyncio.run(main())
    spans = {span.name: span for span in recorded.take()}
    ping, process = spans["PING"], spans["process orders"]
    assert ping.parent is not None and process.context is not None
    assert ping.parent.span_id == process.context.span_id


def test_the_span_of_a_batch_is_linked_to_its_messages(recorded: Recorded) -> None:
    tracer = recorded.provider.get_tracer("test")
    with tracer.start_as_current_span("order"):
        carried = json.dumps(tracing.carry({}))
    recorded.take()
    with tracing.process_span([Message(1, b"", carried), Message(2, b"", b"none")], "orders"):
        pass
    (span,) = recorded.take()
    assert len(span.links) == 1
    assert (span.attributes or {})["messaging.batch.message_count"] == 2


def test_a_consumer_that_is_run_makes_its_spans_itself(ours: Server, recorded: Recorded) -> None:
    with penstock.Client.from_url(ours.url) as client:
        client.delete("orders")
        for item in ("tea", "milk"):
            client.twrite("orders", "ada", json.dumps(tracing.carry({"item": item})))
        consumer = client.consumer(b"orders", "kitchen")
        consumer.run(lambda message: consumer.stop() if message.offset == 2 else None)
        spans = [span for span in recorded.take() if span.name == "process orders"]
        assert [(span.attributes or {})["messaging.message.id"] for span in spans] == ["1", "2"]
        tables = client.consumer("orders", "tables")
        tables.run(lambda table: tables.stop(), batch=10, table=True)
        (span,) = [span for span in recorded.take() if span.name == "process orders"]
        assert (span.attributes or {})["messaging.batch.message_count"] == 2

    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client:
            consumer = client.consumer("orders", "tasks")
            await consumer.run(lambda message: consumer.stop() if message.offset == 2 else None)

    asyncio.run(main())
    assert recorded.names().count("process orders") == 2
    consumed = {
        point.attributes["messaging.consumer.group.name"]: point.value
        for point in recorded.points("messaging.client.consumed.messages")
    }
    assert consumed == {"kitchen": 2, "tables": 2, "tasks": 2}


def test_a_command_that_fails_is_measured_with_its_error(ours: Server, connect: Connect, recorded: Recorded) -> None:
    client = connect(ours.url)
    client.set("text", "x")
    with pytest.raises(redis.ResponseError):
        client.incr("text")
    points = recorded.points("db.client.operation.duration")
    by_name = {(point.attributes["db.operation.name"], point.attributes.get("error.type")): point for point in points}
    assert by_name["SET", None].count == 1
    assert by_name["INCRBY", "ResponseError"].count == 1
    assert by_name["SET", None].attributes["server.port"] == ours.port
    assert by_name["SET", None].explicit_bounds[0] == 0.001


def test_outages_and_replays_are_measured(ours: Server, recorded: Recorded) -> None:
    with FaultProxy(("127.0.0.1", ours.port)) as proxy, penstock.Client.from_url(proxy.url) as client:
        client.get("key")
        fault = proxy.cut_after_execution(command=b"GET")
        client.get("key")  # the answer is lost, and it is sent again
        assert fault.wait()
    assert [point.count for point in recorded.points("penstock.client.outage.duration")] == [1]
    assert [point.value for point in recorded.points("penstock.client.replayed.commands")] == [1]


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"traceparent",
        b'["traceparent"]',
        b'{"traceparent": 3}',
        b'{"traceparent": "00-zz"}',
        "[" * 100_000 + "traceparent",
    ],
)
def test_an_entry_without_a_usable_context_does_no_harm(entry: Any, recorded: Recorded) -> None:
    with tracing.process_span(Message(7, b"", entry), "orders"):
        pass
    (span,) = recorded.take()
    assert span.parent is None


SHOW_SPANS = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
{instrument}
import penstock

with penstock.Client.from_url(sys.argv[1]) as client:
    client.get("key")
print([span.name for span in exporter.get_finished_spans()])
"""
OF_REDIS_PY = "from opentelemetry.instrumentation.redis import RedisInstrumentor\nRedisInstrumentor().instrument()"
BY_ENTRY_POINT = """
from importlib.metadata import entry_points
entry_points(group="opentelemetry_instrumentor")["penstock"].load()().instrument(skip_dep_check=True)
"""


@pytest.mark.parametrize("instrument", [OF_REDIS_PY, BY_ENTRY_POINT])
def test_common_instrumentations_see_our_clients(ours: Server, instrument: str) -> None:
    program = SHOW_SPANS.format(instrument=instrument)
    done = subprocess.run([sys.executable, "-c", program, ours.url], capture_output=True, text=True, check=False)
    assert done.stdout == "['GET']\n", done.stderr


def test_a_program_without_opentelemetry_is_told_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from penstock import tracing\n"
        "try:\n    tracing.instrument()\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install '.[otel]'" in done.stdout, done.stderr
