"""Commands of columns, on both twins: what they make of rows is what packing each row would make."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.twins import is_compilation_expected, pure_twin

from penstock.protocol import columns
from penstock.protocol.columns import Column
from penstock.protocol.resp import pack
from penstock.protocol.slots import key_slot

TWINS = {"chosen": columns, "pure": pure_twin(columns)}
both = pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
values = st.one_of(
    st.none(), st.binary(max_size=12), st.sampled_from([b"{a}b", b"x{}y", b"}{", b"\r\n$3\r\n", b"y" * 1000])
)
keys = st.one_of(st.binary(max_size=12), st.sampled_from([b"{user:1}.name", b"a{}b", b"{", b"{{x}}", b"}{y}"]))


def column(values: Sequence[bytes | None], shift: int = 0) -> Column:
    """A column whose data begins with bytes that are not its own, as in a slice."""
    places = array("i", [shift])
    for value in values:
        places.append(places[-1] + len(value or b""))
    data = b"#" * shift + b"".join(value or b"" for value in values)
    present = memoryview(bytes(value is not None for value in values)) if None in values else None
    return Column(memoryview(places), memoryview(data), present)


def test_the_compiled_twin_is_used_where_it_can_be() -> None:
    assert is_compilation_expected() == columns.COMPILED
    assert not TWINS["pure"].COMPILED


@both
@given(
    st.lists(st.tuples(keys, values, values), max_size=20),
    st.integers(0, 9),
    st.lists(st.binary(max_size=3), max_size=2),
)
def test_a_row_becomes_the_command_it_says(
    twin: ModuleType, rows: list[tuple[bytes, bytes | None, bytes | None]], shift: int, tail: list[bytes]
) -> None:
    of_key, of_name, of_rest = (column([row[at] for row in rows], shift) for at in range(3))
    made = twin.pack_rows(b"HSET", of_key, [(b"name", of_name), (None, of_rest)], tail)
    wanted = [
        pack(b"HSET", key, *((b"name", a) if a is not None else ()), *((b,) if b is not None else ()), *tail)
        if (a, b) != (None, None)
        else None
        for key, a, b in rows
    ]
    assert made == wanted
    assert twin.pack_rows(b"DEL", of_key, tail=tail) == [pack(b"DEL", key, *tail) for key, _, _ in rows]


@both
@given(st.lists(keys, max_size=30), st.integers(0, 9))
def test_slots_are_those_of_the_keys(twin: ModuleType, some: list[bytes], shift: int) -> None:
    assert list(twin.column_slots(column(some, shift))) == [key_slot(key) for key in some]


@both
@pytest.mark.parametrize(
    ("places", "data", "present"),
    [([], b"", None), ([0, 5], b"1234", None), ([-1, 1], b"1234", None), ([0, 3, 2], b"1234", None),
        ([0, 1, 2], b"12", b"1")],
)  # fmt: skip
def test_places_outside_of_the_data_are_refused(
    twin: ModuleType, places: list[int], data: bytes, present: bytes | None
) -> None:
    bad = Column(memoryview(array("i", places)), memoryview(data), memoryview(present) if present is not None else None)
    with pytest.raises(ValueError, match=r"place|end|null|rows"):
        twin.pack_rows(b"DEL", bad)
    with pytest.raises(ValueError, match=r"place|end|null|rows"):
        twin.column_slots(bad)


@both
def test_rows_must_match_and_have_keys(twin: ModuleType) -> None:
    with pytest.raises(ValueError, match="row 1 has no key"):
        twin.pack_rows(b"DEL", column([b"a", None]))
    with pytest.raises(ValueError, match="more rows, or fewer"):
        twin.pack_rows(b"HSET", column([b"a", b"b"]), [(b"n", column([b"1"]))])
