"""The thread that writes files of history."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.support.storage.life import Life
from tests.support.waiting import wait_until

from penstock.storage import segment_files
from penstock.storage.history_thread import HistoryThread
from penstock.storage.segment_files import Run, SegmentFiles
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE
from penstock.types.stream.segments import StoredFile, StoredNode
from penstock.types.stream.stream import Stream


class NoLoop:
    def call_soon(self, callback: Callable[[], object]) -> None:
        pass

    call_soon_threadsafe = call_soon


class Folder:
    """A source of segments that nothing reads."""

    def __init__(self, path: Path) -> None:
        self.fetch = SegmentFiles(path).fetch


def test_a_thread_that_waits_holds_nothing_of_the_last_file(tmp_path: Path) -> None:
    messages = Messages()
    messages.append_many(1, [b""] * NODE, [b"x"] * NODE)
    node = messages.nodes[0]
    stored = [StoredNode(node.message(), node.newest, node.raw, None)]
    thread = HistoryThread(NoLoop(), lambda _: None)
    try:
        thread.start(partial(segment_files.write, tmp_path, False, [Run(0, 0, stored)]))
        result = thread.wait()
        assert isinstance(result, list)
        file = result[0].file = StoredFile(result[0].name, Folder(tmp_path))
        needed = weakref.ref(file)
        del result, file
        wait_until(lambda: needed() is None)
    finally:
        thread.close()


def test_a_file_that_is_about_to_be_removed_is_not_there_for_another_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica could be told of one of the same name, of a stream with the same messages."""
    may_remove = threading.Event()
    remove = SegmentFiles.remove

    def slow(files: SegmentFiles, name: str) -> None:
        assert may_remove.wait(60)
        remove(files, name)

    life = Life(tmp_path, stream_memory="40000", stream_hot_nodes="0", stream_compression="none", appendfsync="always")
    history = life.persistence.history

    def work(is_done: Callable[[], bool]) -> None:
        def tick() -> bool:
            life.persistence.tick()
            life.loop.run()
            return is_done()

        wait_until(tick)

    for _ in range(4):
        life.run("TWRITE s ENTRIES" + " tag entry" * NODE)
    stream = life.engine.keyspace[0].data[b"s"]
    assert isinstance(stream, Stream)
    work(lambda: bool(history.names()))
    work(lambda: not history._moving)
    segment = stream.messages.history[0]
    assert history.is_there(segment)
    monkeypatch.setattr(SegmentFiles, "remove", slow)
    life.run("DEL s")
    segment.file = None
    del stream
    work(lambda: history.known.is_removing([segment.name]))
    assert (history.files.folder / segment.name).exists()
    assert not history.is_there(segment)
    may_remove.set()
    wait_until(lambda: not history.known.is_removing([segment.name]))
    assert not (history.files.folder / segment.name).exists()
    life.persistence.close()
