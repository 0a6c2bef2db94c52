"""The log as files: every kind of cut or damage, and what a restart makes of it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import hiredis
import pytest
from tests.support.storage.life import Life

from penstock import commands
from penstock.protocol.errors import ReplyError
from penstock.storage import batches, manifest
from penstock.storage.files import StorageError

commands.load()


def increment(folder: Path) -> Path:
    """The increment that is written now."""
    [path] = folder.glob("appendonlydir/*.manifest")
    return path.with_name(manifest.read(path).increments[-1])


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1", "INCR n", "INCR n", "SELECT 3", "SET a other", "SET b gone", "DEL b")
    before = first.close()
    assert before == {b"0:a": b"1", b"0:n": b"2", b"3:a": b"other"}
    assert Life(tmp_path).close() == before


def test_expiry_times_are_absolute_and_keys_do_not_expire_while_loading(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1 PX 20000000", "SET b 1 EX 10000")
    times = dict(first.engine.keyspace[0].expires)
    first.close()
    again = Life(tmp_path)
    assert dict(again.engine.keyspace[0].expires) == times
    assert again.engine.keyspace.expiring and not again.engine.loading
    again.close()


def test_every_truncation_of_a_log_loads_the_batches_before_it(tmp_path: Path) -> None:
    first = Life(tmp_path)
    steps = [("SET a 1",), ("INCR n",), ("SET b 2", "SET c 3"), ("DEL a",)]
    states: dict[int, dict[bytes, object]] = {0: {}}
    for step in steps:
        first.unit(*step)
        states[increment(tmp_path).stat().st_size] = first.data
    first.close()
    path = increment(tmp_path)
    whole = path.read_bytes()
    assert max(states) == len(whole)
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        life = Life(tmp_path)
        last_whole = max(end for end in states if end <= size)
        assert life.data == states[last_whole], f"cut at byte {size}"
        assert path.stat().st_size == last_whole, "the torn end is still there"
        life.run("SET after 1")
        after = life.close()
        again = Life(tmp_path)
        assert again.close() == after, "what is written after a torn end is lost"


def test_a_torn_batch_is_one_whatever_its_values_look_like(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1")
    batch = batches.framed(b"") + batches.framed(b"*1\r\n$4\r\nPING\r\n")
    first.engine.execute(first.session, [b"SET", b"b", batch + b"end"])
    first.loop.run()
    first.close()
    path = increment(tmp_path)
    whole = path.read_bytes()
    [_, last] = [offset for offset, _ in batches.read(path)]
    for size in range(last + 1, len(whole)):
        path.write_bytes(whole[:size])
        assert Life(tmp_path).close() == {b"0:a": b"1"}, f"cut at byte {size}"


def test_an_end_of_zeros_is_a_torn_end(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1", "SET b 2")
    first.close()
    path = increment(tmp_path)
    whole = path.read_bytes()
    [_, last] = [offset for offset, _ in batches.read(path)]
    payload_at = whole.index(b"\n", last) + 1
    for kept in (last, payload_at, payload_at + 5, len(whole) - 1):
        path.write_bytes(whole[:kept] + bytes(len(whole) - kept))
        assert Life(tmp_path).close() == {b"0:a": b"1"}, f"zeros from byte {kept}"
    path.write_bytes(whole + bytes(5000))
    assert Life(tmp_path).close() == {b"0:a": b"1", b"0:b": b"2"}
    path.write_bytes(bytes(last) + whole[last:])
    with pytest.raises(StorageError, match="this is not the beginning of a batch"):
        Life(tmp_path)


def test_every_flipped_byte_of_a_log_is_detected(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1")
    first.unit("SET b 2", "SET c 3")
    first.run("DEL a")
    first.close()
    path = increment(tmp_path)
    whole = path.read_bytes()
    last = [offset for offset, _ in batches.read(path)][-1]
    for position in range(len(whole)):
        bad = bytearray(whole)
        bad[position] ^= 0x01
        path.write_bytes(bad)
        with pytest.raises(StorageError) as caught:
            list(batches.read(path))
        if position < last:
            assert not isinstance(caught.value, batches.TornTail), "damage in the middle is no torn end"
            assert "penstock check --fix" in str(caught.value)
            assert caught.value.offset <= position


def test_damage_in_the_middle_refuses_to_start_and_says_where(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1", "SET b 2", "SET c 3")
    first.close()
    path = increment(tmp_path)
    offset = [offset for offset, _ in batches.read(path)][1]
    bad = bytearray(path.read_bytes())
    bad[offset + 30] ^= 1
    path.write_bytes(bad)
    with pytest.raises(StorageError) as caught:
        Life(tmp_path)
    assert (caught.value.path, caught.value.offset) == (path, offset)
    assert path.read_bytes() == bad, "a damaged log was touched"


def test_a_torn_end_is_refused_when_so_configured(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1", "SET b 2")
    first.close()
    path = increment(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="aof-load-truncated"):
        Life(tmp_path, aof_load_truncated="no")
    assert Life(tmp_path).close() == {b"0:a": b"1"}


def test_a_rewrite_keeps_what_was_written_before_during_and_after_it(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run(*["INCR n"] * 100)
    long = first.persistence.aof.size
    assert first.persistence.start_rewrite()
    first.run("INCR n", "SET during 1")
    first.wait_for_child()
    first.run("INCR n")
    assert first.persistence.info()["aof_rewrites"] == 1
    assert first.persistence.aof.size < long
    before = first.close()
    assert before == {b"0:n": b"102", b"0:during": b"1"}
    assert len(list((tmp_path / "appendonlydir").iterdir())) == 3, "old files were not removed"
    assert Life(tmp_path).close() == before


@pytest.mark.parametrize("has_threads", [True, False])
def test_a_thread_frees_what_files_take_that_a_rewrite_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_threads: bool
) -> None:
    chores: list[Callable[[], object]] = []

    def take(compute: Callable[[], object], over: Callable[[], None], for_disk: bool = False) -> bool:
        if has_threads:
            chores.append(compute)
        return has_threads

    def held() -> int:
        links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return sum(link.startswith(str(tmp_path)) and link.endswith("(deleted)") for link in links)

    life = Life(tmp_path)
    monkeypatch.setattr(life.engine.workers, "in_background", take)
    life.run("SET a 1")
    old = {path.name for path in (tmp_path / "appendonlydir").iterdir() if path.suffix != ".manifest"}
    assert life.persistence.start_rewrite()
    life.wait_for_child()
    assert not old & {path.name for path in (tmp_path / "appendonlydir").iterdir()}, "the names are gone at once"
    assert len(chores) == held() == (2 if has_threads else 0), "the base and the increment"
    for chore in chores:
        chore()
    assert held() == 0
    life.close()


def test_a_crash_during_a_rewrite_loses_nothing(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1")
    first.persistence.start_rewrite()
    first.run("SET b 2")
    assert first.persistence._child.running is not None
    first.persistence._child.kill()
    (tmp_path / "appendonlydir" / "temp-1-appendonly.aof.base").write_bytes(b"half a base")
    before = first.close()
    again = Life(tmp_path)
    assert again.data == before == {b"0:a": b"1", b"0:b": b"2"}
    assert not list((tmp_path / "appendonlydir").glob("temp-*"))
    again.persistence.start_rewrite()
    again.wait_for_child()
    assert again.close() == before
    assert Life(tmp_path).close() == before


def test_a_crash_between_the_new_manifest_and_the_clean_up_is_cleaned_up(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1")
    first.close()
    [path] = tmp_path.glob("appendonlydir/*.manifest")
    old = path.with_name("appendonly.aof.0.base.pns")
    old.write_bytes(b"replaced")
    listed = manifest.read(path)
    manifest.Manifest(listed.base, listed.increments, (old.name,), listed.last).write(path)
    assert Life(tmp_path).close() == {b"0:a": b"1"}
    assert not old.exists()


@pytest.mark.parametrize("name", ["a b", " ", "a'b", 'a"b', '"a" seq 1', "#", "ä", "a\tb\n", "\u2028", "\udcff"])
def test_a_log_may_have_any_file_name(tmp_path: Path, name: str) -> None:
    first = Life(tmp_path, appendfilename=name)
    first.run("SET a 1")
    first.close()
    again = Life(tmp_path, appendfilename=name)
    again.persistence.start_rewrite()
    again.wait_for_child()
    assert again.close() == {b"0:a": b"1"}


def test_names_in_a_manifest_of_an_older_version_have_no_quotes(tmp_path: Path) -> None:
    path = tmp_path / "manifest"
    path.write_text("file ä\\x41'.1.base.pns seq 1 type b\n")
    assert manifest.read(path).base == "ä\\x41'.1.base.pns"


def test_a_rewrite_that_cannot_read_the_old_manifest_fails_and_that_is_all(tmp_path: Path) -> None:
    Life(tmp_path).close()
    [listing] = tmp_path.glob("appendonlydir/*.manifest")
    listing.write_text("nonsense\n")
    life = Life(tmp_path, appendonly="no")
    with pytest.raises(ReplyError, match="Can't execute an AOF background rewriting"):
        life.run("BGREWRITEAOF")
    life.close()


def test_a_log_that_lost_a_file_refuses_to_start(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1")
    first.close()
    increment(tmp_path).unlink()
    with pytest.raises(StorageError, match="which is not there"):
        Life(tmp_path)


def test_a_log_that_grew_is_rewritten_by_itself(tmp_path: Path) -> None:
    first = Life(tmp_path, auto_aof_rewrite_min_size="1000", auto_aof_rewrite_percentage="100")
    first.run(*["INCR n"] * 10)
    first.persistence.tick()
    assert first.persistence.info()["aof_rewrite_in_progress"] == 0
    first.run(*["INCR n"] * 50)
    first.persistence.tick()
    assert first.persistence.info()["aof_rewrite_in_progress"] == 1
    first.wait_for_child()
    first.persistence.tick()
    assert first.persistence.info()["aof_rewrite_in_progress"] == 0, "rewritten again at once"
    first.close()


def test_turned_on_at_run_time_the_log_holds_what_was_there_before(tmp_path: Path) -> None:
    first = Life(tmp_path, appendonly="no")
    first.run("SET a 1")
    first.run("CONFIG SET appendonly yes")
    first.run("SET b 2")
    first.wait_for_child()
    first.run("SET c 3")
    before = first.close()
    assert before == {b"0:a": b"1", b"0:b": b"2", b"0:c": b"3"}
    assert Life(tmp_path).close() == before


def test_turned_on_just_before_the_end_the_log_holds_everything(tmp_path: Path) -> None:
    older = Life(tmp_path)
    older.run("SET stale 1", "CONFIG SET appendonly no")
    older.close()
    life = Life(tmp_path, appendonly="no")
    life.run("SET before 1", "CONFIG SET appendonly yes", "SET after 1")
    before = life.close()  # no tick came that could have made a base
    assert before == {b"0:before": b"1", b"0:after": b"1"}
    assert Life(tmp_path).close() == before


def test_turned_off_at_run_time_nothing_more_is_logged(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.run("SET a 1")
    first.run("CONFIG SET appendonly no")
    first.run("SET b 2")
    first.run("CONFIG SET appendonly yes")
    first.wait_for_child()
    first.run("CONFIG SET appendonly no")
    first.run("SET c 3")
    first.close()
    assert Life(tmp_path).close() == {b"0:a": b"1", b"0:b": b"2"}


def test_a_rewrite_without_a_log_makes_a_base_that_loads(tmp_path: Path) -> None:
    first = Life(tmp_path, appendonly="no")
    first.run("SET a 1")
    first.persistence.start_rewrite()
    first.wait_for_child()
    first.close()
    assert Life(tmp_path).close() == {b"0:a": b"1"}


def test_a_first_log_starts_from_the_snapshot(tmp_path: Path) -> None:
    first = Life(tmp_path, appendonly="no")
    first.run("SET a 1")
    first.persistence.save()
    first.close()
    second = Life(tmp_path)
    second.run("SET b 2")
    second.close()
    (tmp_path / "dump.pns").unlink()
    assert Life(tmp_path).close() == {b"0:a": b"1", b"0:b": b"2"}


def test_timestamps_in_the_log_are_passed_over(tmp_path: Path) -> None:
    first = Life(tmp_path, aof_timestamp_enabled="yes")
    first.run("SET a 1")
    first.close()
    assert b"#TS:" in increment(tmp_path).read_bytes()
    assert Life(tmp_path).close() == {b"0:a": b"1"}


def test_a_batch_of_a_long_script_is_parsed_a_chunk_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hiredis moves all it still holds after every kilobyte: fed a whole batch, its work grows with the square."""
    fed: list[int] = []

    class Watched:
        def __init__(self, **options: object) -> None:
            self._reader = hiredis.Reader(**options)
            self.gets, self.has_data = self._reader.gets, self._reader.has_data

        def feed(self, data: bytes) -> None:
            fed.append(len(data))
            self._reader.feed(data)

    payload = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100\r\n%b\r\n" % (b"x" * 100) * 5000
    path = tmp_path / "log"
    path.write_bytes(batches.framed(payload))
    monkeypatch.setattr(batches, "COMPILED", False)
    monkeypatch.setattr(batches, "hiredis", SimpleNamespace(Reader=Watched))
    [(_, found)] = batches.read(path)
    assert len(found) == 5000
    assert sum(fed) == len(payload)
    assert max(fed) <= 1 << 16


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("cut", [1, 3, 110, 130])
def test_a_batch_that_ends_within_a_command_is_damage(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, cut: int
) -> None:
    monkeypatch.setattr(batches, "COMPILED", compiled and batches.COMPILED)
    whole = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100\r\n%b\r\n" % (b"x" * 100)
    assert batches.commands_of(Path("log"), 0, whole * 2) == [[b"SET", b"a", b"x" * 100]] * 2
    with pytest.raises(StorageError, match="ends within a command"):
        batches.commands_of(Path("log"), 0, (whole * 2)[:-cut])


