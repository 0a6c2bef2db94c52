"""Entries in Protobuf become columns and rows become entries, whatever the bytes are."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st
from tests.support.protobuf_file import (
    KINDS,
    TIMESTAMP,
    class_of,
    files,
    mapped,
    message,
    optional,
    repeated,
    required,
)

from penstock.schema.fields import InvalidSchema
from penstock.schema.protobuf_entries import ProtobufEntries

FILES = files(
    message("Item", sku=KINDS.TYPE_STRING, at=TIMESTAMP),
    message(
        "Order",
        id=KINDS.TYPE_INT64, n=KINDS.TYPE_SINT32, small=KINDS.TYPE_UINT32, large=KINDS.TYPE_FIXED64,
        paid=KINDS.TYPE_BOOL, weight=KINDS.TYPE_FLOAT, price=KINDS.TYPE_DOUBLE, note=optional(KINDS.TYPE_STRING),
        raw=KINDS.TYPE_BYTES, state="shop.State", states=repeated("shop.State"), tags=repeated(KINDS.TYPE_STRING),
        counts=mapped(KINDS.TYPE_STRING, KINDS.TYPE_INT32), named=mapped(KINDS.TYPE_INT32, "shop.Item"),
        item="shop.Item", items=repeated("shop.Item"), at=TIMESTAMP, ats=repeated(TIMESTAMP),
    ),
)  # fmt: skip
ORDER = class_of(FILES, "shop.Order")
FORMAT = ProtobufEntries(FILES, "shop.Order", with_defaults=True)
AS_SPARK = ProtobufEntries(FILES, "shop.Order")

WORDS = st.text(max_size=4)
MOMENTS = st.datetimes(timezones=st.just(UTC))
ITEMS = st.fixed_dictionaries({"sku": WORDS, "at": st.none() | MOMENTS})
STATES = st.sampled_from(["NEW", "SENT"])
INT32 = st.integers(-(2**31), 2**31 - 1)
ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1), "n": INT32, "small": st.integers(0, 2**32 - 1),
        "large": st.integers(0, 2**64 - 1).map(Decimal), "paid": st.booleans(),
        "weight": st.floats(width=32, allow_nan=False), "price": st.floats(allow_nan=False),
        "note": st.none() | WORDS, "raw": st.binary(max_size=4), "state": STATES,
        "states": st.lists(STATES, max_size=3),
        "tags": st.lists(WORDS, max_size=3), "counts": st.dictionaries(WORDS, INT32, max_size=2),
        "named": st.dictionaries(INT32, ITEMS, max_size=2), "item": st.none() | ITEMS,
        "items": st.lists(ITEMS, max_size=2), "at": st.none() | MOMENTS, "ats": st.lists(MOMENTS, max_size=2),
    }
)  # fmt: skip


def rows_of(orders: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(orders, FORMAT.fields())


def read(entries: list[bytes], schema: ProtobufEntries = FORMAT) -> tuple[list[Any], dict[int, str]]:
    rows, bad = schema.reader(schema.fields()).read(pa.array(entries, pa.binary()))
    rows.validate(full=True)
    return rows.to_pylist(maps_as_pydicts="strict"), bad


@given(orders=st.lists(ORDERS, max_size=3))
def test_rows_that_are_written_are_read_as_they_were(orders: list[Any]) -> None:
    rows = rows_of(orders)
    assert read(FORMAT.writer(rows.schema)(rows)) == (orders, {})


def test_what_another_program_encodes_is_read_and_what_is_written_is_read_by_it() -> None:
    order = ORDER(id=5, n=-1, large=2**64 - 1, note="", state="SENT", states=[1, 0], counts={"a": 2})
    order.item.sku = "x"
    order.named[7].at.FromDatetime(datetime(2026, 1, 2))
    order.ats.add(seconds=-1, nanos=999_999_999)
    ((row,), bad) = read([order.SerializeToString()])
    assert bad == {}
    assert {name: value for name, value in row.items() if value} == {
        "id": 5, "n": -1, "large": Decimal(2**64 - 1), "state": "SENT", "states": ["SENT", "NEW"],
        "counts": {"a": 2}, "item": {"sku": "x", "at": None},
        "named": {7: {"sku": "", "at": datetime(2026, 1, 2, tzinfo=UTC)}},
        "ats": [datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
    }  # fmt: skip
    assert (row["note"], row["at"], row["price"], row["raw"]) == ("", None, 0.0, b"")
    (entry,) = FORMAT.writer(FORMAT.fields())(rows_of([row]))
    found = ORDER.FromString(entry)
    order.ats[0].nanos = 999_999_000
    assert found == order


def test_values_that_are_not_there_are_null_as_in_from_protobuf_unless_defaults_are_asked_for() -> None:
    (row,), _ = read([b""], AS_SPARK)
    assert {name: value for name, value in row.items() if value is not None} == {
        "states": [], "tags": [], "counts": {}, "named": {}, "items": [], "ats": [],
    }  # fmt: skip
    (row,), _ = read([b""])
    assert [row[name] for name in ("id", "paid", "state", "note", "item")] == [0, False, "NEW", None, None]
    schema = FORMAT.fields()
    assert [schema.field(name).nullable for name in ("id", "tags", "counts", "at")] == [True, False, False, True]


@given(order=ORDERS, data=st.data())
def test_bytes_that_were_changed_harm_no_other_entry(order: Any, data: st.DataObject) -> None:
    (good,) = FORMAT.writer(FORMAT.fields())(rows_of([order]))
    place = data.draw(st.integers(0, len(good)))
    other = data.draw(st.binary(max_size=6))
    changed = good[:place] + other + data.draw(st.sampled_from([good[place + len(other) :], good[place:], b""]))
    rows, bad = FORMAT.reader(FORMAT.fields()).read(pa.array([good, changed, good], pa.binary()))
    rows.validate(full=True)
    assert (len(rows), set(bad) <= {1}) == (3, True)
    assert [rows.slice(at, 1).to_pylist(maps_as_pydicts="strict")[0] for at in (0, 2)] == [order, order]


def field(number: int, content: bytes) -> bytes:
    """A field with a length, as Protobuf has it."""
    length, size = len(content), []
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (b"\x42\xff\xff\xff\xff\x07a", "it is no message shop.Order: "),  # a length beyond the bytes
        (b"\x42\x01\xff", "it is no message shop.Order: .*UTF-8"),
        (b"\x08", "it is no message shop.Order: "),
        (b"\x50\x07", "7 is the number of no value of the enum shop.State"),
        (field(11, b"\x00\x09"), "9 is the number of no value of the enum shop.State"),
    ],
)
def test_a_hostile_entry_is_a_bad_one(entry: bytes, why: str) -> None:
    rows, bad = read([entry, b""])
    assert rows[0]["tags"] is None
    assert list(bad) == [0]
    assert re.search(why, bad[0])


def test_a_moment_that_no_timestamp_holds_is_a_bad_entry() -> None:
    order = ORDER()
    order.at.seconds = 2**62
    assert "a value does not fit its type" in read([order.SerializeToString()])[1][0]


def test_messages_that_are_nested_too_deeply_are_bad_entries() -> None:
    descriptors = files(message("Node", n=KINDS.TYPE_INT32, next="shop.Node"))
    schema = ProtobufEntries(descriptors, "shop.Node")
    with pytest.raises(InvalidSchema, match=r"field next of the message shop.Node is a shop.Node inside of another"):
        schema.fields()
    entry = b""
    for _ in range(5000):
        entry = field(2, entry)
    rows, bad = schema.reader(schema.fields(["n"])).read(pa.array([entry, b"\x08\x05"], pa.binary()))
    assert (rows.to_pylist(), list(bad)) == ([{"n": None}, {"n": 5}], [0])


def test_a_message_of_proto2_without_a_required_field_is_a_bad_entry() -> None:
    inner = message("Inner", id=required(KINDS.TYPE_INT32))
    outer = message("Outer", inner="shop.Inner", n=(KINDS.TYPE_INT32, {"default_value": "7"}))
    schema = ProtobufEntries(files(inner, outer, syntax="proto2"), "shop.Outer")
    rows, bad = read([field(1, b""), field(1, b"\x08\x05")], schema)
    assert rows[1] == {"inner": {"id": 5}, "n": 7}
    assert bad == {0: "it is no message shop.Outer: it has no inner.id"}
    plain = ProtobufEntries(files(inner, syntax="proto2"), "shop.Inner")
    assert not plain.fields().field("id").nullable
    with pytest.raises(ValueError, match=r"a row does not fit the message shop.Inner: .*missing required fields: id"):
        plain.writer(plain.fields())(pa.RecordBatch.from_pylist([{"id": None}], plain.fields()))


def test_rows_that_do_not_fit_are_refused_with_the_field() -> None:
    def write(row: Any, column: pa.Field) -> list[bytes]:
        schema = pa.schema([column])
        return FORMAT.writer(schema)(pa.RecordBatch.from_pylist([row], schema))

    assert write({"id": 1}, pa.field("id", pa.int16())) == [b"\x08\x01"]
    with pytest.raises(InvalidSchema, match=r"column n is bigint, and the message shop.Order has it as int"):
        write({"n": 1}, pa.field("n", pa.int64()))
    with pytest.raises(InvalidSchema, match=r"the message shop.Order has no field nix; it has id, n"):
        write({"nix": 1}, pa.field("nix", pa.int64()))
    with pytest.raises(
        ValueError, match=r"does not fit the message shop.Order: 'OLD' is no value of the enum shop.State"
    ):
        write({"state": "OLD"}, pa.field("state", pa.string()))
    with pytest.raises(ValueError, match=r"does not fit the message shop.Order: there is a null inside of tags"):
        write({"tags": ["a", None]}, pa.field("tags", pa.list_(pa.string())))
    with pytest.raises(ValueError, match=r"does not fit the message shop.Order: .*range"):
        write({"small": -1}, pa.field("small", pa.int64()))


def test_a_file_that_is_no_set_of_descriptors_is_refused_and_so_is_an_unknown_message() -> None:
    with pytest.raises(InvalidSchema, match=r"the file is no whole set of descriptors, as `protoc --include_imports"):
        ProtobufEntries(b"\xff\xff", "shop.Order")
    without_imports = descriptor_pb2.FileDescriptorSet.FromString(FILES)
    del without_imports.file[0]
    with pytest.raises(InvalidSchema, match=r"no whole set of descriptors.*google/protobuf/timestamp\.proto"):
        ProtobufEntries(without_imports.SerializeToString(), "shop.Item")
    with pytest.raises(InvalidSchema, match=r"have no message 'Order'; they have google.protobuf.Timestamp, shop.Item"):
        ProtobufEntries(FILES, "Order")


def test_a_key_of_proto2_that_is_no_text_is_a_bad_entry_and_harms_no_other() -> None:
    kind = message("M", a=mapped(KINDS.TYPE_STRING, KINDS.TYPE_STRING))
    schema = ProtobufEntries(files(kind, syntax="proto2"), "shop.M")
    rows, bad = read([field(1, field(1, b"\xff") + field(2, b"x")), field(1, field(1, b"k") + field(2, b"x"))], schema)
    assert rows == [{"a": None}, {"a": {"k": "x"}}]
    assert list(bad) == [0]
    assert "it is no message shop.M: 'utf-8' codec can't decode" in bad[0]


@pytest.mark.parametrize("value", [KINDS.TYPE_UINT64, "shop.Item"])
def test_a_map_with_large_unsigned_keys_is_written_and_read(value: Any) -> None:
    kinds = [message("Item", sku=KINDS.TYPE_STRING), message("M", a=mapped(KINDS.TYPE_UINT64, value))]
    schema = ProtobufEntries(files(*kinds), "shop.M")
    row = {"a": {Decimal(2**64 - 1): {"sku": "x"} if value == "shop.Item" else Decimal(5)}}
    given = pa.RecordBatch.from_pylist([row], schema.fields())
    rows, bad = schema.reader(schema.fields()).read(pa.array(schema.writer(schema.fields())(given), pa.binary()))
    assert (rows.to_pylist(maps_as_pydicts="strict"), bad) == ([row], {})


def test_two_values_of_a_oneof_are_refused_rather_than_one_of_them_lost() -> None:
    kind = message("M", a=(KINDS.TYPE_INT32, {"oneof_index": 0}), b=(KINDS.TYPE_STRING, {"oneof_index": 0}))
    kind.oneof_decl.add(name="choice")
    schema = ProtobufEntries(files(kind), "shop.M")
    write = schema.writer(schema.fields())
    assert write(pa.RecordBatch.from_pylist([{"a": 1, "b": None}], schema.fields())) == [b"\x08\x01"]
    with pytest.raises(ValueError, match="a and b both have values, and the oneof choice has one of them"):
        write(pa.RecordBatch.from_pylist([{"a": 1, "b": "x"}], schema.fields()))


@pytest.mark.parametrize(("deep", "names"), [(40, "ab"), (150, "a"), (500, "a"), (3000, "a")])
def test_messages_that_unfold_to_a_huge_tree_or_a_deep_one_are_refused(deep: int, names: str) -> None:
    kinds = [message("T0", x=KINDS.TYPE_INT32)]
    kinds += [message(f"T{at}", **dict.fromkeys(names, f"shop.T{at - 1}")) for at in range(1, deep)]
    with pytest.raises(InvalidSchema, match=r"more than 10000 fields|nested"):
        ProtobufEntries(files(*kinds), f"shop.T{deep - 1}").fields()


def test_fields_with_the_names_of_methods_are_fields() -> None:
    names = (
        "ListFields",
        "SerializeToString",
        "SetInParent",
        "IsInitialized",
        "FindInitializationErrors",
        "FromString",
    )
    inner = message("Inner", **dict.fromkeys(names, KINDS.TYPE_STRING))
    outer = message("Outer", inner="shop.Inner", id=KINDS.TYPE_INT32, **dict.fromkeys(names, KINDS.TYPE_STRING))
    schema = ProtobufEntries(files(inner, outer), "shop.Outer")
    values = {name: f"a {name}" for name in names}
    rows = pa.RecordBatch.from_pylist([{"inner": values, "id": 5, **values}, {"id": 6}], schema.fields())
    found, bad = read(schema.writer(rows.schema)(rows), schema)
    assert (found[0], found[1]["id"], bad) == ({"inner": values, "id": 5, **values}, 6, {})
    strict = message("Strict", IsInitialized=required(KINDS.TYPE_STRING))
    old = ProtobufEntries(files(strict, syntax="proto2"), "shop.Strict")
    assert read([b""], old)[1] == {0: "it is no message shop.Strict: it has no IsInitialized"}
