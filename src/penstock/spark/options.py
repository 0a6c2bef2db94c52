"""The options of `format("penstock")`, checked once, where they are given.

Names are those of Spark's Kafka source where it has one, so that a query moves over by changing its format. An unknown
option is an error that names the nearest one: Spark itself would ignore a misspelt `failOnDataLos`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.spark import kafka_options

Place = int | Literal["earliest", "latest"]
"""Where to start or to end in a stream: an offset, or one end of it."""
Places = dict[str, Place] | Literal["earliest", "latest"]
URL_VARIABLE = "PENSTOCK_URL"
"""The environment variable that names the server of a query without the option url; read on the driver only."""
BadEntries = Literal["fail", "null", "drop", "deadletter"]
TYPES = ("hash", "string", "list", "set", "zset")
"""Of keys that can be read as tables."""
LARGEST = 2**63 - 1
"""No number of Spark's or of the server's is larger."""


class OptionError(ValueError):
    """An unknown option, or a value that an option does not take. The message names both and the remedy."""


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= LARGEST:
        raise ValueError("a number from 1 on")
    return int(text)


def _moment(text: str) -> int:
    if not text.isdecimal() or int(text) > LARGEST:
        raise ValueError("milliseconds since 1970")
    return int(text)


def _version(text: str) -> int:
    if not text.isdecimal() or int(text) > LARGEST:
        raise ValueError("a number from 0 on")
    return int(text)


def _schema_id(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise ValueError("the number that a registry gave to a schema")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("one name, or several with commas between them")
    return names


def _url(text: str) -> str:
    from penstock.client.api.urls import WrongUrl, options_of_url  # slow, and not every process needs a connection

    try:
        options_of_url(text)
    except ValueError as error:  # what another one says may quote a password
        what = f". In this one {error}" if isinstance(error, WrongUrl) else ""
        raise ValueError(
            f"an address such as redis://user:password@host:6379/0, or penstock://a:6379,b:6379/shard{what}"
        ) from None
    return text


def _content(name: str) -> bytes:
    """The content of a file. It is read where a query is planned, and travels to the executors."""
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise ValueError(f"the name of a file on the machine that plans the query ({error})") from None


def _text_content(name: str) -> str:
    try:
        return _content(name).decode()
    except UnicodeDecodeError:
        raise ValueError("the name of a text file, in UTF-8") from None


def _is_place(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("earliest", "latest") or re.fullmatch(r"\d+-\d+", value) is not None
    return type(value) is int and 0 < value <= LARGEST


def _places(text: str) -> Places:
    if text.lower() in ("earliest", "latest"):
        return text.lower()  # type: ignore[return-value]
    try:
        places = json.loads(text)
    except ValueError:
        places = None
    if isinstance(places, dict) and (mistake := kafka_options.mistake_in_places(places)):
        raise ValueError(mistake)
    if not isinstance(places, dict) or not all(map(_is_place, places.values())):
        raise ValueError('earliest, latest, or JSON such as {"clicks": 1001, "orders": "earliest"}')
    return places


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(" or ".join(words))
        return text.lower()

    return parse


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a reader or a writer. Immutable; pickled to executors."""

    url: str = "redis://127.0.0.1:6379"
    stream: tuple[str, ...] = ()
    pattern: str = ""
    redisStream: tuple[str, ...] = ()
    startingOffsets: Places = "earliest"
    endingOffsets: Places = "latest"
    startingTimestamp: int | None = None
    endingTimestamp: int | None = None
    maxRowsPerTrigger: int | None = None
    maxBytesPerTrigger: int | None = None
    minPartitions: int = 1
    pushFilters: bool = False
    failOnDataLoss: bool = True
    group: str = ""
    text: bool = False
    typed: bool = True
    schemaVersion: int | None = None
    entryFormat: Literal["json", "avro", "protobuf"] = "json"
    avroSchema: str = ""
    avroSchemaFile: str = ""  # what is in the file
    avroFraming: Literal["none", "confluent"] = "none"
    avroSchemaId: int | None = None
    protobufMessage: str = ""
    protobufDescriptorFile: bytes = b""  # what is in the file
    emitDefaultValues: bool = False
    badEntries: BadEntries = "fail"
    deadLetterStream: str = ""
    retryTimeout: int = 60_000
    txnAppId: str = ""
    txnVersion: int | None = None
    mergeSchema: bool = False
    # keys as tables
    keys: str = ""
    keySet: str = ""
    type: Literal["", "hash", "string", "list", "set", "zset"] = ""
    keyColumn: str = "key"
    valueColumn: str = "value"
    mode: Literal["set", "increment"] = "set"
    ttl: int = 0
    delivery: str = "at-least-once"

    @property
    def of_elements(self) -> bool:
        """Whether a row is an element of a key, not the whole key."""
        return self.type in ("list", "set", "zset")

    @property
    def of_keys(self) -> bool:
        """Whether this is about keys as a table, not about streams."""
        return bool(self.type)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "url": _url, "stream": _names, "pattern": str, "redisStream": _names,
    "startingOffsets": _places, "endingOffsets": _places,
    "startingTimestamp": _moment, "endingTimestamp": _moment, "maxRowsPerTrigger": _count,
    "maxBytesPerTrigger": _count, "minPartitions": _count, "pushFilters": _flag,
    "failOnDataLoss": _flag, "group": str, "text": _flag,
    "typed": _flag, "schemaVersion": _count, "mergeSchema": _flag,
    "entryFormat": _one_of("json", "avro", "protobuf"), "avroSchema": str, "avroSchemaFile": _text_content,
    "avroFraming": _one_of("none", "confluent"), "avroSchemaId": _schema_id,
    "protobufMessage": str, "protobufDescriptorFile": _content, "emitDefaultValues": _flag,
    "badEntries": _one_of("fail", "null", "drop", "deadletter"), "deadLetterStream": str, "retryTimeout": _count,
    "txnAppId": str, "txnVersion": _version,
    "keys": str, "keySet": str, "type": _one_of(*TYPES), "keyColumn": str, "valueColumn": str,
    "mode": _one_of("set", "increment"), "ttl": _count,
    "delivery": _one_of("at-most-once", "at-least-once", "exactly-once"),
}  # fmt: skip
_ALIASES = {
    "subscribe": "stream", "topic": "stream", "subscribePattern": "pattern",
    "maxOffsetsPerTrigger": "maxRowsPerTrigger",
}  # fmt: skip
NAMES = (*_PARSERS, *_ALIASES)
"""Every option, as the guide spells it."""
_NAMES = {name.lower(): name for name in _PARSERS} | {old.lower(): new for old, new in _ALIASES.items()}
_SPELT = {name.lower(): name for name in NAMES}
"""Names as the guide spells them, for messages: Spark passes them on in lower case."""
_OF_KEYS = ("keyColumn", "valueColumn", "mode", "ttl", "delivery")
_OF_SPARK = frozenset({"checkpointlocation", "queryname", "header", "inferschema", "provider", "serialization.format"})
"""Options that Spark itself puts there or takes out."""
_OF_FORMATS = {
    "jsonformatschema": "avroSchema", "avroschemaurl": "avroSchemaFile", "messagename": "protobufMessage",
    "descfilepath": "protobufDescriptorFile", "binarydescriptorset": "protobufDescriptorFile",
    "emit.default.values": "emitDefaultValues",
}  # fmt: skip
"""Names that Spark has for what its functions of Avro and Protobuf take, and ours."""
_SCHEMAS = {
    "avroSchema": "avro", "avroSchemaFile": "avro", "avroFraming": "avro", "avroSchemaId": "avro",
    "protobufMessage": "protobuf", "protobufDescriptorFile": "protobuf", "emitDefaultValues": "protobuf",
}  # fmt: skip
"""Options that say what the entries of a format are."""
_OF_TABLES = "option."
"""What Spark puts before the options of a table that it is about to create."""
_NO_TABLES = (
    "Spark does not pass the OPTIONS of a table on to a data source in Python. CREATE TEMPORARY VIEW name [(columns)] "
    "USING penstock OPTIONS (...) can be read and inserted into"
)


