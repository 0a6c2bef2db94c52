"""`penstock history`: messages go to a file that others read, and come back, each once, whatever happens in between."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from tests.support.forked_program import ForkedProgram
from tests.support.server_process import Process
from tests.support.waiting import wait_until
from typer.testing import CliRunner

from penstock import Server
from penstock.cli import history, message_files, remote_server
from penstock.cli.main import app
from penstock.testing.proxy import FaultProxy
from penstock.testing.redis import free_port

SECONDS = 100


@pytest.fixture(params=[".arrow", ".parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of each kind, which does not exist yet."""
    return tmp_path / f"orders{request.param}"


@pytest.fixture
def client(ours: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(ours.url, socket_timeout=SECONDS) as client:
        client.flushall()
        yield client


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_ROWS", 700)
    monkeypatch.setattr(message_files, "PORTION_ROWS", 400)
    monkeypatch.setattr(remote_server, "PAUSE", 0.0)


def run(url: str, *words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["history", *map(str, words), "--url", url])
    assert not done.stdout
    return done.exit_code, done.stderr


def fill(client: redis.Redis, count: int, stream: str = "orders", start: int = 0) -> None:
    """Messages whose time is a second more each."""
    batch = pa.record_batch(
        {
            "time": pa.array([1_700_000_000_000 + 1000 * number for number in range(start, start + count)], pa.int64()),
            "tag": pa.array([b"tag%d" % (number % 7) for number in range(start, start + count)], pa.binary()),
            "entry": pa.array([b"\xff%d" % number for number in range(start, start + count)], pa.binary()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    client.execute_command("TWRITE", stream, "FORMAT", "ARROW", sink.getvalue().to_pybytes())


def held(client: redis.Redis, stream: str = "orders") -> list[dict[str, Any]]:
    return (
        pa.ipc.open_stream(client.execute_command("TREAD", stream, 1, 1_000_000, "WITHTIME", "FORMAT", "ARROW"))
        .read_all()
        .to_pylist()
    )


def in_file(path: Path) -> list[dict[str, Any]]:
    """What pyarrow and Polars both find in a file, with times as numbers."""
    table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
    frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ipc(path)
    assert frame.to_dicts() == table.to_pylist()
    assert table.schema.field("time").type == pa.timestamp("ms", "UTC")
    delays = table.column("visible_at").cast(pa.int64()).fill_null(0)
    table = table.set_column(1, "time", table.column("time").cast(pa.int64()))
    return table.set_column(4, "visible_at", delays).to_pylist()


# -- export


def test_an_export_holds_all_messages(ours: Server, client: redis.Redis, path: Path, small_portions: None) -> None:
    fill(client, 5300)
    code, said = run(ours.url, "export", "orders", "--to", path)
    assert code == 0, said
    assert said == f"5,300 messages of 'orders' written to {path}, {path.stat().st_size:,} bytes\n"
    assert in_file(path) == held(client)
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        (("--from", 1001), 1001, 2500),
        (("--to-offset", 1200), 1, 1200),
        (("--from", 700, "--to-offset", 701), 700, 701),
        (("--to-offset", 9000), 1, 2500),
        (("--from", 9000), 1, 0),
        (("--from", 20, "--to-offset", 10), 1, 0),
        (("--since", "2023-11-14T22:30:00Z"), 1001, 2500),
        (("--since", "2023-11-14T23:30:00+01:00", "--to-offset", 1010), 1001, 1010),
        (("--since", "1969-01-01"), 1, 2500),
        (("--since", "2100-01-01"), 1, 0),
    ],
)
def test_an_export_holds_the_part_that_was_asked_for(
    ours: Server, client: redis.Redis, tmp_path: Path, small_portions: None, words: Any, first: int, last: int
) -> None:
    assert datetime.fromtimestamp(1_700_000_000 + 1000, UTC) == datetime(2023, 11, 14, 22, 30, tzinfo=UTC)
    fill(client, 2500)
    code, said = run(ours.url, "export", "orders", "--to", tmp_path / "orders.arrow", *words)
    assert (code, said.partition(" written")[0]) == (0, f"{last + 1 - first:,} messages of 'orders'"), said
    assert in_file(tmp_path / "orders.arrow") == held(client)[first - 1 : last]


def test_an_export_tells_of_messages_that_are_gone_and_passes_those_that_compaction_removed(
    ours: Server, client: redis.Redis, tmp_path: Path, small_portions: None
) -> None:
    fill(client, 5000)
    client.execute_command("TRETAIN", "orders", "COMPACT", "yes")
    client.execute_command("TEVICT", "orders", 300)
    wait_until(lambda: len(held(client)) < 2000)
    code, said = run(ours.url, "export", "orders", "--to", tmp_path / "orders.parquet", "--from", 100)
    assert code == 0
    assert said.splitlines()[0] == (
        "penstock history: offsets 100 to 300 of 'orders' are not in the file: they were evicted"
    )
    assert in_file(tmp_path / "orders.parquet") == held(client)


def test_an_export_tells_of_messages_that_go_while_it_reads(
    ours: Server, client: redis.Redis, tmp_path: Path, small_portions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 5000)
    expected = held(client)
    write = message_files.MessageWriter.write

    def write_and_evict(writer: Any, table: Any) -> None:
        write(writer, table)
        client.execute_command("TEVICT", "orders", 4000)

    monkeypatch.setattr(message_files.MessageWriter, "write", write_and_evict)
    code, said = run(ours.url, "export", "orders", "--to", tmp_path / "orders.arrow")
    assert code == 0
    found = in_file(tmp_path / "orders.arrow")
    start = len(found) - 1000  # those that were read before the others went
    assert found == [*expected[:start], *expected[4000:]]
    assert f"offsets {start + 1} to 4000 of 'orders' are not in the file: they were evicted" in said
    code, said = run(ours.url, "export", "orders", "--to", tmp_path / "gone.arrow", "--to-offset", 3500)
    assert "offsets 1 to 3500" not in said, "the first there is was meant"


def test_messages_that_come_during_an_export_are_left_out(
    ours: Server, client: redis.Redis, tmp_path: Path, small_portions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 1500)
    write = message_files.MessageWriter.write

    def write_and_append(writer: Any, table: Any) -> None:
        write(writer, table)
        fill(client, 1000)

    monkeypatch.setattr(message_files.MessageWriter, "write", write_and_append)
    assert run(ours.url, "export", "orders", "--to", tmp_path / "orders.arrow")[0] == 0
    assert in_file(tmp_path / "orders.arrow") == held(client)[:1500]


def test_an_export_continues_when_the_server_is_back(
    ours: Server, client: redis.Redis, tmp_path: Path, small_portions: None
) -> None:
    fill(client, 3000)
    with FaultProxy(("127.0.0.1", ours.port)) as proxy:
        fault = proxy.cut_after_execution(b"TREAD", nth=3)
        code, said = run(f"redis://127.0.0.1:{proxy.port}", "export", "orders", "--to", tmp_path / "orders.parquet")
        assert fault.has_fired
    assert code == 0, said
    assert said.startswith("penstock history: lost 127.0.0.1:")
    assert in_file(tmp_path / "orders.parquet") == held(client)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("export", "none", "--to", "x.arrow"), "there is no stream 'none' at 127.0.0.1:"),
        (("export", "text", "--to", "x.arrow"), "refuses TREAD: WRONGTYPE"),
        (("export", "orders", "--to", "x.csv"), "--to: x.csv must end in .arrow or .parquet"),
        (("export", "orders", "--to", "there.arrow"), "there.arrow exists already; --overwrite replaces it"),
        (("export", "orders", "--to", "folder.arrow", "--overwrite"), "folder.arrow exists already\n"),
        (("export", "orders", "--to", "no/x.arrow"), "no/x.arrow could not be written: No such file or directory"),
        (("export", "orders", "--to", "x.arrow", "--since", "soon"), "--since takes a time such as 2026-11-01"),
        (("export", "orders", "--to", "x.arrow", "--since", "2026-01-01", "--from", "1"), "give one of them"),
        (("import", "none.arrow", "orders"), "none.arrow cannot be read: No such file or directory"),
        (("import", "there.arrow", "orders"), "there.arrow cannot be read: "),
        (("import", "there.txt", "orders"), "there.txt must end in .arrow or .parquet"),
        (("import", "folder.arrow", "orders"), "folder.arrow cannot be read: Is a directory"),
        (("import", "good.arrow", "text"), "refuses TPRODUCER: WRONGTYPE"),
    ],
)
def test_a_refused_command_reports_why_and_changes_no_file(
    ours: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(client, 10)
    client.set("text", "a")
    for name in ("there.arrow", "there.txt"):
        Path(name).write_text("kept")
    Path("folder.arrow").mkdir()
    assert run(ours.url, "export", "orders", "--to", "good.arrow")[0] == 0
    before = sorted(tmp_path.iterdir())
    code, said = run(ours.url, *words)
    assert code == 1
    assert said.splitlines()[-1].startswith("penstock history: ")
    assert complaint in said
    assert sorted(tmp_path.iterdir()) == before
    assert Path("there.arrow").read_text() == "kept"
    assert len(held(client)) == 10


def test_an_export_replaces_a_file_only_if_it_is_told_to(ours: Server, client: redis.Redis, tmp_path: Path) -> None:
    fill(client, 10)
    path = tmp_path / "orders.arrow"
    path.write_text("old")
    assert run(ours.url, "export", "orders", "--to", path, "--overwrite")[0] == 0
    assert len(in_file(path)) == 10


# -- import


def test_an_import_appends_what_was_exported_with_its_times(
    ours: Server, client: redis.Redis, path: Path, small_portions: None
) -> None:
    fill(client, 5300)
    assert run(ours.url, "export", "orders", "--to", path)[0] == 0
    code, said = run(ours.url, "import", path, "copy")
    assert (code, said) == (0, f"5,300 messages of {path} appended to 'copy'\n")
    assert held(client, "copy") == held(client)
    assert client.execute_command("TSEEK", "copy", "TIME", 1_700_001_000_000) == 1001


def test_delays_come_through_an_export_and_an_import(
    ours: Server, client: redis.Redis, path: Path, small_portions: None
) -> None:
    """Some at once, some delayed together, some each by another time, over the edges of reads and portions."""
    future = 4_000_000_000_000
    fill(client, 350)
    for number in range(5):
        client.execute_command("TWRITE", "orders", "AT", future + number, "ENTRIES", b"t", b"delayed %d" % number)
    client.execute_command("TWRITE", "orders", "AT", future, "ENTRIES", *[b"t", b"together"] * 900)
    fill(client, 10)
    assert run(ours.url, "export", "orders", "--to", path)[0] == 0
    delays = [row["visible_at"] for row in in_file(path)]
    assert [at > 0 for at in delays] == [False] * 350 + [True] * 905 + [False] * 10
    assert all(abs(at - future) < 60_000 for at in delays if at)  # the server's clock of leases and the other drift
    code, said = run(ours.url, "import", path, "copy")
    assert (code, said) == (0, f"1,265 messages of {path} appended to 'copy'\n")
    for one, other in zip(held(client, "copy"), held(client), strict=True):
        assert abs(one.pop("visible_at") - other.pop("visible_at")) < 60_000
        assert one == other
    read = client.execute_command("TREAD", "copy", 0, 10_000, "GROUP", "g")
    assert [row[0] for row in read] == [*range(1, 351), *range(1256, 1266)]


def test_a_delay_that_is_over_when_it_is_imported_is_none(ours: Server, client: redis.Redis, path: Path) -> None:
    columns = {"tag": [b"t"], "entry": [b"e"], "visible_at": pa.array([1_700_000_000_000], pa.timestamp("ms", "UTC"))}
    table = pa.table(
        columns, pa.schema([("tag", pa.binary()), ("entry", pa.binary()), ("visible_at", pa.timestamp("ms", "UTC"))])
    )
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    assert run(ours.url, "import", path, "copy")[0] == 0
    assert [row[2] for row in client.execute_command("TREAD", "copy", 0, 10, "GROUP", "g")] == [b"e"]


def test_a_file_that_was_imported_is_appended_again_only_if_it_is_told_to(
    ours: Server, client: redis.Redis, tmp_path: Path
) -> None:
    fill(client, 100)
    path = tmp_path / "orders.arrow"
    run(ours.url, "export", "orders", "--to", path)
    assert run(ours.url, "import", path, "copy")[0] == 0
    code, said = run(ours.url, "import", path, "copy")
    assert code == 0
    assert said == (
        f"0 messages of {path} appended to 'copy'; 100 were there from an earlier import "
        "(--again appends them once more)\n"
    )
    assert len(held(client, "copy")) == 100
    assert run(ours.url, "import", path, "copy", "--again")[0] == 0
    assert len(held(client, "copy")) == 200


@pytest.mark.parametrize("cut", ["cut_after_execution", "cut_before_forwarding"])
@pytest.mark.parametrize(("command", "nth"), [(b"TPRODUCER", 1), (b"TSCHEMA", 1), (b"TWRITE", 3)])
def test_a_lost_connection_appends_no_message_twice_and_none_never(
    ours: Server, client: redis.Redis, tmp_path: Path, cut: str, command: bytes, nth: int, small_portions: None
) -> None:
    fill(client, 3000)
    run(ours.url, "export", "orders", "--to", tmp_path / "orders.parquet")
    with FaultProxy(("127.0.0.1", ours.port)) as proxy:
        fault = getattr(proxy, cut)(command, nth)
        code, said = run(f"redis://127.0.0.1:{proxy.port}", "import", tmp_path / "orders.parquet", "copy")
        assert fault.has_fired
    assert code == 0, said
    assert held(client, "copy") == held(client)


def test_an_import_that_was_refused_continues_where_it_was(
    ours: Server, client: redis.Redis, tmp_path: Path, small_portions: None
) -> None:
    entries = [b'{"n": %d}' % number for number in range(1000)]
    entries[700] = b"no json"
    path = table_file(tmp_path / "x.arrow", tag=[b""] * 1000, entry=entries)
    client.execute_command("TSCHEMA", "SET", "orders", "n int", "CHECK", "refuse")
    code, said = run(ours.url, "import", path, "orders")
    assert code == 1
    refusal, summary = said.splitlines()
    assert refusal.startswith(f"penstock history: 127.0.0.1:{ours.port} refuses TWRITE: ")
    assert summary == f"500 messages of {path} appended to 'orders'"
    client.execute_command("TSCHEMA", "SET", "orders", "n int", "CHECK", "off")
    code, said = run(ours.url, "import", path, "orders")
    assert (code, said) == (
        0, f"500 messages of {path} appended to 'orders'; 500 were there from an earlier import\n"
    )  # fmt: skip
    assert [row["entry"] for row in held(client)] == entries


def table_file(path: Path, **columns: Any) -> Path:
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


def test_an_import_takes_files_of_others(ours: Server, client: redis.Redis, path: Path) -> None:
    table_file(path, tag=["a", None], entry=["é", "f"])
    assert run(ours.url, "import", path, "orders")[0] == 0
    assert client.execute_command("TREAD", "orders", 1, 9) == [[1, b"a", "é".encode()], [2, b"", b"f"]]


def test_an_import_of_nothing_appends_nothing(ours: Server, client: redis.Redis, tmp_path: Path) -> None:
    path = table_file(tmp_path / "x.parquet", tag=pa.array([], pa.binary()), entry=pa.array([], pa.binary()))
    assert run(ours.url, "import", path, "orders") == (0, f"0 messages of {path} appended to 'orders'\n")
    assert not client.exists("orders")


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"entry": ["a"]}, "has no column 'tag'"),
        ({"tag": ["a"], "entry": ["a"], "price": [1]}, "has a column 'price', which messages do not have"),
        ({"tag": ["a"], "entry": [1]}, "column 'entry' is int64, not binary or string"),
        ({"tag": ["a"], "entry": ["a"], "time": [1.5]}, "column 'time' is double, not int64 or a timestamp"),
    ],
)
def test_a_file_that_has_no_messages_is_refused(
    ours: Server, client: redis.Redis, path: Path, columns: Any, complaint: str
) -> None:
    code, said = run(ours.url, "import", table_file(path, **columns), "orders")
    assert code == 1
    assert complaint in said
    assert said.count("\n") == 1, "that nothing was appended needs no line"
    assert not client.exists("orders")


