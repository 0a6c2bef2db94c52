"""A data folder from before there was history is read as it is, and its streams move to files by themselves.

tests/support/storage/folders/version-0.1-before-history.tar.xz is such a folder, as the server of that time (commit
e116ea0) left it: a log (a base with 12,000 messages of the stream `events`, 500 of them evicted, and an increment with
1500 more) and a snapshot of the same data.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import redis
from tests.support.storage.history import connected, files, history, started, until

FOLDER = Path(__file__).parents[1] / "support/storage/folders/version-0.1-before-history.tar.xz"
SOURCES = [{"appendonly": True, "save": ""}, {"appendonly": False, "save": "3600 1000000"}]


def check_data(client: redis.Redis) -> None:
    rows = client.execute_command("TREAD", "events", 501, 20_000)
    assert rows == [[n, b"t%d" % (n % 7), b"entry %d" % n] for n in range(501, 13_501)]
    assert client.execute_command("TREAD", "events", 500, 1) == [None]
    group = client.execute_command("TGROUP", "LIST", "events")[0]
    assert (group[b"position"], group[b"pending"], group[b"acknowledged"]) == (301, 200, 100)
    newest = {row[1]: row[2] for row in client.execute_command("TREAD", "compacted", 1, 10_000) if row is not None}
    assert newest == {b"t%d" % (n % 7): b"entry %d" % n for n in range(3494, 3501)}
    assert len(client.execute_command("TREAD", "small", 1, 100)) == 50
    assert client.execute_command("TREAD", "produced", 1, 1) == [[1, b"a", b"b"]]
    assert client.execute_command("TWRITE", "produced", "PRODUCER", "p", 1, "ENTRIES", "a", "b") == 1, "known already"
    assert client.get("plain") == b"value"


@pytest.mark.parametrize("source", SOURCES, ids=["log", "snapshot"])
def test_a_folder_from_before_history_is_read_and_moves_to_files(tmp_path: Path, source: dict[str, object]) -> None:
    with tarfile.open(FOLDER) as archive:
        archive.extractall(tmp_path, filter="data")
    for _ in range(2):
        with started(tmp_path, stream_memory=100_000, **source) as server, connected(server) as client:
            until(lambda: history(client, "events")["length"] > 8000)  # nothing is written for it
            check_data(client)
            assert files(tmp_path)
