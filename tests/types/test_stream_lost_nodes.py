"""Files of history that are lost, or of which some nodes are: the other messages stay, and keep their offsets."""

from __future__ import annotations

import pytest
from tests.support.memory_files import MemoryFiles

from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, Storage
from penstock.types.stream.reading import each
from penstock.types.stream.stored_nodes import forget_nodes
from penstock.types.stream.stream import Stream


def stored(count: int = 9500) -> tuple[Stream, str]:
    """A stream whose first eight nodes are in a file, and the name of that."""
    files = MemoryFiles()
    stream = Stream(Storage(hot_nodes=1, files=files))
    messages = stream.messages
    messages.append_many(1000, [b"tag"] * count, [b"entry %d" % n for n in range(1, count + 1)])
    while messages.cooling.do_deferred():
        pass
    assert files.store_coldest(messages)
    (segment,) = messages.history
    assert (segment.first, segment.end) == (0, 8)
    return stream, segment.name


def offsets(messages: Messages) -> list[int]:
    return [message.offset for message in each(messages, messages.first, messages.last)]


@pytest.mark.parametrize("lost", [[0], [7], [3], [2, 3], [0, 2, 5], [*range(8)], []])
def test_messages_of_other_nodes_stay(lost: list[int]) -> None:
    stream, name = stored()
    messages = stream.messages
    [*each(messages, 3500, 1)]  # a node that was read recently knows its segment
    forget_nodes(messages, name, set(lost))
    messages.check()
    gone = lost or [*range(8)]
    kept = [offset for offset in range(1, 9501) if (offset - 1) // NODE not in gone]
    assert offsets(messages) == kept
    assert len(messages) == len(kept)
    again = Stream.load(stream.dump_referring(), storage=messages.storage)
    again.check()
    assert offsets(again.messages) == kept


def test_nodes_that_were_evicted_are_passed_over() -> None:
    stream, name = stored()
    messages = stream.messages
    messages.evict_through(3500)
    forget_nodes(messages, name, {1, 3, 5})
    messages.check()
    assert offsets(messages) == [*range(4001, 5001), *range(6001, 9501)]
    assert [(segment.first, segment.end) for segment in messages.history] == [(4, 5), (6, 8)]


def test_another_file_is_not_touched() -> None:
    stream, _ = stored()
    forget_nodes(stream.messages, "1-1000-00000000.arrow", {0})
    stream.messages.check()
    assert len(offsets(stream.messages)) == 9500
