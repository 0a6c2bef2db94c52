"""Macro nodes: a thousand messages that are written, compressed, sent and freed together.

A sealed `Node` is an Arrow record batch of (time, tag, entry), held as one encapsulated IPC message (`payload`): a
snapshot writes what memory holds. Arrow's variable-length binary layout is one block of bytes and a table of 32-bit
offsets. A node may also hold the decoded `batch` (a view of an uncompressed payload costs nothing) and its messages as
readers get them (`encoded`), with a table of ends, so that any range is one slice. A new node has no payload yet: it
holds the batch it was sealed from, or its place in the upload that it was cut from (`source`), until it goes cold or,
in the latter case, is read or told to copy its rows. A node of a segment (segments.py) is made when it is looked at,
and fetches its payload when that is needed. active.py has the node being written.

Invariant: node n covers offsets n * 1000 + 1 to (n + 1) * 1000. Offsets are arithmetic unless rows are missing
(compacted away, or evicted before the node was sealed); then `offsets` lists those that exist, sorted.

Rejected: one object for each message (250 B more a message).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.types.packing import CorruptValue, OversizedValue, Part, Unmade
from penstock.types.stream.all_streams import AllStreams
from penstock.types.stream.arrow import LARGE_SCHEMA, SCHEMA, binaries, int64s, offsets_from
from penstock.types.stream.arrow_size import unpacked_size
from penstock.types.stream.column_buffers import column_of, counted
from penstock.types.stream.encoding import Encoded, Encoding, encoded_one_by_one
from penstock.types.stream.ipc import ArrowPart, Layout, Piece, decoded, messages, node_part, rows_part

if TYPE_CHECKING:
    from penstock.types.stream.segments import Files, Segment

NODE = 1000
OVERHEAD = 16  # bytes of a message beside its tag and entry: its time and two table slots
WORTH = 4  # a node is encoded whole when a quarter of its messages was asked for: they would soon be encoded twice

Range = tuple[int, int]  # offsets, the end excluded
Rows = tuple[Sequence[int], Sequence[int], list[bytes], list[bytes]]  # offsets, times, tags and entries


@dataclass
class Storage:
    """How nodes are kept: the newest `hot_nodes` sealed ones (and as many recently read ones) stay decoded.

    Older ones are compressed. Those of a stream with at most `backlog` bytes may wait for that until the server has
    time (Cooling.do_deferred). With a backlog, nodes also share the upload that they were cut from until then.
    `files` is where segments are, on a server that keeps history; it is told when a stream has a new sealed node.
    `most` is what all sealed nodes may take in memory, if that is bounded. `streams` are those that are kept so.
    """

    compression: Literal["none", "lz4", "zstd"] = "lz4"
    hot_nodes: int = 8
    backlog: int = 0
    files: Files | None = None
    most: int | None = None
    streams: AllStreams = field(default_factory=AllStreams)


Source = tuple[Any, int, int]  # an uploaded batch, the first row of a node in it, the time if it has none

# lz4 looks for repetitions at every second position: a quarter less work, and at most 5 % more bytes in our
# measurements.
_CODECS = {"lz4": pa.Codec("lz4", compression_level=-1), "zstd": pa.Codec("zstd")}
_WRITE_OPTIONS = {name: pa.ipc.IpcWriteOptions(compression=codec, use_threads=False) for name, codec in _CODECS.items()}


_MESSAGE = 4096  # bytes of a message of Arrow beside its buffers, with what compressing adds to small ones


def cut(source: Source, nodes: int = 1) -> Any:
    """The record batch of a node in an upload, or of several neighbouring ones."""
    batch, row, now = source
    part = batch.slice(row, nodes * NODE)
    times = part.column(0) if part.num_columns == 3 else int64s(array("q", (now,)) * part.num_rows)
    return pa.RecordBatch.from_arrays([times, *part.columns[-2:]], schema=SCHEMA)


def compressed(batches: list[Any], compression: str) -> list[bytes]:
    """The IPC messages of nodes, without the schema, which is always the same. A batch is a node, or several whole
    ones.

    Several are encoded in one call, and none of them may be empty then. Other threads can run during a call; at its end
    it waits for the interpreter.
    """
    schema = batches[0].schema
    room = pa.allocate_buffer(_most_compressed(batches))  # a buffer that grows would be copied, and twice as large
    sink = pa.FixedSizeBufferWriter(room)
    with pa.ipc.new_stream(sink, schema, options=_WRITE_OPTIONS[compression]) as writer:
        if batches[0].num_rows:
            writer.write_table(pa.Table.from_batches(batches), max_chunksize=NODE)
        else:
            writer.write_batch(batches[0])  # which a table would leave out
    stream = memoryview(room)[schema.serialize().size : sink.tell()]
    return [message.tobytes() for message in messages(stream)]


def _most_compressed(batches: list[Any]) -> int:
    """Bytes at most of these batches as a compressed stream: neither codec adds more than a part in 128 to a buffer."""
    size: int = sum(batch.nbytes for batch in batches)
    rows: int = sum(batch.num_rows for batch in batches)
    return size + size // 64 + _MESSAGE * (1 + len(batches) + rows // NODE)


Tables = list[tuple[memoryview, int]]  # of a batch's tags and entries: where each value begins, from which row on


def tables_of(batch: Any) -> Tables:
    return [(_table(column), column.offset) for column in batch.columns[-2:]]


def raw_of(tables: Tables, first: int, end: int) -> int:
    """The cost of some rows."""
    sizes = (table[offset + end] - table[offset + first] for table, offset in tables)
    return sum(sizes, OVERHEAD * (end - first))


def _table(column: Any) -> memoryview:
    """The offset table of a binary column; of a slice it is the whole column's."""
    return memoryview(column.buffers()[1]).cast("q" if pa.types.is_large_binary(column.type) else "i")


