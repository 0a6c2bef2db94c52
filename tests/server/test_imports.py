"""What a server loads into its process, and what it leaves alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import redis
from tests.support.server_process import Process

from penstock.testing.redis import free_port

COMMANDS = """
import sys

import redis

import penstock

payload = sys.stdin.buffer.read()
with penstock.Server() as server, redis.Redis.from_url(server.url) as client:
    run = client.execute_command
    assert run("TWRITE", "s", "FORMAT", "ARROW", payload) == 1
    assert run("TWRITE", "s", "ENTRIES", *["tag", "entry"] * 2500) == 2001
    run("TSTAGE", "s", "token", "ENTRIES", "tag", "entry")
    run("TCOMMIT", "s", "producer", 1, "token")
    assert len(run("TREAD", "s", 1, 4501, "FORMAT", "ARROW")) > 4501
    assert len(run("TREAD", "s", 1500, 1001, "FORMAT", "ARROW", "COMPRESSED")) > 1001
    assert len(run("TREAD", "s", 1, 4501)) == 4501
    assert run("TSEEK", "s", "TIME", 1) == 1
    assert run("TSEEK", "s", "TIME", 1500) == 1500
    run("TRETAIN", "s", "COMPACT", "yes")
    while run("TREAD", "s", 2001, 1)[0] is not None:  # until it is compacted away
        pass
    assert run("COPY", "s", "other") == 1
    client.restore("restored", 0, client.dump("s"))
print(*sys.modules)
"""


def test_pandas_is_not_imported_by_a_server_that_reads_and_writes_arrow(tmp_path: Path) -> None:
    """pyarrow does so, where there is one, as soon as it is given a Python object: 42 MB and 0.2 s for nothing."""
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas was imported')\n")
    sink = pa.BufferOutputStream()
    tags = [None, *[b"tag %d" % number for number in range(1999)]]
    table = pa.table({"time": range(1, 2001), "tag": pa.array(tags, pa.binary()), "entry": [b"entry"] * 2000})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], input=bytes(sink.getvalue()), capture_output=True,
        env={**os.environ, "PYTHONPATH": path}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert "pyarrow" in done.stdout.decode().split()
    assert "pandas" not in done.stdout.decode().split()


MODULE = """
import numpy
import pyarrow

from penstock.modules import Flag, command

@command("COUNTED", arity=1, flags=Flag.READONLY, group="module")
def counted(session, argv):
    'Count to three.'
    return pyarrow.array(numpy.arange(3)).to_numpy().tolist()
"""


@contextlib.contextmanager
def serving(folder: Path, options: str = "") -> Iterator[tuple[Process, redis.Redis]]:
    server = Process(folder, free_port(), "penstock.__main__", options)  # started, not forked
    with redis.Redis(port=server.port) as client:
        yield server, client
    server.kill()


def loads_numpy(server: Process) -> bool:
    """Whether the process of a server has mapped a file of numpy; it has mapped Arrow's."""
    files = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "/libarrow" in files
    return "/numpy/" in files


def test_a_server_does_without_numpy_unless_a_module_may_use_it(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, client):
        client.execute_command("TWRITE", "s", "ENTRIES", *["tag", "entry"] * 2500)
        assert len(client.execute_command("TREAD", "s", 1, 2500, "FORMAT", "ARROW")) > 2500
        assert not loads_numpy(server)
    (tmp_path / "counting.py").write_text(MODULE)
    with serving(tmp_path, f"--module {tmp_path / 'counting.py'}") as (server, client):
        assert client.execute_command("COUNTED") == [0, 1, 2]
        assert loads_numpy(server)


CALL = """
import sys

from penstock.cli.start import start

try:
    start()
except SystemExit as end:
    assert not end.code
print(*sys.modules)
"""


@pytest.mark.parametrize("word", ["serve", "check", "tail"])
def test_a_subcommand_imports_its_own_module_and_none_that_draws_tables(word: str) -> None:
    words = [sys.executable, "-c", CALL, word, "--help"]
    modules = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout.split()
    assert "penstock.cli.start" in modules
    assert not {"penstock.cli.bench", "penstock.cli.run", "rich.table"} & set(modules)
    assert word != "serve" or "typer" not in modules, "a server has no use for it"
