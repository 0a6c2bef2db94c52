"""What stream commands refuse: an error that names the argument, and nothing appended, delivered or acknowledged."""

from __future__ import annotations

import io
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.commands.stream_world import World, arrow, ipc, visible

from penstock.protocol.errors import ReplyError

HUGE = "9223372036854775808"


@pytest.fixture
def world() -> World:
    """A stream with something of everything."""
    world = World()
    world.write("k", *"abcdef")
    world.run("TEVICT k 1")
    world.run("TREAD k 0 2 GROUP g RETRY 100 5000 DEADLETTER dead")
    world.run("TWRITE k PRODUCER p 3 ENTRIES t e")
    world.run("TSTAGE k token ENTRIES t staged")
    world.run("SET text value")
    return world


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        # TWRITE
        ("TWRITE k ENTRIES a b c", "ENTRIES takes pairs of tag and entry"),
        ("TWRITE k BACKLOG 5 ENTRIES", "ENTRIES takes pairs of tag and entry"),
        ("TWRITE k BACKLOG x ENTRIES a b", "BACKLOG is not an integer or out of range"),
        ("TWRITE k BACKLOG 0 ENTRIES a b", "BACKLOG must be at least 1"),
        ("TWRITE k BACKLOG -1 ENTRIES a b", "BACKLOG must be at least 1"),
        (f"TWRITE k BACKLOG {HUGE} ENTRIES a b", "BACKLOG is not an integer or out of range"),
        ("TWRITE k PRODUCER p x ENTRIES a b", "PRODUCER's sequence is not an integer or out of range"),
        ("TWRITE k PRODUCER p -1 ENTRIES a b", "PRODUCER's sequence must be at least 0"),
        (f"TWRITE k PRODUCER p {HUGE} ENTRIES a b", "PRODUCER's sequence is not an integer or out of range"),
        ("TWRITE k PRODUCER p 9 ENTRIES a", "ENTRIES takes pairs"),
        ("TWRITE k PRODUCER p 9 BACKLOG 9", "TWRITE needs 'tag entry'"),
        ("TWRITE k PRODUCER p", None),  # four words: a tag and an entry
        ("TWRITE k BACKLOG 3 PRODUCER p", "unknown or incomplete option 'PRODUCER' of TWRITE"),
        ("TWRITE k NOSUCH 1 ENTRIES a b", "unknown or incomplete option 'NOSUCH' of TWRITE"),
        ("TWRITE k BACKLOG 3 BACKLOG 4 ENTRIES a b", "option 'BACKLOG' of TWRITE is given twice"),
        ("TWRITE k PRODUCER q 3 producer q 4 ENTRIES a b", "option 'PRODUCER' of TWRITE is given twice"),
        ("TWRITE k a b c d", "unknown or incomplete option 'a' of TWRITE"),
        ("TWRITE k FORMAT PARQUET xyz", "unknown or incomplete option 'PARQUET' of TWRITE"),
        ("TWRITE k FORMAT ARROW xyz", "ARROW payload refused: "),
        ("TWRITE k FORMAT ARROW xyz more", "unknown or incomplete option 'FORMAT' of TWRITE"),
        ("TWRITE k", "wrong number of arguments for 'twrite' command"),
        ("TWRITE k tag", "wrong number of arguments for 'twrite' command"),
        # TREAD
        ("TREAD k", "wrong number of arguments for 'tread' command"),
        ("TREAD k x 1", "offset is not an integer or out of range"),
        ("TREAD k -1 1", "offset must be at least 0"),
        ("TREAD k 0 1", "offset must be at least 1"),
        ("TREAD k 01 1", "offset is not an integer or out of range"),
        (f"TREAD k {HUGE} 1", "offset is not an integer or out of range"),
        ("TREAD k 1 x", "count is not an integer or out of range"),
        ("TREAD k 1 -1", "count must be at least 0"),
        ("TREAD k 0 -1 GROUP g", "count must be at least 0"),
        (f"TREAD k 1 {HUGE}", "count is not an integer or out of range"),
        ("TREAD k 0 1 GROUP g BLOCK x", "BLOCK is not an integer or out of range"),
        ("TREAD k 0 1 GROUP g BLOCK -1", "BLOCK must be at least 0"),
        ("TREAD k 0 1 GROUP g BLOCK 1.5", "BLOCK is not an integer or out of range"),
        ("TREAD k 0 1 GROUP", "unknown or incomplete option 'GROUP' of TREAD"),
        ("TREAD k 0 1 GROUP g RETRY 5", "unknown or incomplete option 'RETRY' of TREAD"),
        ("TREAD k 0 1 GROUP g RETRY 0 5", "RETRY's retry-ms must be at least 1"),
        ("TREAD k 0 1 GROUP g RETRY x 5", "RETRY's retry-ms is not an integer or out of range"),
        ("TREAD k 0 1 GROUP g RETRY 5 -1", "RETRY's expire-ms must be at least 0"),
        ("TREAD k 0 1 GROUP g MAXATTEMPTS 2", "MAXATTEMPTS needs RETRY"),
        ("TREAD k 0 1 GROUP g RESERVE", "RESERVE needs RETRY"),
        ("TREAD k 1 1 WITHLEASE", "WITHLEASE needs RETRY"),
        ("TREAD k 1 1 CONSUMER c", "CONSUMER needs GROUP"),
        ("TREAD k 0 1 GROUP g CONSUMER c RELEASE", "RELEASE needs CONSUMER and RETRY"),
        ("TREAD k 0 1 GROUP g RETRY 5 0 RELEASE", "RELEASE needs CONSUMER and RETRY"),
        ("TREAD k 0 1 GROUP g RETRY 5 0 MAXATTEMPTS 0", "MAXATTEMPTS must be at least 1"),
        ("TREAD k 0 1 GROUP g RETRY 5 0 MAXATTEMPTS 536870912", "MAXATTEMPTS must be at most 536870911"),
        ("TREAD k 1 1 RETRY 5 6", "RETRY needs GROUP"),
        ("TREAD k 0 1 GROUP g DEADLETTER d", "DEADLETTER needs RETRY"),
        ("TREAD k 1 1 DEADLETTER d", "DEADLETTER needs RETRY"),
        ("TREAD k 0 1 GROUP g RETRY 5 6 DEADLETTER k", "DEADLETTER must be another key"),
        ("TREAD k 0 1 GROUP g RETRY 5 6 DEADLETTER", "unknown or incomplete option 'DEADLETTER' of TREAD"),
        ("TREAD k 0 1 GROUP g MAXBYTES 0", "MAXBYTES must be at least 1"),
        ("TREAD k 0 1 GROUP g MAXBYTES x", "MAXBYTES is not an integer or out of range"),
        ("TREAD k 0 1 GROUP g FORMAT PARQUET", "unknown FORMAT 'PARQUET'"),
        ("TREAD k 0 1 GROUP g FORMAT", "unknown or incomplete option 'FORMAT' of TREAD"),
        ("TREAD k 0 1 GROUP g COMPRESSED", "COMPRESSED needs FORMAT ARROW"),
        ("TREAD k 1 1 WITHINFO COMPRESSED", "COMPRESSED needs FORMAT ARROW"),
        ("TREAD k 1 1 FORMAT ARROW COMPRESSED COMPRESSED", "option 'COMPRESSED' of TREAD is given twice"),
        ("TREAD k 0 1 GROUP g NOSUCH", "unknown or incomplete option 'NOSUCH' of TREAD"),
        ("TREAD k 0 1 GROUP g GROUP h", "option 'GROUP' of TREAD is given twice"),
        ("TREAD k 1 1 block 5 BLOCK 5", "option 'BLOCK' of TREAD is given twice"),
        # TACK, TNACK, TEVICT
        ("TACK k g", "wrong number of arguments for 'tack' command"),
        ("TACK k g 2 x", "offset 'x' is not an integer or out of range"),
        ("TACK k g 2 0", "offset '0' must be at least 1"),
        ("TACK k g 2 3-2", "range '3-2' ends before it starts"),
        ("TACK k g 2 3-", "offset '3-' is not an integer or out of range"),
        ("TACK k g 2 -3", "offset '-3' is not an integer or out of range"),
        ("TACK k g 2 2-3-4", "offset '2-3-4' is not an integer or out of range"),
        (f"TACK k g 2 2-{HUGE}", "is not an integer or out of range"),
        ("TNACK k g 2 x", "offset 'x' is not an integer or out of range"),
        ("TACK k g TOKEN 5", "TOKEN takes a number, and offsets follow it"),
        ("TACK k g TOKEN x 5", "TOKEN is not an integer or out of range"),
        ("TACK k g 5 TOKEN 5", "offset 'TOKEN' is not an integer or out of range"),
        ("TNACK k g TOKEN -1 5", "TOKEN must be at least 1"),
        ("TEXTEND k g 0 5", "ms must be at least 1"),
        ("TEXTEND k g x 5", "ms is not an integer or out of range"),
        ("TEXTEND k g 5 BEGIN", "BEGIN needs offsets after it"),
        ("TEXTEND k g 5 TOKEN 7", "TOKEN takes a number, and offsets follow it"),
        ("TEXTEND k g 5 TOKEN 7 BEGIN", "BEGIN needs offsets after it"),
        ("TEXTEND k g 5 5-4", "range '5-4' ends before it starts"),
        ("TNACK k g 2 DELAY x", "DELAY is not an integer or out of range"),
        ("TNACK k g 2 DELAY -1", "DELAY must be at least 0"),
        ("TNACK k g 2 DELAY", "offset 'DELAY' is not an integer or out of range"),
        ("TNACK k g DELAY 5", "offset 'DELAY' is not an integer or out of range"),
        ("TEVICT k x", "offset is not an integer or out of range"),
        (f"TEVICT k {HUGE}", "offset is not an integer or out of range"),
        ("TEVICT k -9223372036854775808", "offset must be at least"),
        # beyond the four main commands
        ("TSEEK k WHEN 5", "unknown option 'WHEN' of TSEEK"),
        ("TSEEK k TIME x", "TIME is not an integer or out of range"),
        ("TSEEK k TIME -1", "TIME must be at least 0"),
        ("TRETAIN k COUNT", "TRETAIN takes pairs"),
        ("TRETAIN k COUNT x", "COUNT is not an integer or out of range"),
        ("TRETAIN k COUNT -1", "COUNT must be at least 0"),
        ("TRETAIN k COUNT 1 AGE x", "AGE is not an integer or out of range"),
        ("TRETAIN k COUNT 1 BYTES -1", "BYTES must be at least 0"),
        ("TRETAIN k COUNT 1 COMPACT maybe", "COMPACT must be yes or no"),
        ("TRETAIN k COUNT 1 count 2", "option 'COUNT' of TRETAIN is given twice"),
        ("TRETAIN k COUNT 1 NOSUCH 1", "unknown limit 'NOSUCH' of TRETAIN"),
        ("TGROUP SET k g x", "offset is not an integer or out of range"),
        ("TGROUP SET k g -1", "offset must be at least 0"),
        ("TGROUP SET missing g 1", "no such key"),
        ("TGROUP PENDING k g x", "offset 'x' is not an integer or out of range"),
        ("TGROUP PENDING k g 1-5 COUNT", "TGROUP PENDING takes a range and COUNT messages"),
        ("TGROUP PENDING k g 1-5 COUNT x", "COUNT is not an integer or out of range"),
        ("TGROUP PENDING k g 1-5 6-7", "TGROUP PENDING takes a range and COUNT messages"),
        ("TGROUP PENDING missing g", "no such key"),
        ("TGROUP NOSUCH k g", "nknown subcommand"),
        ("TSTAGE k token ENTRIES a", "ENTRIES takes pairs of tag and entry"),
        ("TSTAGE k token PARQUET x", "TSTAGE takes ENTRIES tag entry ..., or ARROW and one payload"),
        ("TSTAGE k token ARROW x y", "TSTAGE takes ENTRIES tag entry ..., or ARROW and one payload"),
        ("TSTAGE k token ARROW x", "ARROW payload refused: "),
        ("TCOMMIT k p x token", "epoch is not an integer or out of range"),
        ("TCOMMIT k p -1 token", "epoch must be at least 0"),
        ("TCOMMIT k p 1", "wrong number of arguments for 'tcommit' command"),
    ],
)  # fmt: skip
def test_a_refused_command_names_the_argument_and_changes_nothing(
    world: World, words: str, complaint: str | None
) -> None:
    if complaint is None:
        assert isinstance(world.run(words), int)
        return
    before, logged = visible(world), len(world.logged)
    assert complaint in world.error(words)
    assert visible(world) == before
    assert len(world.logged) == logged
    assert world.run("EXISTS missing dead d") == 0
    fresh = World()
    if " missing " not in words:
        assert fresh.error(words).startswith("ERR")
    assert fresh.run("DBSIZE") == 0, "a refused command made its key"


