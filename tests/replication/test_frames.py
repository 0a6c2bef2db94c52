"""The feed on the wire, and which logs continue each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.errors import ProtocolError
from penstock.protocol.resp import pack
from penstock.replication.frames import Frame, FrameReader, out_of_band
from penstock.storage.batches import framed
from penstock.storage.lineage import MOST, Lineage

payloads = st.lists(st.tuples(st.binary(max_size=200), st.booleans()), max_size=10)


def encode(payload: bytes, logged: bool) -> bytes:
    return framed(payload) if logged else out_of_band(payload)


@given(payloads, st.lists(st.integers(1, 60), min_size=1))
def test_frames_come_out_whole_however_their_bytes_come_in(sent: list[tuple[bytes, bool]], sizes: list[int]) -> None:
    data = b"".join(encode(*frame) for frame in sent)
    reader, got = FrameReader(), list[Frame]()
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        got += reader.feed(data[:size])
        data, turn = data[size:], turn + 1
    assert [(frame.payload, frame.logged) for frame in got] == [
        (payload if logged else pack(payload), logged) for payload, logged in sent
    ]
    assert [frame.raw for frame in got] == [encode(*frame) for frame in sent]


@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_changed_byte_is_found(payload: bytes, data: st.DataObject) -> None:
    raw = bytearray(framed(payload))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    reader = FrameReader()
    try:
        frames = [*reader.feed(bytes(raw)), *reader.feed(bytes(200))]
    except ProtocolError:
        return
    assert frames == [Frame(bytes(raw), payload, False)], "#SUM became #OUT, which no checksum covers"


def test_bytes_that_are_no_frame_are_refused_at_once() -> None:
    with pytest.raises(ProtocolError, match="not the beginning"):
        list(FrameReader().feed(b"-ERR this is no feed\r\n"))


def test_the_lineage_of_a_log_is_bounded() -> None:
    lineage = Lineage()
    for end in range(MOST + 10):
        lineage = lineage.continued(end)
    assert len(lineage.feeds) == MOST
    assert lineage.feeds[-1][1] == MOST + 9


def test_a_promoted_log_continues_the_one_before() -> None:
    before = Lineage((("a", 0),))
    after = before.continued(100)
    assert after.common("a", 100, 150) == 100
    assert after.common("a", 130, 150) == 100, "what came after the promotion is its own"
    assert after.common("b", 100, 150) is None
