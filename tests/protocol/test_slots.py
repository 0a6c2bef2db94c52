"""Slots: what redis-py and the cluster specification compute."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot as slot_of_redis_py

from penstock.protocol.slots import SLOTS, key_slot


@pytest.mark.parametrize(
    ("key", "slot"), [(b"123456789", 0x31C3), (b"", 0), (b"foo", 12182), (b"bar", 5061), (b"hello", 866)]
)
def test_slots_are_those_of_the_specification(key: bytes, slot: int) -> None:
    assert key_slot(key) == slot


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"{user1000}.following", b"user1000"),
        (b"foo{bar}{zap}", b"bar"),
        (b"foo{{bar}}zap", b"{bar"),
        (b"a}b{c}d", b"c"),
    ],
)
def test_only_the_hash_tag_counts(key: bytes, hashed: bytes) -> None:
    assert key_slot(key) == key_slot(hashed)


@pytest.mark.parametrize("key", [b"foo{}{bar}", b"foo{bar", b"foo}bar{", b"{}"])
def test_an_empty_or_open_tag_is_part_of_the_key(key: bytes) -> None:
    assert key_slot(key) == slot_of_redis_py(key)
    assert key_slot(key) != key_slot(b"bar")


@given(st.lists(st.sampled_from([b"{", b"}", b"a", b"bc", b"\x00", b"\xff"]), max_size=8).map(b"".join))
@example(b"{}{a}")
def test_every_key_has_the_slot_that_redis_py_sends_it_to(key: bytes) -> None:
    assert key_slot(key) == slot_of_redis_py(key)
    assert 0 <= key_slot(key) < SLOTS
