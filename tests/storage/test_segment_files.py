"""Files of segments: what is written is read again, by others too, and nothing that is damaged is taken for whole."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock.storage import files, segment_files
from penstock.storage.files import StorageError
from penstock.storage.segment_files import Run, SegmentFiles, problems, read_indexes
from penstock.types.stream.arrow import LARGE_SCHEMA, SCHEMA
from penstock.types.stream.ipc import Layout
from penstock.types.stream.nodes import NODE, Node, message_batch
from penstock.types.stream.segments import MissingHistory, Segment, StoredNode

Row = tuple[int, bytes, bytes]


def write(folder: Path, first: int, before: int, large: bool, nodes: list[StoredNode]) -> Segment:
    """A file of one stream."""
    (segment,) = segment_files.write(folder, large, [Run(first, before, nodes)])
    return segment


def rows_of(number: int, count: int = NODE) -> list[Row]:
    """The messages of a node: time, tag, entry."""
    return [
        (number * 10_000 + row, b"tag%d" % (row % 7), b"entry %d of node %d" % (row, number)) for row in range(count)
    ]


def stored(
    number: int, compression: str = "lz4", offsets: list[int] | None = None, large: bool = False, rows: Any = None
) -> StoredNode:
    rows = rows_of(number, NODE if offsets is None else len(offsets)) if rows is None else rows
    times, tags, entries = zip(*rows, strict=True) if rows else ((), (), ())
    batch = message_batch(array("q", times), [*tags], [*entries])
    if large:
        batch = pa.RecordBatch.from_arrays(
            [batch.column(0), *(column.cast(pa.large_binary()) for column in batch.columns[1:])], schema=LARGE_SCHEMA
        )
    newest = max(times, default=number * 10_000)
    node = Node.of(number, batch, 0, newest, None if offsets is None else array("q", offsets))
    node.freeze(compression)
    return StoredNode(node.payload, newest, node.raw, node.offsets)


@pytest.mark.parametrize("most", [1 << 30, 20_001, 1])
@pytest.mark.parametrize(
    ("bound", "calls"),
    [({}, [7]), ({"MOST_PIECES": 3}, [3, 3, 1]), ({"AT_ONCE": 2 * 17_500}, [3, 2, 2]), ({"AT_ONCE": 1}, [1] * 7)],
    ids=["one call", "few pieces at once", "few bytes at once", "each by itself"],
)
def test_the_nodes_of_a_file_go_to_the_system_together_however_much_it_takes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, bound: dict[str, int], calls: list[int]
) -> None:
    seen: list[int] = []
    write_one = os.write

    def take(descriptor: int, parts: list[bytes]) -> int:
        seen.append(len(parts))
        return write_one(descriptor, b"".join(parts)[:most])

    monkeypatch.setattr(os, "writev", take)
    for name, value in bound.items():
        monkeypatch.setattr(files, name, value)
    nodes = [stored(number) for number in range(5)]
    segment = write(tmp_path, 0, 0, False, nodes)
    assert seen == calls, "the head, the nodes and the end"
    assert SegmentFiles(tmp_path).fetch(segment, range(5)) == [node.payload for node in nodes]
    assert problems(tmp_path / segment.name) == []


def tiny(number: int, compression: str = "none") -> StoredNode:
    """A node of two messages."""
    return stored(number, compression, [number * NODE + 3, number * NODE + 500])


def payloads(nodes: list[StoredNode]) -> list[bytes]:
    return [node.payload for node in nodes]


MIXED = {
    "whole": lambda: [stored(number) for number in range(4, 8)],
    "not_compressed": lambda: [stored(number, "none") for number in range(4, 8)],
    "zstd": lambda: [stored(number, "zstd") for number in range(4, 8)],
    "sparse": lambda: [tiny(4), stored(5), tiny(6), stored(7, "zstd")],
    "empty": lambda: [stored(4, "none", []), stored(5), stored(6, "lz4", []), stored(7, "none", [])],
    "one": lambda: [stored(4, "zstd")],
}


@pytest.fixture(params=MIXED)
def nodes(request: pytest.FixtureRequest) -> list[StoredNode]:
    return MIXED[request.param]()


def test_what_is_written_is_read_again_in_any_order(tmp_path: Path, nodes: list[StoredNode]) -> None:
    segment = write(tmp_path / "history", 4, 33, False, nodes)
    files = SegmentFiles(tmp_path / "history")
    assert files.fetch(segment, range(len(nodes))) == payloads(nodes)
    for order in itertools.permutations(range(len(nodes)), min(3, len(nodes))):
        assert files.fetch(segment, order) == [nodes[place].payload for place in order]
    assert files.fetch(segment, []) == []
    assert files.missing(segment) is None
    assert problems(tmp_path / "history" / segment.name) == []


def test_the_index_says_what_the_nodes_said(tmp_path: Path, nodes: list[StoredNode]) -> None:
    segment = write(tmp_path, 4, 33, False, nodes)
    assert (segment.first, segment.before, segment.large, len(segment)) == (4, 33, False, len(nodes))
    assert [*segment.newest] == [node.newest for node in nodes]
    assert [*segment.raws] == [node.raw for node in nodes]
    assert segment.sparse == {place: node.offsets for place, node in enumerate(nodes) if node.offsets is not None}
    assert not list(segment.faults())
    assert segment.name.startswith(f"4001-{(4 + len(nodes)) * NODE}-")
    data = (tmp_path / segment.name).read_bytes()
    assert [data[a:b] for a, b in itertools.pairwise(segment.places)] == payloads(nodes)
    assert read_indexes(tmp_path / segment.name)[0].dump() == segment.dump()


def expected(nodes: list[StoredNode], large: bool = False) -> list[dict[str, Any]]:
    schema = LARGE_SCHEMA if large else SCHEMA
    return pa.Table.from_batches([pa.ipc.read_record_batch(node.payload, schema) for node in nodes]).to_pylist()


def test_pyarrow_reads_a_file_alone(tmp_path: Path, nodes: list[StoredNode]) -> None:
    path = tmp_path / write(tmp_path, 4, 0, False, nodes).name
    with pa.ipc.open_file(path) as reader:
        assert reader.num_record_batches == len(nodes)
        assert [reader.get_batch(place).num_rows for place in range(len(nodes))] == [
            NODE if node.offsets is None else len(node.offsets) for node in nodes
        ]
        table = reader.read_all()
        table.validate(full=True)
        assert table.to_pylist() == expected(nodes)
        assert table.schema.metadata[b"penstock.first"] == b"4001"
        assert table.schema.metadata[b"penstock.last"] == b"%d" % ((4 + len(nodes)) * NODE)
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as reader:
        assert reader.read_all().to_pylist() == expected(nodes)
    with path.open("rb") as file:
        file.seek(8)
        assert pa.ipc.open_stream(file).read_all().to_pylist() == expected(nodes)


def test_polars_reads_a_file_alone(tmp_path: Path, nodes: list[StoredNode]) -> None:
    path = tmp_path / write(tmp_path, 4, 0, False, nodes).name
    assert pl.read_ipc(path).to_dicts() == expected(nodes)
    assert pl.scan_ipc(path).filter(pl.col("time") >= 50_000).collect().to_dicts() == [
        row for row in expected(nodes) if row["time"] >= 50_000
    ]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_large_columns_are_read_by_all(tmp_path: Path, compression: str) -> None:
    nodes = [stored(number, compression, large=True) for number in range(3)]
    segment = write(tmp_path, 0, 0, True, nodes)
    path = tmp_path / segment.name
    assert read_indexes(path)[0].large
    assert SegmentFiles(tmp_path).fetch(segment, [0, 1, 2]) == payloads(nodes)
    assert problems(path) == []
    with pa.ipc.open_file(path) as reader:
        assert reader.schema.remove_metadata() == LARGE_SCHEMA
        assert reader.read_all().to_pylist() == expected(nodes, large=True)
    assert pl.read_ipc(path).to_dicts() == expected(nodes, large=True)


def test_a_file_of_many_nodes_is_read_by_all(tmp_path: Path) -> None:
    nodes = [tiny(number, "lz4") for number in range(2000)]
    segment = write(tmp_path, 0, 0, False, nodes)
    assert len(SegmentFiles(tmp_path).fetch(segment, range(2000))) == 2000
    assert pa.ipc.open_file(tmp_path / segment.name).read_all().num_rows == 4000
    assert pl.read_ipc(tmp_path / segment.name).height == 4000


def test_a_read_that_the_system_answers_in_parts_is_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does for more than 2 GiB."""
    nodes = [stored(0), stored(1)]
    segment = write(tmp_path, 0, 0, False, nodes)
    pread = segment_files.os.pread
    monkeypatch.setattr(segment_files.os, "pread", lambda file, size, at: pread(file, min(size, 1000), at))
    assert SegmentFiles(tmp_path).fetch(segment, [0, 1]) == payloads(nodes)