def message_batch(times: array[int], tags: list[bytes], entries: list[bytes]) -> Any:
    """The three columns of some messages as a record batch."""
    try:
        columns, schema = [column_of(tags, False), column_of(entries, False)], SCHEMA
    except OverflowError:  # over 2 GiB
        columns, schema = [column_of(tags, True), column_of(entries, True)], LARGE_SCHEMA
    kind, count = schema.field(1).type, len(times)
    arrays = [binaries(*column, count, kind) for column in columns]
    return pa.RecordBatch.from_arrays([int64s(times), *arrays], schema=schema)


class Node:
    """A sealed node."""

    __slots__ = (
        "asked",
        "batch",
        "before",
        "compressed",
        "count",
        "encoded",
        "large",
        "newest",
        "number",
        "offsets",
        "payload",
        "raw",
        "source",
        "stored",
    )

    number: int
    count: int  # messages in it
    offsets: array[int] | None  # of its messages, when some are missing
    before: int  # the latest time of any message before this node (see Messages.seek_time)
    newest: int  # the latest time of its own messages, compacted ones included
    raw: int  # bytes of its messages uncompressed
    large: bool  # over 2 GiB
    payload: bytes  # IPC message; empty while the node is new
    source: Source | None  # where it was cut from, while it shares that
    stored: tuple[Segment, int] | None  # the segment it lies in, and its place there
    compressed: bool
    batch: Any | None  # decoded payload
    encoded: tuple[Encoding, memoryview, array[int]] | None  # all messages, and where each begins (one more: the end)
    asked: int  # messages encoded for one read only since they are not kept encoded

    @classmethod
    def of(cls, number: int, batch: Any, before: int, newest: int, offsets: array[int] | None = None) -> Self:
        """Seal a batch that nothing else refers to, and that is not a slice."""
        node = cls()
        node.number, node.before, node.newest, node.offsets = number, before, newest, offsets
        node.payload, node.source, node.compressed, node.encoded, node.asked = b"", None, False, None, 0
        node.stored = None
        node.count, node.raw, node.batch = batch.num_rows, raw_of(tables_of(batch), 0, batch.num_rows), batch
        node.large = batch.schema.field(1).type == pa.large_binary()
        return node

    @classmethod
    def sharing(cls, number: int, source: Source, raw: int, before: int, newest: int) -> Self:
        """Seal NODE rows of a batch without copying them, for a short time: they keep the whole batch alive."""
        node = cls()
        node.number, node.before, node.newest, node.offsets = number, before, newest, None
        node.source, node.count, node.raw = source, NODE, raw
        node.payload, node.batch, node.compressed, node.large = b"", None, False, False
        node.encoded, node.asked, node.stored = None, 0, None
        return node

    def _fetch(self) -> bytes:
        assert self.stored is not None
        segment, place = self.stored
        return segment.fetch([place])[0]

    def take_fetched(self, payload: bytes) -> None:
        """Take over the payload that was fetched from its segment."""
        self.payload, self.compressed = payload, Layout.of(payload).codec is not None

    def own(self) -> None:
        """Make the payload, and release the batch that this was cut or sealed from."""
        if not self.payload:
            if self.stored is not None:
                self.take_fetched(self._fetch())
            else:
                self._hold(self._cut())

    def _cut(self) -> Any:
        return self.opened() if self.source is None else cut(self.source)

    def message(self) -> bytes:
        """The payload; made for this call only if there is none."""
        if self.stored is not None:
            return self.payload or self._fetch()
        return self.payload or cast(bytes, self._cut().serialize().to_pybytes())

    def _hold(self, batch: Any) -> None:
        self.count = batch.num_rows
        self.large = batch.schema.field(1).type == pa.large_binary()
        # Bytes, not Arrow's own buffer: one allocation of the exact size, which is returned to the system when freed.
        self.payload = batch.serialize().to_pybytes()
        self.compressed, self.source = False, None
        self.batch = pa.ipc.read_record_batch(self.payload, batch.schema)
        self.raw = raw_of(tables_of(self.batch), 0, self.count) if self.count else 0

    # Where things are. Positions and ranges are offsets; a row is an index inside the node.

    @property
    def start(self) -> int:
        return self.number * NODE + 1

    def row(self, offset: int) -> int:
        """The row of the first message at or after an offset."""
        if self.offsets is None:
            return offset - self.number * NODE - 1
        return bisect_left(self.offsets, offset)

    def offset_at(self, row: int) -> int:
        return self.number * NODE + 1 + row if self.offsets is None else self.offsets[row]

    def runs(self, start: int, end: int) -> Iterator[Range]:
        """The ranges of existing messages between two offsets of this node."""
        if self.offsets is None:
            yield start, end
            return
        first, previous = 0, -1
        for offset in self.offsets[self.row(start) : self.row(end)]:
            if offset != previous + 1:
                if first:
                    yield first, previous + 1
                first = offset
            previous = offset
        if first:
            yield first, previous + 1

    def fit(self, start: int, end: int, budget: int) -> tuple[int, int]:
        """(end, cost) of the part of a run that uses up a budget of bytes: it ends with the message that reaches it."""
        a, b = self.row(start), self.row(end)
        if b - a == self.count and self.raw < budget:
            return end, self.raw  # a cold node is not decoded for this
        batch = self.opened()
        tables = [(memoryview(batch.column(at).buffers()[1]).cast("q" if self.large else "i"), 0) for at in (1, 2)]
        cost = raw_of(tables, a, b)
        if cost > budget:
            b = min(b, a + 1 + bisect_left(range(a + 1, b + 1), budget, key=lambda row: raw_of(tables, a, row)))
            cost = raw_of(tables, a, b)
        return start + b - a, cost

    # Forms.

    def opened(self) -> Any:
        """The record batch, decoded if necessary."""
        if self.source is not None or self.stored is not None:
            self.own()
        batch = self.batch
        if batch is None:
            batch = self.batch = decoded(self.payload, LARGE_SCHEMA if self.large else SCHEMA)
        return batch

    def encoded_slice(self, start: int, end: int, encoding: Encoding) -> Piece:
        """A run of messages as readers get them: one slice, after a good part of the node was asked for.

        Before that only the requested messages are encoded, because reading one message of a cold node must not cost as
        much as all.
        """
        if self.offsets is None:
            before = self.number * NODE + 1
            a, b = start - before, end - before
        else:
            a, b = self.row(start), self.row(end)
        kept = self.encoded
        if kept is None or kept[0] is not encoding:
            self.asked += b - a
            if self.asked * WORTH < self.count:
                return self._rows(a, b, encoding)[0]
            whole, begins = self._rows(0, self.count, encoding)
            kept = self.encoded = encoding, memoryview(whole), begins
        _, data, begins = kept
        return data[begins[a] : begins[b]]

    def _rows(self, first: int, end: int, encoding: Encoding) -> Encoded:
        """Some rows as readers get them."""
        batch = self.opened()
        _, tag_table, tags = batch.column(1).buffers()
        _, entry_table, entries = batch.column(2).buffers()
        return encoding.encode_columns(
            self.start, self.offsets, (tag_table, tags), (entry_table, entries), first, end, self.large
        )

    def leased(self, start: int, end: int, more: int, encoding: Encoding) -> bytes:
        """A run of messages with their times and one more number, encoded. These bytes are not kept: each message goes
        to one member of a group.
        """
        batch = self.opened()
        times = batch.column(0).buffers()[1]
        _, tag_table, tags = batch.column(1).buffers()
        _, entry_table, entries = batch.column(2).buffers()
        columns = (tag_table, tags), (entry_table, entries)
        rows = self.row(start), self.row(end)
        return encoding.encode_leased_columns(self.start, self.offsets, times, *columns, *rows, self.large, more)

    def arrow(self, start: int, end: int, compressed: bool = False, more: int | None = None) -> ArrowPart:
        """The messages between two offsets in Arrow's form, compressed if they are stored so and it is allowed.

        A cold node that is read as a whole stays cold. With `more` there is one more column, which has this number
        in every row, and nothing is compressed.
        """
        a, b = self.row(start), self.row(end)
        known = self.offsets
        if b - a == self.count and a < b and not self.large and more is None:
            self.own()
            offsets = partial(counted, start, b - a) if known is None else known.tobytes
            return node_part(self.payload, offsets, compressed)
        column = offsets_from(start, b - a) if known is None else int64s(known).slice(a, b - a)
        return rows_part(column, self.opened().slice(a, b - a), more)

    def lists(self) -> tuple[list[int], list[int], list[bytes], list[bytes]]:
        """Offsets, times, tags and entries of all messages."""
        times, tags, entries = (column.to_pylist() for column in self.opened())
        return self._offsets(), times, tags, entries

    def rows(self, start: int, end: int) -> Rows:
        """The messages between two offsets."""
        a, b = self.row(start), self.row(end)
        times, tags, entries = (column.to_pylist() for column in self.opened().slice(a, b - a))
        return range(start, end) if self.offsets is None else self.offsets[a:b], times, tags, entries

    def tagged(self) -> tuple[list[int], list[bytes]]:
        """Offsets and tags of all messages, in a third of the time of `lists`."""
        return self._offsets(), self.opened().column(1).to_pylist()

    def _offsets(self) -> list[int]:
        return list(self.offsets if self.offsets is not None else range(self.start, self.start + NODE))

    def row_at_time(self, ms: int) -> int:
        """The first row with a message, here or before it, that is not before a time."""
        if ms <= self.before:
            return 0
        peaks = pc.cumulative_max(self.opened().column(0))
        return bisect_left(range(self.count), ms, key=lambda row: peaks[row].as_py())

    def freeze(self, compression: str) -> None:
        """Go cold: drop the encoded messages, and compress if asked."""
        if compression != "none" and not self.compressed:
            self.take_compressed(compressed([self._cut()], compression)[0])
        self.own()
        self.rest()

    def take_compressed(self, payload: bytes) -> None:
        """Take over the payload that a thread compressed."""
        self.payload = payload
        self.compressed, self.source = True, None
        self.rest()

    def rest(self) -> None:
        """Drop what can be made again."""
        self.encoded = None
        self.asked = 0
        if self.compressed or self.stored is not None:
            self.batch = None
        if self.stored is not None:
            self.payload = b""

    def keep(self, rows: list[int], compression: str) -> None:
        """Keep only these rows. `before` and `newest` stay, so that seeking by time finds the same first message."""
        self.offsets = array("q", [self.offset_at(row) for row in rows])
        batch = self.opened().take(int64s(array("q", rows)))
        cold = self.compressed
        self.encoded, self.asked = None, 0
        self._hold(batch)
        if cold:
            self.freeze(compression)

    def copy(self) -> Node:
        """A node that shares the bytes, which never change."""
        node = Node()
        for name in Node.__slots__:
            setattr(node, name, getattr(self, name))
        return node

    def size(self) -> int:
        """Bytes of memory."""
        encoded = len(self.encoded[1]) + 8 * len(self.encoded[2]) if self.encoded else 0
        decoded = self.raw if self.compressed and self.batch is not None else 0
        return (
            250
            + (len(self.payload) or (self.raw if self.stored is None else 0))
            + encoded
            + decoded
            + (8 * len(self.offsets) if self.offsets is not None else 0)
        )

    def check(self) -> None:
        """Assert that forms and figures agree with the payload."""
        batch = pa.ipc.read_record_batch(self.message(), LARGE_SCHEMA if self.large else SCHEMA)
        batch.validate(full=True)
        assert batch.num_rows == self.count
        assert 0 <= self.asked * WORTH < max(self.count, 1) or self.encoded is not None
        assert self.batch is None or self.batch.equals(batch)
        assert all(column.null_count == 0 for column in batch)
        offsets, times, tags, entries = self.copy().lists()  # of a copy: checking must not leave it decoded
        assert len(offsets) == self.count
        if self.offsets is not None:
            assert _ascending(self.offsets)
            assert all(self.start <= offset < self.start + NODE for offset in offsets)
        assert self.raw == sum(map(len, tags)) + sum(map(len, entries)) + OVERHEAD * self.count
        assert not times or self.newest >= max(times)
        if self.encoded:
            encoding, data, begins = self.encoded
            assert (bytes(data), begins.tolist()) == encoded_one_by_one(encoding, offsets, tags, entries)


