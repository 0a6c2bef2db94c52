"""What is held while there is no connection stays within its bounds, as the memory itself is measured."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
import redis

from penstock.client.batch import Batch
from penstock.client.calls import call
from penstock.client.delivery import Settings
from penstock.client.engine import Engine
from penstock.client.errors import BufferFull
from penstock.client.pipeline import bulk_batch

BOUND = 16 * 1024 * 1024


def singles(value: int) -> Iterator[Batch]:
    number = 0
    while True:
        number += 1
        batch = call(("SET", f"key:{number}", "x" * value), {}, True)
        batch.waiter = threading.Lock()
        yield batch


def pipelines(value: int) -> Iterator[Batch]:
    number = 0
    while True:
        number += 1
        yield bulk_batch([(b"SET", b"key:%d:%d" % (number, index), b"x" * value) for index in range(100)])


@pytest.mark.parametrize("make", [singles, pipelines])
@pytest.mark.parametrize("value", [10, 1000, 100_000])
def test_the_bound_on_bytes_is_a_bound_on_memory(make: Callable[[int], Iterator[Batch]], value: int) -> None:
    engine = Engine(Settings(max_buffered_bytes=BOUND))
    engine.connecting()
    engine.connected(0.0)
    engine.lost(redis.ConnectionError("cut"), 0.0)
    batches = make(value)
    next(batches)  # whatever is made once
    tracemalloc.start()
    try:
        with pytest.raises(BufferFull):
            while True:
                engine.submit(next(batches), 0.0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * BOUND < held <= BOUND * 1.02 + 100 * value * 3  # the one that did not fit is still in our hands
