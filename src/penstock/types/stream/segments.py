"""Segments: runs of sealed nodes that lie in a file. What memory keeps of them: an index of about 28 bytes a node.

A file never changes, and is named by its contents, so streams, their copies and snapshots share it. A segment is the
index of a file, or of a part of it: small streams have a part each, and when a node in the middle is rewritten, what is
left on both sides are two segments of the same file. The bytes of a node are fetched when they are needed, through a
`StoredFile`; nothing here touches a disk (storage/history.py does). A file can be removed when no `StoredFile` of its
name is left.

Invariant: a segment holds neighbouring nodes. `sparse` has the offsets of those nodes in which messages are missing.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.types.packing import CorruptValue, pack_many, unpack_many
from penstock.types.stream.nodes import NODE

if TYPE_CHECKING:
    from penstock.types.stream.messages import Messages

ENTRY = 28
"""Bytes of memory for a node in the index."""

NAME = re.compile(r"(\d+-\d+|shared-\d+)-[0-9a-f]{8}(-\d+)?\.arrow")
"""Names of files: the first and the last offset, or how many nodes several streams have there; the checksum of all
nodes; and a number if that is taken.
"""

Identity = tuple[str, int]
"""The name of a file, and where in it a node begins."""

_HEAD = struct.Struct("<qqq?")


class MissingHistory(Exception):
    """A segment is lost or damaged; the text names the file, and says which offsets were in it."""


class StoredNode(NamedTuple):
    """A node on its way into a segment."""

    payload: bytes
    newest: int  # the latest time of its messages
    raw: int  # bytes of its messages uncompressed
    offsets: array[int] | None  # of its messages, when some are missing


class Source(Protocol):
    """Where the bytes of segments come from. May be called by any thread."""

    def fetch(self, segment: Segment, places: Sequence[int]) -> list[bytes]:
        """The payloads of some nodes, counted from the segment's first; MissingHistory if one is not what it was."""


class StoredFile:
    """A file that segments refer to."""

    __slots__ = ("__weakref__", "name", "source")

    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self.source = source


class Files(Protocol):
    """The files of a server. Used by the loop thread."""

    def adopt(self, segment: Segment) -> None:
        """Give a new segment its file, the same one to all of that name."""

    def sealed(self, messages: Messages, raw: int) -> None:
        """A stream has more sealed nodes in memory, with so many bytes of messages."""

    def compressed(self, saved: int) -> None:
        """Sealed nodes in memory were compressed, and take so many bytes less."""

    def keep_for_replay(self, segments: Sequence[Segment]) -> None:
        """The log has an effect whose replay reads these segments, whatever becomes of their stream."""

    def names(self) -> list[str]:
        """The files that streams have."""

    def is_there(self, segment: Segment) -> bool:
        """Whether its file exists, as far as a quick look tells."""