# Small streams share a file.


@pytest.fixture
def shared(tmp_path: Path) -> tuple[list[Segment], list[list[StoredNode]]]:
    """The segments of three streams in one file, and their nodes."""
    runs = [[stored(0), tiny(1)], [stored(7, "none")], [stored(0), stored(1, "zstd")]]
    firsts = [0, 7, 0]
    written = segment_files.write(
        tmp_path, False, [Run(first, 5, nodes) for first, nodes in zip(firsts, runs, strict=True)]
    )
    return written, runs


def test_streams_that_share_a_file_read_their_own_nodes(
    tmp_path: Path, shared: tuple[list[Segment], list[list[StoredNode]]]
) -> None:
    segments, runs = shared
    assert [path.name for path in tmp_path.iterdir()] == [segments[0].name]
    assert {segment.name for segment in segments} == {segments[0].name}
    assert segments[0].name.startswith("shared-5-")
    assert not [fault for segment in segments for fault in segment.faults()]
    files = SegmentFiles(tmp_path)
    for segment, nodes in zip(segments, runs, strict=True):
        assert files.fetch(segment, range(len(nodes))) == payloads(nodes)
        assert files.missing(segment) is None
        assert segment.before == 5
    assert [segment.first for segment in segments] == [0, 7, 0]
    path = tmp_path / segments[0].name
    assert [segment.dump() for segment in read_indexes(path)] == [segment.dump() for segment in segments]
    assert problems(path) == []


