"""`penstock check` on a folder with history: which files are whole, and what a repair gives up."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from tests.support.storage.running import running
from tests.support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.storage.check import run_check
from penstock.storage.segment_files import read_indexes
from penstock.types.stream.nodes import NODE

COUNT = 150_000
MEMORY = {"stream_memory": "4mb", "stream_compression": "none"}


def fill(client: redis.Redis, key: str, count: int = COUNT) -> None:
    entries = [b"%d " % number * 6 for number in range(count)]
    table = pa.table({"tag": pa.array([b"t"] * count, pa.binary()), "entry": pa.array(entries, pa.binary())})
    for at in range(0, count, 5000):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(at, 5000))
        client.execute_command("TWRITE", key, "FORMAT", "ARROW", sink.getvalue().to_pybytes())


def is_at_rest(client: redis.Redis) -> bool:
    """Whether all nodes are in files that are to go there."""
    info = client.info("persistence")
    return bool(
        not info["history_write_in_progress"] and 4 * info["stream_memory_held"] < 3 * info["stream_memory_limit"]
    )


def offsets(client: redis.Redis, key: str = "orders") -> list[int]:
    found: list[int] = []
    (first, last), *_ = client.execute_command("TREAD", key, 1, 0, "WITHINFO")
    for at in range(first, last + 1, 10_000):
        reply = client.execute_command("TREAD", key, at, 10_000, "FORMAT", "ARROW")
        found += pa.ipc.open_stream(reply).read_all().column("offset").to_pylist()
    return found


def make(folder: Path, rewrite: bool, **directives: Any) -> Path:
    """A folder whose stream `orders` is mostly in files, the log's base referring to them or its increments."""
    with running(folder, **MEMORY, **directives) as (_, client):
        client.select(3)
        fill(client, "orders")
        client.set("other", 1)
        wait_until(lambda: is_at_rest(client))
        if rewrite and directives.get("appendonly") == "yes":
            client.bgrewriteaof()
            wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        elif rewrite:
            client.save()
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("base", "increment", "snapshot")}
    make(folders["base"], rewrite=True, appendonly="yes")
    make(folders["increment"], rewrite=False, appendonly="yes")
    make(folders["snapshot"], rewrite=True, save="3600 1")
    return folders


@pytest.fixture(params=["base", "increment", "snapshot"])
def folder(made: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(made[request.param], tmp_path / request.param))


@pytest.fixture
def based(made: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made["base"], tmp_path / "base"))


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "history").glob("*.arrow"), key=lambda path: int(path.name.partition("-")[0]))


def damage(path: Path, place: int) -> tuple[int, int]:
    """Flip a byte of a node, and say which offsets it has."""
    segment = read_indexes(path)[0]
    data = bytearray(path.read_bytes())
    data[segment.places[place] + 300] ^= 1
    path.write_bytes(data)
    return (segment.first + place) * NODE + 1, (segment.first + place + 1) * NODE


def directives_of(folder: Path) -> dict[str, Any]:
    return MEMORY | ({"save": "3600 1"} if folder.name == "snapshot" else {"appendonly": "yes"})


def left(folder: Path) -> list[int]:
    with running(folder, **directives_of(folder)) as (_, client):
        client.select(3)
        assert client.get("other") == b"1"
        return offsets(client)


def test_a_whole_folder_is_described(folder: Path) -> None:
    count = len(segments(folder))
    assert count > 2
    report = run_check(folder)
    assert report.exit_code == 0, report
    assert f"{folder}/history: files of history: {count}, of 1 streams; {count} are whole" in str(report)
    assert left(folder) == [*range(1, COUNT + 1)]


def test_a_missing_file_of_a_base_or_snapshot_is_damage_and_a_repair_says_which_offsets_are_lost(
    folder: Path,
) -> None:
    path = segments(folder)[1]
    index = read_indexes(path)[0]
    first, last = index.first * NODE + 1, index.end * NODE
    path.unlink()
    report = run_check(folder)
    lost = f"offsets {first} to {last} of the stream 'orders' in database 3"
    if folder.name == "increment":  # the log has the messages themselves
        assert report.exit_code == 0, report
        assert left(folder) == [*range(1, COUNT + 1)]
        return
    assert report.exit_code == 1
    assert f"{path}: DAMAGED: it is not there; " in str(report)
    assert f" needs {lost}\n" in str(report)
    report = run_check(folder, fix=True)
    assert report.exit_code == 0, report
    assert f"{path}: it is not there; fixed: {lost} are given up" in str(report)
    again = run_check(folder)
    assert again.exit_code == 0, again
    assert left(folder) == [*range(1, first), *range(last + 1, COUNT + 1)]
    assert run_check(folder).exit_code == 0


def test_a_damaged_node_is_found_and_a_repair_gives_up_nothing_else(folder: Path) -> None:
    path = segments(folder)[1]
    first, last = damage(path, 1)
    report = run_check(folder)
    assert report.exit_code == 1
    assert f"{path}: DAMAGED: the node of offsets {first} to {last} is damaged: its checksum is wrong; " in str(report)
    assert f"offsets {first} to {last} of the stream 'orders' in database 3" in str(report)
    report = run_check(folder, fix=True)
    assert report.exit_code == 0, report
    assert run_check(folder).exit_code == 0
    if folder.name == "increment":
        assert f"{path}: fixed: moved to {path.name}.bak; the log has its messages" in str(report)
        assert left(folder) == [*range(1, COUNT + 1)]
    else:
        assert f"fixed: offsets {first} to {last} of the stream 'orders' in database 3 are given up" in str(report)
        assert left(folder) == [*range(1, first), *range(last + 1, COUNT + 1)]


