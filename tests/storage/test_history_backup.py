"""The backup that docs/history.md describes: a snapshot and the folder of history, copied from a running server."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path

from tests.support.storage.history import SMALL, all_of, connected, history, numbered_entries, started, until

from penstock import Server


def write_and_evict(server: Server, entries: list[bytes], stop: threading.Event) -> None:
    """Write them again and again, and keep about the last 12,000."""
    with connected(server) as client:
        last = 0
        while not stop.is_set():
            at = last % len(entries)
            words = [word for entry in entries[at : at + 1000] for word in (b"", entry)]
            last = client.execute_command("TWRITE", "s", "ENTRIES", *words) + 999
            client.execute_command("TEVICT", "s", max(last - 12_500, 0))


def copy_folder(source: Path, target: Path) -> None:
    """Copy files, as `cp -r` does; those that the server removes meanwhile are not needed."""
    target.mkdir()
    for path in [*source.iterdir()]:
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(path, target / path.name)


def test_a_copy_that_was_made_while_the_server_ran_is_whole(tmp_path: Path) -> None:
    entries, stop = numbered_entries(), threading.Event()
    copy = tmp_path / "copy"
    with started(tmp_path) as server, connected(server) as client:
        writer = threading.Thread(target=write_and_evict, args=(server, entries, stop))
        writer.start()
        try:
            until(lambda: client.exists("s") and client.execute_command("TINFO", "s")[b"first"] > 1)
            until(lambda: history(client)["files"] > 3)
            saves = client.info("persistence")["rdb_saves"]
            client.bgsave()
            until(lambda: client.info("persistence")["rdb_saves"] > saves)
            copy.mkdir()
            shutil.copyfile(tmp_path / "dump.pns", copy / "dump.pns")
            last = client.execute_command("TINFO", "s")[b"last"]
            until(lambda: client.execute_command("TINFO", "s")[b"first"] > last)  # all of the copy is evicted here
            copy_folder(tmp_path / "history", copy / "history")
        finally:
            stop.set()
            writer.join()
    with started(copy, appendonly=False, save="") as server, connected(server) as client:
        info = client.execute_command("TINFO", "s")
        found = all_of(client)
        assert len(found) == info[b"last"] + 1 - info[b"first"] > 10_000
        assert found == [entries[(offset - 1) % len(entries)] for offset in range(info[b"first"], info[b"last"] + 1)]
        client.config_set("appendonly", "yes")
    with started(copy, stream_memory=SMALL) as server, connected(server) as client:
        assert all_of(client) == found
