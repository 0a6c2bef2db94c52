"""Hypothesis strategies of values: what a key can hold. A new type adds a line here."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.set import Set
from penstock.types.xstream import Id, XStream
from penstock.types.zset import SortedSet


def stream_of(entries: dict[Id, list[tuple[bytes, bytes]]]) -> XStream:
    stream = XStream()
    for at in sorted(entries):
        stream.append(at, tuple(word for pair in entries[at] for word in pair))
    return stream


items = st.binary(max_size=20)
scores = st.floats(allow_nan=False).map(lambda score: score + 0.0)  # a sorted set holds no minus zero
strings = st.binary() | st.binary().map(bytearray) | st.integers(-(1 << 63), (1 << 63) - 1)
lists = st.lists(items, min_size=1).map(List)
sets = st.sets(items, min_size=1).map(Set)
hashes = st.dictionaries(items, items, min_size=1).map(Hash)
sorted_sets = st.dictionaries(items, scores, min_size=1).map(SortedSet)
entries = st.dictionaries(
    st.tuples(st.integers(0, 99), st.integers(1, 1 << 63)), st.lists(st.tuples(items, items), min_size=1)
)
streams = entries.map(stream_of)
values = st.one_of(strings, lists, sets, hashes, sorted_sets, streams)


def plain(value: Any) -> Any:
    """A value as something that compares by content."""
    if type(value) is int:
        return b"%d" % value
    if type(value) is XStream:
        return list(value), value.last_id, value.max_deleted_id, value.entries_added
    return value.scores if type(value) is SortedSet else value
