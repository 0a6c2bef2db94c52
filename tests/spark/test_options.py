"""Options are checked where they are given, and the error names the option and what would do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.spark.options import NAMES, OptionError, need_source, parse

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_tables_of_the_guide_have_every_option() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"\w+", row)}
    assert set(NAMES) <= described


def test_names_are_taken_in_any_case_and_as_the_kafka_source_has_them() -> None:
    options = parse(
        {"SUBSCRIBE": "a,b", "maxoffsetspertrigger": "10", "failondataloss": "FALSE", "checkpointLocation": "x"}
    )
    assert options.stream == ("a", "b")
    assert options.maxRowsPerTrigger == 10
    assert options.failOnDataLoss is False
    assert parse({"startingOffsets": "Latest"}).startingOffsets == "latest"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"kafka.bootstrap.servers": "a:9092"},
            "option kafka.bootstrap.servers is for Kafka; name the server with the option url"),
        ({"kafka.security.protocol": "SSL"},
            "option kafka.security.protocol is for Kafka; there is no Kafka client here"),
        ({"assign": '{"a": [0]}'}, "option assign is for Kafka; streams have no partitions"),
        ({"startingOffsetsByTimestamp": "{}"}, "in the option startingTimestamp"),
        ({"startingOffsets": '{"a": {"0": 23}}'}, 'it takes one offset a stream, such as {"a": 1001}'),
        ({"startingOffsets": '{"a": -2}'}, 'it takes "earliest" instead of -2'),
        ({"minOffsetsPerTrigger": "5"}, "trigger(processingTime=...)"),
        ({"includeHeaders": "true"}, "messages have no headers"),
        ({"subscribePattern": "click(s|ed)"},
            "option subscribePattern='click(s|ed)': it takes a simple regular expression"),
        ({"subscribePattern": "clicks:*"}, "for globs, such as clicks*, there is the option pattern"),
    ],
)  # fmt: skip
def test_what_only_kafka_has_is_answered_with_what_to_write_instead(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(given)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_names_of_the_kafka_source_are_taken() -> None:
    assert parse({"subscribePattern": r"clicks-.*\.v."}).pattern == "clicks-*.v?"
    assert parse({"topic": "out"}).stream == ("out",)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"strem": "a"}, "no option 'strem'; did you mean stream?"),
        ({"protobufMessage": "a"}, "option protobufMessage is for .option('entryFormat', 'protobuf')"),
        ({"entryFormat": "protobuf", "protobufMessage": "a"}, "entryFormat=protobuf needs protobufDescriptorFile, a"),
        ({"entryFormat": "protobuf", "avroSchema": "a"}, "option avroSchema is for .option('entryFormat', 'avro')"),
        ({"descFilePath": "a"}, "did you mean protobufDescriptorFile?"),
        ({"emit.default.values": "true"}, "did you mean emitDefaultValues?"),
        ({"avroSchema": "{}"}, "option avroSchema is for .option('entryFormat', 'avro')"),
        ({"entryFormat": "avro", "avroSchema": "{}", "avroSchemaId": "7"}, "avroSchemaId is for .option('avroFraming'"),
        ({"avroSchemaId": "4294967296"}, "it takes the number that a registry gave to a schema"),
        ({"entryFormat": "xml"}, "it takes json or avro or protobuf"),
        ({"entryFormat": "avro"}, "entryFormat=avro needs the schema of the entries: avroSchema"),
        ({"entryFormat": "avro", "avroSchemaFile": "no/file.avsc"}, "it takes the name of a file on the machine"),
        ({"avroSchemaUrl": "a"}, "did you mean avroSchemaFile?"),
        ({"entryFormat": "avro", "avroSchema": "{}", "typed": "false"}, "typed and entryFormat=avro exclude each"),
        ({"entryFormat": "avro", "avroSchema": "{}", "mergeSchema": "true"}, "mergeSchema and entryFormat=avro"),
        ({"entryFormat": "avro", "avroSchema": "{}", "type": "hash"}, "entryFormat=avro is for streams of Penstock"),
        ({"zzz": "a"}, "no option 'zzz'; there are: url, stream"),
        ({"stream": " , "}, "option stream=' , ': it takes one name"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger='0': it takes a number from 1 on"),
        ({"failOnDataLoss": "yes"}, "it takes true or false"),
        ({"startingOffsets": '{"a": 0}'}, "it takes earliest, latest, or JSON"),
        ({"startingOffsets": "7"}, "it takes earliest, latest, or JSON"),
        ({"endingTimestamp": "today"}, "it takes milliseconds since 1970"),
        ({"stream": "a", "pattern": "b*"}, "stream and pattern exclude each other"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "startingOffsets and startingTimestamp exclude"),
        ({"badEntries": "skip"}, "it takes fail or null or drop or deadletter"),
        ({"badEntries": "deadletter"}, "badEntries=deadletter and deadLetterStream"),
        ({"deadLetterStream": "dead"}, "badEntries=deadletter and deadLetterStream"),
        ({"maxoffsetspertrigger": "many"}, "option maxOffsetsPerTrigger='many': it takes a number from 1 on"),
        ({"minPartitions": "²"}, "minPartitions='²': it takes a number from 1 on"),
        ({"maxRowsPerTrigger": f"{2**63}"}, "it takes a number from 1 on"),
        ({"startingTimestamp": f"{2**63}"}, "it takes milliseconds since 1970"),
        ({"endingOffsets": f'{{"a": {2**63}}}'}, "it takes earliest, latest, or JSON"),
        (
            {"stream": "a, b", "startingOffsets": '{"a": 1, "c": 1}'},
            "startingOffsets names c, and the streams to read are a, b",
        ),
        ({"txnAppId": "a"}, "options txnAppId and txnVersion go together"),
        ({"txnVersion": "-1", "txnAppId": "a"}, "option txnVersion='-1': it takes a number from 0 on"),
        ({"stream": "a", "ttl": "5"}, "option ttl is about keys as a table"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(given)
    assert problem in str(caught.value)


def test_a_misspelt_option_of_an_address_is_named() -> None:
    with pytest.raises(OptionError, match=r"shard\. In this one 'socket_timout' is no option of a URL; did you mean "):
        parse({"url": "redis://ada:secret@events/0?socket_timout=5"})


@pytest.mark.parametrize(
    "url", ["nonsense", "http://ada:secret@events", "redis://ada:secret", "redis://ada:secret@events:secret"]
)
def test_an_address_that_is_none_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(
        OptionError, match=r"^option url: it takes an address such as redis://user:password@host:6379/0,"
    ):
        parse({"url": url})
    monkeypatch.setenv("PENSTOCK_URL", url)
    with pytest.raises(OptionError, match=r"^environment variable PENSTOCK_URL: it takes an address such as redis:"):
        parse({})


def test_reading_needs_a_stream_or_a_pattern() -> None:
    with pytest.raises(OptionError, match="name what to read"):
        need_source(parse({}))
    need_source(parse({"pattern": "a*"}))


def test_the_environment_names_the_server_unless_the_query_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    assert parse({}).url == "redis://127.0.0.1:6379"
    monkeypatch.setenv("PENSTOCK_URL", "redis://events:7000")
    assert parse({}).url == "redis://events:7000"
    assert parse({"url": "redis://other:1"}).url == "redis://other:1"
    assert parse({"url": "penstock://a,b:7000/orders?db=2"}).url == "penstock://a,b:7000/orders?db=2"
