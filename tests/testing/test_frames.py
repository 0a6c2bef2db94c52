from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.resp import encode, pack
from penstock.testing.frames import command_name, frame_end

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.binary() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.binary(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(values, min_size=1, max_size=4), st.sampled_from([2, 3]), st.data())
def test_frames_are_found_whole_and_only_when_they_are_whole(replies: list[Any], protocol: int, data: Any) -> None:
    frames = [encode(reply, protocol) for reply in replies]
    stream = b"".join(frames)
    at = 0
    for frame in frames:
        assert frame_end(stream, at) == at + len(frame)
        cut = data.draw(st.integers(at, at + len(frame) - 1))
        assert frame_end(stream[:cut], at) == -1
        at += len(frame)


def test_an_attribute_belongs_to_the_reply_it_announces() -> None:
    reply = b"|1\r\n+ttl\r\n:3600\r\n$1\r\nv\r\n"
    assert frame_end(reply + b"+OK\r\n") == len(reply)


def test_an_invalid_frame_is_an_error() -> None:
    with pytest.raises(ValueError, match="no RESP frame begins with b'G'"):
        frame_end(b"GET k\r\n")


def test_a_request_names_its_command() -> None:
    assert command_name(pack(b"client", b"info")) == b"CLIENT"