def test_a_batch_of_a_long_script_is_loaded_in_slices(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.unit(*[f"SET k{number} 1" for number in range(2000)])
    before = first.close()
    again = Life(tmp_path)
    assert again.data == before
    again.engine.loading = True
    assert len(list(again.persistence.aof.load())) >= 4
    again.engine.loading = False
    again.close()


def test_writes_are_let_in_as_soon_as_a_sync_works_again(tmp_path: Path) -> None:
    broken = False

    def sync(descriptor: int) -> None:
        if broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    life = Life(tmp_path, sync=sync)

    def a_second_later() -> None:
        """What the next tick does once a second has passed, and what comes of it."""
        writer = life.persistence.aof.writer
        assert writer is not None
        writer._last_sync = life.persistence._rewrites.last_try = time.monotonic() - 1.01
        life.persistence.tick()
        writer._wait()
        life.wait_for_child()

    life.run("SET a 1")
    broken = True
    life.run("BGREWRITEAOF")
    life.wait_for_child()
    assert life.persistence.info()["aof_last_bgrewrite_status"] == "err", "its log could not be synced"
    for _ in range(3):
        a_second_later()
        with pytest.raises(ReplyError, match="Input/output error"):
            life.run("SET b 1")
    assert life.persistence.info()["aof_rewrites_consecutive_failures"] == 1, "it did not wait for the disk"
    broken = False
    a_second_later()
    life.run("SET b 2")
    after = life.close()
    assert Life(tmp_path).close() == after == {b"0:a": b"1", b"0:b": b"2"}
