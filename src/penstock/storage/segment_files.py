"""Segments as files: runs of sealed nodes of streams, in Arrow IPC files that never change.

    ARROW1, two zeros                       | the head: the same bytes in all files of one schema
    schema of (time, tag, entry)            |
    payloads of the nodes                     as they were in memory, compressed or not
    end of the stream of messages           | the end
    footer: schema, place of each payload   |
    CRC-32 of the head, CRC-32 of the end   |
    size of the footer, ARROW1              |

pyarrow and Polars open such a file as it is. The footer's schema has metadata: `penstock.index`, the whole index
(Segment.dump in base64), and `penstock.first` and `penstock.last`, the offsets that the nodes cover. The index is in
the footer and not in the head, so that the places of all payloads are known when it is written. The two checksums are
inside the footer, in bytes that no part of it points to, so that other readers do not see them.

Most files have one run, of one stream. Small streams share a file, because each file has to be synced: then the runs
follow each other, and the metadata have an item for each, with spaces between them.

A file is named `<first offset>-<last offset>-<checksum>.arrow`, or `shared-<nodes>-<checksum>.arrow` with several runs;
the checksum is the CRC-32 of the CRC-32s of all payloads, so that each payload is gone through once. Segments of all
streams share a folder, so two of them can have the same name by chance. Then the later one gets a number behind its
name: a name that exists is only used for a file that is the same byte by byte, and no file is ever written over.

A payload that is read must not unpack to much more than the index says of it. A file that was made to harm, or that was
damaged before its checksums were taken, gets an error and takes no memory.

Rejected: pyarrow's own file writer, which decompresses and encodes every node again.
"""

from __future__ import annotations

import base64
import errno
import itertools
import os
import stat
import struct
import threading
import zlib
from array import array
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from penstock.storage.files import TEMPORARY, StorageError, install, sync_folder, write_pieces, write_synced
from penstock.types.packing import CorruptValue
from penstock.types.stream.arrow import INVALID, LARGE_SCHEMA, SCHEMA
from penstock.types.stream.arrow_size import field_at, followed
from penstock.types.stream.ipc import Layout
from penstock.types.stream.nodes import NODE, load_node
from penstock.types.stream.segments import NAME, MissingHistory, Segment, StoredNode

FOLDER = "history"
"""The folder of segments, inside the server's `dir`."""

AHEAD = 4 << 20
"""Bytes behind a read that the system is asked to load too."""

STEP = 1 << 20
"""Bytes after which a reader that goes on asks again."""

_MAGIC = b"ARROW1"
_NO_MORE = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # ends the messages
_CHECKSUM = struct.Struct("<I")
_CHECKSUMS = struct.Struct("<II")
_TAIL = struct.Struct("<i6s")  # size of the footer, magic
_INT32 = struct.Struct("<i")
_BLOCK = struct.Struct("<qixxxxq")  # where a message is, the size of its description, the size of its body
_RECORD_BATCHES = 3  # number of this field in the table Footer of Arrow's File.fbs
_INDEX = b"penstock.index"
_TABLES = 24  # bytes at most that columns have for a message, beside what counts as its size
_PADDING = 256  # bytes of a column behind its messages


class Run(NamedTuple):
    """Neighbouring nodes of a stream, on their way into a file."""

    first: int  # number of the first node
    before: int  # the latest time of any message before it
    nodes: Sequence[StoredNode]


def write(folder: Path, large: bool, runs: Sequence[Run]) -> list[Segment]:
    """Make the file of some runs, safe from a power cut; OSError leaves nothing behind. Answers a segment for each.

    For any thread. If there is such a file already, it is used.
    """
    payloads = [node.payload for run in runs for node in run.nodes]
    head, checksums = _head(large), array("I", map(zlib.crc32, payloads))
    places = array("Q", itertools.accumulate(map(len, payloads), initial=len(head)))
    _make_folder(folder)
    for name in _names(runs, checksums):
        segments = [*_segments(name, large, runs, places, checksums)]
        path, contents = folder / name, [head, *payloads, _end(segments, payloads)]
        if not path.exists():
            _install(path, contents)
            return segments
        if _holds(path, contents):
            sync_folder(folder)  # it may have been named just before a crash
            return segments
    raise AssertionError("the names do not end")