def part_of(node: Node) -> Part:
    """The payload of a node in memory as a part of a dump."""
    if node.payload:
        return node.payload
    return Unmade(pa.ipc.get_record_batch_size(node.batch if node.source is None else cut(node.source)), node.message)


def node_in(segment: Segment, place: int) -> Node:
    """A node of a segment; nothing of it is fetched yet."""
    node = Node()
    node.number, node.before, node.newest = segment.first + place, segment.before_at(place), segment.newest[place]
    node.count, node.offsets, node.raw = segment.count_at(place), segment.sparse.get(place), segment.raws[place]
    node.large, node.stored, node.compressed = segment.large, (segment, place), False
    node.payload, node.source, node.batch, node.encoded, node.asked = b"", None, None, None, 0
    return node


def recalled(node: Node) -> Node:
    """A node of a segment as one that is in memory."""
    node = node.copy()
    node.own()
    node.stored = None
    return node


def _ascending(offsets: array[int]) -> bool:
    return all(a < b for a, b in pairwise(offsets))


def check_unpacked(number: int, payload: bytes, limit: int) -> None:
    """OversizedValue if the payload of a node unpacks to more than `limit` bytes, found without unpacking it."""
    try:
        size = unpacked_size(payload)
    except (pa.ArrowException, OSError, EOFError, ValueError, struct.error) as error:
        raise CorruptValue(f"stream node {number} is damaged: {error}") from error
    if size > limit:
        raise OversizedValue(f"stream node {number} unpacks to {size} bytes")