def parse(given: Mapping[str, str]) -> Options:
    """The options of a query; OptionError for what is unknown or makes no sense.

    >>> parse({"stream": "clicks, orders", "maxRowsPerTrigger": "1000"}).stream
    ('clicks', 'orders')
    """
    values: dict[str, Any] = {}
    for written, text in given.items():
        name = _NAMES.get(written.lower())
        if written.lower() in ("path", "paths"):
            continue
        if name is None:
            if written.lower() in _OF_SPARK:
                continue
            if written.lower().startswith(_OF_TABLES):
                raise OptionError(f"CREATE TABLE ... USING penstock is not possible: {_NO_TABLES}")
            if answer := kafka_options.instead_of(written):
                raise OptionError(f"option {written} is for Kafka; {answer}")
            near = [_OF_FORMATS.get(written.lower(), "").lower()]
            if near == [""]:
                near = difflib.get_close_matches(written.lower(), _NAMES, 1)
            hint = f"did you mean {_SPELT[near[0]]}?" if near else f"there are: {', '.join(_PARSERS)}"
            raise OptionError(f"format('penstock') has no option {written!r}; {hint}")
        parser = kafka_options.glob_of if written.lower() == "subscribepattern" else _PARSERS[name]
        shown = "" if name == "url" else f"={text!r}"  # an address may hold a password
        values[name] = _value(parser, text, f"option {_SPELT[written.lower()]}{shown}")
    if path := _path(given):
        _add_path(path, values)
    if ("keys" in values or "keySet" in values) and "type" not in values:
        values["type"] = "hash"
    if "url" not in values and (named := os.environ.get(URL_VARIABLE)):
        values["url"] = _value(_url, named, f"environment variable {URL_VARIABLE}")
    options = Options(**values)
    _check(options, values)
    return options