@pytest.mark.parametrize(
    "words",
    [
        "TWRITE text t e", "TWRITE text ENTRIES t e", "TWRITE text BACKLOG 1 PRODUCER p 1 ENTRIES t e",
        "TREAD text 1 1", "TREAD text $ 1 BLOCK 0", "TREAD text 0 1 GROUP g",
        "TREAD text 0 1 BLOCK 0 GROUP g RETRY 5 0", "TACK text g 1", "TEVICT text 1", "TINFO text", "TPRODUCER text p",
        "TSEEK text TIME 0",
        "TRETAIN text COUNT 1", "TGROUP LIST text", "TGROUP SET text g 1", "TGROUP DEL text g", "TGROUP PENDING text g",
        "TNACK text g 1", "TEXTEND text g 5 1", "TSTAGE text token ENTRIES t e", "TCOMMIT text p 1 token",
        "TAPPLY text UNSTAGE 5",
    ],
)  # fmt: skip
def test_another_type_is_refused(world: World, words: str) -> None:
    assert world.error(words) == "WRONGTYPE Operation against a key holding the wrong kind of value"
    assert world.run("GET text") == b"value"
    assert not world.first_client.blocked


@pytest.mark.parametrize("words", ["TREAD k 0 1 GROUP g", "TREAD k 0 1 BLOCK 0 GROUP new", "TREAD missing 0 1 GROUP g"])
def test_dead_letters_need_a_stream(world: World, words: str) -> None:
    before, logged = visible(world), len(world.logged)
    assert world.error(words + " RETRY 5 6 DEADLETTER text") == "ERR DEADLETTER key 'text' holds no stream"
    assert (visible(world), len(world.logged)) == (before, logged)
    assert world.run("EXISTS missing") == 0
    assert not world.first_client.blocked


