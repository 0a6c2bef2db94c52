"""Segments without a disk: what types/stream/ needs of the files of a server."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate

from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, Node
from penstock.types.stream.segments import MissingHistory, Segment, StoredFile, StoredNode
from penstock.types.stream.stored_nodes import coldest, store


class MemoryFiles:
    """Files and Source of types/stream/segments.py."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.fetched = 0

    def adopt(self, segment: Segment) -> None:
        segment.file = StoredFile(segment.name, self)

    def sealed(self, messages: Messages, raw: int) -> None:
        pass

    def compressed(self, saved: int) -> None:
        pass

    def keep_for_replay(self, segments: Sequence[Segment]) -> None:
        pass

    def names(self) -> list[str]:
        return list(self.contents)

    def is_there(self, segment: Segment) -> bool:
        return segment.name in self.contents

    def fetch(self, segment: Segment, places: Sequence[int]) -> list[bytes]:
        self.fetched += len(places)
        if segment.name not in self.contents:
            raise MissingHistory(f"{segment.name} is not there")
        data = self.contents[segment.name]
        return [data[segment.places[place] : segment.places[place + 1]] for place in places]

    def write(self, nodes: list[Node]) -> Segment:
        """The segment of neighbouring nodes."""
        stored = [StoredNode(node.message(), node.newest, node.raw, node.offsets) for node in nodes]
        payloads = [node.payload for node in stored]
        first = nodes[0].number
        name = f"{first * NODE + 1}-{(first + len(nodes)) * NODE}-{zlib.crc32(b''.join(payloads)):08x}.arrow"
        self.contents[name] = b"head" + b"".join(payloads)
        return Segment(
            name,
            first,
            nodes[0].before,
            nodes[0].large,
            array("Q", accumulate(map(len, payloads), initial=4)),
            array("q", [node.newest for node in stored]),
            array("Q", [node.raw for node in stored]),
            array("I", map(zlib.crc32, payloads)),
            {place: node.offsets for place, node in enumerate(stored) if node.offsets is not None},
        )

    def store_coldest(self, messages: Messages, size: int = 1 << 40, hot: bool = False) -> bool:
        """Move the oldest nodes that can go, also `hot` ones if it is said so; whether there were any."""
        if hot:
            messages.cooling.cool_all(messages.active.number)
            while messages.cooling.do_deferred():
                pass
        nodes = coldest(messages, size, hot)
        return bool(nodes) and store(messages, self.write(nodes))
