"""The thread that writes files of history."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.waiting import wait_until

from penstock.storage import segment_files
from penstock.storage.history_thread import HistoryThread
from penstock.storage.segment_files import Run, SegmentFiles
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE
from penstock.types.stream.segments import StoredFile, StoredNode


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
