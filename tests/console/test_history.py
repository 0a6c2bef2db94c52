"""The file behind the graphs: bounded, and alive after a restart or damage."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from penstock.console import history
from penstock.console.history import RINGS, History

SERIES = (b"clicks", b"")
NOW = 1_800_000_000  # the beginning of an interval of every ring


def _record(store: History, when: float, *rows: tuple[history.Series, history.Values]) -> None:
    asyncio.run(store.record(when, rows))


def _times(store: History, seconds: int, stream: bytes = b"clicks") -> list[int]:
    return [point.time for point in asyncio.run(store.read(NOW, stream, seconds)).get(b"", [])]


def test_each_ring_keeps_so_many_points_and_the_newest(tmp_path: Path) -> None:
    store = History(tmp_path, "server")
    step, length = RINGS[0]
    for number in range(2 * length):
        _record(store, NOW - (2 * length - 1 - number) * step, (SERIES, (number, 0, 0)))
    assert len(_times(store, step * length)) == length
    assert _times(store, step * length)[-1] == NOW
    day_step, _ = RINGS[1]
    assert len(_times(store, 86400)) == pytest.approx(2 * length * step / day_step, abs=2)
    store.close()


def test_what_did_not_change_takes_no_room_and_a_change_after_it_looks_sudden(tmp_path: Path) -> None:
    store = History(tmp_path, "server")
    for number in range(10):
        _record(store, NOW + number * 10, (SERIES, (1, 0, 0)))
    assert len(_times(store, 3600)) == 1
    _record(store, NOW + 100, (SERIES, (500, 0, 0)))
    assert _times(store, 3600) == [NOW, NOW + 90, NOW + 100]
    store.close()


def test_the_history_is_there_after_a_restart_and_belongs_to_its_server(tmp_path: Path) -> None:
    for place in ("one:6379", "two:6379"):
        store = History(tmp_path, place)
        _record(store, NOW, (SERIES, (1, 0, 0)))
        store.close()
    store = History(tmp_path, "one:6379")
    assert _times(store, 60) == [NOW]
    assert _times(store, 60, b"other") == []
    store.close()


def test_a_restart_within_an_interval_keeps_the_point_that_it_has(tmp_path: Path) -> None:
    step, length = RINGS[0]
    for when in (NOW - step * length, NOW, NOW + step - 1):  # the first is where the second goes
        store = History(tmp_path, "one:6379")
        _record(store, when, (SERIES, (when, 0, 0)))
        store.close()
    store = History(tmp_path, "one:6379")
    assert _times(store, step * length) == [NOW]
    store.close()


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"this is no database" * 100)
    store = History(tmp_path, "server")
    _record(store, NOW, (SERIES, (1, 0, 0)))
    assert len(_times(store, 60)) == 1
    assert (tmp_path / "history.damaged").exists()
    store.close()


def test_a_file_that_cannot_be_opened_now_is_not_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    History(tmp_path, "server").close()
    other = sqlite3.connect(tmp_path / "history.sqlite", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(history, "PATIENCE", 0.1)
    with pytest.raises(OSError, match="locked"):
        History(tmp_path, "server")
    other.close()
    assert [path.name for path in tmp_path.iterdir()] == ["history.sqlite"]


def test_a_file_that_is_damaged_while_it_is_used_ends_nothing(tmp_path: Path) -> None:
    store = History(tmp_path, "server")
    with sqlite3.connect(tmp_path / "history.sqlite") as other:
        other.execute("DROP TABLE point")
        other.execute("CREATE TABLE point (other)")
    other.close()
    _record(store, NOW, (SERIES, (1, 0, 0)))
    assert _times(store, 60) == []
    (tmp_path / "history.sqlite").write_bytes(b"no database" * 1000)
    _record(store, NOW + 60, (SERIES, (2, 0, 0)))
    assert _times(store, 60) == []
    store.close()


def test_two_consoles_on_one_folder_do_not_mix_their_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SERIES", 2)
    one, other = History(tmp_path, "one"), History(tmp_path, "other")
    _record(one, NOW - 60, (SERIES, (1, 0, 0)))
    _record(other, NOW - 50, ((b"a", b""), (7, 0, 0)))
    for number in range(2):  # one that changes gets the room of the first
        _record(other, NOW - 40, ((b"a", b"group"), (number, 0, 0)))
    _record(one, NOW, (SERIES, (2, 0, 0)))
    assert [point.values[0] for point in asyncio.run(one.read(NOW, b"clicks", 3600))[b""]] == [2]
    for store in (one, other):
        store.close()
    with sqlite3.connect(tmp_path / "history.sqlite") as file:
        orphans = file.execute("SELECT count(*) FROM point WHERE series NOT IN (SELECT id FROM series)").fetchone()
    file.close()
    assert orphans == (0,)


def test_names_that_come_and_go_take_bounded_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SERIES", 2)
    monkeypatch.setattr(history, "MOST_IDLE", 10)
    store = History(tmp_path, "server")
    _record(store, NOW, ((b"long" * 1000, b""), (1, 0, 0)))
    assert asyncio.run(store.read(NOW, b"long" * 1000, 60)) == {}
    for number in range(50):
        _record(store, NOW, ((b"%d" % number, b""), (1, 0, 0)))
    assert len(store._idle) <= 10
    store.close()


def test_many_series_make_room_and_idle_ones_get_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SERIES", 20)
    store = History(tmp_path, "server")
    _record(store, NOW, *(((b"%d" % number, b""), (1.0, 0.0, 0.0)) for number in range(100)))
    kept = [number for number in range(100) if _times(store, 60, b"%d" % number)]
    assert len(kept) >= 10
    _record(store, NOW + 10, *(((b"%d" % number, b""), (2.0, 0.0, 0.0)) for number in range(100)))
    kept = [number for number in range(100) if _times(store, 60, b"%d" % number)]
    assert 10 <= len(kept) <= 20
    store.close()
