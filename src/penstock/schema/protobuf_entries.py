"""Entries in Protobuf: each is one message of a type that a file of descriptors has (`protoc --descriptor_set_out`).

The library protobuf decodes and encodes, in C. It refuses lengths beyond the bytes, text that is not UTF-8 and
messages that are nested more than a hundred times. Fields that the type does not have are skipped, as they always
are in Protobuf; so there are no "bytes after the message", and an entry without bytes is a message without values.

Types are those of Spark's `from_protobuf`, and so is what a missing field means: null, also where a proto3 field has no
presence and was zero, unless the defaults are asked for. Two things differ. Unsigned numbers have a type that holds
them (bigint, decimal(20,0)), as with Spark's `upcast.unsigned.ints`. A number that an enum has no name for is a bad
entry.

Rejected: `json_format.MessageToDict`, which makes text of bytes, numbers and timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from penstock.schema.entry_format import BadDatum, DecodedEntries, Row, check_to_read, rows_to_write, to_write
from penstock.schema.fields import InvalidSchema

_Kinds = descriptor_pb2.FieldDescriptorProto
_TIMESTAMP = "google.protobuf.Timestamp"
_Message: Any = Timestamp
"""A class with the methods of all messages: a message itself may have a field of the name of a method."""
_SIMPLE = {
    _Kinds.TYPE_BOOL: pa.bool_(), _Kinds.TYPE_STRING: pa.string(), _Kinds.TYPE_BYTES: pa.binary(),
    _Kinds.TYPE_FLOAT: pa.float32(), _Kinds.TYPE_DOUBLE: pa.float64(), _Kinds.TYPE_ENUM: pa.string(),
    _Kinds.TYPE_INT32: pa.int32(), _Kinds.TYPE_SINT32: pa.int32(), _Kinds.TYPE_SFIXED32: pa.int32(),
    _Kinds.TYPE_INT64: pa.int64(), _Kinds.TYPE_SINT64: pa.int64(), _Kinds.TYPE_SFIXED64: pa.int64(),
    _Kinds.TYPE_UINT32: pa.int64(), _Kinds.TYPE_FIXED32: pa.int64(),
    _Kinds.TYPE_UINT64: pa.decimal128(20, 0), _Kinds.TYPE_FIXED64: pa.decimal128(20, 0),
}  # fmt: skip
_EPOCH, _NAIVE_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_MOST_FIELDS = 10_000
"""Messages that have each other twice are a tree of any size, made of a file of any smallness."""
_DEEPEST = 100
"""Messages inside of each other, which is also what the library decodes."""
_NAMED = 10
"""Messages that an error names."""


class ProtobufEntries:
    """Reads and writes entries of one type of message."""

    def __init__(self, descriptors: bytes, message: str, with_defaults: bool = False) -> None:
        """InvalidSchema unless the file of descriptors is one, is whole, and has the message."""
        self._name = f"message {message}"
        self._with_defaults = with_defaults
        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
            for file in files.file:
                pool.AddSerializedFile(file.SerializeToString())
        except (DecodeError, TypeError, ValueError) as error:
            raise InvalidSchema(
                "the file is no whole set of descriptors, as `protoc --include_imports --descriptor_set_out` makes it: "
                f"{error}"
            ) from None
        try:
            self._descriptor: Any = pool.FindMessageTypeByName(message)
        except KeyError:
            names = [name for file in files.file for name in _messages(file.message_type, file.package)]
            more = ", ..." if len(names) > _NAMED else ""
            raise InvalidSchema(
                f"the descriptors have no message {message!r}; they have {', '.join(names[:_NAMED])}{more}"
            ) from None
        try:
            self._class: Any = message_factory.GetMessageClass(self._descriptor)
        except RecursionError:
            raise InvalidSchema(f"the {self._name} is nested too deeply") from None
        self._is_checked = _has_required(self._descriptor)

    def fields(self, names: Iterable[str] | None = None) -> pa.Schema:
        known = self._descriptor.fields_by_name
        wanted = [field.name for field in self._descriptor.fields] if names is None else list(names)
        if unknown := [name for name in wanted if name not in known]:
            there = ", ".join(field.name for field in self._descriptor.fields)
            raise InvalidSchema(f"the {self._name} has no field {unknown[0]}; it has {there}")
        sizes: dict[str, int] = {}
        try:
            size = sum(_size(known[name], sizes) for name in wanted)
        except RecursionError:
            size = _MOST_FIELDS + 1
        if size > _MOST_FIELDS:
            raise InvalidSchema(
                f"the {self._name} has more than {_MOST_FIELDS} fields with those inside of fields, or is nested too "
                "deeply; name fewer columns to read"
            )
        return pa.schema([self._arrow_field(known[name], name, [self._descriptor]) for name in wanted])

    def _arrow_field(self, field: Any, where: str, inside: list[Any]) -> pa.Field:
        return pa.field(
            field.name, self._arrow_type(field, where, inside), not (field.is_required or field.is_repeated)
        )

    def _arrow_type(self, field: Any, where: str, inside: list[Any]) -> pa.DataType:
        """The type of a column that has a field; InvalidSchema if there is none."""
        if _is_map(field):
            key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
            item = pa.field("value", self._one(value, f"{where}[]", inside), nullable=False)
            return pa.map_(self._one(key, where, inside), item)
        one = self._one(field, where, inside)
        return pa.list_(pa.field("element", one, nullable=False)) if field.is_repeated else one

    def _one(self, field: Any, where: str, inside: list[Any]) -> pa.DataType:
        """The type of a value of a field that may have several."""
        kind = field.message_type
        if field.type in _SIMPLE:
            return _SIMPLE[field.type]
        if kind is None or field.type != _Kinds.TYPE_MESSAGE:
            what = "a group"
        elif kind.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        elif len(inside) > _DEEPEST:
            what = f"nested more than {_DEEPEST} times"
        elif kind in inside:
            what = f"a {kind.full_name} inside of another"
        elif not kind.fields:
            what = f"a {kind.full_name}, which has no fields"
        else:
            return pa.struct([self._arrow_field(each, f"{where}.{each.name}", [*inside, kind]) for each in kind.fields])
        raise InvalidSchema(f"field {where} of the {self._name} is {what}: that is no column; name the columns to read")

    def reader(self, columns: pa.Schema) -> DecodedEntries:
        check_to_read(columns, self.fields(columns.names), self._name)
        read = self._reader_of(self._descriptor, set(columns.names))

        def decode(entry: bytes) -> Row:
            try:
                message = self._class.FromString(entry)
            except DecodeError as error:
                raise BadDatum(f"it is no {self._name}: {error}") from None
            if self._is_checked and not _Message.IsInitialized(message):
                missing = ", ".join(_Message.FindInitializationErrors(message))
                raise BadDatum(f"it is no {self._name}: it has no {missing}")
            try:
                return read(message)
            except BadDatum:
                raise
            except Exception as error:  # of text in a map that is not UTF-8, which proto2 does not check, say
                raise BadDatum(f"it is no {self._name}: {error}") from None

        return DecodedEntries(decode, columns)

    def _reader_of(self, kind: Any, names: set[str] | None = None) -> Callable[[Any], Row]:
        """What makes a dictionary of a message, of all its fields or of some."""
        read: dict[int, tuple[str, Callable[[Any], Any]]] = {}
        absent: Row = {}
        for field in kind.fields:
            if names is None or field.name in names:
                value = self._value_reader(field)
                read[field.number] = field.name, value
                if field.is_repeated:
                    absent[field.name] = {} if _is_map(field) else []
                elif field.has_default_value or (self._with_defaults and not field.has_presence):
                    absent[field.name] = value(field.default_value)

        def row_of(message: Any) -> Row:
            row = dict(absent)
            for field, value in _Message.ListFields(message):
                if field.number in read:
                    name, value_of = read[field.number]
                    row[name] = value_of(value)
            return row

        return row_of

    def _value_reader(self, field: Any) -> Callable[[Any], Any]:
        if _is_map(field):
            item = self._one_reader(field.message_type.fields_by_name["value"])
            return lambda values: {key: item(value) for key, value in values.items()}
        one = self._one_reader(field)
        return (lambda values: [one(value) for value in values]) if field.is_repeated else one

    def _one_reader(self, field: Any) -> Callable[[Any], Any]:
        if field.type == _Kinds.TYPE_ENUM:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            enum = field.enum_type.full_name
            return lambda number: names[number] if number in names else _no_name(number, enum)
        if field.type != _Kinds.TYPE_MESSAGE:
            return _same
        return _microseconds if field.message_type.full_name == _TIMESTAMP else self._reader_of(field.message_type)

    def writer(self, columns: pa.Schema) -> Callable[[pa.RecordBatch], list[bytes]]:
        prepare = to_write(columns, self.fields(columns.names), self._name)
        fill = _writer_of(self._descriptor, {column.name: column.type for column in columns})
        for field in self._descriptor.fields:
            if field.is_required and field.name not in prepare:
                raise InvalidSchema(f"there is no column {field.name}, which is required in the {self._name}")

        def entry_of(row: Row) -> bytes:
            message = self._class()
            try:
                fill(message, row)
                entry: bytes = _Message.SerializeToString(message, deterministic=True)
            except Exception as error:  # of many kinds
                raise ValueError(f"a row does not fit the {self._name}: {error}") from None
            return entry

        return lambda rows: list(map(entry_of, rows_to_write(rows, prepare)))


def _messages(kinds: Iterable[Any], package: str) -> Iterable[str]:
    """The full names of messages, and of those inside of them."""
    for kind in kinds:
        if not kind.options.map_entry:
            name = f"{package}.{kind.name}" if package else kind.name
            yield name
            yield from _messages(kind.nested_type, name)


def _has_required(kind: Any) -> bool:
    """Whether a message may lack a field that it must have: proto3 has none such."""
    seen, left = {kind.full_name}, [kind]
    while left:
        for field in left.pop().fields:
            if field.is_required:
                return True
            if field.message_type is not None and field.message_type.full_name not in seen:
                seen.add(field.message_type.full_name)
                left.append(field.message_type)
    return False


def _size(field: Any, sizes: dict[str, int]) -> int:
    """How many fields a column has, with those inside. Messages that contain themselves are refused elsewhere."""
    kind = field.message_type
    if kind is None:
        return 1
    if kind.full_name not in sizes:
        sizes[kind.full_name] = 0
        sizes[kind.full_name] = sum(_size(each, sizes) for each in kind.fields)
    return 1 + sizes[kind.full_name]


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _same(value: Any) -> Any:
    return value


def _no_name(number: int, enum: str) -> str:
    raise BadDatum(f"{number} is the number of no value of the enum {enum}")


def _microseconds(timestamp: Any) -> int:
    return int(timestamp.seconds) * 1_000_000 + int(timestamp.nanos) // 1000


Fill = Callable[[Any, Any], None]


def _writer_of(kind: Any, columns: dict[str, pa.DataType]) -> Fill:
    """What puts the values of a row into a message."""
    parts = [(name, _field_writer(kind.fields_by_name[name], column)) for name, column in columns.items()]

    choices: dict[str, list[str]] = {}
    for name in columns:
        if (choice := kind.fields_by_name[name].containing_oneof) is not None:
            choices.setdefault(choice.name, []).append(name)
    several = {choice: names for choice, names in choices.items() if len(names) > 1}

    def fill(message: Any, row: Row) -> None:
        for choice, names in several.items():
            if len(given := [name for name in names if row[name] is not None]) > 1:
                raise ValueError(f"{' and '.join(given)} both have values, and the oneof {choice} has one of them")
        for name, put in parts:
            if row[name] is not None:
                put(message, row[name])

    return fill


def _field_writer(field: Any, column: pa.DataType) -> Fill:
    """What puts a value of a column into the field of a message."""
    name = field.name
    if _is_map(field):
        key_of, item = _scalar(field.message_type.fields_by_name["key"]), field.message_type.fields_by_name["value"]
        if item.type == _Kinds.TYPE_MESSAGE:
            fill = _message_writer(item, column.item_type)

            def put_messages(message: Any, values: Any) -> None:
                target = getattr(message, name)
                for key, value in values.items():
                    fill(target[key_of(key)], _present(value, name))

            return put_messages
        one = _scalar(item)
        return lambda message, values: getattr(message, name).update(
            {key_of(key): one(_present(value, name)) for key, value in values.items()}
        )
    if field.type == _Kinds.TYPE_MESSAGE:
        fill = _message_writer(field, column.value_type if field.is_repeated else column)

        def put_one(message: Any, value: Any) -> None:
            target = getattr(message, name)
            _Message.SetInParent(target)
            fill(target, value)

        def put_each(message: Any, values: Any) -> None:
            for value in values:
                fill(getattr(message, name).add(), _present(value, name))

        return put_each if field.is_repeated else put_one
    one = _scalar(field)
    if field.is_repeated:
        return lambda message, values: getattr(message, name).extend([one(_present(value, name)) for value in values])
    return lambda message, value: setattr(message, name, one(value))


def _message_writer(field: Any, column: pa.DataType) -> Fill:
    if field.message_type.full_name == _TIMESTAMP:
        return _put_timestamp
    return _writer_of(field.message_type, {part.name: part.type for part in column})


def _put_timestamp(message: Any, moment: datetime) -> None:
    since = (moment - (_EPOCH if moment.tzinfo is not None else _NAIVE_EPOCH)) // _MICROSECOND
    message.seconds, microseconds = divmod(since, 1_000_000)
    message.nanos = microseconds * 1000


def _scalar(field: Any) -> Callable[[Any], Any]:
    """What makes the value that the library takes of one of a row."""
    if field.type == _Kinds.TYPE_ENUM:
        numbers = {name: value.number for name, value in field.enum_type.values_by_name.items()}
        enum = field.enum_type.full_name
        return lambda name: numbers[name] if name in numbers else _no_value(name, enum)
    return int if field.type in (_Kinds.TYPE_UINT64, _Kinds.TYPE_FIXED64) else _same


def _no_value(name: str, enum: str) -> int:
    raise ValueError(f"{name!r} is no value of the enum {enum}")


def _present(value: Any, name: str) -> Any:
    if value is None:
        raise ValueError(f"there is a null inside of {name}")
    return value
