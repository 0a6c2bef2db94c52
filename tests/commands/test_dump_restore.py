"""DUMP and RESTORE, on ours and on a real Redis, and what no payload may do to us."""

from __future__ import annotations

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from tests.keys_of_every_type import EVERY_TYPE, contents, fill_every_type
from tests.value_strategies import plain, values

from penstock import Server
from penstock.commands.dumping import _VERSION_BYTES, _checksum, from_payload, to_payload
from penstock.protocol.errors import ReplyError

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