def load_node(
    number: int, before: int, newest: int, compressed: bool, large: bool, offsets: array[int] | None, payload: bytes
) -> Node:
    """A node from its parts in a dump; CorruptValue if they do not agree. The payload is decoded once to check it."""
    node = Node()
    node.number, node.before, node.newest = number, before, newest
    node.compressed, node.large, node.offsets, node.payload = compressed, large, offsets, payload
    node.source = node.batch = node.encoded = node.stored = None
    node.asked = 0
    try:
        batch = node.batch = pa.ipc.read_record_batch(payload, LARGE_SCHEMA if large else SCHEMA)
        batch.validate(full=True)
        layout = Layout.of(payload)
        sizes = [buffer.size if buffer else 0 for column in batch for buffer in column.buffers()[1:]]
        found = (layout.codec is not None, layout.rows, layout.sizes(payload), len(payload) % 8)
        if found != (compressed, batch.num_rows, sizes, 0):
            raise CorruptValue(f"stream node {number} is not laid out as its header says")
        node.count = batch.num_rows
        node.raw = raw_of(tables_of(batch), 0, node.count) if node.count else 0
        newest = pc.max(batch.column(0)).as_py()
    except (pa.ArrowException, OSError, ValueError, IndexError, TypeError, MemoryError, struct.error) as error:
        raise CorruptValue(f"stream node {number} is damaged: {error}") from error
    known = range(node.start, node.start + NODE) if offsets is None else offsets
    if len(known) != node.count or (newest is not None and newest > node.newest):
        raise CorruptValue(f"stream node {number} does not hold what its header says")
    if any(column.null_count for column in batch):
        raise CorruptValue(f"stream node {number} has nulls")
    if offsets and not (node.start <= offsets[0] and offsets[-1] < node.start + NODE and _ascending(offsets)):
        raise CorruptValue(f"stream node {number} has offsets of another")
    node.rest()
    return node
