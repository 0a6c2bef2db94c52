"""Bytes to the replies of a batch: the short path for MOVED gives the same as hiredis, however the bytes are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.client.cluster.driver_requests import NodeBatch
from penstock.client.cluster.errors import Moved, decode_error
from penstock.client.cluster.replies import NodeReplyReader

ENCODER = redis.Redis().get_encoder()

MOVED = [b"-MOVED %d %b\r\n" % (slot, place) for slot in (7, 16383) for place in (b"a:1", b"a:11", b"[::1]:1", b":1")]
OTHERS = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b"-MOVEDX 7 a:1\r\n",
    b"$21\r\n\r\n-MOVED 7 a:1\r\n-MOV \r\n",
    b"*2\r\n-MOVED 7 a:1\r\n-MOVED 7 a:1\r\n",
    b"*1\r\n-ERR nested\r\n",
]


def read(replies: NodeReplyReader, data: bytes, cuts: Sequence[int], wanted: int) -> list[Any]:
    """The replies to a batch, from bytes that come in pieces."""
    into: list[Any] = []
    batch = NodeBatch(("a", 1), [b""] * wanted, [*range(wanted)])
    ends = sorted({cut for cut in cuts if 0 < cut < len(data)} | {len(data)})
    for begin, end in zip([0, *ends], ends, strict=False):
        replies.take(memoryview(data)[begin:end], into, batch)
    return into


def expected(data: bytes) -> list[Any]:
    reader = hiredis.Reader(replyError=decode_error, notEnoughData=None)  # type: ignore[arg-type]
    reader.feed(data)
    return list(iter(reader.gets, None))


def plain(reply: Any) -> Any:
    """For comparison: exceptions are equal if they say the same."""
    if isinstance(reply, list):
        return [plain(item) for item in reply]
    return (type(reply), str(reply)) if isinstance(reply, Exception | Moved) else reply


lines = st.one_of(
    st.lists(st.sampled_from(MOVED[:1]), min_size=1, max_size=6),  # the case of the short path
    st.lists(st.sampled_from(MOVED + OTHERS), max_size=4),
)


@given(st.lists(lines.filter(bool), min_size=1, max_size=3), st.lists(st.integers(1, 120), max_size=6))
@example([MOVED[:1] * 3], [3, 8, 15, 16])
@example([OTHERS[4:5]], [4, 18])  # in the middle of an array, with MOVED at the head of what comes next
def test_replies_are_what_hiredis_makes_of_them(batches: list[list[bytes]], cuts: list[int]) -> None:
    replies = NodeReplyReader(ENCODER)
    for batch in batches:  # one after the other on a connection
        data = b"".join(batch)
        assert plain(read(replies, data, cuts, len(batch))) == plain(expected(data))


def test_thousands_that_moved_to_one_place_are_one_object() -> None:
    data = b"".join(b"-MOVED %d 10.0.0.1:7000\r\n" % slot for slot in range(5000))
    replies = read(NodeReplyReader(ENCODER), data, range(65536, len(data), 65536), 5000)
    assert replies == [Moved("10.0.0.1:7000")] * 5000
    assert len(set(map(id, replies))) == 3, "one for each read"


@pytest.mark.parametrize("line", [b"-MOVED 7 a:1\r\n", b"+OK\r\n"])
def test_an_unexpected_reply_is_an_error(line: bytes) -> None:
    with pytest.raises(redis.InvalidResponse, match="a reply to no command"):
        read(NodeReplyReader(ENCODER), line * 3, (), 2)
