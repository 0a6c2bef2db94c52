"""The entry format of a query, from its options. JSON needs no schema of its own, so it is none of these.

The library of a format is imported where an option asks for it: it is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa

from penstock.extras import install
from penstock.schema.entry_format import EntryFormat, EntryReader
from penstock.schema.fields import InvalidSchema
from penstock.schema.json_entries import JsonEntries
from penstock.spark.options import OptionError, Options


def format_of(options: Options) -> EntryFormat | None:
    """The format of entries that are not JSON. OptionError if its schema is none, or its library is not there."""
    if options.entryFormat == "avro":
        is_framed = options.avroFraming == "confluent"
        return _avro(options.avroSchema or options.avroSchemaFile, is_framed, options.avroSchemaId)
    if options.entryFormat == "protobuf":
        return _protobuf(options.protobufDescriptorFile, options.protobufMessage, options.emitDefaultValues)
    return None


@lru_cache(maxsize=8)
def _avro(text: str, is_framed: bool, schema_id: int | None) -> EntryFormat:
    try:
        from penstock.schema.avro_entries import AvroEntries
    except ImportError:
        raise _not_installed("avro", "fastavro") from None
    try:
        return AvroEntries(text, is_framed, schema_id)
    except InvalidSchema as error:
        raise OptionError(f"option avroSchema: {error}") from None


@lru_cache(maxsize=8)
def _protobuf(descriptors: bytes, message: str, with_defaults: bool) -> EntryFormat:
    try:
        from penstock.schema.protobuf_entries import ProtobufEntries
    except ImportError:
        raise _not_installed("protobuf", "protobuf") from None
    try:
        return ProtobufEntries(descriptors, message, with_defaults)
    except InvalidSchema as error:
        raise OptionError(f"options protobufDescriptorFile and protobufMessage: {error}") from None


def _not_installed(extra: str, library: str) -> OptionError:
    return OptionError(f"entryFormat={extra} needs {library}; {install(extra)}")


def reader_of(columns: pa.Schema, options: Options) -> EntryReader:
    """A function that reads entries as these fields. OptionError if the entries do not have them."""
    given = format_of(options)
    if given is None:
        return JsonEntries(columns)
    try:
        return given.reader(columns)
    except InvalidSchema as error:
        raise OptionError(f"entryFormat={options.entryFormat}: {error}") from None


def writer_of(columns: pa.Schema, options: Options) -> Callable[[pa.RecordBatch], list[bytes]]:
    """A function that makes non-JSON entries of rows with these fields. OptionError if the fields do not fit."""
    given = format_of(options)
    assert given is not None
    try:
        return given.writer(columns)
    except InvalidSchema as error:
        raise OptionError(f"entryFormat={options.entryFormat}: {error}") from None