def test_commands_of_other_types_refuse_a_stream(world: World) -> None:
    for words in ("GET k", "LPUSH k a", "SADD k a", "XADD k * f v", "XLEN k", "APPEND k x"):
        assert world.error(words).startswith("WRONGTYPE")


def test_names_with_line_breaks_do_not_end_an_error_early(world: World) -> None:
    for words in (
        ("TCOMMIT", "k", "p", 1, b"a\r\nb\xff"),
        ("TACK", "k", "g", b"1\r\n2"),
        ("TREAD", "k", 1, 1, b"\r\n+OK"),
    ):
        assert "\n" not in world.error(*words)


# -- Arrow ----------------------------------------------------------------------------------------------------

BINARY = pa.array([b"a"], pa.binary())


def with_column_twice() -> bytes:
    batch = pa.RecordBatch.from_arrays([BINARY] * 3, names=["tag", "entry", "entry"])
    return ipc(pa.Table.from_batches([batch]))


def in_file_format() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"tag": BINARY, "entry": BINARY})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def with_a_table_that_ends_in_the_middle_of_a_number(kind: Any) -> bytes:
    """Arrow itself takes it."""
    rows = pa.array([b"a", b"b", b"c"], pa.binary()).cast(kind)
    good = ipc(pa.table({"tag": rows, "entry": rows}))
    size = 48 if kind in (pa.binary_view(), pa.string_view()) else 16
    place = good.index(struct.pack("<qq", 0, size))
    payload = good[:place] + struct.pack("<qq", 0, size + 1) + good[place + 16 :]
    pa.ipc.open_stream(payload).read_all().validate(full=True)
    return payload


