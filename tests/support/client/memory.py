"""What calls cost that wait, as the memory itself is measured."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.errors import BufferFull


def awaited_until_full(begin: Callable[[int], Any], bound: int) -> int:
    """The bytes that calls take, begun one after another until there is room for no more; given up then,
    all of them.
    """
    held: list[Any] = []
    tracemalloc.start()
    try:
        with pytest.raises(BufferFull, match=f"max_buffered_bytes={bound}"):
            while True:
                held.append(begin(len(held)))
                held[-1].send(None)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for call in held:
        call.close()
    return used
