"""Memory that nothing uses is returned to the system when it is too much, and not again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.support.waiting import wait_until

from penstock.storage import unused_memory
from penstock.storage.history_thread import HistoryThread
from penstock.storage.unused_memory import UnusedMemory

MEGABYTE = 1 << 20


class NoLoop:
    """No job here has a result that the loop would have to take."""

    def call_soon(self, callback: Callable[[], object]) -> None:
        pass

    call_soon_threadsafe = call_soon


class Heap:
    """Stands for the process: its real figures depend on the allocator and on what other tests left."""

    def __init__(self) -> None:
        self.now = 0  # bytes that are unused
        self.stuck = 0  # bytes of them that cannot be returned
        self.trims = 0
        self.kept = 0

    def unused(self) -> int:
        return self.now

    def trim(self) -> None:
        self.now = self.stuck
        self.trims += 1

    def keep(self, size: int) -> None:
        self.kept = size


@pytest.fixture
def thread() -> Iterator[HistoryThread]:
    thread = HistoryThread(NoLoop(), lambda _: None)
    yield thread
    thread.close()


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Heap:
    monkeypatch.setattr(unused_memory, "PAUSE", 0.0)
    monkeypatch.setattr(unused_memory, "SLOW", 1000.0)
    return Heap()


def test_an_eighth_of_stream_memory_may_be_unused(heap: Heap, thread: HistoryThread) -> None:
    unused = UnusedMemory(heap, thread)
    unused.bound(64 * MEGABYTE)
    assert heap.kept > 0
    heap.now = 8 * MEGABYTE
    unused.tick()
    thread.close()
    assert heap.trims == 0
    heap.now += 1
    unused.tick()
    wait_until(lambda: heap.trims == 1)


def test_what_cannot_be_returned_is_not_tried_again(heap: Heap, thread: HistoryThread) -> None:
    unused = UnusedMemory(heap, thread)
    unused.bound(64 * MEGABYTE)
    heap.now = heap.stuck = 20 * MEGABYTE
    unused.tick()
    thread.close()
    unused.tick()
    thread.close()
    assert heap.trims == 1
    heap.now = 29 * MEGABYTE
    unused.tick()
    thread.close()
    assert (heap.trims, heap.now) == (2, 20 * MEGABYTE)


def test_a_heap_that_takes_long_to_look_through_is_left_alone(
    heap: Heap, thread: HistoryThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused_memory, "SLOW", -1.0)
    unused = UnusedMemory(heap, thread)
    unused.bound(64 * MEGABYTE)
    heap.now = 100 * MEGABYTE
    unused.tick()
    thread.close()
    assert heap.trims == 0