_LOCATION = re.compile(r"[A-Za-z][\w+.-]*:/")
"""The beginning of a path that Spark gives to a table: where its files would be."""


def _path(given: Mapping[str, str]) -> str:
    """The argument of `load`, `save` or `start`; "" without one.

    >>> _path({"path": "clicks"}), _path({"paths": '["clicks", "orders"]'}), _path({"path": "file:/warehouse/t"})
    ('clicks', 'clicks,orders', '')
    """
    lower = {name.lower(): text for name, text in given.items()}
    path = ",".join(json.loads(lower["paths"])) if "paths" in lower else lower.get("path", "")
    return "" if _LOCATION.match(path) else path


def _add_path(path: str, values: dict[str, Any]) -> None:
    """A path is the name of a stream; OptionError if an option names something else."""
    names = _value(_names, path, f"the path {path!r}")
    for option in ("stream", "pattern", "redisStream", "type", "keys", "keySet"):
        if option in values and (option, values[option]) != ("stream", names):
            raise OptionError(
                f"the path {path!r} of load(), save() or start() is the name of a stream, and the option {option} says "
                "something else; give one of them"
            )
    values["stream"] = names


def _value(parser: Callable[[str], Any], text: str, given_as: str) -> Any:
    try:
        return parser(text)
    except ValueError as error:
        raise OptionError(f"{given_as}: it takes {error}") from None