def with_a_first_message_of(kind: int, fields: int = 4) -> bytes:
    """Of a kind by its number, 1 is a schema, and with the list of its fields so many bytes from where it is named."""
    payload = bytearray(arrow([b"a"], [b"b"]))
    assert payload[29] == 1 and payload[48:52] == struct.pack("<i", 4)
    payload[29] = kind
    payload[48:52] = struct.pack("<i", fields)
    return bytes(payload)


def with_entries_of_a_type_that_python_lacks() -> bytes:
    """Months, which pyarrow reads and validates but has no class for: the type's number is behind a flag."""
    return ipc(pa.table({"tag": WIDE, "entry": WIDE})).replace(b"\x01\x13", b"\x01\x0b", 1)


WIDE = pa.array([b"a"], pa.large_binary())
GOOD = arrow([b"tag", b"tag"] * 20, [b"first", b"second"] * 20, list(range(40)))


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"", "not an Arrow stream"),
        (b"\xff\xff\xff\xff\x00\x00\x00\x00", "not an Arrow stream"),
        (GOOD[:100], "not an Arrow stream"),
        (in_file_format(), "an Arrow file, not an Arrow stream: write it with pyarrow.ipc.new_stream"),
        (GOOD + GOOD, f"{len(GOOD)} bytes follow the end of the Arrow stream"),
        (GOOD + b"\0", "1 bytes follow the end of the Arrow stream"),
        (with_a_table_that_ends_in_the_middle_of_a_number(pa.binary()), "column 'tag' has a table of 17 bytes"),
        (with_a_table_that_ends_in_the_middle_of_a_number(pa.string()), "column 'tag' has a table of 17 bytes"),
        (with_a_table_that_ends_in_the_middle_of_a_number(pa.binary_view()), "column 'tag' has a table of 49 bytes"),
        (with_a_first_message_of(255), "it begins with a message of the kind 'unknown', not with a schema"),
        (with_a_first_message_of(255, 0x7FFFFF00), "it begins with a message of the kind 'unknown'"),  # SIGSEGV once
        (with_a_first_message_of(3), "not an Arrow stream"),
        (with_entries_of_a_type_that_python_lacks(), "column 'entry' is month_interval, not binary or string"),
        (with_column_twice(), "column 'entry' is given twice"),
        (ipc(pa.table({"entry": BINARY})), "column 'tag' is missing"),
        (ipc(pa.table({"tag": BINARY})), "column 'entry' is missing"),
        (ipc(pa.table({"tag": BINARY, "entry": BINARY, "more": BINARY})),
            "column 'more' is not one of time, tag, entry"),
        (ipc(pa.table({"tag": BINARY, "entry": pa.array([5])})), "column 'entry' is int64, not binary or string"),
        (ipc(pa.table({"tag": BINARY, "entry": pa.array([None], pa.binary())})), "column 'entry' has nulls"),
        (ipc(pa.table({"tag": BINARY, "entry": BINARY, "time": pa.array(["noon"])})), "column 'time' is string"),
        (ipc(pa.table({"tag": BINARY, "entry": BINARY, "time": pa.array([1 << 62], pa.timestamp("s"))})),
            "column 'time': Casting"),
        (ipc(pa.table({"tag": BINARY, "entry": BINARY.dictionary_encode()})), "column 'entry' is dictionary"),
        (ipc(pa.table({"tag": BINARY, "entry": pa.array([[b"a"]])})), "column 'entry' is list"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "form",
    [
        ("TWRITE", "k", "FORMAT", "ARROW"),
        ("TWRITE", "k", "PRODUCER", "p", 9, "ARROW"),
        ("TSTAGE", "k", "token", "ARROW"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(
    world: World, form: tuple[str, ...], payload: bytes, complaint: str
) -> None:
    before = visible(world)
    error = world.error(*form, payload)
    assert error.startswith("ERR ARROW payload refused: ")
    assert complaint in error
    assert visible(world) == before


def test_a_table_that_fails_in_its_last_batch_appends_none_of_it(world: World) -> None:
    schema = pa.schema([("tag", pa.binary()), ("entry", pa.binary())])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([BINARY, BINARY], schema))
        writer.write_batch(pa.record_batch([BINARY, pa.array([None], pa.binary())], schema))
    before = visible(world)
    assert "column 'entry' has nulls" in world.error("TWRITE", "k", "FORMAT", "ARROW", sink.getvalue())
    assert visible(world) == before


ARROW_FORMS = [
    ("TWRITE", "k", "FORMAT", "ARROW"),
    ("TWRITE", "k", "PRODUCER", "p", 9, "BACKLOG", 1, "ARROW"),
    ("TSTAGE", "k", "token", "ARROW"),
]


def compressed(codec: str, batches: int, entry: bytes) -> bytes:
    """An Arrow stream of many equal batches, each of one entry without a tag, of which only one was ever unpacked."""
    batch = pa.record_batch([pa.array([b""]), pa.array([entry])], names=["tag", "entry"])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    head = batch.schema.serialize().size
    return sink.getvalue()[:head] + sink.getvalue()[head:end] * batches


@pytest.mark.parametrize("form", ARROW_FORMS)
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_table_that_would_unpack_to_gigabytes_is_refused_before_it_does(
    world: World, form: tuple[str, ...], codec: str
) -> None:
    payload = compressed(codec, 200, bytes(32 << 20))
    assert len(payload) < 40 << 20
    before, held = visible(world), pa.default_memory_pool().max_memory()
    complaint = world.error(*form, payload)
    assert complaint.startswith("ERR ARROW payload refused: it unpacks to 67108")
    assert complaint.endswith("bytes, and proto-max-bulk-len allows 536870912")
    assert visible(world) == before
    assert pa.default_memory_pool().max_memory() == held


def test_a_table_that_unpacks_to_no_more_than_an_argument_may_have_is_taken(world: World) -> None:
    world.run("CONFIG SET proto-max-bulk-len 2mb")
    exact = compressed("zstd", 2, bytes((1 << 20) - 16))
    assert world.run("TWRITE", "k", "FORMAT", "ARROW", exact) == 8
    too_large = compressed("zstd", 2, bytes((1 << 20) - 15))
    assert "it unpacks to 2097154 bytes" in world.error("TWRITE", "k", "FORMAT", "ARROW", too_large)
    world.run("CONFIG SET proto-max-bulk-len 1mb")
    assert visible(world.restarted()) == visible(world), "what was accepted once must be read back"


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.string_view()])
def test_many_views_of_the_same_bytes_count_as_many_times(world: World, kind: Any) -> None:
    text = pa.py_buffer(b"x" * 100_000)
    views = pa.py_buffer(struct.pack("<i4sii", 100_000, b"xxxx", 0, 0) * 10_000)
    entries = pa.Array.from_buffers(kind, 10_000, [None, views, text])
    payload = ipc(pa.table({"tag": pa.array([b""] * 10_000), "entry": entries}))
    assert len(payload) < 1 << 20
    before = visible(world)
    assert "it unpacks to 1000000000 bytes" in world.error("TWRITE", "k", "FORMAT", "ARROW", payload)
    assert visible(world) == before


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.string_view()])
def test_what_a_view_of_a_null_says_is_not_looked_at(world: World, kind: Any) -> None:
    nothing = pa.array([b"a", None, b"b" * 20], pa.binary()).cast(kind)
    payload = ipc(pa.table({"tag": nothing, "entry": pa.array([b"x", b"y", b"z"], pa.binary())}))
    views = nothing.buffers()[1].to_pybytes()
    for length in (-1, 0x7FFFFFFF, 5000):  # the first ended the process
        garbage = struct.pack("<iiii", length, 7, 1000, -5)
        damaged = payload.replace(views, views[:16] + garbage + views[32:])
        assert damaged != payload
        offset = world.run("TWRITE", "k", "FORMAT", "ARROW", damaged)
        assert [tag for _, tag, _ in world.run("TREAD", "k", offset, 3)] == [b"a", b"", b"b" * 20]


