"""Uses `select.poll`, or a replacement based on `select.select` where eventlet has removed it."""

from __future__ import annotations

import os
import select
from typing import Any, Protocol

POLLIN, POLLOUT, POLLNVAL = 1, 4, 32
"""As everywhere that has `select.poll`."""


class Poll(Protocol):
    """The methods of `select.poll` that we use."""

    def register(self, fd: Any, eventmask: int, /) -> None: ...
    def modify(self, fd: Any, eventmask: int, /) -> None: ...
    def unregister(self, fd: Any, /) -> None: ...
    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]: ...


def new_poll() -> Poll:
    """Looked up at each call: a program may be patched after this was imported."""
    make = getattr(select, "poll", None)
    found: Poll = SelectPoll() if make is None else make()
    return found


class SelectPoll:
    """A poll made of `select.select`, which takes descriptors below 1024 only, unless it is eventlet's."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}

    def register(self, fd: Any, eventmask: int, /) -> None:
        self._masks[_number(fd)] = eventmask

    modify = register

    def unregister(self, fd: Any, /) -> None:
        del self._masks[_number(fd)]

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Descriptors and what they are ready for; `timeout` is in milliseconds."""
        reading = [number for number, mask in self._masks.items() if mask & POLLIN]
        writing = [number for number, mask in self._masks.items() if mask & POLLOUT]
        seconds = None if timeout is None else timeout / 1000
        try:
            readable, writable, _ = select.select(reading, writing, [], seconds)
        except (OSError, ValueError):  # one of them was closed in between, which a poll says of it alone
            closed = [(number, POLLNVAL) for number in self._masks if not _is_open(number)]
            if not closed:
                raise
            return closed
        found = dict.fromkeys(readable, POLLIN)
        for number in writable:
            found[number] = found.get(number, 0) | POLLOUT
        return list(found.items())


def _number(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