def test_pyarrow_and_polars_read_a_shared_file_alone(
    tmp_path: Path, shared: tuple[list[Segment], list[list[StoredNode]]]
) -> None:
    segments, runs = shared
    path = tmp_path / segments[0].name
    rows = expected([node for nodes in runs for node in nodes])
    table = pa.ipc.open_file(path).read_all()
    assert table.to_pylist() == pl.read_ipc(path).to_dicts() == rows
    assert table.schema.metadata[b"penstock.first"] == b"1 7001 1"
    assert table.schema.metadata[b"penstock.last"] == b"2000 8000 2000"


def test_a_flipped_byte_of_a_shared_file_concerns_one_stream(
    tmp_path: Path, shared: tuple[list[Segment], list[list[StoredNode]]]
) -> None:
    segments, runs = shared
    path = tmp_path / segments[0].name
    data = path.read_bytes()
    for at in range(0, len(data), 97):
        path.write_bytes(flipped(data, at))
        assert problems(path), at
        for segment, nodes in zip(segments, runs, strict=True):
            if segment.places[0] <= at < segment.places[-1]:
                with pytest.raises(MissingHistory, match=f"{segment.name} is damaged there$"):
                    SegmentFiles(tmp_path).fetch(segment, range(len(nodes)))
            else:
                assert SegmentFiles(tmp_path).fetch(segment, range(len(nodes))) == payloads(nodes)


# Names.