def test_nulls_make_no_room_for_views_of_the_same_bytes(world: World) -> None:
    count, shared = 2000, b"x" * 1_000_000
    views = [struct.pack("<i4sii", len(shared), shared[:4], 0, 0)] * count
    views += [struct.pack("<iiii", -(2**31), 0, 0, 0)]
    bitmap = bytes([255] * (count // 8) + [0])
    tags = pa.Array.from_buffers(pa.binary_view(), count + 1, [*map(pa.py_buffer, (bitmap, b"".join(views), shared))])
    entries = pa.array([b""] * (count + 1), pa.binary())
    error = world.error("TWRITE", "k", "FORMAT", "ARROW", ipc(pa.table({"tag": tags, "entry": entries})))
    assert "it unpacks to 2000000000 bytes, and proto-max-bulk-len allows" in error


def test_a_table_of_many_megabytes_is_one_write(world: World) -> None:
    entry = b"x" * 50_000
    assert world.run("TWRITE", "k", "FORMAT", "ARROW", arrow([b""] * 400, [entry] * 400)) == 8
    assert world.run("TREAD k 407 1") == [[407, b"", entry]]


def offered(payload: bytes) -> None:
    """A payload is taken whole or refused whole, and what was taken can be read, in both forms, and written out."""
    world = World()
    world.write("k", "before")
    try:
        first = world.run("TWRITE", "k", "FORMAT", "ARROW", payload)
    except ReplyError as error:
        assert error.wire().startswith(b"ERR ARROW payload refused: ")
        assert world.run("TREAD k 1 0 WITHINFO") == [[1, 1]]
    else:
        assert first == 2
    stream = world.stream()
    stream.check()
    last = stream.messages.last
    assert len(world.run("TREAD", "k", 1, last)) == last
    assert visible(world.restarted()) == visible(world)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(
        [
            GOOD,
            ipc(pa.table({"tag": BINARY, "entry": BINARY.cast(pa.binary_view())})),
            compressed("zstd", 3, b"entry" * 50),
            compressed("lz4", 3, b"entry" * 50),
        ]
    ),
    st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damaged_tables_are_refused_or_harmless(good: bytes, damage: list[tuple[int, int]]) -> None:
    payload = bytearray(good)
    for at, flip in damage:
        payload[at % len(good)] ^= flip
    offered(bytes(payload))


NUMBERS = st.sampled_from(
    [0, 1, 2, 3, 7, 8, 127, 255, -1, -2, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32, 1 << 20]
)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(
        [GOOD, with_a_first_message_of(1), ipc(pa.table({"tag": BINARY, "entry": BINARY.cast(pa.large_binary())}))]
    ),
    st.lists(st.tuples(st.integers(0), st.sampled_from([1, 2, 4, 8]), NUMBERS), min_size=1, max_size=3),
)
def test_tables_with_other_numbers_in_them_are_refused_or_harmless(
    good: bytes, damage: list[tuple[int, int, int]]
) -> None:
    payload = bytearray(good)
    for at, size, number in damage:
        place = at % len(good) // size * size
        payload[place : place + size] = struct.pack("<q", number)[:size]
    offered(bytes(payload))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, 64), st.binary(max_size=64))
