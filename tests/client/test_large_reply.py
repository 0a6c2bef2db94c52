"""Large replies arrive where the caller expects them, however the bytes are cut; other replies keep their order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import redis
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.client.clients import Connect
from tests.support.client.scripted import many, single

from penstock import Server, aio
from penstock.client.delivery import Settings, State
from penstock.client.engine.connection import ConnectionCore
from penstock.client.engine.large_reply import LARGE, LARGEST, LargeReply

BULK = b"0123456789abcdef" * (LARGE // 16)
_ONE_REPLY: st.SearchStrategy[tuple[bytes, Any]] = st.sampled_from(
    [
        (b"+OK\r\n", b"OK"),
        (b"$-1\r\n", None),
        (b"$3\r\nfoo\r\n", b"foo"),
        (b"$%d\r\n%b\r\n" % (len(BULK), BULK), BULK),
        (b"$%d\r\n%b\r\n" % (len(BULK) + 1, BULK + b"\r"), BULK + b"\r"),
        (b"*2\r\n:1\r\n$%d\r\n%b\r\n" % (len(BULK), BULK), [1, BULK]),
        (b"*1\r\n*1\r\n$%d\r\n%b\r\n" % (len(BULK), BULK), [[BULK]]),
    ]
)


def _asked(count: int, **options: Any) -> tuple[ConnectionCore, Any]:
    """An engine that has sent so many commands in one batch, and the batch."""
    core = ConnectionCore(Settings(), **options)
    core.connected(0.0)
    batch = many(*[("GET", "key")] * count)
    core.submit(batch, 0.0)
    size = len(core.output())
    core.writer.begin_write(size)
    core.writer.end_write(size)
    return core, batch


def _give(core: ConnectionCore, chunk: bytes) -> None:
    """As a driver does: into the free part of the buffer, and the rest with the next call."""
    while chunk:
        room = core.reader.room()
        if room is None:
            core.received(chunk, 0.0)
            return
        count = min(len(room), len(chunk))
        room[:count] = chunk[:count]
        core.filled(count, 0.0)
        chunk = chunk[count:]


@settings(max_examples=150, deadline=None)
@given(st.lists(_ONE_REPLY, min_size=1, max_size=5), st.data())
def test_replies_are_the_same_wherever_the_bytes_are_cut(replies: list[tuple[bytes, Any]], data: st.DataObject) -> None:
    wire = b"".join(sent for sent, _ in replies)
    ends = [sum(len(sent) for sent, _ in replies[: at + 1]) for at in range(len(replies))]
    near = st.sampled_from(ends).flatmap(lambda end: st.integers(max(end - 3, 0), min(end + 12, len(wire))))
    cuts = sorted(data.draw(st.sets(st.one_of(near, st.integers(0, len(wire))), max_size=8)))
    core, batch = _asked(len(replies))
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        _give(core, wire[start:end])
    assert batch.is_finished and batch.results == [value for _, value in replies]
    assert core.pending.take_finished() == [batch] and core.reader.room() is None


def test_a_large_reply_is_not_copied() -> None:
    core, batch = _asked(1)
    core.received(b"$%d\r\n" % len(BULK) + BULK[:2000], 0.0)
    room = core.reader.room()
    assert room is not None and len(room) == len(BULK) - 2000
    room[:] = BULK[2000:]
    core.filled(len(room), 0.0)
    address = pa.py_buffer(room).address
    room.release()
    assert not batch.is_finished and core.reader.room() is None
    core.received(b"\r\n", 0.0)
    assert batch.results == [BULK]
    assert pa.py_buffer(batch.results[0]).address + 2000 == address


def test_a_reply_that_does_not_end_as_it_should_ends_the_connection() -> None:
    core, batch = _asked(1)
    core.received(b"$%d\r\n" % len(BULK) + BULK[:-100], 0.0)
    assert core.received(BULK[-100:] + b"x", 0.0) and not core.up
    assert "behind a bulk string" in core._reconnecting.reason
    assert core.reader.room() is None and not batch.is_finished


def test_after_a_lost_connection_the_reply_begins_anew() -> None:
    core, batch = _asked(1)
    core.received(b"$%d\r\n" % len(BULK) + BULK[:5000], 0.0)
    core.lost(redis.ConnectionError("gone"), 0.0)
    assert core.reader.room() is None
    core.connected(1.0)
    while data := core.output():
        core.writer.begin_write(len(data))
        core.writer.end_write(len(data))
        if batch.connection != 2:
            core.received(b"+PONG\r\n", 1.0)
    _give(core, b"$%d\r\n%b\r\n" % (len(BULK), BULK))
    assert batch.results == [BULK]


def test_large_text_is_decoded_and_what_cannot_be_fails_alone() -> None:
    core, batch = _asked(2, encoding="utf-8")
    bad = b"\xff" + BULK
    _give(core, (b"$%d\r\n%b\r\n" % (len(bad), bad))[:3000])
    _give(core, (b"$%d\r\n%b\r\n" % (len(bad), bad))[3000:])
    _give(core, b"$%d\r\n" % len(BULK) + BULK[:3000])
    _give(core, BULK[3000:] + b"\r\n")
    failed, text = batch.results
    assert isinstance(failed, UnicodeDecodeError) and text == BULK.decode()
    assert batch.state(0) is State.REPLIED


def test_bytes_that_are_not_to_be_decoded_stay_bytes() -> None:
    core = ConnectionCore(Settings(), encoding="utf-8")
    core.connected(0.0)
    batch = single("GET", "key")
    batch.raw = (0,)
    core.submit(batch, 0.0)
    core.output()
    core.received(b"$%d\r\n" % len(BULK) + BULK[:3000], 0.0)
    _give(core, BULK[3000:] + b"\r\n")
    assert batch.results == [BULK]


@pytest.mark.parametrize(
    "head", [b"$%d\r\n" % (LARGE - 1), b"$%d\r\n" % (LARGEST + 1), b"$-1\r\n", b"$12", b"$x\r\n", b"*2\r\n"]
)
def test_only_what_is_large_and_says_so_lands(head: bytes) -> None:
    assert LargeReply.of(head + b"x" * 2000) is None


def test_large_values_and_small_ones_come_back_in_order(connect: Connect, ours: Server) -> None:
    client = connect(ours.url)
    values = {f"k{size}": bytes([size % 251]) * size for size in (10, LARGE - 1, LARGE, 200_000, 3_000_000, 0)}
    client.mset(values)
    for name, value in values.items():
        assert client.get(name) == value
    with client.pipeline(transaction=False) as pipe:
        for name in [*values, *reversed(values)]:
            pipe.get(name)
        assert pipe.execute() == [*values.values(), *reversed(values.values())]
    assert client.mget(list(values)) == list(values.values())
    for name in values:
        client.delete(name)


def test_large_replies_land_on_another_event_loop_too(ours: Server) -> None:
    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client:
            await client.set("large", BULK * 20)
            assert await client.get("large") == BULK * 20
            assert await client.delete("large") == 1

    uvloop.run(main())
