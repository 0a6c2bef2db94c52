"""Commands from bytes that are cut anywhere: each reader equals the model, and nothing hostile gets through."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.twins import is_compilation_expected, pure_twin

from penstock.protocol import requests
from penstock.protocol.errors import ProtocolError
from penstock.protocol.grammar import MAX_INLINE, MORE, split_inline
from penstock.protocol.requests import StrictReader
from penstock.protocol.resp import pack

Argv = list[bytes]
Reader = requests.RequestReader
READERS = {"chosen": Reader, "pure": pure_twin(requests).RequestReader}
both = pytest.mark.parametrize("kind", READERS.values(), ids=READERS)

# Values that look like headers, where a reader that guesses would go wrong.
TRICKY = [
    b"*9999999\r\n", b"*1234567", b"\r\n*9999999\r\n", b"$999999999\r\n", b"*", b"*1", b"*1\r", b"\r\n",
    b"\n~9999999\r\n", b"\n>1\r\n", b"~", b"%1\r\n", b"\n%2", b"\n|8888888", b"*3\r\n$3\r\nSET\r\n", b"",
]  # fmt: skip
values = st.one_of(st.sampled_from(TRICKY), st.binary(max_size=40), st.lists(st.sampled_from(TRICKY)).map(b"".join))
commands = st.lists(st.lists(values, min_size=1, max_size=5), max_size=8)


def test_the_compiled_reader_is_built_where_there_is_a_compiler() -> None:
    assert is_compilation_expected() == requests.COMPILED


def take_all(reader: Reader, taken: list[Argv]) -> None:
    """What a connection does with a reader."""
    before = len(taken)
    while True:
        argv = reader.take()
        if argv is MORE:
            if len(taken) > before:
                reader.commands_ran()
            if not reader.more():
                return
        elif type(argv) is not list or not argv or not all(type(arg) is bytes for arg in argv):
            reader.odd(argv)
        else:
            taken.append(argv)


def read(chunks: list[bytes], reader: Reader) -> list[Argv]:
    taken: list[Argv] = []
    for chunk in chunks:
        if chunk:
            reader.feed(chunk)
            take_all(reader, taken)
    return taken


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@both
@settings(max_examples=400, deadline=None)
@given(commands=commands, places=st.lists(st.integers(0, 1 << 16), max_size=12))
def test_any_cutting_of_a_pipeline_gives_its_commands(
    kind: type[Reader], commands: list[Argv], places: list[int]
) -> None:
    data = b"".join(pack(*argv) for argv in commands)
    assert read(cut(data, places), kind()) == commands


@settings(max_examples=200, deadline=None)
@given(commands=commands, places=st.lists(st.integers(0, 1 << 16), max_size=12))
def test_the_strict_reader_gives_the_same(commands: list[Argv], places: list[int]) -> None:
    data = b"".join(pack(*argv) for argv in commands)
    reader = StrictReader(1 << 20)
    taken = []
    for chunk in cut(data, places):
        reader.feed(chunk)
        while (argv := reader.take()) is not MORE:
            taken.append(argv)
    assert taken == commands
    assert reader.held == 0 and reader.at_boundary


@both
@pytest.mark.parametrize("value", TRICKY)
def test_a_tricky_value_survives_byte_by_byte(kind: type[Reader], value: bytes) -> None:
    command = [b"SET", b"k", value * 3]
    data = pack(*command) * 2
    assert read([data[at : at + 1] for at in range(len(data))], kind()) == [command] * 2


@both
@settings(max_examples=400, deadline=None)
@given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda tail: b"*2\r\n$1\r\na\r\n" + tail)))
def test_random_bytes_give_commands_or_a_protocol_error_and_nothing_else(kind: type[Reader], data: bytes) -> None:
    try:
        taken = read([data], kind())
    except ProtocolError:
        return
    assert all(isinstance(arg, bytes) for argv in taken for arg in argv)


@both
@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from([b"*", b"$", b"~", b">", b"%", b"|", b":", b"+", b"-", b"_", b"#", b",", b"(", b"=", b"1", b"0",
            b"9999999", b"\r\n", b"\n", b"a"]),
        max_size=30,
    )
)  # fmt: skip
def test_random_headers_do_no_harm_behind_a_whole_command(kind: type[Reader], pieces: list[bytes]) -> None:
    ping = pack(b"PING")
    reader = kind()
    reader.feed(ping)
    taken: list[Argv] = []
    try:
        take_all(reader, taken)
        for piece in pieces:
            reader.feed(piece)
            take_all(reader, taken)
    except ProtocolError:
        pass
    assert taken[0] == [b"PING"]


HOSTILE = [
    (b"*1000001\r\n", "multibulk length"),
    (b"*99999999999999999999\r\n", "multibulk length"),
    (b"*1\r\n$-5\r\n", "Protocol error: invalid bulk length"),
    (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
    (b"*1\r\n$04\r\n", "Protocol error: invalid bulk length"),
    (b"*+1\r\n", "Protocol error: invalid multibulk length"),
    (b"*1\r\n*9999999\r\n", "Protocol error"),
    (b"*1\r\n~9999999\r\n", "expected '$', got '~'"),
    (b"*1\r\n>9999999\r\n", "expected '$', got '>'"),
    (b"*1\r\n|9999999\r\n", "expected '$', got '|'"),
    (b"*1\r\n%1\r\n*0\r\n*0\r\n", "expected '$', got '%'"),
    (b"*1\r\n:1\r\n", "expected '$', got ':'"),
    (b"*1\r\n*1\r\n$1\r\na\r\n", "expected '$', got '*'"),
    (b"*1\r\n#t\r\n", "expected '$', got '#'"),
    (b"*1\r\n_\r\n", "Protocol error"),
    (b"*1\r\n" * 100_000, ""),
    (b"*2\r\n" * 100_000, ""),
    (b"*x\r\n", "Protocol error: invalid multibulk length"),
]


@both
@pytest.mark.parametrize("lead", [b"", pack(b"PING")], ids=["first", "later"])
@pytest.mark.parametrize(("data", "error"), HOSTILE, ids=[repr(data[:16]) for data, _ in HOSTILE])
@pytest.mark.parametrize("size", [1 << 20, 5, 1])
def test_hostile_input_is_refused_after_the_commands_before_it(
    kind: type[Reader], data: bytes, error: str, lead: bytes, size: int
) -> None:
    data = lead + data[: 20_000 if size < 10 else None]
    reader, taken = kind(), list[Argv]()
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(ProtocolError) as caught:
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
            take_all(reader, taken)
    assert time.process_time() - started < 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000
    assert error in str(caught.value)
    assert taken == ([[b"PING"]] if lead else [])


@both
def test_a_giant_bulk_is_refused_at_once_when_it_comes_first(kind: type[Reader]) -> None:
    with pytest.raises(ProtocolError, match="invalid bulk length"):
        read([b"*1\r\n$999999999\r\n"], kind())
    assert read([b"*1\r\n$5\r\n", b"hello\r\n"], kind()) == [[b"hello"]]


@both
def test_empty_commands_are_passed_over(kind: type[Reader]) -> None:
    assert read([b"*0\r\n*-1\r\n" + pack(b"PING")], kind()) == [[b"PING"]]
    assert read([b"\r\n\r\nPING\r\n*0\r\n" + pack(b"PING")], kind()) == [[b"PING"], [b"PING"]]


# -- inline ---------------------------------------------------------------------------------------------------


@both
def test_commands_typed_in_a_terminal_are_understood(kind: type[Reader]) -> None:
    assert read([b"PI", b"NG\r\nSET k 'a b'\nGET k\r\n"], kind()) == [[b"PING"], [b"SET", b"k", b"a b"], [b"GET", b"k"]]
    assert read([b"PING\r\n" + pack(b"GET", b"k") + b"PING\r\n"], kind()) == [[b"PING"], [b"GET", b"k"], [b"PING"]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (rb'a "b c" d', [b"a", b"b c", b"d"]), (rb'"\x41\n\"\\"', [b'A\n"\\']), (rb"'it\'s'", [b"it's"]),
        (rb"'a\n'", [rb"a\n"]), (b"  a\t b  ", [b"a", b"b"]), (b'""', [b""]), (b"", []),
        (b"\x0ba\x0bb\x0c \x0c c\x0b", [b"a\x0bb\x0c", b"c\x0b"]), (b'"a"\x0bb', [b"a", b"b"]), (rb'"\q"', [b"q"]),
    ],
)  # fmt: skip
def test_quotes_as_in_redis(line: bytes, words: list[bytes]) -> None:
    assert split_inline(line) == words


@pytest.mark.parametrize("line", [b'"a', b"'a", b'"a"b', b"'a'b", b'a "'])
def test_unbalanced_quotes_end_the_connection(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="unbalanced quotes"):
        split_inline(line)


@both
def test_an_endless_line_is_refused(kind: type[Reader]) -> None:
    reader = kind()
    with pytest.raises(ProtocolError, match="too big inline request"):
        for _ in range(MAX_INLINE // 1000 + 2):
            reader.feed(b"x" * 1000)
            take_all(reader, [])


@both
@pytest.mark.parametrize("line", [b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a 1\r\n"])
def test_a_browser_does_not_get_as_far_as_its_form(kind: type[Reader], line: bytes) -> None:
    taken: list[Argv] = []
    reader = kind()
    reader.feed(line)
    with pytest.raises(ProtocolError, match="HTTP"):
        take_all(reader, taken)
    assert [b"SET", b"a", b"1"] not in taken


# -- limits ---------------------------------------------------------------------------------------------------


@both
def test_narrow_limits_hold_until_they_are_widened(kind: type[Reader]) -> None:
    reader = kind()
    reader.limit(16384, 10)
    taken: list[Argv] = []
    reader.feed(pack(b"AUTH", b"x"))
    take_all(reader, taken)
    reader.limit(1 << 20)
    big = pack(*[b"x" * 20_000] * 20)
    for data in (big[:7], big[7:], big):
        reader.feed(data)
        take_all(reader, taken)
    assert [len(argv) for argv in taken] == [2, 20, 20]


@both
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (pack(*[b"x"] * 11), "unauthenticated multibulk length"), (pack(b"x" * 16385), "unauthenticated bulk length"),
        (b"*1000001\r\n", "invalid multibulk length"), (b"*1\r\n$600000000\r\n", "invalid bulk length"),
        (b"*1\r\n+a\r\n", r"expected '\$', got '\+'"), (b"*1\r\n$a\r\n", "invalid bulk length"),
        (b"*1" + b"1" * MAX_INLINE, "too big mbulk count string"),
    ],
)  # fmt: skip
def test_strangers_get_redis_texts(kind: type[Reader], data: bytes, error: str) -> None:
    reader = kind()
    reader.limit(16384, 10)
    with pytest.raises(ProtocolError, match=error):
        read([data], reader)


@both
def test_the_backlog_counts_what_waits_and_forgets_what_was_taken(kind: type[Reader]) -> None:
    reader = kind()
    read([pack(b"PING")], reader)
    assert reader.backlog == 0
    read([b"*2\r\n$4\r\nECHO\r\n$100000\r\n" + b"x" * 5000], reader)
    assert reader.backlog >= 5000
    read([b"x" * 95_000 + b"\r\n"], reader)
    assert reader.backlog == 0


@both
def test_arguments_of_a_command_under_way_count_with_what_each_takes(kind: type[Reader]) -> None:
    tiny = b"*1000\r\n" + b"$0\r\n\r\n" * 999
    strict = StrictReader(1 << 20)
    strict.feed(tiny)
    assert strict.take() is MORE
    assert strict.held >= 999 * 40
    reader = kind()
    read([tiny], reader)
    assert reader.backlog >= 999 * 40
    read([b"$0\r\n\r\n"], reader)
    assert reader.backlog == 0
    with_headers = b"*2\r\n$4\r\nECHO\r\n$100000000\r\n" + b"\n$" * (1 << 20)
    for _ in range(3):
        read([with_headers], reader)
        with_headers = b"\n$" * (1 << 20)
    assert reader.backlog < (6 << 20) + (60 << 20), "what is inside of a value counts as one argument for each"


@both
def test_a_large_argument_survives_any_cutting(kind: type[Reader]) -> None:
    value = bytes(range(256)) * (5 << 12)  # more than is reserved at once
    data = pack(b"SET", b"k", value) + pack(b"PING")
    for size in (1 << 18, 999_983, len(data) - len(pack(b"PING")) - 1):
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        assert read(chunks, kind()) == [[b"SET", b"k", value], [b"PING"]]


@both
def test_chunks_that_come_before_any_is_taken_are_read_in_order(kind: type[Reader]) -> None:
    command = [b"SET", b"key", b"value"]
    data = pack(*command) * 50
    for size in (1, 7, 64):
        reader, taken = kind(), list[Argv]()
        for at in range(0, len(data), size):
            reader.feed(data[at : at + size])
        take_all(reader, taken)
        assert taken == [command] * 50
        assert reader.backlog == 0


@both
@settings(max_examples=400, deadline=None)
@given(
    commands=commands,
    places=st.lists(st.integers(0, 1 << 16), max_size=12),
    takes=st.lists(st.integers(0, 3), min_size=13, max_size=13),
)
def test_chunks_that_come_while_some_commands_still_wait_are_read_in_order(
    kind: type[Reader], commands: list[Argv], places: list[int], takes: list[int]
) -> None:
    """A blocked client goes on sending: what comes then must not overtake what waits."""
    reader, taken = kind(), []
    for chunk, most in zip(cut(b"".join(pack(*argv) for argv in commands), places), takes, strict=False):
        if chunk:
            reader.feed(chunk)
        for _ in range(most):
            argv = reader.take()
            if argv is not MORE:
                taken.append(argv)
    take_all(reader, taken)
    assert taken == commands


@both
def test_many_arguments_are_one_command(kind: type[Reader]) -> None:
    command = [b"%d" % number for number in range(3000)]
    data = pack(*command)
    assert read([data, data[:9000], data[9000:]], kind()) == [command] * 2


@both
def test_a_header_that_claims_much_reserves_little(kind: type[Reader]) -> None:
    reader = kind()
    tracemalloc.start()
    read([pack(b"PING"), b"*999999\r\n$500000000\r\nx"], reader)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000
    assert reader.backlog < 100
