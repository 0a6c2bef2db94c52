"""Hypothesis strategies of values: what a key can hold. A new type adds a line here."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.set import Set
from penstock.types.zset import SortedSet

items = st.binary(max_size=20)
scores = st.floats(allow_nan=False).map(lambda score: score + 0.0)  # a sorted set holds no minus zero
strings = st.binary() | st.binary().map(bytearray) | st.integers(-(1 << 63), (1 << 63) - 1)
lists = st.lists(items, min_size=1).map(List)
sets = st.sets(items, min_size=1).map(Set)
hashes = st.dictionaries(items, items, min_size=1).map(Hash)
sorted_sets = st.dictionaries(items, scores, min_size=1).map(SortedSet)
values = st.one_of(strings, lists, sets, hashes, sorted_sets)


def plain(value: Any) -> Any:
    """A value as something that compares by content."""
    if type(value) is int:
        return b"%d" % value
    return value.scores if type(value) is SortedSet else value
