"""Every type to bytes and back, and what is not a value's bytes."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.value_strategies import plain, values

from penstock.types import codec
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.packing import CHUNK, CorruptValue, pack_many, unpack_many
from penstock.types.set import Set
from penstock.types.xstream import XStream
from penstock.types.zset import SortedSet


@given(values)
def test_a_value_survives_dump_and_load(value: Any) -> None:
    loaded = codec.load(codec.dump(value))
    assert plain(loaded) == plain(value)
    assert codec.type_name(loaded) == codec.type_name(value)
    assert codec.dump(loaded) == codec.dump(value) or codec.type_name(value) == "set"
    if hasattr(loaded, "check"):
        loaded.check()


@given(values)
def test_the_pieces_of_a_value_are_its_bytes(value: Any) -> None:
    assert b"".join(codec.dump_pieces(value)) == codec.dump(value)


NAMES = [b"%d" % number for number in range(3 * CHUNK + 7)]


@pytest.mark.parametrize(
    "value",
    [
        List(NAMES),
        Set(NAMES),
        Hash(zip(NAMES, reversed(NAMES), strict=True)),
        SortedSet({name: float(name) for name in NAMES}),
    ],
)
def test_a_value_of_several_chunks_survives_in_pieces(value: Any) -> None:
    pieces = codec.dump_pieces(value)
    assert max(map(len, pieces)) < 8 * CHUNK + 1
    data = b"".join(pieces)
    assert plain(codec.load(data)) == plain(value)
    assert codec.elements_dumped(data) >= codec.elements(value)
    for damaged in (data[:-1], data + b"x", data[:5] + b"\xff" + data[6:]):
        with pytest.raises(CorruptValue):
            codec.load(damaged)


@pytest.mark.parametrize("kind", [Set, Hash, SortedSet])
def test_an_element_twice_in_different_chunks_is_corrupt(kind: type[Any]) -> None:
    names = [*NAMES, NAMES[0]]
    if kind is SortedSet:
        names = [struct.pack(f"<{len(names)}d", *range(len(names))), *names]
    if kind is Hash:
        names = [word for name in names for word in (name, name)]
    tag = next(tag for tag, (_, each) in codec.TYPES.items() if each is kind)
    with pytest.raises(CorruptValue):
        codec.load(bytes((tag,)) + pack_many(names))


@given(values)
def test_a_copy_is_equal_and_separate(value: Any) -> None:
    copied = codec.copy(value)
    assert type(copied) is type(value)
    assert plain(copied) == plain(value)
    assert copied is not value or type(value) in (bytes, int)


@given(values)
def test_a_value_takes_at_least_the_bytes_it_holds(value: Any) -> None:
    assert codec.size(value) > 0
    if type(value) in (bytes, bytearray):
        assert codec.size(value) > len(value)


def test_every_type_is_tested_here() -> None:
    """A new row of TYPES needs a strategy above."""
    assert {kind for _, kind in codec.TYPES.values()} >= {List, Set, Hash, SortedSet, XStream}
    for name, kind in codec.TYPES.values():
        assert all(hasattr(kind, method) for method in ("dump", "load", "size", "check")), name


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x01")
@example(b"\x09abc")
@example(b"\x01" + pack_many([]))
@example(b"\x03" + pack_many([b"field without value"]))
@example(b"\x04" + pack_many([b"1234567", b"member"]))
@example(b"\x04" + pack_many([struct.pack("<d", float("nan")), b"member"]))
@example(b"\x04" + pack_many([struct.pack("<2d", 1, 2), b"twice", b"twice"]))
def test_random_bytes_are_a_value_or_corrupt(data: bytes) -> None:
    try:
        value = codec.load(data)
    except CorruptValue:
        return
    assert plain(codec.load(codec.dump(value))) == plain(value)


@given(values, st.data())
def test_mutated_values_are_a_value_or_corrupt(value: Any, data: st.DataObject) -> None:
    raw = bytearray(codec.dump(value))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        loaded = codec.load(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    except CorruptValue:
        return
    assert plain(codec.load(codec.dump(loaded))) == plain(loaded)


@pytest.mark.parametrize("tag", codec.TYPES)
@pytest.mark.parametrize("body", [b"", b"\x00" * 3, pack_many([])])
def test_a_collection_of_nothing_is_corrupt(tag: int, body: bytes) -> None:
    if codec.TYPES[tag][1] in (List, Set, Hash, SortedSet):
        with pytest.raises(CorruptValue):
            codec.load(bytes((tag,)) + body)


@pytest.mark.parametrize("tag", codec.TYPES)
@pytest.mark.parametrize("count", [0xFFFFFFFF, 0x7FFFFFFF, 1_000_000])
def test_a_count_that_promises_too_much_allocates_nothing(tag: int, count: int) -> None:
    data = bytes((tag,)) + struct.pack("<I", count) + b"\x00" * 64
    tracemalloc.start()
    try:
        with pytest.raises(CorruptValue):
            codec.load(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_lengths_that_add_up_to_more_or_less_than_there_is_are_corrupt() -> None:
    good = pack_many([b"ab", b"c"])
    assert unpack_many(good) == [b"ab", b"c"]
    for bad in (good[:-1], good + b"x", good[:4] + struct.pack("<I", 3) + good[8:]):
        with pytest.raises(CorruptValue):
            unpack_many(bad)


@pytest.mark.parametrize("parts", [[b"a", b"a"], [b"f", b"1", b"f", b"2"]])
def test_an_element_twice_is_corrupt(parts: list[bytes]) -> None:
    with pytest.raises(CorruptValue):
        codec.load(bytes((2 if len(parts) == 2 else 3,)) + pack_many(parts))