def test_a_column_that_is_there_twice_is_refused(ours: Server, client: redis.Redis, tmp_path: Path) -> None:
    table = pa.table([["a"], ["a"], ["a"]], names=["tag", "entry", "entry"])
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    code, said = run(ours.url, "import", tmp_path / "x.arrow", "orders")
    assert (code, client.exists("orders")) == (1, 0)
    assert "has the column 'entry' twice" in said


def test_large_messages_are_imported_in_portions(
    ours: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_files, "PORTION_BYTES", 10_000)
    entries = [os.urandom(size) for size in (100, 30_000, 4000, 4000, 4000, 4000, 0, 100)]
    path = table_file(tmp_path / "x.arrow", tag=pa.array([b""] * 8, pa.binary()), entry=pa.array(entries, pa.binary()))
    with path.open("rb") as file:
        portions = [*message_files.portions(file, path)]
    assert len(portions) == 2
    assert [batch.nbytes <= 10_000 or len(batch) == 1 for portion in portions for batch in portion.batches] == [
        True
    ] * 4
    assert run(ours.url, "import", path, "orders")[0] == 0
    assert [row["entry"] for row in held(client)] == entries


def test_an_import_reports_entries_that_do_not_fit_the_schema(
    ours: Server, client: redis.Redis, tmp_path: Path
) -> None:
    client.execute_command("TSCHEMA", "SET", "orders", "n int", "CHECK", "deadletter", "dead")
    path = table_file(tmp_path / "x.arrow", tag=["a", "b"], entry=['{"n": 1}', "no json"])
    code, said = run(ours.url, "import", path, "orders")
    assert (code, said) == (
        0,
        f"2 messages of {path} appended to 'orders'; those that do not fit its schema went to 'dead'\n",
    )
    assert [row["entry"] for row in held(client)] == [b'{"n": 1}']


