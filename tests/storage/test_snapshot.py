"""The snapshot file: everything comes back, and no damage goes unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.twins import pure_twin

from penstock import commands
from penstock.engine.dispatch import Engine
from penstock.engine.keyspace.databases import Keyspace
from penstock.engine.session import Session
from penstock.storage import blocks, snapshot
from penstock.storage.files import StorageError
from penstock.types import codec
from penstock.types.set import Set

commands.load()


@pytest.fixture(autouse=True, params=["compiled", "pure"] if blocks.COMPILED else ["pure"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are written by either version of blocks.py."""
    if request.param == "pure":
        monkeypatch.setattr(snapshot, "write_database", pure_twin(blocks).write_database)


def filled() -> Keyspace:
    keyspace = Keyspace(16)
    keyspace[0].set(b"plain", b"text")
    keyspace[0].set(b"", b"")
    keyspace[0].set(b"counter", 7)
    keyspace[0].set(b"edited", bytearray(b"grown"))
    keyspace[3].set(b"other", b"database")
    keyspace[3].expire_at(b"other", 5_000)
    keyspace[3].set(b"stays", b"here")
    return keyspace


def _plain(value: object) -> object:
    """Something that equal values have in common: the order of a set's members is not."""
    if isinstance(value, int):
        return str(value).encode()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    return set(value) if isinstance(value, Set) else codec.dump(value)


def contents(keyspace: Keyspace) -> list[tuple[dict[bytes, object], dict[bytes, int]]]:
    return [
        (
            {key: _plain(value) for key, value in database.data.items()},
            dict(database.expires),
        )
        for database in keyspace.databases
    ]  # fmt: skip


def loaded(path: Path, expired_before: int = 0) -> Keyspace:
    keyspace = Keyspace(16)
    for _ in snapshot.load(path, keyspace, expired_before):
        pass
    return keyspace


def test_everything_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "dump.pns"
    engine = Engine()
    session = Session(engine)
    for text in (
        "SET s 1",
        "HSET h a 1 b 2",
        "RPUSH l x y x",
        "SADD m 1 two",
        "ZADD z 1.5 a -inf b",
        "SET gone x PX 99",
    ):
        engine.execute(session, text.encode().split())
    snapshot.save(path, engine.keyspace)
    assert len(loaded(path)[0]) == 6
    assert contents(loaded(path)) == contents(engine.keyspace)
    assert [entry.name for entry in tmp_path.iterdir()] == ["dump.pns"]


def test_an_empty_keyspace_comes_back(tmp_path: Path) -> None:
    snapshot.save(tmp_path / "dump.pns", Keyspace(16))
    assert contents(loaded(tmp_path / "dump.pns")) == contents(Keyspace(16))


def test_many_and_big_values_are_cut_into_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BYTES_A_BLOCK", 1000)
    monkeypatch.setattr(blocks, "KEYS_A_BLOCK", 50)
    keyspace = Keyspace(16)
    for number in range(333):
        keyspace[0].set(b"key:%d" % number, b"x" * (number * 7 % 400) if number % 60 else number)
    snapshot.save(tmp_path / "dump.pns", keyspace)
    found = list(snapshot.read(tmp_path / "dump.pns"))
    assert len(found) > 333 // 50
    assert sum(len(block.keys) for block in found) == 333
    assert contents(loaded(tmp_path / "dump.pns")) == contents(keyspace)


@pytest.mark.parametrize("when", [0, 9_000])
def test_an_empty_collection_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, when: int
) -> None:
    """A module may have left one; nothing that was written may be refused."""
    keyspace = filled()
    keyspace[0].data.update({b"empty": Set(), b"full": Set({b"x"})})
    if when:
        keyspace[0].expire_at(b"full", when)
    snapshot.save(tmp_path / "file", keyspace)
    loaded = Keyspace(16)
    for _ in snapshot.load(tmp_path / "file", loaded):
        pass
    assert b"empty" not in loaded[0].data and loaded[0].data[b"full"] == {b"x"}
    assert loaded[0].expires == ({b"full": when} if when else {})
    assert "1 keys with empty values are left out" in caplog.text


def test_keys_that_expired_since_the_snapshot_are_left_out_on_request(tmp_path: Path) -> None:
    snapshot.save(tmp_path / "dump.pns", filled())
    assert b"other" in loaded(tmp_path / "dump.pns", expired_before=4_999)[3].data
    late = loaded(tmp_path / "dump.pns", expired_before=5_000)
    assert b"other" not in late[3].data and not late[3].expires
    assert b"stays" in late[3].data


def test_every_flipped_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "dump.pns"
    snapshot.save(path, filled())
    good = path.read_bytes()
    for position in range(len(good)):
        for mask in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[position] ^= mask
            path.write_bytes(bad)
            with pytest.raises(StorageError) as caught:
                loaded(path)
            assert str(path) in str(caught.value)


def test_every_truncation_and_every_addition_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "dump.pns"
    snapshot.save(path, filled())
    good = path.read_bytes()
    for size in range(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(StorageError):
            loaded(path)
    path.write_bytes(good + b"\0")
    with pytest.raises(StorageError, match="follows the end"):
        loaded(path)


def test_a_lost_block_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "dump.pns"
    snapshot.save(path, filled())
    good = path.read_bytes()
    first, second = [block.offset for block in snapshot.read(path)]
    path.write_bytes(good[:first] + good[second:])
    with pytest.raises(StorageError, match="missing, repeated or out of order"):
        loaded(path)


def test_damage_is_located(tmp_path: Path) -> None:
    path = tmp_path / "dump.pns"
    snapshot.save(path, filled())
    offset = [block.offset for block in snapshot.read(path)][1]
    bad = bytearray(path.read_bytes())
    bad[offset + 40] ^= 1
    path.write_bytes(bad)
    with pytest.raises(StorageError) as caught:
        loaded(path)
    assert caught.value.offset == offset


class Unreadable:
    """A value that lies on a disk which is broken."""

    def dump(self) -> bytes:
        raise OSError("unreadable")


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "dump.pns"
    snapshot.save(path, filled())
    good = path.read_bytes()
    keyspace = filled()
    keyspace[0].set(b"bad", Unreadable())
    with pytest.raises(OSError, match="unreadable"):
        snapshot.save(path, keyspace)
    assert path.read_bytes() == good
    assert [entry.name for entry in tmp_path.iterdir()] == ["dump.pns"]
