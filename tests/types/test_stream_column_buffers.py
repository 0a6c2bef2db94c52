"""Both versions of the functions that make Arrow buffers, compiled and pure, do the same."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.twins import is_compilation_expected, pure_twin

from penstock.types.stream import column_buffers

KINDS: dict[str, Any] = {"chosen": column_buffers, "pure": pure_twin(column_buffers)}
both = pytest.mark.parametrize("kind", KINDS)

LARGEST = 2**63 - 1
words = st.one_of(st.binary(max_size=12), st.integers(0, 1200).map(lambda size: b"x" * size))
starts = st.one_of(
    st.integers(1, 2000), st.integers(1, LARGEST - 20), st.integers(0, 18).map(lambda power: max(10**power - 3, 1))
)


def test_the_compiled_functions_are_built_where_there_is_a_compiler() -> None:
    assert is_compilation_expected() == column_buffers.COMPILED, (
        "the extension was not built although it could be; try: make clean test"
    )


@both
@given(values=st.lists(words, max_size=12), wide=st.booleans())
def test_a_column_is_what_arrow_makes_of_the_same_values(kind: str, values: list[bytes], wide: bool) -> None:
    table, data = KINDS[kind].column_of(values, wide)
    expected = pa.array(values, pa.large_binary() if wide else pa.binary())
    buffers = [None, pa.py_buffer(table), pa.py_buffer(data)]
    column = pa.Array.from_buffers(expected.type, len(values), buffers, 0)
    column.validate(full=True)
    assert column.equals(expected)


@both
def test_a_column_of_two_gigabytes_needs_a_wide_table(kind: str) -> None:
    with pytest.raises(OverflowError):
        KINDS[kind].column_of([b"x" * (1 << 20)] * 2048, False)


@both
@given(times=st.lists(st.integers(-(2**63), LARGEST), min_size=1))
def test_the_latest_time_is_found_wherever_it_stands(kind: str, times: list[int]) -> None:
    assert KINDS[kind].latest(array("q", times)) == max(times)


@both
@given(start=starts, count=st.integers(-1, 1200))
def test_a_column_of_offsets_counts_from_the_first(kind: str, start: int, count: int) -> None:
    if start + count - 1 > LARGEST:
        with pytest.raises(OverflowError):
            KINDS[kind].counted(start, count)
    else:
        assert array("q", KINDS[kind].counted(start, count)).tolist() == [*range(start, start + count)]
