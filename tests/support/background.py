"""Something that happens in another thread while a test goes on; its failure is the failure of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(act: Callable[[], object]) -> Iterator[threading.Thread]:
    """Something that happens in another thread while the block runs."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(150)
        assert not thread.is_alive()
    assert not failures, failures
