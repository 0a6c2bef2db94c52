"""What clients could do with the effects that move messages to files."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from tests.support.storage.history import all_of, connected, files, fill, numbered_entries, started

from penstock.server.app import App
from penstock.storage.segment_files import read_indexes
from penstock.types.packing import CorruptValue
from penstock.types.stream.segments import Segment
from penstock.types.stream.stream import Stream


def test_no_client_can_say_what_is_in_a_file(tmp_path: Path) -> None:
    """A user who may write to own streams could have the server decode any bytes as nodes."""
    entries = numbered_entries()
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
        index = read_indexes(tmp_path / "history" / min(files(tmp_path)))[0].dump()
        client.execute_command("ACL", "SETUSER", "writer", "on", ">secret", "~*", "+@all")
        with redis.Redis(port=server.port, username="writer", password="secret") as writer:
            for words in (["TAPPLY", "s", "HISTORY", index], ["ONCE", "c", "1", "TAPPLY", "s", "HISTORY", index]):
                with pytest.raises(redis.ResponseError):
                    writer.execute_command(*words)
            pipeline = writer.pipeline(transaction=True)
            pipeline.execute_command("TAPPLY", "s", "HISTORY", index)
            with pytest.raises(redis.ResponseError, match="only for the log of this server"):
                pipeline.execute()
        with pytest.raises(redis.ResponseError, match="only for the log of this server"):
            client.execute_command("TAPPLY", "s", "HISTORY", index)
        assert all_of(client) == entries


def test_an_index_names_files_of_history_alone(tmp_path: Path) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, numbered_entries())

        def first_segment(app: App) -> bytes:
            stream = app.engine.keyspace[0].data[b"s"]
            assert isinstance(stream, Stream)
            return stream.messages.history[0].dump()

        index = Segment.load(server.call(first_segment))
    for name in ("notes.txt", "../appendonlydir/appendonly.aof.manifest", "/etc/passwd", "..", "", "a" * 300):
        index.name = name
        with pytest.raises(CorruptValue, match="its name is not one of a file of history"):
            Segment.load(index.dump())