def test_a_file_that_is_cut_short_loses_only_what_is_cut(based: Path) -> None:
    path = segments(based)[1]
    index = read_indexes(path)[0]
    with path.open("r+b") as file:
        file.truncate(index.places[1] + 5)
    first, last = (index.first + 1) * NODE + 1, index.end * NODE
    assert f"it is cut short, within or before the node of offsets {first} to {first + NODE - 1}" in str(
        run_check(based)
    )
    assert run_check(based, fix=True).exit_code == 0
    assert run_check(based).exit_code == 0
    assert left(based) == [*range(1, first), *range(last + 1, COUNT + 1)]


def test_all_of_history_can_be_lost(based: Path) -> None:
    last = max(read_indexes(path)[0].end for path in segments(based)) * NODE
    shutil.rmtree(based / "history")
    assert run_check(based).exit_code == 1
    assert run_check(based, fix=True).exit_code == 0
    assert run_check(based).exit_code == 0
    assert left(based) == [*range(last + 1, COUNT + 1)]


def test_nodes_that_were_evicted_are_not_needed(based: Path) -> None:
    with running(based, appendonly="yes", **MEMORY) as (_, client):
        client.select(3)
        client.execute_command("TEVICT", "orders", read_indexes(segments(based)[0])[0].end * NODE + 1500)
        wait_until(lambda: not client.info("persistence")["history_files_to_remove"])
    damage(segments(based)[0], 0)
    report = run_check(based)
    assert report.exit_code == 0, report


def test_damage_outside_of_the_nodes_is_told(based: Path) -> None:
    path = segments(based)[0]
    path.write_bytes(path.read_bytes()[:-3])
    report = run_check(based)
    assert report.exit_code == 0, report
    assert f"{path}: its messages are whole, but at byte " in str(report)


def test_strays_are_named_and_left_to_the_server(based: Path) -> None:
    stray = based / "history" / "1-1000-00000000.arrow"
    unfinished = based / "history" / "temp-1-2-1-1000-00000000.arrow"
    for path in (stray, unfinished):
        path.touch()
    report = run_check(based, fix=True)
    assert report.exit_code == 0, report
    for path in (stray, unfinished):
        assert f"{path}: a stray: nothing refers to it, and the server will remove it" in str(report)
        assert path.exists()
    left(based)
    assert not stray.exists() and not unfinished.exists()


def test_a_repair_keeps_the_snapshot_as_it_was(made: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made["snapshot"], tmp_path / "snapshot"))
    before = (folder / "dump.pns").read_bytes()
    damage(segments(folder)[0], 0)
    assert "fixed: written again; as it was, it is in dump.pns.bak" in str(run_check(folder, fix=True))
    assert (folder / "dump.pns.bak").read_bytes() == before


def test_a_log_without_increments_gets_one(based: Path) -> None:
    listing = next(based.glob("*/*.manifest"))
    rows = [row for row in listing.read_text().splitlines(keepends=True) if row.endswith("type b\n")]
    listing.write_text("".join(rows))
    first, last = damage(segments(based)[0], 0)
    assert run_check(based, fix=True).exit_code == 0
    assert run_check(based).exit_code == 0
    assert left(based) == [*range(1, first), *range(last + 1, COUNT + 1)]


def test_a_log_that_is_damaged_itself_comes_first(based: Path) -> None:
    base = next(based.glob("*/*.base.pns"))
    base.write_bytes(base.read_bytes()[:-1])
    report = run_check(based, fix=True)
    assert report.exit_code == 1
    assert f"{based}/history: not checked: which files are needed is known when the rest is whole" in str(report)


def test_while_a_server_runs_each_file_is_checked_by_itself_and_nothing_is_repaired(based: Path) -> None:
    with running(based, appendonly="yes", **MEMORY):
        damage(segments(based)[0], 0)
        before = {path: path.read_bytes() for path in based.rglob("*") if path.is_file()}
        report = run_check(based, fix=True)
        assert {path: path.read_bytes() for path in based.rglob("*") if path.is_file()} == before
    assert report.exit_code == 1
    assert "so each file is checked by itself" in str(report)
    assert f"{segments(based)[0]}: DAMAGED: the node of offsets 1 to 1000 is damaged" in str(report)


def test_one_file_can_be_checked_by_itself(based: Path) -> None:
    path = segments(based)[0]
    shown = CliRunner().invoke(app, ["check", str(path)])
    assert (shown.exit_code, shown.output) == (0, f"{path}: a file of history, {path.stat().st_size} bytes\nok\n")
    damage(path, 0)
    shown = CliRunner().invoke(app, ["check", str(path)])
    assert shown.exit_code == 1
    assert f"{path}: DAMAGED: the node of offsets 1 to 1000 is damaged: its checksum is wrong" in shown.output