# -- real processes


def penstock(*words: object, **options: Any) -> subprocess.Popen[bytes]:
    return ForkedProgram([sys.executable, "-m", "penstock", *map(str, words)], stderr=subprocess.PIPE, **options)


def test_an_import_survives_a_server_that_is_killed(tmp_path: Path) -> None:
    """The server is a process that is killed, and started again, in the middle of the import."""
    port = free_port()
    folder = tmp_path / "data"
    folder.mkdir()
    server = Process(folder, port)
    try:
        with redis.Redis(port=port) as client:
            fill(client, 200_000)
            expected = held(client)
        url = f"redis://127.0.0.1:{port}"
        path = tmp_path / "orders.parquet"
        with penstock("history", "export", "orders", "--to", path, "--url", url) as child:
            assert child.stderr is not None
            assert child.stderr.read().startswith(b"200,000 messages of 'orders' written to ")
        assert in_file(path) == expected
        with penstock("history", "import", path, "copy", "--url", url) as child, redis.Redis(port=port) as client:
            wait_until(lambda: client.exists("copy"))
            server.kill()
            server = Process(folder, port)
            _, said = child.communicate()
        assert child.returncode == 0, said
        with redis.Redis(port=port) as client:
            assert held(client, "copy") == expected
    finally:
        server.kill()


def test_a_full_disk_leaves_no_file(ours: Server, client: redis.Redis, tmp_path: Path) -> None:
    fill(client, 50_000)
    path = tmp_path / "orders.arrow"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    with penstock("history", "export", "orders", "--to", path, "--url", ours.url, preexec_fn=limit) as child:
        _, said = child.communicate()
    assert (child.returncode, said) == (1, f"penstock history: {path} could not be written: File too large\n".encode())
    assert not list(tmp_path.iterdir())


def test_control_c_leaves_no_file(
    ours: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(writer: Any, table: Any) -> None:
        assert [path.name[:5] for path in tmp_path.iterdir()] == ["temp-"]
        raise KeyboardInterrupt

    fill(client, 10)
    monkeypatch.setattr(message_files.MessageWriter, "write", interrupted)
    assert run(ours.url, "export", "orders", "--to", tmp_path / "orders.arrow") == (130, "")
    assert not list(tmp_path.iterdir())