def test_cut_and_spliced_tables_are_refused_or_harmless(at: int, removed: int, inserted: bytes) -> None:
    offered(GOOD[:at] + inserted + GOOD[at + removed :])


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_harmless(payload: bytes) -> None:
    offered(payload)


WORDS = (
    "k missing text 0 1 2 7 -1 $ 5-3 2-4 x GROUP g h RETRY BLOCK 100 DEADLETTER dead MAXBYTES WITHINFO FORMAT"
    " ARROW ENTRIES BACKLOG PRODUCER p TIME COUNT AGE BYTES COMPACT yes DELAY token 9223372036854775807"
    " RESERVE WITHLEASE MAXATTEMPTS TOKEN BEGIN CONSUMER RELEASE ALSO FAIR WITHTIME AT"
    " -9223372036854775807"
)
NAMES = (
    "TWRITE TREAD TACK TEVICT TINFO TSEEK TRETAIN TGROUP.LIST TGROUP.SET TGROUP.DEL TGROUP.PENDING TNACK TEXTEND"
    " TPRODUCER TSTAGE TCOMMIT"
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES.split()),
            st.sampled_from(["k", "k", "missing", "text"]),
            st.lists(st.sampled_from(WORDS.split()), max_size=8),
        ),
        max_size=12,
    )
)
def test_no_words_break_a_stream(calls: list[tuple[str, str, list[str]]]) -> None:
    """Every input gets a reply or one of our errors, and a refused command changed nothing."""
    world = World()
    world.run("SET text value")
    world.write("k", *"abcdef")
    world.run("TREAD k 0 2 GROUP g RETRY 100 5000 DEADLETTER dead")
    for name, key, words in calls:
        logged, dirty = len(world.logged), world.engine.keyspace.dirty
        client = world.client()
        try:
            client.run(*name.split("."), key, *words)
        except ReplyError:
            assert (len(world.logged), world.engine.keyspace.dirty) == (logged, dirty), words
        client.leave()
        world.clock.advance(60)
        for value in world.engine.keyspace[0].data.values():
            if value != b"value":
                value.check()
    again = world.restarted()
    for kept in (b"k", b"missing", b"dead"):
        assert visible(again, kept) == visible(world, kept)