def _check(options: Options, given: Mapping[str, Any]) -> None:
    if options.stream and options.pattern:
        raise OptionError("options stream and pattern exclude each other")
    for places, moment in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if places in given and moment in given:
            raise OptionError(f"options {places} and {moment} exclude each other")
    if (options.badEntries == "deadletter") != bool(options.deadLetterStream):
        raise OptionError("badEntries=deadletter and deadLetterStream=<name of a stream> go together")
    if bool(options.txnAppId) != (options.txnVersion is not None):
        raise OptionError("options txnAppId and txnVersion go together")
    if options.schemaVersion is not None and not options.typed:
        raise OptionError("options schemaVersion and typed=false exclude each other: raw entries have no schema")
    _check_format(options, given)
    if options.redisStream and (options.stream or options.pattern or options.of_keys):
        raise OptionError("option redisStream reads streams of Redis; it excludes stream, pattern, type, keys, keySet")
    for named in (options.startingOffsets, options.endingOffsets):
        if isinstance(named, dict):
            _check_places(named, options)
    if options.of_keys and (options.stream or options.pattern):
        raise OptionError("stream and pattern are about streams; type, keys and keySet are about keys as a table")
    if options.keys and options.keySet:
        raise OptionError("options keys and keySet exclude each other")
    for name in () if options.of_keys else _OF_KEYS:
        if name in given:
            raise OptionError(f"option {name} is about keys as a table: name their type, .option('type', 'hash')")
    streams = options.stream or options.redisStream
    for name, value in (("startingOffsets", options.startingOffsets), ("endingOffsets", options.endingOffsets)):
        if streams and isinstance(value, dict) and (others := sorted(value.keys() - {*streams})):
            raise OptionError(
                f"option {name} names {', '.join(others)}, and the streams to read are {', '.join(streams)}"
            )
    if options.mode == "increment" and "delivery" in given:
        raise OptionError("option delivery is for mode=set; mode=increment counts each batch exactly once")
    if options.of_keys and options.badEntries in ("drop", "deadletter"):
        raise OptionError(f"badEntries={options.badEntries} is for streams; keys know fail and null")


def _check_format(options: Options, given: Mapping[str, Any]) -> None:
    """Entries that are not JSON bring their own schema, and are fields of streams of Penstock."""
    for name, kind in _SCHEMAS.items():
        if name in given and options.entryFormat != kind:
            raise OptionError(f"option {name} is for .option('entryFormat', '{kind}')")
    if options.entryFormat == "json":
        return
    if options.entryFormat == "avro" and ("avroSchema" in given) == ("avroSchemaFile" in given):
        raise OptionError("entryFormat=avro needs the schema of the entries: avroSchema (JSON) or avroSchemaFile")
    if options.avroSchemaId is not None and options.avroFraming == "none":
        raise OptionError("option avroSchemaId is for .option('avroFraming', 'confluent')")
    if options.entryFormat == "protobuf" and not (options.protobufMessage and "protobufDescriptorFile" in given):
        raise OptionError(
            "entryFormat=protobuf needs protobufDescriptorFile, a file that `protoc --include_imports "
            "--descriptor_set_out` made, and protobufMessage, the full name of a message in it"
        )
    if options.redisStream or options.of_keys:
        raise OptionError(f"entryFormat={options.entryFormat} is for streams of Penstock")
    for name, contradicts in (
        ("typed", not options.typed),
        ("schemaVersion", options.schemaVersion is not None),
        ("mergeSchema", options.mergeSchema),
    ):
        if contradicts:
            raise OptionError(
                f"options {name} and entryFormat={options.entryFormat} exclude each other: {name} is about the "
                "stream's own schema, which is one of JSON"
            )


def _check_places(places: Mapping[str, Place | str], options: Options) -> None:
    """Offsets are numbers in streams of Penstock, and ids in those of Redis."""
    for stream, place in places.items():
        if isinstance(place, int) == bool(options.redisStream) and place not in ("earliest", "latest"):
            wanted = 'an id, such as "1526919030474-55"' if options.redisStream else "a number, such as 1001"
            raise OptionError(f"an offset of {stream} is {place!r}; it is {wanted}")


def need_target(options: Options) -> None:
    """Writing rows that do not choose their streams needs one."""
    if len(options.stream) != 1:
        raise OptionError(
            "name the stream to write to: .option('stream', 'alerts'), or a column 'stream'. If this is a table of "
            f"CREATE TABLE ... USING penstock: {_NO_TABLES}"
        )


def need_source(options: Options) -> None:
    """Reading needs to know what to read."""
    if options.redisStream:
        return
    if options.of_keys:
        if not options.keys and not options.keySet:
            raise OptionError("name the keys to read: .option('keys', 'user:*'), or .option('keySet', 'users')")
        return
    if not options.stream and not options.pattern:
        raise OptionError(
            "name what to read: .option('stream', 'clicks'), or .option('pattern', 'clicks:*'). If this is a table of "
            f"CREATE TABLE ... USING penstock: {_NO_TABLES}"
        )
