"""All streams of a server, in a line, so that they can be visited a few at a time, however many there are.

A stream joins when it is made, and leaves when it is freed.

Rejected: a WeakSet, which can only be walked as a whole; looking through the keys, of which there may be many more.

Any thread may make or free a stream; one thread visits them. An entry that is taken out to be put back at the end keeps
its stream alive meanwhile, so none is put back that is gone.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.types.stream.stream import Stream


class AllStreams:
    """See the top of this file."""

    __slots__ = ("_line", "_on_freed")

    def __init__(self) -> None:
        self._line: OrderedDict[weakref.ref[Stream], None] = OrderedDict()
        self._on_freed = self._freed  # one object for all of them

    def __len__(self) -> int:
        return len(self._line)

    def add(self, stream: Stream) -> None:
        self._line[weakref.ref(stream, self._on_freed)] = None

    def _freed(self, reference: weakref.ref[Stream]) -> None:
        self._line.pop(reference, None)

    def visit(self, count: int) -> list[Stream]:
        """The next ones, which are last in the line from now on."""
        found: list[Stream] = []
        line = self._line
        for _ in range(min(count, len(line))):
            reference, _ = line.popitem(last=False)
            stream = reference()
            if stream is not None:
                line[reference] = None
                found.append(stream)
        return found
