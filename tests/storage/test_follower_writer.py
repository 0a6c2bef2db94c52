"""What a replica appends to its log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.storage.follower_writer import FollowerWriter
from penstock.storage.writer import LogFile


class Still:
    """A loop that does not turn."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Not in this test."""

    call_soon_threadsafe = call_soon


def test_batches_that_the_leader_waits_for_are_written_in_the_same_turn_of_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = FollowerWriter(LogFile(path), Still(), "no")
    told: list[int] = []
    writer.on_written = lambda batch: told.append(writer.file.end)
    replies: list[bytes] = []
    writer.append_batches([b"one"])
    writer.hold(replies.append, [b"a read"])
    assert (path.read_bytes(), told, replies) == (b"", [], [])
    writer.write_batches([b"two", b"three"])
    assert (path.read_bytes(), told, replies) == (b"onetwothree", [11], [b"a read"])
    assert not writer.pending
    writer.close()
