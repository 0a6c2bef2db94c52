"""DUMP and RESTORE, on ours and on a real Redis, and what no payload may do to us."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from tests.support.keys_of_every_type import EVERY_TYPE, contents, fill_every_type
from tests.support.value_strategies import plain, values

from penstock import Server
from penstock.commands.dumping import _VERSION_BYTES, _checksum, from_payload, to_payload
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import OK, RawPieces
from penstock.types import codec
from penstock.types.packing import CorruptValue
from penstock.types.stream.arrow_size import unpacked_size
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Storage
from penstock.types.stream.producers import Stages
from penstock.types.stream.stream import Stream

WRONG = "DUMP payload version or checksum are wrong"


@pytest.mark.parametrize("key", EVERY_TYPE.values())
def test_what_was_dumped_is_restored(r: redis.Redis, key: str) -> None:
    fill_every_type(r)
    payload = r.dump(key)
    assert r.restore("copy", 0, payload)
    assert contents(r, "copy") == contents(r, key)
    assert r.ttl("copy") == -1
    assert r.dump("missing") is None


def test_ttl_is_relative_unless_told_otherwise(r: redis.Redis) -> None:
    r.set("k", "v")
    payload = r.dump("k")
    r.restore("relative", 1_000_000, payload)
    assert 990_000 < r.pttl("relative") <= 1_000_000
    r.restore("absolute", 33_000_000_000_000, payload, absttl=True)
    assert r.pttl("absolute") > 10_000_000_000_000
    assert r.restore("past", 5, payload, absttl=True)
    assert r.exists("past") == 0
    assert r.restore("k", 5, payload, absttl=True, replace=True)
    assert r.exists("k") == 0


def test_idle_time_and_frequency_are_accepted(r: redis.Redis) -> None:
    r.set("k", "v")
    payload = r.dump("k")
    assert r.restore("idle", 0, payload, idletime=100)
    assert r.restore("frequent", 0, payload, frequency=255)


def test_replace_is_needed_for_a_key_that_exists(r: redis.Redis) -> None:
    r.set("k", "v")
    payload = r.dump("k")
    r.rpush("l", "a")
    r.pexpireat("l", 33_000_000_000_000)
    with pytest.raises(redis.ResponseError, match="BUSYKEY Target key name already exists"):
        r.restore("l", 0, payload)
    assert r.type("l") == b"list"
    assert r.restore("l", 0, payload, replace=True)
    assert r.get("l") == b"v"
    assert r.ttl("l") == -1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("n", "-1"), "Invalid TTL value, must be >= 0"),
        (("n", "x"), "value is not an integer or out of range"),
        (("k", "x"), "BUSYKEY Target key name already exists."),
        (("k", "0", "NOW"), "syntax error"),
        (("n", "0", "IDLETIME"), "syntax error"),
        (("n", "0", "IDLETIME", "-1"), "Invalid IDLETIME value, must be >= 0"),
        (("n", "0", "FREQ", "256"), "Invalid FREQ value, must be >= 0 and <= 255"),
        (("n", "0", "FREQ", "x"), "value is not an integer or out of range"),
        (("n", "0", "FREQ", "1", "IDLETIME", "1"), "syntax error"),
    ],
)
def test_errors_are_those_of_redis(r: redis.Redis, arguments: tuple[str, ...], error: str) -> None:
    r.set("k", "v")
    name, ttl, *options = arguments
    with pytest.raises(redis.ResponseError) as caught:
        r.execute_command("RESTORE", name, ttl, r.dump("k"), *options)
    assert str(caught.value) == error
    assert r.dbsize() == 1


def test_a_damaged_payload_changes_nothing(r: redis.Redis) -> None:
    r.rpush("l", *range(20))
    payload = r.dump("l")
    r.set("k", "old", px=60_000_000)
    for at in range(0, len(payload), 3):
        damaged = bytearray(payload)
        damaged[at] ^= 0x41
        with pytest.raises(redis.ResponseError, match=WRONG):
            r.restore("k", 0, bytes(damaged), replace=True)
    for end in range(len(payload)):
        with pytest.raises(redis.ResponseError, match=WRONG):
            r.restore("k", 0, payload[:end], replace=True)
    assert r.get("k") == b"old"
    assert r.ttl("k") > 0


def test_restore_is_logged_with_an_absolute_time(ours: Server) -> None:
    with redis.Redis.from_url(ours.url) as client:
        client.flushall()
        client.set("k", "v")
        payload = client.dump("k")
        logged: list[tuple[int, list[bytes]]] = []

        def attach(app: object, log: object) -> None:
            app.engine.log = log  # type: ignore[attr-defined]
            app.engine.require_gates("test", log is not None)  # type: ignore[attr-defined]

        ours.call(lambda app: attach(app, logged.extend))
        try:
            client.restore("new", 100_000, payload)
            client.restore("k", 5, payload, absttl=True, replace=True)
        finally:
            ours.call(lambda app: attach(app, None))
        (_, restored), (_, deleted) = logged
        assert restored[:2] == [b"RESTORE", b"new"]
        assert int(restored[2]) == client.pexpiretime("new")
        assert restored[3:] == [payload, b"REPLACE", b"ABSTTL"]
        assert deleted == [b"DEL", b"k"]


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(ReplyError, match=WRONG):
        from_payload(payload)


@given(st.binary(max_size=200))
def test_random_bytes_with_a_right_checksum_are_a_value_or_refused(body: bytes) -> None:
    body += _VERSION_BYTES
    try:
        value = from_payload(body + _checksum(body))
    except ReplyError as error:
        assert str(error) in ("Bad data format", WRONG)
    else:
        assert plain(from_payload(to_payload(value))) == plain(value)


@given(values, st.data())
def test_a_mutated_payload_is_refused(value: object, data: st.DataObject) -> None:
    payload = bytearray(to_payload(value))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ReplyError, match=WRONG):
        from_payload(bytes(payload))


def _with_zeros(messages: Messages) -> None:
    messages.append_many(0, [b""] * 1000, [bytes(2000)] * 1000)
    messages.append(0, b"tag", b"in the node that is being written")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_node_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(
    ours: Server, compression: Literal["lz4", "zstd"]
) -> None:
    stream = Stream(Storage(compression, hot_nodes=0))
    _with_zeros(stream.messages)
    payload = to_payload(stream)
    assert len(payload) < 40_000
    unpacked = unpacked_size(stream.messages.nodes[0].payload)
    with redis.Redis.from_url(ours.url) as client:
        client.set("k", "old")
        before = client.config_get("proto-max-bulk-len")
        client.config_set("proto-max-bulk-len", 1 << 20)
        try:
            with pytest.raises(redis.ResponseError) as refused:
                client.restore("k", 0, payload, replace=True)
        finally:
            client.config_set("proto-max-bulk-len", before["proto-max-bulk-len"])
        assert str(refused.value) == (
            f"serialized-value refused: stream node 0 unpacks to {unpacked} bytes, "
            "and proto-max-bulk-len allows 1048576"
        )
        assert client.get("k") == b"old"
        assert client.restore("k", 0, payload, replace=True)
        assert client.execute_command("TREAD k 1001 1") == [[1001, b"tag", b"in the node that is being written"]]


def test_a_node_that_claims_more_than_it_holds_is_refused() -> None:
    stream = Stream(Storage("zstd", hot_nodes=0))
    _with_zeros(stream.messages)
    entries = 4 + 2000 * 1000  # how long the column of entries is said to be
    body = codec.dump(stream)
    for claimed in (1 << 50, -2, -(1 << 62)):
        forged = body.replace((entries - 4).to_bytes(8, "little"), claimed.to_bytes(8, "little", signed=True))
        assert forged != body
        forged += _VERSION_BYTES
        with pytest.raises(ReplyError, match=r"stream node 0 unpacks to|Bad data format"):
            from_payload(forged + _checksum(forged), 1 << 29)


def test_a_stage_that_unpacks_to_more_than_it_is_long_is_refused() -> None:
    def staged(compression: str | None) -> bytes:
        batch = pa.record_batch({"tag": pa.array([b""]), "entry": pa.array([bytes(1 << 20)])})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_batch(batch)
        parts = iter([struct.pack("<qI", 0, 1), sink.getvalue().to_pybytes()])
        stages = Stages()
        stages.load_one(b"token", parts)
        return b"".join(stages.by_token[b"token"].batches[0].column("entry").to_pylist())

    assert staged(None) == bytes(1 << 20)
    with pytest.raises(CorruptValue, match="unpacks to"):
        staged("zstd")


@pytest.mark.parametrize("kept_by", [{"appendonly": True}, {"save": "3600 1"}], ids=["log", "snapshot"])
def test_what_was_restored_once_is_there_after_a_start_with_a_lower_limit(
    tmp_path: Path, kept_by: dict[str, Any]
) -> None:
    stream = Stream(Storage("lz4", hot_nodes=0))
    _with_zeros(stream.messages)
    with Server(dir=tmp_path, **kept_by) as server, redis.Redis.from_url(server.url) as client:
        client.restore("k", 0, to_payload(stream))
    with (
        Server(dir=tmp_path, proto_max_bulk_len=1 << 20, **kept_by) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        assert client.execute_command("TREAD k 1000 1") == [[1000, b"", bytes(2000)]]


def test_others_are_served_while_a_long_string_is_dumped_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Engine())
    execute = session.engine.execute
    execute(session, [b"SETRANGE", b"long", b"1000000", b"x"])
    work: list[int] = []

    def aside(_: Session, amount: int, compute: Any, commit: Any = lambda result: result) -> Any:
        work.append(amount)
        return commit(compute())

    monkeypatch.setattr(Session, "aside", aside)
    reply = execute(session, [b"DUMP", b"long"])
    assert isinstance(reply, RawPieces)
    payload = b"".join(reply.pieces).partition(b"\r\n")[2].removesuffix(b"\r\n")
    assert execute(session, [b"RESTORE", b"copy", b"0", payload]) == OK
    assert execute(session, [b"GET", b"copy"]) == execute(session, [b"GET", b"long"])
    assert len(work) == 2 and min(work) > 1000