def test_the_same_nodes_are_written_once(tmp_path: Path) -> None:
    nodes = [stored(0), stored(1)]
    first = write(tmp_path, 0, 0, False, nodes)
    made = (tmp_path / first.name).stat()
    again = write(tmp_path, 0, 0, False, nodes)
    assert again.dump() == first.dump()
    assert (tmp_path / first.name).stat() == made
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_two_threads_may_write_the_same_nodes_at_once(tmp_path: Path) -> None:
    nodes = [stored(number, "none") for number in range(20)]
    with ThreadPoolExecutor(4) as pool:
        names = {done.name for done in pool.map(lambda _: write(tmp_path, 0, 0, False, nodes), range(20))}
    assert [path.name for path in tmp_path.iterdir()] == [*names]
    assert problems(tmp_path / names.pop()) == []


def test_a_name_that_is_taken_by_other_contents_gets_a_number(tmp_path: Path) -> None:
    nodes = [stored(0), stored(1)]
    first = write(tmp_path, 0, 0, False, nodes)
    path = tmp_path / first.name
    other = flipped(path.read_bytes(), first.places[0] + 300)
    path.write_bytes(other)
    second, third = (write(tmp_path, 0, before, False, nodes) for before in (0, 1))
    assert second.name == first.name.replace(".arrow", "-2.arrow")
    assert third.name == first.name.replace(".arrow", "-3.arrow"), "its index is another"
    assert path.read_bytes() == other
    assert SegmentFiles(tmp_path).fetch(second, [0, 1]) == payloads(nodes)
    assert problems(tmp_path / second.name) == []
    assert SegmentFiles(tmp_path).strays([]) == sorted(segment.name for segment in (first, second, third))


def test_strays_are_our_files_that_are_not_wanted(tmp_path: Path) -> None:
    files = SegmentFiles(tmp_path / "history")
    assert files.strays([]) == []
    kept, stray = (write(tmp_path / "history", number, 0, False, [stored(number)]) for number in (0, 1))
    for name in ("temp-12-34-1-1000-00000000.arrow", "notes.txt", "my.arrow"):
        (tmp_path / "history" / name).touch()
    assert files.strays({kept.name}) == [stray.name, "temp-12-34-1-1000-00000000.arrow"]
    for name in files.strays({kept.name}):
        files.remove(name)
    files.remove("1-1000-00000000.arrow")  # which is not there
    assert sorted(path.name for path in (tmp_path / "history").iterdir()) == [kept.name, "my.arrow", "notes.txt"]


# Damage.


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Segment, list[StoredNode]]:
    """A file so short that every byte of it can be tried."""
    nodes = [tiny(0), tiny(1, "lz4"), tiny(2, "zstd")]
    segment = write(tmp_path, 0, 0, False, nodes)
    return tmp_path / segment.name, segment, nodes


def test_a_flipped_byte_anywhere_is_found(small: tuple[Path, Segment, list[StoredNode]]) -> None:
    path, segment, nodes = small
    files, data = SegmentFiles(path.parent), path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(flipped(data, at))
        assert problems(path), at
        place = next((place for place in range(3) if segment.places[place] <= at < segment.places[place + 1]), None)
        for tried in range(3):
            if tried == place:
                offsets = f"offsets {tried * NODE + 1} to {(tried + 1) * NODE} cannot be read"
                with pytest.raises(MissingHistory, match=f"^{offsets}: the file .*/{segment.name} is damaged there$"):
                    files.fetch(segment, [tried])
            else:
                assert files.fetch(segment, [tried]) == [nodes[tried].payload]
        if segment.places[-1] <= at:
            with pytest.raises(StorageError, match=segment.name):
                read_indexes(path)


def test_a_file_that_is_cut_short_anywhere_is_found(small: tuple[Path, Segment, list[StoredNode]]) -> None:
    path, segment, nodes = small
    files, data = SegmentFiles(path.parent), path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert problems(path), size
        with pytest.raises(StorageError, match=segment.name):
            read_indexes(path)
        assert (files.missing(segment) is None) == (size >= segment.places[-1])
        for place in range(3):
            if size < segment.places[place + 1]:
                with pytest.raises(MissingHistory, match=f"{segment.name} is cut short$"):
                    files.fetch(segment, [place])
            else:
                assert files.fetch(segment, [place]) == [nodes[place].payload]


def test_bytes_behind_the_end_are_found(small: tuple[Path, Segment, list[StoredNode]]) -> None:
    path, _, _ = small
    path.write_bytes(path.read_bytes() + b"\n")
    assert problems(path)


