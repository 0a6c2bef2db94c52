"""The feed on the wire, and which logs continue each other."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.twins import is_compilation_expected, pure_twin

from penstock.protocol.errors import ProtocolError
from penstock.protocol.resp import pack
from penstock.replication import frames
from penstock.replication.frames import Frame, out_of_band
from penstock.storage.batches import framed
from penstock.storage.files import StorageError
from penstock.storage.lineage import MOST, Lineage

TWINS = {"chosen": frames, "pure": pure_twin(frames)}
both = pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
words = st.lists(st.binary(max_size=60), min_size=1, max_size=4)
sent = st.lists(st.tuples(st.lists(words, max_size=3), st.booleans()), max_size=10)


def test_the_compiled_twin_is_used_where_it_can_be_built() -> None:
    assert is_compilation_expected() == frames.COMPILED


def encode(commands: list[list[bytes]], logged: bool) -> bytes:
    batch = framed(b"".join(pack(*argv) for argv in commands))
    return batch if logged else b"#OUT" + batch[4:]


def fed(twin: ModuleType, data: bytes, sizes: list[int]) -> list[Frame]:
    """What comes out when the bytes come in pieces of these sizes."""
    reader, got, turn = twin.FrameReader(), list[Frame](), 0
    while data:
        size = sizes[turn % len(sizes)]
        got += reader.feed(data[:size])
        data, turn = data[size:], turn + 1
    return got


@both
@given(sent, st.lists(st.integers(1, 60), min_size=1), st.booleans())
def test_frames_come_out_whole_however_their_bytes_come_in(
    twin: ModuleType, sent: list[tuple[list[list[bytes]], bool]], sizes: list[int], at_once: bool
) -> None:
    data = b"".join(encode(*frame) for frame in sent)
    got = fed(twin, data, [len(data) + 1] if at_once else sizes)
    assert [(frame.commands, frame.logged) for frame in got] == sent
    assert [frame.raw for frame in got] == [encode(*frame) for frame in sent]


@both
def test_only_whole_frames_are_taken_at_once(twin: ModuleType) -> None:
    reader, frame = twin.FrameReader(), encode([[b"PING"]], True)
    assert [whole.commands for whole in reader.feed_whole(frame * 2)] == [[[b"PING"]]] * 2
    assert reader.feed_whole(frame + frame[:9]) is None
    assert reader.feed(frame[:9]) == []
    assert reader.feed_whole(frame) is None
    assert [whole.raw for whole in reader.feed(frame[9:] + frame)] == [frame, frame]


@both
def test_batches_that_are_not_plain_are_understood_too(twin: ModuleType) -> None:
    ping = [b"PING"]
    long = [b"MSET", *(b"%d" % number for number in range(2000))]
    assert [frame.commands for frame in fed(twin, framed(b"#TS:1700000000\r\n" + pack(*ping)), [1000])] == [[ping]]
    assert [frame.commands for frame in fed(twin, encode([long, ping], True), [100_000])] == [[long, ping]]
    assert out_of_band(*ping) == encode([ping], False)


@both
@pytest.mark.parametrize("payload", [b"*1\r\n$4\r\nPI", b"*2\r\n$4\r\nPING\r\n"])
def test_a_batch_that_ends_within_a_command_is_refused(twin: ModuleType, payload: bytes) -> None:
    with pytest.raises(StorageError, match="ends within a command"):
        fed(twin, framed(payload), [1000])


@both
@given(words, st.data())
def test_a_changed_byte_is_found(twin: ModuleType, argv: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(encode([argv], True))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    reader = twin.FrameReader()
    try:
        got = [*reader.feed(bytes(raw)), *reader.feed(bytes(200))]
    except ProtocolError:
        return
    assert got == [(raw, [argv], False)], "#SUM became #OUT, which no checksum covers"


@both
@pytest.mark.parametrize(
    "data",
    [
        b"-ERR this is no feed\r\n", b"-" + b"x" * 100, b"#SUM " + b"0" * 100,
        b"#SUM 4 0000000 00000000\r\n" + b"x" * 60,
        b"#SUM  00000000 00000000\r\n" + b"x" * 60, b"#SUM 4 00000000 0000000x\r\n" + b"x" * 60,
        b"#SUM 4 00000000 00000000\n" + b"x" * 60, b"#SUM 4 00000000  00000000\r\n" + b"x" * 60,
    ],
)  # fmt: skip
def test_bytes_that_are_no_frame_are_refused_at_once(twin: ModuleType, data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not the beginning"):
        twin.FrameReader().feed(data)


@both
def test_a_beginning_that_may_become_a_header_waits_for_the_rest_in_both_twins(twin: ModuleType) -> None:
    reader = twin.FrameReader()
    assert reader.feed(b"#SUM 1a 0000000" + bytes(40)) == []
    with pytest.raises(ProtocolError, match="not the beginning of a frame"):
        reader.feed(bytes(40))


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