def _segments(
    name: str, large: bool, runs: Sequence[Run], places: array[int], checksums: array[int]
) -> Iterator[Segment]:
    """The index of each run in a file of that name."""
    at = 0
    for first, before, nodes in runs:
        end = at + len(nodes)
        newest, raws = array("q", [node.newest for node in nodes]), array("Q", [node.raw for node in nodes])
        sparse = {place: node.offsets for place, node in enumerate(nodes) if node.offsets is not None}
        yield Segment(name, first, before, large, places[at : end + 1], newest, raws, checksums[at:end], sparse)
        at = end


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def _names(runs: Sequence[Run], checksums: array[int]) -> Iterator[str]:
    """The name of a file, and those that it gets if that one is taken."""
    start, last = covered(runs[0].first, len(checksums))
    name = f"{start}-{last}" if len(runs) == 1 else f"shared-{len(checksums)}"
    name += f"-{zlib.crc32(checksums):08x}"
    return (f"{name}-{number}.arrow" if number > 1 else f"{name}.arrow" for number in itertools.count(1))


def covered(first: int, count: int) -> tuple[int, int]:
    """The first and the last offset of some nodes."""
    return first * NODE + 1, (first + count) * NODE


def _install(path: Path, contents: list[bytes]) -> None:
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{threading.get_ident()}-{path.name}")
    write_synced(temporary, lambda file: write_pieces(file.fileno(), contents))
    try:
        install(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _descriptor(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a file to read it. Not a pipe or a device in its place, which could hold a thread up for ever."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return descriptor


def _opened(path: Path) -> BinaryIO:
    return open(path, "rb", opener=_descriptor)


def _holds(path: Path, contents: list[bytes]) -> bool:
    """Whether a file has exactly these contents."""
    with _opened(path) as file:
        return all(file.read(len(part)) == part for part in contents) and not file.read(1)


# The parts of a file around its payloads.


def _head(large: bool) -> bytes:
    schema: bytes = _schema(large).serialize().to_pybytes()
    return _MAGIC + bytes(2) + schema


def _schema(large: bool) -> Any:
    return LARGE_SCHEMA if large else SCHEMA


def _end(segments: Sequence[Segment], payloads: list[bytes]) -> bytes:
    bounds = [covered(segment.first, len(segment)) for segment in segments]
    metadata = {
        b"penstock.first": b" ".join(b"%d" % first for first, _ in bounds),
        b"penstock.last": b" ".join(b"%d" % last for _, last in bounds),
        _INDEX: b" ".join(base64.b64encode(segment.dump()) for segment in segments),
    }
    places = [place for segment in segments for place in segment.places[:-1]]
    blocks = []
    for place, payload in zip(places, payloads, strict=True):
        description = 8 + _INT32.unpack_from(payload, 4)[0]
        blocks.append(_BLOCK.pack(place, description, len(payload) - description))
    large = segments[0].large
    end = _NO_MORE + _footer(_schema(large).with_metadata(metadata), blocks)
    end += _CHECKSUM.pack(zlib.crc32(_head(large)))
    end += _CHECKSUM.pack(zlib.crc32(end))
    return end + _TAIL.pack(len(end) - len(_NO_MORE), _MAGIC)


def _footer(schema: Any, blocks: list[bytes]) -> bytes:
    """A FlatBuffer: what pyarrow writes for a file without batches, with another list of batches behind it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema):
        pass
    whole = sink.getvalue().to_pybytes()
    size, _ = _TAIL.unpack_from(whole, len(whole) - _TAIL.size)
    footer = bytearray(whole[-_TAIL.size - size : -_TAIL.size])
    footer += bytes((4 - len(footer)) % 8)  # so that the blocks, behind their count, are at a multiple of 8
    view = memoryview(bytes(footer))
    field = field_at(view, followed(view, 0), _RECORD_BATCHES)
    _INT32.pack_into(footer, field, len(footer) - field)
    return bytes(footer) + _INT32.pack(len(blocks)) + b"".join(blocks)


class SegmentFiles:
    """Reads, lists and removes the segments of a folder. It has no state, so any thread may call it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fetch(self, segment: Segment, places: Sequence[int]) -> list[bytes]:
        """The payloads of some nodes, counted from the segment's first; MissingHistory if one is not what it was."""
        try:
            descriptor = _descriptor(self.folder / segment.name)
        except OSError as error:
            raise self._lost(segment, places, _reason(error)) from error
        try:
            return [payload for run in _runs(places) for payload in self._run(segment, run, descriptor)]
        finally:
            os.close(descriptor)

    def _run(self, segment: Segment, run: range, descriptor: int) -> Iterator[bytes]:
        """The payloads of neighbouring nodes. A read for each: one for all would have to be cut, which copies it."""
        _prefetch(descriptor, segment.places[run.start], segment.places[run.stop], segment.places[-1])
        for place in run:
            start, end = segment.places[place], segment.places[place + 1]
            try:
                payload = _read(descriptor, start, end - start)
            except OSError as error:
                raise self._lost(segment, [place], _reason(error)) from error
            if len(payload) < end - start:
                raise self._lost(segment, [place], "is cut short")
            if zlib.crc32(payload) != segment.checksums[place]:
                raise self._lost(segment, [place], "is damaged there")
            problem = _unpacking_problem(segment, place, payload)
            if problem is not None:
                raise self._lost(segment, [place], f"is damaged there: {problem}")
            yield payload

    def _lost(self, segment: Segment, places: Sequence[int], problem: str) -> MissingHistory:
        first, last = segment.first + min(places), segment.first + max(places)
        start, end = covered(first, last - first + 1)
        return MissingHistory(
            f"offsets {start} to {end} cannot be read: the file {self.folder.name}/{segment.name} {problem}"
        )

    def missing(self, segment: Segment) -> str | None:
        """The defect of the file as far as its size shows it; None if there is none."""
        try:
            size = (self.folder / segment.name).stat().st_size
        except OSError as error:
            return f"the file {self.folder.name}/{segment.name} {_reason(error)}"
        if size < segment.places[-1]:
            return (
                f"the file {self.folder.name}/{segment.name} is cut short: it has {size} bytes, "
                f"and its nodes end at byte {segment.places[-1]}"
            )
        return None

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def strays(self, wanted: Collection[str]) -> list[str]:
        """The names of segments and of unfinished files that are not wanted. Files of other kinds are left alone.

        A file that another thread is writing is one of them.
        """
        try:
            names = sorted(path.name for path in self.folder.iterdir())
        except FileNotFoundError:
            return []
        ours = [name for name in names if name.startswith(TEMPORARY) or NAME.fullmatch(name)]
        return [name for name in ours if name not in wanted]


def _unpacking_problem(segment: Segment, place: int, payload: bytes) -> str | None:
    """Why a payload must not be unpacked; None if it takes about what the index says. Nothing is unpacked for this."""
    try:
        sizes = Layout.of(payload).sizes(payload)
    except (struct.error, IndexError, ValueError):
        return "it does not say where its columns are"
    most = segment.raws[place] + _TABLES * segment.count_at(place) + _PADDING
    for size in sizes:
        if not 0 <= size <= most:
            return f"a column claims to unpack to {size} bytes, and its messages have {most} at most"
    return None


def _reason(error: OSError) -> str:
    return "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"


def _runs(places: Sequence[int]) -> Iterator[range]:
    """Neighbouring places, as ranges.

    >>> list(_runs([3, 4, 5, 9, 1]))
    [range(3, 6), range(9, 10), range(1, 2)]
    """
    for _, group in itertools.groupby(enumerate(places), lambda item: item[1] - item[0]):
        run = [place for _, place in group]
        yield range(run[0], run[-1] + 1)


def _read(descriptor: int, at: int, size: int) -> bytes:
    """Bytes of a file; fewer at its end. The system may return fewer too, at most 2 GiB."""
    data = os.pread(descriptor, size, at)
    if len(data) == size:
        return data
    parts = [data]
    while parts[-1]:
        at, size = at + len(parts[-1]), size - len(parts[-1])
        parts.append(os.pread(descriptor, size, at))
    return b"".join(parts)


def _prefetch(descriptor: int, start: int, end: int, last: int) -> None:
    """Have the system load what is about to be read, and what a reader that goes on would read next.

    Asking costs more than reading a node that is in memory already, so a single node asks only at each STEP.
    """
    advise = getattr(os, "posix_fadvise", None)  # macOS has none
    if advise is not None and start // STEP != end // STEP:
        advise(descriptor, start, min(end + AHEAD, last) - start, os.POSIX_FADV_WILLNEED)


# What a file says about itself.


def read_indexes(path: Path) -> list[Segment]:
    """The index of each run, as the file has it in its footer; StorageError if that is not as it was written."""
    with _opened(path) as file:
        return _read_indexes(path, file)[0]


def _read_indexes(path: Path, file: BinaryIO) -> tuple[list[Segment], int]:
    """The indexes, and the checksum of the head."""
    size = file.seek(0, os.SEEK_END)
    tail_at = max(size - _TAIL.size, 0)
    file.seek(tail_at)
    tail = file.read()
    if len(tail) < _TAIL.size or (found := _TAIL.unpack(tail))[1] != _MAGIC:
        raise StorageError(path, tail_at, "it is not an Arrow file, or its end is missing or damaged")
    start = tail_at - found[0] - len(_NO_MORE)  # of the end
    if not 0 < start < tail_at - len(_NO_MORE) - _CHECKSUMS.size:
        raise StorageError(path, tail_at, "the size of its footer is damaged")
    file.seek(start)
    end = file.read(tail_at - start)
    head_checksum, checksum = _CHECKSUMS.unpack(end[-_CHECKSUMS.size :])
    if zlib.crc32(end[: -_CHECKSUM.size]) != checksum:
        raise StorageError(path, start, "its footer is damaged, or it is not a segment of a stream")
    try:
        with pa.ipc.open_file(pa.BufferReader(end + tail)) as reader:  # which reads nothing else as yet
            indexes = reader.schema.metadata[_INDEX].split(b" ")
            segments = [Segment.load(base64.b64decode(index, validate=True)) for index in indexes]
    except (*INVALID, KeyError, TypeError) as error:
        raise StorageError(path, start, f"its footer has no usable index: {error}") from error
    for one, other in itertools.pairwise(segments):
        if one.places[-1] != other.places[0]:
            raise StorageError(path, start, f"it has nodes of no stream behind byte {one.places[-1]}")
    end_of_nodes = segments[-1].places[-1]
    if end_of_nodes != start:
        raise StorageError(path, start, f"its nodes end at byte {end_of_nodes}, not where its footer begins")
    return segments, head_checksum


def problems(path: Path, nodes: bool = True) -> list[str]:
    """Everything that is wrong with a file. Every node is decoded, unless only the rest is asked for."""
    try:
        with _opened(path) as file:
            segments, head_checksum = _read_indexes(path, file)
            file.seek(0)
            found = []
            if zlib.crc32(file.read(segments[0].places[0])) != head_checksum:
                found.append("its head is damaged")
            if segments[0].name != path.name:
                found.append(f"it was written with the name {segments[0].name}")
            every = [(segment, place) for segment in segments for place in range(len(segment))] if nodes else []
            checked = [_node_problem(file, *one) for one in every]
            return found + [problem for problem in checked if problem is not None]
    except FileNotFoundError:
        return ["it is not there"]
    except StorageError as error:
        return [f"at byte {error.offset}: {error.problem}"]
    except OSError as error:
        return [f"it cannot be read: {error.strerror}"]


def node_problem(path: Path, segment: Segment, place: int) -> str | None:
    """The defect of a node in a file; None if there is none."""
    try:
        with _opened(path) as file:
            return _node_problem(file, segment, place)
    except FileNotFoundError:
        return "it is not there"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _node_problem(file: BinaryIO, segment: Segment, place: int) -> str | None:
    start, end = segment.places[place], segment.places[place + 1]
    first, last = covered(segment.first + place, 1)
    which = f"the node of offsets {first} to {last}"
    file.seek(start)
    payload = file.read(end - start)
    if len(payload) < end - start:
        return f"it is cut short, within or before {which}"
    if zlib.crc32(payload) != segment.checksums[place]:
        return f"{which} is damaged: its checksum is wrong"
    problem = _unpacking_problem(segment, place, payload)
    if problem is not None:
        return f"{which} is damaged: {problem}"
    try:
        node = load_node(
            segment.first + place,
            segment.before,
            segment.newest[place],
            Layout.of(payload).codec is not None,
            segment.large,
            segment.sparse.get(place),
            payload,
        )
    except (CorruptValue, struct.error, IndexError) as error:
        return f"{which} is damaged: {error}"
    if node.raw != segment.raws[place]:
        return f"{which} has {node.raw} bytes, not {segment.raws[place]}"
    return None
