"""The bytes that the allocators have handed out are counted exactly, whatever holes there are.

Each check runs in a process of its own, because memory that other tests left may be freed at any moment.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.engine.keyspace import allocators

SMALL, LARGE = 100, 3000
"""Lengths of strings for pymalloc and for malloc."""
COUNT = 40_000


def in_use() -> int:
    found = allocators.find()
    assert found is not None, "this Python no longer tells what it has handed out"
    return found.in_use()


def in_child(check: Callable[..., None], *arguments: object) -> None:
    """Run a function of this file in a new process, which fails with it."""
    words = ", ".join(map(repr, arguments))
    code = f"from tests.engine.test_allocators import {check.__name__}; {check.__name__}({words})"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def make_holes(length: int) -> None:
    strings: list[bytes | None] = [None] * COUNT
    in_use()  # what the first call takes is kept
    before = in_use()
    for at in range(COUNT):
        strings[at] = bytes(length)
    full = in_use() - before
    assert COUNT * (length + 33) < full < COUNT * (length + 33 + 32)
    for at in range(0, COUNT, 2):
        strings[at] = None
    assert in_use() - before == pytest.approx(full / 2, rel=0.01)
    for at in range(1, COUNT, 2):
        strings[at] = None
    assert in_use() - before == pytest.approx(0, abs=0.01 * full)


def take_in_threads() -> None:
    """malloc gives threads heaps of their own."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    taken: list[int] = []
    together = threading.Barrier(4)

    def take() -> None:
        together.wait(60)  # so that they meet at the lock of one heap, and are given others
        for _ in range(500):
            taken.append(library.malloc(50_000))

    threads = [threading.Thread(target=take) for _ in range(4)]
    in_use()
    before = in_use()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert in_use() - before == pytest.approx(100_000_000, rel=0.01)
    for address in taken:
        library.free(address)
    assert in_use() - before == pytest.approx(0, abs=1_000_000)


@pytest.mark.parametrize("length", [SMALL, LARGE])
def test_holes_in_the_heap_change_nothing(length: int) -> None:
    in_child(make_holes, length)


def test_what_other_threads_took_is_counted() -> None:
    in_child(take_in_threads)


def test_without_pymalloc_everything_is_in_malloc(monkeypatch: pytest.MonkeyPatch) -> None:
    found = allocators.Allocators()
    monkeypatch.setattr(found, "_print", lambda file: 0)  # what it answers then
    assert found.pymalloc() == 0
    assert found.in_use() > 0
