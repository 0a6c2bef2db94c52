"""`penstock check`: what it says about good files, where it finds damage, and what a repair leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.engine.keyspace.databases import Keyspace
from penstock.protocol.resp import pack
from penstock.storage import batches, snapshot
from penstock.storage.batches import framed
from penstock.storage.check import run_check
from penstock.storage.folder_lock import FolderLock
from penstock.storage.manifest import Manifest
from penstock.storage.writer import LogFile


def make_log(path: Path, *groups: list[list[bytes]]) -> None:
    file = LogFile(path)
    for group in groups:
        file.append([framed(b"".join(pack(*argv) for argv in group))], None)
    file.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A snapshot, and a log of a base and two increments."""
    keyspace = Keyspace(16)
    keyspace[0].set(b"a", b"1")
    keyspace[2].set(b"b", 2)
    keyspace[2].expire_at(b"b", 1)
    snapshot.save(tmp_path / "dump.pns", keyspace)
    log = tmp_path / "appendonlydir"
    log.mkdir()
    snapshot.save(log / "x.1.base.pns", keyspace)
    make_log(log / "x.2.incr.aof", [[b"SELECT", b"0"], [b"SET", b"a", b"1"]], [[b"set", b"a", b"2"]], [[b"DEL", b"a"]])
    make_log(log / "x.3.incr.aof", [[b"SELECT", b"0"], [b"SET", b"b", b"1"]])
    Manifest("x.1.base.pns", ("x.2.incr.aof", "x.3.incr.aof"), (), 3).write(log / "x.manifest")
    return tmp_path


def test_a_whole_folder_is_described(folder: Path) -> None:
    report = run_check(folder)
    text = str(report)
    assert report.exit_code == 0
    assert "dump.pns: database 2: 1 string" in text
    assert "2 keys, 1 with an expiry time" in text
    assert "x.manifest: a log of 3 files" in text
    assert "x.2.incr.aof: 2 SET" in text
    assert "x.3.incr.aof: a log," in text
    assert text.endswith("ok")


def test_damage_is_found_with_its_offset_and_nothing_is_touched(folder: Path) -> None:
    path = folder / "appendonlydir" / "x.2.incr.aof"
    offset = [offset for offset, _ in batches.read(path)][1]
    bad = bytearray(path.read_bytes())
    bad[offset + 35] ^= 1
    path.write_bytes(bad)
    for where in (folder, folder / "appendonlydir" / "x.manifest", path):
        report = run_check(where)
        assert report.exit_code == 1
        assert f"x.2.incr.aof: DAMAGED: at byte {offset}: the batch's checksum does not match" in str(report)
    assert path.read_bytes() == bad


def test_a_repair_cuts_the_log_and_takes_out_what_follows(folder: Path) -> None:
    log = folder / "appendonlydir"
    path = log / "x.2.incr.aof"
    offset = [offset for offset, _ in batches.read(path)][1]
    bad = bytearray(path.read_bytes())
    bad[offset + 35] ^= 1
    path.write_bytes(bad)
    assert run_check(path, fix=True).exit_code == 0
    assert path.stat().st_size == offset
    assert (log / "x.2.incr.aof.bak").read_bytes() == bad
    assert (log / "x.3.incr.aof.bak").exists() and not (log / "x.3.incr.aof").exists()
    report = run_check(folder)
    assert report.exit_code == 0
    assert "x.manifest: a log of 2 files" in str(report)


def test_a_torn_end_is_repaired_through_the_manifest(folder: Path) -> None:
    path = folder / "appendonlydir" / "x.3.incr.aof"
    path.write_bytes(path.read_bytes()[:-3])
    assert "(a torn end)" in str(run_check(folder))
    assert run_check(folder, fix=True).exit_code == 0
    assert path.stat().st_size == 0
    assert run_check(folder).exit_code == 0


def test_the_next_repair_keeps_what_the_one_before_kept(folder: Path) -> None:
    path = folder / "appendonlydir" / "x.2.incr.aof"
    whole = path.read_bytes()
    for number, size in enumerate([len(whole) - 3, len(whole) - 30, 5]):
        path.write_bytes(whole[:size])
        assert run_check(path, fix=True).exit_code == 0
        kept = path.with_name(f"{path.name}.bak.{number}" if number else f"{path.name}.bak")
        assert kept.read_bytes() == whole[:size]


def test_a_log_that_a_server_is_writing_is_not_repaired(folder: Path) -> None:
    path = folder / "appendonlydir" / "x.3.incr.aof"
    path.write_bytes(path.read_bytes()[:-3])  # looks torn, as a batch that is being written does
    before = path.read_bytes()
    lock = FolderLock(folder)
    lock.take()
    try:
        report = run_check(folder, fix=True)
        assert report.exit_code == 1
        assert f"not fixed: the folder is in use by process {os.getpid()}" in str(report)
        assert path.read_bytes() == before
    finally:
        lock.release()
    assert run_check(folder, fix=True).exit_code == 0


def test_nothing_is_cut_when_the_manifest_cannot_be_changed_with_it(folder: Path) -> None:
    path = folder / "appendonlydir" / "x.3.incr.aof"
    path.write_bytes(path.read_bytes()[:-3])
    before = path.read_bytes()
    (folder / "appendonlydir" / "x.manifest").write_text("nonsense\n")
    report = run_check(path, fix=True)
    assert report.exit_code == 1
    assert "this is no line of a manifest" in str(report)
    assert path.read_bytes() == before


def test_a_damaged_snapshot_is_reported_and_left_alone(folder: Path) -> None:
    path = folder / "dump.pns"
    bad = bytearray(path.read_bytes())
    bad[-1] ^= 1
    path.write_bytes(bad)
    assert run_check(folder, fix=True).exit_code == 1
    assert path.read_bytes() == bad


def test_what_is_missing_is_reported(folder: Path) -> None:
    missing = run_check(folder / "nothing")
    assert str(missing) == f"{folder / 'nothing'}: there is no such file or folder" and missing.exit_code == 2
    (folder / "empty").mkdir()
    assert run_check(folder / "empty").exit_code == 2
    (folder / "appendonlydir" / "x.1.base.pns").unlink()
    assert "the manifest lists it, and it is not there" in str(run_check(folder))


def test_a_manifest_that_makes_no_sense_is_reported(folder: Path) -> None:
    (folder / "appendonlydir" / "x.manifest").write_text("file x seq one type b\n")
    report = run_check(folder)
    assert report.exit_code == 1
    assert "this is no line of a manifest" in str(report)
