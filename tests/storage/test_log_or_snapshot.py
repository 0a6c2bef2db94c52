"""A server does not begin with the older one of log and snapshot."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.storage.life import Life

from penstock.storage import manifest as manifests
from penstock.storage import saves
from penstock.storage.folder_lock import FolderUnusable
from penstock.storage.log_or_snapshot import OlderData

RULES = "3600 1000000"
LOG_LACKS = re.escape("is newer than the log in")
SNAPSHOT_LACKS = r"holds a log with changes that the snapshot .*dump.pns lacks, and `appendonly no` would not read it"
NO_SNAPSHOT = "holds a log with changes that are in no snapshot, and `appendonly no` would not read it"


def killed(life: Life) -> None:
    """The process is gone: nothing is written any more, and the lock of the folder ends."""
    life.persistence._child.kill()
    life.persistence._lock.release()


def without_marks(folder: Path) -> None:
    """The log as an older version left it."""
    path = folder / "appendonlydir/appendonly.aof.manifest"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("#state")))


def refuse(*paths: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def values(folder: Path, **directives: str) -> dict[bytes, object]:
    life = Life(folder, **directives)
    killed(life)
    return life.data


def test_a_log_that_no_snapshot_has_is_not_left_out(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.run("SET a 1")
    killed(life)
    with pytest.raises(OlderData, match=NO_SNAPSHOT) as raised:
        Life(tmp_path, appendonly="no")
    assert f"{tmp_path / 'appendonlydir'} holds" in str(raised.value)
    assert "Start with --appendonly yes; to give these changes up, move appendonlydir away" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert values(tmp_path) == {b"0:a": b"1"}


@pytest.mark.parametrize("save", ["", RULES])
@pytest.mark.parametrize("end", [killed, Life.close])
def test_a_log_that_is_further_than_the_snapshot_is_not_left_out(
    tmp_path: Path, save: str, end: Callable[[Life], object]
) -> None:
    life = Life(tmp_path, save=save)
    life.run("SET a 1", "SAVE", "SET b 2")
    end(life)
    if save and end is Life.close:
        assert values(tmp_path, appendonly="no", save=save) == {b"0:a": b"1", b"0:b": b"2"}
    else:
        with pytest.raises(OlderData, match=SNAPSHOT_LACKS):
            Life(tmp_path, appendonly="no", save=save)
    assert values(tmp_path, save=save) == {b"0:a": b"1", b"0:b": b"2"}


def test_a_snapshot_that_has_the_whole_log_will_do(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.run("SET a 1", "SAVE")
    killed(life)
    assert values(tmp_path, appendonly="no") == {b"0:a": b"1"}
    assert values(tmp_path) == {b"0:a": b"1"}
    assert values(tmp_path, appendonly="no") == {b"0:a": b"1"}, "it was opened since, and nothing was written"


def test_a_snapshot_that_is_longer_than_a_log_that_lost_its_end_does_not_replace_what_was_logged_since(
    tmp_path: Path,
) -> None:
    life = Life(tmp_path)
    life.run("SET a 1", f"SET b {'x' * 300}", "SAVE")
    killed(life)
    [increment] = (tmp_path / "appendonlydir").glob("*.incr.aof")
    os.truncate(increment, increment.stat().st_size - 50)  # a power cut: the snapshot was synced, the log was not
    assert values(tmp_path) == {b"0:a": b"1"}
    assert b"0:b" in values(tmp_path, appendonly="no"), "nothing was logged since"
    life = Life(tmp_path)
    life.run("SET c 3")
    killed(life)
    with pytest.raises(OlderData, match=SNAPSHOT_LACKS):
        Life(tmp_path, appendonly="no")
    assert values(tmp_path) == {b"0:a": b"1", b"0:c": b"3"}


def test_a_snapshot_of_a_child_that_has_the_whole_log_will_do(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.run("SET a 1", "BGSAVE")
    life.wait_for_child()
    killed(life)
    assert values(tmp_path, appendonly="no") == {b"0:a": b"1"}


@pytest.mark.parametrize("later", [False, True], ids=["first snapshot", "a later one"])
def test_an_older_log_is_not_read_when_the_snapshot_went_on(tmp_path: Path, later: bool) -> None:
    life = Life(tmp_path, save=RULES)
    life.run("SET a 1")
    life.close()
    life = Life(tmp_path, appendonly="no", save=RULES)
    life.run("SET a 2", "SAVE")
    killed(life)
    if later:
        life = Life(tmp_path, appendonly="no", save=RULES)
        life.run("SET a 3")
        life.close()
    with pytest.raises(OlderData, match=LOG_LACKS) as raised:
        Life(tmp_path)
    assert str(tmp_path / "dump.pns") in str(raised.value) and str(tmp_path / "appendonlydir") in str(raised.value)
    assert "Start with --appendonly no, then CONFIG SET appendonly yes" in str(raised.value)
    assert "move dump.pns away" in str(raised.value)
    assert values(tmp_path, appendonly="no") == {b"0:a": b"3" if later else b"2"}
    (tmp_path / "dump.pns").rename(tmp_path / "given-up.pns")
    assert values(tmp_path) == {b"0:a": b"1"}


@pytest.mark.parametrize("line", ["SET a 1", "PING"])
def test_a_server_that_ran_without_its_log_and_changed_nothing_may_have_it_again(tmp_path: Path, line: str) -> None:
    life = Life(tmp_path, save=RULES)
    life.run(line)
    life.close()
    before = life.data
    for _ in range(2):
        life = Life(tmp_path, appendonly="no", save=RULES)
        life.run("GET a")
        life.close()
    life = Life(tmp_path, save=RULES)
    life.run("CONFIG SET appendonly no", "GET a")
    life.wait_for_child()
    life.close()
    assert values(tmp_path, save=RULES) == before
    life = Life(tmp_path, appendonly="no", save=RULES)
    life.run("SET a 2")
    life.close()
    with pytest.raises(OlderData, match=LOG_LACKS):
        Life(tmp_path, save=RULES)


def test_the_remedy_for_an_older_log_makes_a_new_one(tmp_path: Path) -> None:
    life = Life(tmp_path, save=RULES)
    life.run("SET a 1")
    life.close()
    life = Life(tmp_path, appendonly="no", save=RULES)
    life.run("SET a 2")
    life.close()
    life = Life(tmp_path, appendonly="no", save=RULES)
    life.run("CONFIG SET appendonly yes")
    life.wait_for_child()
    life.run("SET b 3")
    killed(life)
    assert values(tmp_path) == {b"0:a": b"2", b"0:b": b"3"}
    with pytest.raises(OlderData, match=SNAPSHOT_LACKS):
        Life(tmp_path, appendonly="no")


def test_a_log_that_was_turned_off_may_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    life = Life(tmp_path)
    life.run("SET a 1", "CONFIG SET appendonly no", "SET a 2")
    killed(life)
    assert values(tmp_path, appendonly="no") == {}
    assert "appendonlydir holds a log, and `appendonly no` does not read it" in caplog.text
    assert values(tmp_path) == {b"0:a": b"1"}, "nothing newer is on disk"
    with pytest.raises(OlderData, match=NO_SNAPSHOT):
        Life(tmp_path, appendonly="no")  # it was on again


def test_with_save_rules_a_log_that_is_turned_off_counts_until_a_snapshot_has_what_it_has(tmp_path: Path) -> None:
    life = Life(tmp_path, save=RULES)
    life.run("SET a 1", "CONFIG SET appendonly no", "SET a 2")
    shutil.copytree(tmp_path, tmp_path / "copy")
    with pytest.raises(OlderData, match=NO_SNAPSHOT):
        Life(tmp_path / "copy", appendonly="no", save=RULES)
    assert values(tmp_path / "copy") == {b"0:a": b"1"}
    life.persistence.tick()
    life.wait_for_child()
    killed(life)
    assert values(tmp_path, appendonly="no", save=RULES) == {b"0:a": b"2"}
    with pytest.raises(OlderData, match=LOG_LACKS):
        Life(tmp_path)


def test_a_base_that_was_written_while_the_log_was_off_is_newer_than_the_snapshot_before(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.run("SET a 1", "CONFIG SET appendonly no", "SET a 2", "SAVE", "SET a 3", "BGREWRITEAOF")
    life.wait_for_child()
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert values(tmp_path / "copy") == {b"0:a": b"3"}
    life.run("SET a 4", "SAVE")
    killed(life)
    with pytest.raises(OlderData, match=LOG_LACKS):
        Life(tmp_path)
    assert values(tmp_path, appendonly="no") == {b"0:a": b"4"}


def test_a_log_that_was_turned_off_is_not_rewritten_before_a_snapshot_has_what_it_has(tmp_path: Path) -> None:
    life = Life(tmp_path, save=RULES)
    life.run("SET a 1", "SAVE", "SET a 2", "CONFIG SET appendonly no", "BGREWRITEAOF")
    while not life.persistence.info()["aof_rewrites"]:
        life.persistence.tick()
        life.loop.run()
    killed(life)
    assert values(tmp_path, appendonly="no", save=RULES) == {b"0:a": b"2"}


def test_a_log_that_was_turned_off_stays_until_a_snapshot_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path, save=RULES)
    life.run("SET a 1", "SAVE", "SET a 2")
    monkeypatch.setattr(saves, "install", refuse)
    life.run("CONFIG SET appendonly no", "BGREWRITEAOF")
    while life.persistence.info()["rdb_last_bgsave_status"] == "ok":
        life.persistence.tick()
        life.loop.run()
    life.persistence.tick()
    assert life.persistence._child.running is None, "neither a rewrite, nor the next try at once"
    shutil.copytree(tmp_path, tmp_path / "copy")
    with pytest.raises(OlderData, match=SNAPSHOT_LACKS):
        Life(tmp_path / "copy", appendonly="no", save=RULES)
    monkeypatch.undo()
    monkeypatch.setattr(saves, "RETRY_SECONDS", 0)
    while not life.persistence.info()["aof_rewrites"]:
        life.persistence.tick()
        life.loop.run()
    killed(life)
    assert values(tmp_path, appendonly="no", save=RULES) == {b"0:a": b"2"}


def test_a_base_that_was_begun_before_a_snapshot_does_not_count_as_newer(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.run("SET a 1", "CONFIG SET appendonly no", "SET a 2", "BGREWRITEAOF", "SET a 3", "SAVE")
    life.wait_for_child()
    killed(life)
    assert values(tmp_path) == {b"0:a": b"3"}


def test_a_folder_of_an_older_version_starts_as_it_did(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    life = Life(tmp_path)
    life.run("SET a 1")
    life.close()
    without_marks(tmp_path)
    life = Life(tmp_path, appendonly="no")
    assert "does not read it" in caplog.text
    life.run("SET a 2", "SAVE")
    killed(life)
    with pytest.raises(OlderData, match=LOG_LACKS):
        Life(tmp_path)  # what was written since is known


def test_logs_that_are_made_at_the_end_of_a_server_are_told_from_each_other(tmp_path: Path) -> None:
    """The log is turned on just before the end, so that no child writes its base."""
    life = Life(tmp_path, appendonly="no", save=RULES)
    life.run("SET a 1", "CONFIG SET appendonly yes")
    life.close()
    life = Life(tmp_path, appendonly="no", save="")
    life.run("SET a 2", "CONFIG SET appendonly yes")
    life.close()
    with pytest.raises(OlderData, match=SNAPSHOT_LACKS):
        Life(tmp_path, appendonly="no")
    assert values(tmp_path) == {b"0:a": b"2"}


def test_a_log_that_is_made_at_the_end_is_newer_than_a_snapshot_from_beyond_the_one_before(tmp_path: Path) -> None:
    life = Life(tmp_path, appendonly="no", save=RULES)
    life.run("SET a 1", "CONFIG SET appendonly yes")
    life.close()
    life = Life(tmp_path, appendonly="no", save="")
    life.run("SET a 2", "SAVE", "SET a 3", "CONFIG SET appendonly yes")
    life.close()
    assert values(tmp_path) == {b"0:a": b"3"}


def test_a_log_from_before_feeds_is_known_to_be_older_than_what_followed(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.run("SET a 1")
    life.close()
    path = tmp_path / "appendonlydir/appendonly.aof.manifest"
    lines = [line.partition(" startoffset")[0] for line in path.read_text().splitlines() if line.startswith("file")]
    path.write_text("".join(f"{line}\n" for line in lines))
    life = Life(tmp_path, appendonly="no")
    life.run("SET a 2", "SAVE")
    killed(life)
    with pytest.raises(OlderData, match=LOG_LACKS):
        Life(tmp_path)


def test_a_snapshot_from_elsewhere_does_not_replace_the_log(tmp_path: Path) -> None:
    other = Life(tmp_path / "other", appendonly="no")
    other.run("SET a other", "SAVE")
    killed(other)
    life = Life(tmp_path / "one")
    life.run("SET a 1")
    killed(life)
    shutil.copy(tmp_path / "other/dump.pns", tmp_path / "one")
    with pytest.raises(OlderData, match=SNAPSHOT_LACKS):
        Life(tmp_path / "one", appendonly="no")
    assert values(tmp_path / "one") == {b"0:a": b"1"}


def test_a_folder_that_is_copied_while_its_server_runs_keeps_its_order(tmp_path: Path) -> None:
    life = Life(tmp_path / "one")
    life.run("SET a 1", "SAVE", "SET a 2")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    killed(life)
    with pytest.raises(OlderData, match=SNAPSHOT_LACKS):
        Life(tmp_path / "copy", appendonly="no")
    assert values(tmp_path / "copy") == {b"0:a": b"2"}


def test_the_last_snapshot_has_more_than_a_log_whose_end_the_disk_refused(tmp_path: Path) -> None:
    life = Life(tmp_path, save=RULES, appendfsync="everysec")
    life.run("SET a 1")
    writer = life.persistence.aof.writer
    assert writer is not None

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    writer.file.append = refuse  # type: ignore[method-assign]
    life.run("SET a 2")
    life.close()
    assert not life.persistence.closed_whole
    with pytest.raises(OlderData, match=LOG_LACKS):
        Life(tmp_path)
    assert values(tmp_path, appendonly="no") == {b"0:a": b"2"}


def test_the_manifest_says_whether_the_log_is_on(tmp_path: Path) -> None:
    path = tmp_path / "appendonlydir/appendonly.aof.manifest"
    life = Life(tmp_path)
    assert manifests.read(path).state is manifests.State.ON
    life.run("CONFIG SET appendonly no")
    assert manifests.read(path).state is manifests.State.OFF
    killed(life)


def test_a_log_to_which_nothing_was_written_is_not_missed(tmp_path: Path) -> None:
    killed(Life(tmp_path))
    assert values(tmp_path, appendonly="no") == {}


def test_a_disk_that_is_full_at_the_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifests.Manifest, "write", refuse)
    with pytest.raises(FolderUnusable, match=r"No space left on device\. Make room on that disk") as raised:
        Life(tmp_path)
    assert f"dir {tmp_path} cannot be written" in str(raised.value)
