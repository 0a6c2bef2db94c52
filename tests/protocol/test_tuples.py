"""Commands given as tuples, on both twins: the bytes equal those of the single words, and odd words are left alone."""

from __future__ import annotations

import enum
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.twins import is_compilation_expected, pure_twin

from penstock.protocol import tuples
from penstock.protocol.resp import pack

TWINS = {"chosen": tuples, "pure": pure_twin(tuples)}
both = pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
sure = st.one_of(
    st.binary(max_size=12), texts, st.integers(-(2**63) + 1, 2**63 - 1), st.floats(),
    st.sampled_from([b"", "", "é", "\U0001f600", b"x" * 12345, 9, 10, -1, 0, 2**63 - 1, -0.0, 1e22, float("nan")]),
)  # fmt: skip
names = st.sampled_from(["GET", b"GET", "SET", "naïve", b"set"])


class Level(enum.IntEnum):
    LOW = 1


class Shouted(str):
    def __str__(self) -> str:
        return self.upper()


ODD = [
    None,
    True,
    Level.LOW,
    Shouted("x"),
    bytearray(b"x"),
    memoryview(b"x"),
    "\ud800",
    2**63,
    -(2**63) - 1,
    10**5000,
    [1],
]


def on_the_wire(command: tuple[Any, ...]) -> bytes:
    def word(value: Any) -> bytes:
        return value if isinstance(value, bytes) else (value if isinstance(value, str) else repr(value)).encode()

    return pack(*map(word, command))


def test_the_compiled_twin_is_used_where_it_can_be() -> None:
    assert is_compilation_expected() == tuples.COMPILED
    assert not TWINS["pure"].COMPILED


@both
@given(st.lists(st.builds(lambda name, words: (name, *words), names, st.lists(sure, max_size=5)), max_size=9))
def test_commands_are_their_words_one_behind_the_other(twin: ModuleType, commands: list[tuple[Any, ...]]) -> None:
    packed = twin.pack_tuples(commands)
    assert packed is not None
    data, lengths, words, heads = packed
    wanted = [on_the_wire(command) for command in commands]
    assert (data, list(lengths), words) == (b"".join(wanted), list(map(len, wanted)), sum(map(len, commands)))
    assert heads.keys() == {command[0] for command in commands}
    assert all(command in commands and command[0] == head for head, command in heads.items() if command == command)
    assert [twin.pack_tuple(command) for command in commands] == wanted


@both
@given(
    st.lists(st.tuples(st.lists(st.binary(max_size=12), min_size=1, max_size=12), st.booleans())), st.integers(1, 2**62)
)
def test_numbers_go_around_those_that_are_chosen(
    twin: ModuleType, rows: list[tuple[list[bytes], bool]], first: int
) -> None:
    plain = [pack(*words) for words, _ in rows]
    chosen = bytes(is_chosen for _, is_chosen in rows)
    numbers = iter(range(first, first + len(rows)))
    wanted = [pack(b"A", b"id", b"%d" % next(numbers), b"77", *words) if yes else pack(*words) for words, yes in rows]
    data, lengths = twin.number_packed(
        b"".join(plain), array("Q", map(len, plain)), chosen, b"$1\r\nA\r\n$2\r\nid\r\n", first, b"$2\r\n77\r\n"
    )
    assert data == b"".join(wanted) and list(lengths) == list(map(len, wanted))


@both
@pytest.mark.parametrize(
    ("lengths", "chosen"), [([13], b"\1"), ([15], b"\1"), ([14], b""), ([2, 12], b"\1\1"), ([7, 7], b"\0\1")]
)
def test_lengths_that_are_not_those_of_the_commands_are_refused(
    twin: ModuleType, lengths: list[int], chosen: bytes
) -> None:
    with pytest.raises(ValueError):
        twin.number_packed(b"*1\r\n$4\r\nPING\r\n", array("Q", lengths), chosen, b"", 1, b"")


@both
def test_more_commands_than_are_packed_at_once_are_all_there(twin: ModuleType) -> None:
    commands = tuple(("SET", f"key:{number}", number) for number in range(20_000))
    data, lengths, words, heads = twin.pack_tuples(commands)
    assert data == b"".join(map(on_the_wire, commands)) and sum(lengths) == len(data)
    assert len(lengths) == 20_000 and words == 60_000 and list(heads) == ["SET"]


@both
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{type(odd).__name__}")
def test_unusual_arguments_are_left_to_the_slow_path(twin: ModuleType, odd: Any) -> None:
    assert twin.pack_tuple(("SET", "é", odd)) is None
    assert twin.pack_tuples([("GET", "a"), ("SET", "é", odd)]) is None


@both
@pytest.mark.parametrize("odd", [(), ["GET", "a"], "GET", None, (5,), (None, "a")], ids=repr)
def test_invalid_commands_are_left_to_the_slow_path(twin: ModuleType, odd: Any) -> None:
    assert twin.pack_tuples([("GET", "a"), odd]) is None