def test_a_missing_file_is_named_with_its_offsets(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    segment = write(folder, 4, 0, False, [stored(number) for number in range(4, 8)])
    files = SegmentFiles(folder)
    (folder / segment.name).unlink()
    with pytest.raises(MissingHistory) as raised:
        files.fetch(segment, [1, 2])
    assert str(raised.value) == f"offsets 5001 to 7000 cannot be read: the file history/{segment.name} is not there"
    assert files.missing(segment) == f"the file history/{segment.name} is not there"
    assert problems(folder / segment.name) == ["it is not there"]
    with pytest.raises(FileNotFoundError):
        read_indexes(folder / segment.name)
    shutil.rmtree(folder)
    with pytest.raises(MissingHistory, match="is not there"):
        files.fetch(segment, [0])


def test_other_files_are_not_taken_for_segments(tmp_path: Path) -> None:
    path = tmp_path / "1-1000-00000000.arrow"
    with pa.ipc.new_file(path, SCHEMA) as writer:
        writer.write_batch(message_batch(array("q", [1]), [b"t"], [b"e"]))
    assert problems(path) == [
        f"at byte {segment_files_end(path)}: its footer is damaged, or it is not a segment of a stream"
    ]
    path.write_bytes(b"")
    assert problems(path) == ["at byte 0: it is not an Arrow file, or its end is missing or damaged"]


def segment_files_end(path: Path) -> int:
    data = path.read_bytes()
    return len(data) - 10 - int.from_bytes(data[-10:-6], "little") - 8


def test_a_file_with_another_name_is_reported(small: tuple[Path, Segment, list[StoredNode]]) -> None:
    path, segment, _ = small
    other = path.rename(path.with_name("1-1000-00000000.arrow"))
    assert problems(other) == [f"it was written with the name {segment.name}"]


LIES: dict[str, Callable[[StoredNode], StoredNode]] = {
    "has 74 bytes, not 75": lambda node: node._replace(raw=node.raw + 1),
    "does not hold what its header says": lambda node: node._replace(newest=0),
    "has offsets of another": lambda node: node._replace(offsets=array("q", [1500, 1003])),
    "is damaged: ": lambda node: node._replace(payload=node.payload[:64] + bytes(len(node.payload) - 64)),
}


@pytest.mark.parametrize("problem", LIES)
def test_nodes_that_do_not_hold_what_their_index_says_are_found(tmp_path: Path, problem: str) -> None:
    """Bytes that are as they were written, and were written wrong."""
    segment = write(tmp_path, 1, 0, False, [LIES[problem](tiny(1))])
    (found,) = problems(tmp_path / segment.name)
    assert problem in found


@pytest.mark.parametrize("claimed", [1 << 40, 1 << 62, -2, -(1 << 62)])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("column", range(5))
def test_a_column_that_claims_to_unpack_to_terabytes_is_refused(
    tmp_path: Path, compression: str, column: int, claimed: int
) -> None:
    """Arrow would allocate what the column says before it unpacks it."""
    node = stored(0, compression)
    at, _ = Layout.of(node.payload).places[column]
    hostile = node._replace(payload=node.payload[:at] + struct.pack("<q", claimed) + node.payload[at + 8 :])
    segment = write(tmp_path, 0, 0, False, [hostile, stored(1)])
    problem = f"damaged.*: a column claims to unpack to {claimed} bytes"
    with pytest.raises(MissingHistory, match=problem):
        SegmentFiles(tmp_path).fetch(segment, [0])
    assert SegmentFiles(tmp_path).fetch(segment, [1]) == [stored(1).payload]
    (found,) = problems(tmp_path / segment.name)
    assert re.search(problem, found)


def test_a_payload_that_is_not_one_is_refused(tmp_path: Path) -> None:
    segment = write(tmp_path, 0, 0, False, [stored(0)._replace(payload=b"\xff\xff\xff\xff" + bytes(60))])
    with pytest.raises(MissingHistory, match="is damaged there"):
        SegmentFiles(tmp_path).fetch(segment, [0])
    assert problems(tmp_path / segment.name)


# Bad days of a process that writes.

WRITER = """
import os, resource, sys
from pathlib import Path
from penstock.storage.segment_files import Run, write
from penstock.types.stream.segments import StoredNode

folder, step = Path(sys.argv[1]), sys.argv[2]
nodes = [StoredNode(Path(name).read_bytes(), 0, 1000, None) for name in sys.argv[3:]]
if step == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        write(folder, False, [Run(0, 0, nodes)])
    except OSError as error:
        print(error.strerror)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(sorted(path.name for path in folder.iterdir()), flush=True)
    print(write(folder, False, [Run(0, 0, nodes)])[0].name)
else:
    syncs = iter(range(1, 10))
    fsync = os.fsync

    def stop_there(descriptor):
        if next(syncs) == int(step):
            print("there", flush=True)
            sys.stdin.read()
        fsync(descriptor)

    os.fsync = stop_there
    write(folder, False, [Run(0, 0, nodes)])
"""


def writer(tmp_path: Path, step: str) -> subprocess.Popen[str]:
    names = []
    for number in range(3):
        names.append(tmp_path / f"payload{number}")
        names[-1].write_bytes(stored(number, "none").payload)
    (tmp_path / "history").mkdir()
    words = [sys.executable, "-c", WRITER, str(tmp_path / "history"), step, *map(str, names)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    with writer(tmp_path, "full") as child:
        output, _ = child.communicate()
    problem, left, name = output.splitlines()
    assert (problem, left) == ("File too large", "[]")
    assert [path.name for path in (tmp_path / "history").iterdir()] == [name]


@pytest.mark.parametrize(("step", "whole"), [("1", False), ("2", True)])
def test_a_process_that_is_killed_leaves_an_unfinished_file_or_a_whole_one(
    tmp_path: Path, step: str, whole: bool
) -> None:
    """It dies before the file is synced, or after it has its name, before the folder is synced."""
    with writer(tmp_path, step) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        child.send_signal(signal.SIGKILL)
    files = SegmentFiles(tmp_path / "history")
    (left,) = files.strays([])
    assert left.startswith("temp-") != whole
    segment = write(tmp_path / "history", 0, 0, False, [stored(number, "none") for number in range(3)])
    assert files.strays([segment.name]) == ([] if segment.name == left else [left])
    assert problems(tmp_path / "history" / segment.name) == []


def test_an_error_before_the_name_is_given_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(temporary: Path, path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(segment_files, "install", refused)
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path, 0, 0, False, [stored(0)])
    assert not list(tmp_path.iterdir())


def test_a_file_is_asked_for_ahead_only_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking costs more than reading a node that the system has in memory."""
    rows = [(row, b"", bytes(100)) for row in range(NODE)]
    segment = write(tmp_path, 0, 0, False, [stored(number, "none", rows=rows) for number in range(60)])
    asked = []
    monkeypatch.setattr(segment_files.os, "posix_fadvise", lambda *words: asked.append(words[1:3]), raising=False)
    for place in range(60):
        SegmentFiles(tmp_path).fetch(segment, [place])
    assert len(asked) == segment.places[-1] >> 20
    assert all(size <= segment_files.AHEAD + 200_000 and at + size <= segment.places[-1] for at, size in asked)
    asked.clear()
    SegmentFiles(tmp_path).fetch(segment, range(60))
    assert asked == [(segment.places[0], segment.places[-1] - segment.places[0])]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_not_a_file_is_refused_and_holds_nothing_up(tmp_path: Path, make: Callable[[Path], None]) -> None:
    segment = write(tmp_path, 0, 0, False, [tiny(0)])
    path = tmp_path / segment.name
    path.unlink()
    make(path)
    with pytest.raises(MissingHistory, match="it is not a regular file"):
        SegmentFiles(tmp_path).fetch(segment, [0])
    assert problems(path) == ["it cannot be read: it is not a regular file"]
    with pytest.raises(OSError, match="it is not a regular file"):
        write(tmp_path, 0, 0, False, [tiny(0)])
