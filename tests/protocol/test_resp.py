"""Python values to RESP2 and RESP3, read back by hiredis, an independent implementation."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.errors import ReplyError, WrongType
from penstock.protocol.resp import (
    LONE,
    NO_REPLY,
    NULL_ARRAY,
    OK,
    Members,
    Pairs,
    Push,
    Raw,
    RawPieces,
    Status,
    Verbatim,
    encode,
    format_float,
    in_pieces,
    pack,
)  # fmt: skip


def decode(data: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(data)
    value = reader.gets()
    assert not reader.has_data()
    return value


plain = st.recursive(
    st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_plain_values_read_back_in_both_protocols(value: Any) -> None:
    assert decode(encode(value, 2)) == value
    assert decode(encode(value, 3)) == value


@given(st.dictionaries(st.binary(max_size=5), st.binary(max_size=5)))
def test_a_map_is_flat_in_resp2(value: dict[bytes, bytes]) -> None:
    assert decode(encode(value, 2)) == [item for pair in value.items() for item in pair]
    assert decode(encode(value, 3)) == value


@given(st.floats(allow_nan=False))
def test_a_float_reads_back_the_same(value: float) -> None:
    assert float(decode(encode(value, 2))) == value
    assert float(decode(encode(value, 3))) == value


@pytest.mark.parametrize(
    ("value", "two", "three"),
    [
        (OK, b"+OK\r\n", b"+OK\r\n"),
        (Status(b"HI"), b"+HI\r\n", b"+HI\r\n"),
        (None, b"$-1\r\n", b"_\r\n"),
        (NULL_ARRAY, b"*-1\r\n", b"_\r\n"),
        (NO_REPLY, b"", b""),
        (True, b":1\r\n", b":1\r\n"),
        ("é", b"$2\r\n\xc3\xa9\r\n", b"$2\r\n\xc3\xa9\r\n"),
        (bytearray(b"ab"), b"$2\r\nab\r\n", b"$2\r\nab\r\n"),
        pytest.param(memoryview(b"ab"), b"$2\r\nab\r\n", b"$2\r\nab\r\n", id="memoryview"),
        (1.5, b"$3\r\n1.5\r\n", b",1.5\r\n"),
        (float("inf"), b"$3\r\ninf\r\n", b",inf\r\n"),
        ({b"a"}, b"*1\r\n$1\r\na\r\n", b"~1\r\n$1\r\na\r\n"),
        (frozenset({b"a"}), b"*1\r\n$1\r\na\r\n", b"~1\r\n$1\r\na\r\n"),
        (Members([b"b", b"a"]), b"*2\r\n$1\r\nb\r\n$1\r\na\r\n", b"~2\r\n$1\r\nb\r\n$1\r\na\r\n"),
        (Pairs([(b"m", 2.0)]), b"*2\r\n$1\r\nm\r\n$1\r\n2\r\n", b"*1\r\n*2\r\n$1\r\nm\r\n,2\r\n"),
        (Push([b"message", 1]), b"*2\r\n$7\r\nmessage\r\n:1\r\n", b">2\r\n$7\r\nmessage\r\n:1\r\n"),
        (Verbatim("hi"), b"$2\r\nhi\r\n", b"=6\r\ntxt:hi\r\n"),
        (Raw(b":7\r\n"), b":7\r\n", b":7\r\n"),
        (RawPieces([b"*1\r\n", memoryview(b":7\r\n")]), b"*1\r\n:7\r\n", b"*1\r\n:7\r\n"),
        ([RawPieces([b"*0\r\n"]), 1], b"*2\r\n*0\r\n:1\r\n", b"*2\r\n*0\r\n:1\r\n"),
        ((1, 2), b"*2\r\n:1\r\n:2\r\n", b"*2\r\n:1\r\n:2\r\n"),
        (ReplyError("no"), b"-ERR no\r\n", b"-ERR no\r\n"),
        ([WrongType("no")], b"*1\r\n-WRONGTYPE no\r\n", b"*1\r\n-WRONGTYPE no\r\n"),
    ],
    ids=repr,
)
def test_each_kind_has_its_form(value: Any, two: bytes, three: bytes) -> None:
    assert encode(value, 2) == two
    assert encode(value, 3) == three


@pytest.mark.parametrize("kind", [list, Members, dict, Pairs])
@pytest.mark.parametrize("protocol", [2, 3])
@given(
    rows=st.dictionaries(st.binary(max_size=9), st.binary(max_size=9) | st.floats(allow_nan=False), max_size=9),
    long=st.booleans(),
    size=st.sampled_from([1, 2, 7, 512]),
)
def test_pieces_are_the_reply_that_one_call_makes(
    kind: type, protocol: int, rows: dict[bytes, Any], long: bool, size: int
) -> None:
    if long:
        rows[b"long"] = b"x" * LONE
    reply = kind(rows.items()) if kind in (dict, Pairs) else kind(rows.values())
    values = reply.items() if kind is dict else reply
    assert b"".join(in_pieces(kind, len(reply), values, protocol, size).pieces) == encode(reply, protocol)


def test_a_long_string_is_a_piece_by_itself() -> None:
    value = b"x" * LONE
    assert any(piece is value for piece in in_pieces(list, 3, [b"a", value, b"b"], 2).pieces)


def test_an_error_cannot_end_its_line_early() -> None:
    assert encode(ReplyError("a\r\n+OK")) == b"-ERR a  +OK\r\n"


def test_a_value_without_a_form_is_a_bug_and_says_so() -> None:
    with pytest.raises(TypeError, match="object, which has no RESP form"):
        encode(object())


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_a_packed_command_is_an_array_of_bulk_strings(argv: list[bytes]) -> None:
    assert decode(pack(*argv)) == argv


def test_floats_have_seventeen_digits_as_in_redis() -> None:
    assert format_float(3.3) == b"3.2999999999999998"
    assert format_float(-0.0) == b"-0"
