"""A file of descriptors, as `protoc --include_imports --descriptor_set_out` would make it, without protoc."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

KINDS: Any = descriptor_pb2.FieldDescriptorProto
TIMESTAMP = "google.protobuf.Timestamp"


def files(*messages: Any, syntax: str = "proto3") -> bytes:
    """The descriptors of the package shop: some messages, and the enum State."""
    stamp: Any = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    file: Any = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", dependency=[stamp.name])
    file.syntax = syntax
    file.message_type.extend(messages)
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="SENT", number=1)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[stamp, file]).SerializeToString())


def message(name: str, **fields: Any) -> Any:
    """A type of message. A field is a kind, the name of a message or an enum, or a call of `field`."""
    made: Any = descriptor_pb2.DescriptorProto(name=name)
    for number, (called, given) in enumerate(fields.items(), 1):
        kind, more = given if isinstance(given, tuple) else (given, {})
        entry = more.pop("map", None)
        if entry is not None:
            inner = made.nested_type.add(name=f"{called.capitalize()}Entry")
            inner.options.map_entry = True
            _add(inner, "key", 1, entry, {})
            _add(inner, "value", 2, kind, {})
            _add(made, called, number, f"shop.{name}.{inner.name}", {"label": KINDS.LABEL_REPEATED})
            continue
        if more.get("proto3_optional"):
            more["oneof_index"] = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{called}")
        _add(made, called, number, kind, more)
    return made


def _add(made: Any, name: str, number: int, kind: Any, more: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": name, "number": number, "label": KINDS.LABEL_OPTIONAL, **more}
    if isinstance(kind, str):
        is_enum = kind == "shop.State"
        given |= {"type": KINDS.TYPE_ENUM if is_enum else KINDS.TYPE_MESSAGE, "type_name": f".{kind}"}
    else:
        given["type"] = kind
    made.field.add(**given)


def repeated(kind: Any) -> Any:
    return kind, {"label": KINDS.LABEL_REPEATED}


def required(kind: Any) -> Any:
    return kind, {"label": KINDS.LABEL_REQUIRED}


def optional(kind: Any) -> Any:
    return kind, {"proto3_optional": True}


def mapped(key: Any, kind: Any) -> Any:
    return kind, {"map": key}


def class_of(descriptors: bytes, name: str) -> Any:
    """The class of a message, as another program would have it."""
    pool = descriptor_pool.DescriptorPool()
    given: Any = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    for file in given.file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
