"""Files of history that are read slowly, for servers in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from penstock.storage.segment_files import SegmentFiles
from penstock.types.stream.segments import Segment


class SlowReads:
    """Holds up every thread that reads a file, until it is told to go on; knows which threads came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.threads: list[str] = []
        fetch = SegmentFiles.fetch

        def slow(files: SegmentFiles, segment: Segment, places: Sequence[int]) -> list[bytes]:
            name = threading.current_thread().name
            self.threads.append(name)
            if name != "penstock-server":  # which would wait for ever
                assert self.open.wait(60)
            return fetch(files, segment, places)

        monkeypatch.setattr(SegmentFiles, "fetch", slow)

    @property
    def on_the_loop(self) -> int:
        return self.threads.count("penstock-server")
