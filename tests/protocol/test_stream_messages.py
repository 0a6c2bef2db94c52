"""Both versions of the encoding of stream messages, compiled and pure, do the same, and it is RESP."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.twins import is_compilation_expected, pure_twin

from penstock.protocol import stream_messages
from penstock.protocol.resp import encode

KINDS: dict[str, Any] = {"chosen": stream_messages, "pure": pure_twin(stream_messages)}
both = pytest.mark.parametrize("kind", KINDS)

LARGEST = 2**63 - 1
words = st.one_of(st.binary(max_size=12), st.integers(0, 1200).map(lambda size: b"x" * size))
messages = st.lists(st.tuples(words, words), max_size=12)
numbers = st.one_of(st.integers(-(2**63), LARGEST), st.sampled_from([0, 9, 10, -1, -10, -(2**63), LARGEST]))
leased = st.lists(st.tuples(words, words, numbers), max_size=12)
starts = st.one_of(
    st.integers(1, 2000), st.integers(1, LARGEST - 20), st.integers(0, 18).map(lambda power: max(10**power - 3, 1))
)


def _expected(offsets: list[int], rows: list[tuple[bytes, bytes]]) -> tuple[bytes, list[int]]:
    pieces = [encode([offset, tag, entry]) for offset, (tag, entry) in zip(offsets, rows, strict=True)]
    return b"".join(pieces), [sum(map(len, pieces[:at])) for at in range(len(pieces) + 1)]


def _columns(rows: list[tuple[bytes, bytes]], wide: bool) -> list[tuple[Any, Any]]:
    """Tags and entries as buffers, as a sealed node has them: read back from an IPC message."""
    kind = pa.large_binary() if wide else pa.binary()
    schema = pa.schema([("tag", kind), ("entry", kind)])
    arrays = [pa.array([row[at] for row in rows], kind) for at in (0, 1)]
    payload = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()
    return [tuple(column.buffers()[1:]) for column in pa.ipc.read_record_batch(payload, schema).columns]


def _expected_leased(offsets: list[int], rows: list[tuple[bytes, bytes, int]], more: int) -> bytes:
    return b"".join(
        encode([offset, tag, entry, time, more]) for offset, (tag, entry, time) in zip(offsets, rows, strict=True)
    )


def test_the_compiled_functions_are_built_where_there_is_a_compiler() -> None:
    assert is_compilation_expected() == stream_messages.COMPILED, (
        "the extension was not built although it could be; try: make clean test"
    )


def test_pure_can_be_chosen_by_the_environment() -> None:
    code = "from penstock.protocol import stream_messages; print(stream_messages.COMPILED)"
    environment = {**os.environ, "PENSTOCK_PURE": "1"}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "False"


@both
@given(start=starts, rows=messages, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_messages_are_encoded_the_same_in_one_step_or_many(
    kind: str, start: int, rows: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    tags, entries = [tag for tag, _ in rows], [entry for _, entry in rows]
    data, begins = bytearray(), array("Q", [0])
    for end in [*sorted(min(cut, len(rows)) for cut in cuts), len(rows), 0]:
        KINDS[kind].encode_more(data, begins, start, tags, entries, end)
    assert (data, list(begins)) == _expected(list(range(start, start + len(rows))), rows)


@both
@given(start=starts, rows=messages, part=st.tuples(st.integers(0, 12), st.integers(0, 12)), wide=st.booleans())
def test_any_rows_of_columns_are_formatted_with_offsets_that_follow(
    kind: str, start: int, rows: list[tuple[bytes, bytes]], part: tuple[int, int], wide: bool
) -> None:
    first, end = sorted(min(bound, len(rows)) for bound in part)
    data, begins = KINDS[kind].encode_columns(start, None, *_columns(rows, wide), first, end, wide)
    assert type(data) is bytes
    assert begins.typecode == "Q"
    assert (data, list(begins)) == _expected(list(range(start + first, start + end)), rows[first:end])


@both
@given(
    rows=messages, gaps=st.lists(st.integers(1, 10**17), min_size=12, max_size=12), first=st.integers(0, 12),
    wide=st.booleans(),
)  # fmt: skip
def test_any_rows_of_columns_are_formatted_with_offsets_that_are_listed(
    kind: str, rows: list[tuple[bytes, bytes]], gaps: list[int], first: int, wide: bool
) -> None:
    offsets = [sum(gaps[: at + 1]) for at in range(len(rows))]
    first = min(first, len(rows))
    data, begins = KINDS[kind].encode_columns(1, array("q", offsets), *_columns(rows, wide), first, len(rows), wide)
    assert (data, list(begins)) == _expected(offsets[first:], rows[first:])


@both
@given(start=starts, rows=leased, part=st.tuples(st.integers(0, 12), st.integers(0, 12)), more=numbers)
def test_any_rows_of_lists_are_encoded_with_their_times(
    kind: str, start: int, rows: list[tuple[bytes, bytes, int]], part: tuple[int, int], more: int
) -> None:
    first, end = sorted(min(bound, len(rows)) for bound in part)
    tags, entries, times = ([row[at] for row in rows] for at in range(3))
    data = KINDS[kind].encode_leased(start, array("q", times), tags, entries, first, end, more)
    assert type(data) is bytes
    assert data == _expected_leased(list(range(start + first, start + end)), rows[first:end], more)


@both
@given(
    start=starts, rows=leased, part=st.tuples(st.integers(0, 12), st.integers(0, 12)), more=numbers,
    gaps=st.one_of(st.none(), st.lists(st.integers(1, 10**17), min_size=12, max_size=12)), wide=st.booleans(),
)  # fmt: skip
def test_any_rows_of_columns_are_encoded_with_their_times(
    kind: str,
    start: int,
    rows: list[tuple[bytes, bytes, int]],
    part: tuple[int, int],
    more: int,
    gaps: list[int] | None,
    wide: bool,
) -> None:
    first, end = sorted(min(bound, len(rows)) for bound in part)
    offsets = [start + at if gaps is None else sum(gaps[: at + 1]) for at in range(len(rows))]
    times = pa.array([time for _, _, time in rows], pa.int64()).buffers()[1] if rows else b""
    columns = _columns([(tag, entry) for tag, entry, _ in rows], wide)
    listed = None if gaps is None else array("q", offsets)
    data = KINDS[kind].encode_leased_columns(start, listed, times, *columns, first, end, wide, more)
    assert type(data) is bytes
    assert data == _expected_leased(offsets[first:end], rows[first:end], more)


@both
def test_large_messages_are_formatted(kind: str) -> None:
    rows = [(b"t" * 70_000, b"e" * 3_000_000), (b"", b""), (b"tag", b"e" * 100_000)]
    data, begins = KINDS[kind].encode_columns(999, None, *_columns(rows, False), 0, 3, False)
    assert (data, list(begins)) == _expected([999, 1000, 1001], rows)


@both
def test_the_largest_offset_is_formatted(kind: str) -> None:
    data, _ = KINDS[kind].encode_columns(1, array("q", [LARGEST]), *_columns([(b"a", b"b")], False), 0, 1, False)
    assert data == encode([LARGEST, b"a", b"b"])


@both
def test_what_is_encoded_stays_as_it_was_while_there_is_a_view_of_it(kind: str) -> None:
    data, begins = bytearray(), array("Q", [0])
    KINDS[kind].encode_more(data, begins, 1, [b"a"], [b"b"], 1)
    before = bytes(data)
    with memoryview(data), pytest.raises(BufferError):
        KINDS[kind].encode_more(data, begins, 1, [b"a", b"c"], [b"b", b"d"], 2)
    assert (data, list(begins)) == (before, [0, len(before)])


@both
def test_nothing_is_read_outside_of_what_is_given(kind: str) -> None:
    functions = KINDS[kind]
    good = _columns([(b"tag", b"entry")], False)
    with pytest.raises(ValueError):
        functions.encode_columns(1, None, *good, 0, 100, False)
    with pytest.raises(ValueError):
        functions.encode_columns(1, array("q"), *good, 0, 1, False)
    with pytest.raises(ValueError, match="outside"):
        functions.encode_columns(1, None, (array("i", [0, 9]), b"tag"), good[1], 0, 1, False)
    with pytest.raises(ValueError):
        functions.encode_more(bytearray(), array("Q", [0]), 1, [b"tag"], [], 1)
    with pytest.raises(ValueError):
        functions.encode_leased(1, array("q", [5]), [b"tag"], [], 0, 1, 0)
    with pytest.raises(ValueError):
        functions.encode_leased(1, array("q"), [b"tag"], [b"entry"], 0, 1, 0)
    times = array("q", [5])
    with pytest.raises(ValueError):
        functions.encode_leased_columns(1, None, times, *good, 0, 2, False, 0)
    with pytest.raises(ValueError):
        functions.encode_leased_columns(1, None, array("q"), *good, 0, 1, False, 0)
    with pytest.raises(ValueError):
        functions.encode_leased_columns(1, array("q"), times, *good, 0, 1, False, 0)
    with pytest.raises(ValueError, match="outside"):
        functions.encode_leased_columns(1, None, times, (array("i", [0, 9]), b"tag"), good[1], 0, 1, False, 0)