class Segment:
    """The index of a segment. It never changes."""

    __slots__ = (
        "before", "checksums", "file", "first", "large", "name", "newest", "places", "raws", "rows", "sparse",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        first: int,
        before: int,
        large: bool,
        places: array[int],
        newest: array[int],
        raws: array[int],
        checksums: array[int],
        sparse: dict[int, array[int]],
    ) -> None:
        self.name = name
        self.file: StoredFile | None = None  # None until the server knows of it (Storage.files)
        self.first = first  # number of the first node
        self.before = before  # the latest time of any message before it
        self.large = large  # its columns have 64-bit offsets
        self.places = places  # where each payload begins in the file, and one more: where the last one ends
        self.newest = newest  # of each node, as in Node
        self.raws = raws  # of each node, as in Node
        self.checksums = checksums  # CRC-32 of each payload
        self.sparse = sparse  # by place: the offsets of a node in which messages are missing
        self.rows = NODE * (len(newest) - len(sparse)) + sum(map(len, sparse.values()))

    def __len__(self) -> int:
        """Nodes."""
        return len(self.newest)

    @property
    def end(self) -> int:
        """Number of the node after the last one."""
        return self.first + len(self.newest)

    @property
    def raw(self) -> int:
        """Bytes of its messages uncompressed."""
        return sum(self.raws)

    @property
    def stored(self) -> int:
        """Bytes of its nodes in the file."""
        return self.places[-1] - self.places[0]

    @property
    def peak(self) -> int:
        """The latest time of any message in it or before it."""
        return max(self.before, max(self.newest))

    def before_at(self, place: int) -> int:
        """The latest time of any message before a node. O(nodes before it)."""
        return max(self.before, max(self.newest[:place], default=0))

    def peaks(self) -> list[int]:
        """For each node, the latest time of any message in it or before it."""
        return [*accumulate(self.newest, max, initial=self.before)][1:]

    def count_at(self, place: int) -> int:
        """Messages of a node."""
        offsets = self.sparse.get(place)
        return NODE if offsets is None else len(offsets)

    def rows_from(self, number: int) -> int:
        """Messages of the nodes from a number on. O(nodes before it)."""
        before = min(max(number - self.first, 0), len(self))
        missing = sum(NODE - len(offsets) for place, offsets in self.sparse.items() if place < before)
        return self.rows - NODE * before + missing

    def part(self, start: int, end: int) -> Segment:
        """The same for some of its nodes, from one number to before another."""
        a, b = start - self.first, end - self.first
        columns = (self.places[a : b + 1], self.newest[a:b], self.raws[a:b], self.checksums[a:b])
        sparse = {place - a: offsets for place, offsets in self.sparse.items() if a <= place < b}
        segment = Segment(self.name, start, self.before_at(a), self.large, *columns, sparse)
        segment.file = self.file
        return segment

    def identity(self, place: int) -> Identity:
        """What says which bytes a node has, in whatever stream or segment it is found."""
        return self.name, self.places[place]

    def fetch(self, places: Sequence[int]) -> list[bytes]:
        """The payloads of some nodes."""
        assert self.file is not None, "a segment that no server knows of"
        return self.file.source.fetch(self, places)

    def size(self) -> int:
        """Bytes of memory."""
        return 400 + ENTRY * len(self.newest) + sum(100 + 8 * len(offsets) for offsets in self.sparse.values())

    # As part of a snapshot, and of the file itself.

    def dump(self) -> bytes:
        """The whole index as bytes."""
        return pack_many(self._parts())

    def _parts(self) -> Iterator[bytes]:
        yield self.name.encode()
        yield _HEAD.pack(self.first, self.before, len(self.newest), self.large)
        for column, code in ((self.places, "Q"), (self.newest, "q"), (self.raws, "Q"), (self.checksums, "I")):
            yield struct.pack(f"<{len(column)}{code}", *column)
        for place, offsets in self.sparse.items():
            yield struct.pack(f"<q{len(offsets)}q", place, *offsets)

    @classmethod
    def load(cls, data: bytes) -> Segment:
        """The index that `dump` wrote; CorruptValue for anything else."""
        try:
            name, head, *columns = unpack_many(data)
            first, before, count, large = _HEAD.unpack(head)
            places, newest, raws, checksums = (
                array(code, struct.unpack(f"<{count + extra}{code}", column))
                for column, code, extra in zip(columns[:4], "QqQI", (1, 0, 0, 0), strict=True)
            )
            sparse: dict[int, array[int]] = {}
            for part in columns[4:]:
                place, *offsets = struct.unpack(f"<{len(part) // 8}q", part)
                sparse[place] = array("q", offsets)
            segment = cls(name.decode("ascii"), first, before, large, places, newest, raws, checksums, sparse)
        except (struct.error, ValueError, OverflowError) as error:
            raise CorruptValue(f"the index of a segment is damaged: {error!r}") from error
        for fault in segment.faults():
            raise CorruptValue(f"the index of a segment is damaged: {fault}")
        return segment

    def faults(self) -> Iterator[str]:
        """An error in the structure. O(nodes)."""
        if not self.newest or self.first < 0:
            yield "it has no nodes"
        if not NAME.fullmatch(self.name):
            yield "its name is not one of a file of history"
        if any(a >= b for a, b in pairwise(self.places)):
            yield "a node begins before the one before it ends"
        for place, offsets in self.sparse.items():
            start = (self.first + place) * NODE + 1
            if not 0 <= place < len(self.newest):
                yield "it has offsets of a node that it has not"
            elif any(a >= b for a, b in pairwise(offsets)) or not all(
                start <= offset < start + NODE for offset in offsets
            ):
                yield "it has offsets of another node"
