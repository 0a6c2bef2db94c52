"""TWRITE ... DELAY and AT: messages that groups get later."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.support.commands.stream_world import World, arrow, visible

from penstock.types.stream import groups

READ = "TREAD k 0 10 GROUP g RETRY 1000 0"


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("words", ["DELAY 100", "AT {}"])
def test_a_group_gets_a_delayed_message_in_its_time_and_others_before(world: World, words: str) -> None:
    world.run(f"TWRITE k {words.format(world.clock.now + 100)} ENTRIES t late u late")
    world.run("TWRITE k t early")
    assert world.offsets(READ) == [3]
    assert (world.group()[b"delayed"], world.group()[b"pending"], world.group()[b"done-through"]) == (2, 1, 0)
    world.clock.advance(99)
    assert world.offsets(READ) == []
    world.clock.advance(1)
    token, *messages = world.run(f"{READ} WITHLEASE")
    assert [(message[0], message[4]) for message in messages] == [(1, 1), (2, 1)]
    assert world.run(f"TACK k g TOKEN {token} 1-2") == 2
    assert world.group()[b"delayed"] == 0


def test_a_plain_read_sees_it_at_once_and_may_ask_for_the_time(world: World) -> None:
    now = world.clock.now
    world.run("TWRITE k DELAY 100 ENTRIES t late")
    world.run("TWRITE k u early")
    assert world.run("TREAD k 1 10") == [[1, b"t", b"late"], [2, b"u", b"early"]]
    marked = [[1, b"t", b"late", now, now + 100], [2, b"u", b"early", now, 0]]
    assert world.run("TREAD k 1 10 WITHTIME") == marked
    assert world.run("TREAD k 1 10 WITHTIME WITHINFO MAXBYTES 1") == [[1, 2], marked[0]]
    table = pa.ipc.open_stream(world.run("TREAD k 1 10 WITHTIME FORMAT ARROW")).read_all()
    assert table.select(["offset", "visible_at"]).to_pylist() == [
        {"offset": 1, "visible_at": now + 100},
        {"offset": 2, "visible_at": 0},
    ]
    info = world.run("TINFO k")
    assert info[info.index(b"delayed") + 1] == 1
    world.run("TEVICT k 1")
    assert world.run("TREAD k 1 10 WITHTIME") == [None, marked[1]]
    info = world.run("TINFO k")
    assert info[info.index(b"delayed") + 1] == 0
    world.clock.advance(100)
    assert world.run("TREAD k 2 10 WITHTIME")[0][4] == 0
    none = pa.ipc.open_stream(world.run("TREAD none 1 10 WITHTIME FORMAT ARROW")).read_all()
    assert none.column_names[-1] == "visible_at"


def test_a_waiting_member_gets_it_when_its_time_has_come(world: World) -> None:
    waiting = world.client(f"{READ} BLOCK 0")
    world.run("TWRITE k DELAY 100 ENTRIES t late")
    world.timers.advance(99)
    assert waiting.blocked
    world.timers.advance(1)
    assert waiting.replies == [[[1, b"t", b"late"]]]


def test_many_delayed_messages_do_not_fill_the_cap(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 2")
    for number in range(50):
        world.run(f"TWRITE k DELAY {1000 + number} ENTRIES t late")
    world.write("k", *"abc")
    assert world.offsets(READ) == [51, 52]
    assert world.offsets(READ) == []
    world.run("TACK k g 51-52")
    assert world.offsets(READ) == [53]
    world.clock.advance(1000)
    world.run("TACK k g 53")
    assert world.offsets(READ) == [1]
    world.clock.advance(50)
    assert world.offsets(READ) == [2]  # one more has room, and they come in the order of their times
    assert world.group()[b"delayed"] == 48


def test_a_member_that_waits_at_the_cap_is_not_woken_without_end(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 1")
    world.run("TWRITE k DELAY 10 ENTRIES t late")
    world.write("k", "a")
    assert world.offsets("TREAD k 0 1 GROUP g RETRY 100000 0") == [2]
    waiting = world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 100000 0")
    world.timers.advance(20)
    assert waiting.blocked
    world.run("TACK k g 2")
    assert waiting.replies == [[[1, b"t", b"late"]]]


def test_so_many_that_one_read_cannot_pass_them_by_hold_no_waiting_member_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_HIDDEN", 3)
    for number in range(20):
        world.run(f"TWRITE k DELAY {1000 + number} ENTRIES t late")
    world.write("k", "early")
    waiting = world.client(f"{READ} BLOCK 0")
    for _ in range(10):
        world.timers.advance(0)
    assert waiting.replies == [[[21, b"", b"early"]]]


def test_a_member_without_retry_is_done_with_it(world: World) -> None:
    world.run("TWRITE k DELAY 100 ENTRIES t late")
    assert world.run("TREAD k 0 10 GROUP g") == []
    world.clock.advance(100)
    assert world.offsets("TREAD k 0 10 GROUP g") == [1]
    assert (world.group()[b"delayed"], world.group()[b"acknowledged"]) == (0, 1)
    assert visible(world.restarted(later=0)) == visible(world)


def test_terms_are_those_of_the_first_delivery_not_of_the_read_that_passed_it_by(world: World) -> None:
    world.run("TWRITE k DELAY 100 ENTRIES t late")
    assert world.run("TREAD k 0 1 GROUP g RETRY 5 5 MAXATTEMPTS 1") == []
    world.pass_time(100)
    assert world.offsets("TREAD k 0 1 GROUP g RETRY 1000 3000 DEADLETTER dead") == [1]
    world.pass_time(2999)
    assert world.group()[b"pending"] == 1
    world.pass_time(1)
    assert world.offsets("TREAD dead 1 10") == [1]


@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
def test_a_delay_is_the_same_after_a_restart_however_the_clock_is_set(world: World, jump: int) -> None:
    world.clock.jump(jump)
    world.run("TWRITE k DELAY 1000 ENTRIES t late")
    world.run("TWRITE k t early")
    assert world.offsets(READ) == [2]
    again = world.restarted(later=-jump)
    for each in (world, again):
        each.pass_time(999)
        assert each.offsets("TREAD k 0 10 GROUP h") == [2]
        each.pass_time(1)
        assert each.offsets("TREAD k 0 10 GROUP h") == [1]
        assert 1 in each.offsets(READ)


def test_delays_are_dumped_restored_and_copied(world: World) -> None:
    world.run("TWRITE k DELAY 1000 ENTRIES t late")
    world.run(READ)
    world.run("RESTORE", "other", 0, world.run("DUMP k"))
    world.run("COPY k third")
    world.run("TSCHEMA SET third a:int")
    world.run("RESTORE", "fourth", 0, world.run("DUMP third"))
    for key in ("other", "third", "fourth"):
        assert world.run(f"TREAD {key} 1 1 WITHTIME") == world.run("TREAD k 1 1 WITHTIME")
        assert world.group(key=key.encode())[b"delayed"] == 1
        assert world.run(f"TREAD {key} 0 1 GROUP new") == []
    world.clock.advance(1000)
    for key in ("k", "other", "third", "fourth"):
        assert world.offsets(f"TREAD {key} 0 1 GROUP new") == [1]


def test_a_repeat_of_a_producer_changes_no_delay(world: World) -> None:
    assert world.run("TWRITE k PRODUCER p 1 DELAY 100 ENTRIES t late") == 1
    assert world.run("TWRITE k PRODUCER p 1 DELAY 9000 ENTRIES t late") == 1
    world.clock.advance(100)
    assert world.offsets(READ) == [1]


def test_entries_that_fit_are_delayed_and_letters_are_not(world: World) -> None:
    world.run("TWRITE k t {}")
    world.run("TSCHEMA SET k a:int CHECK deadletter bad")
    world.run("TWRITE", "k", "DELAY", 100, "ENTRIES", "t", "no", "t", '{"a": 1}')
    assert world.offsets("TREAD k 0 10 GROUP g") == [1]
    assert world.offsets("TREAD bad 0 10 GROUP g") == [1]
    world.clock.advance(100)
    assert world.offsets("TREAD k 0 10 GROUP g") == [2]
    assert visible(world.restarted(later=0)) == visible(world)


def test_arrow_is_delayed_too(world: World) -> None:
    payload = arrow([b"t"] * 2500, [b"e"] * 2500)
    assert world.run("TWRITE", "k", "DELAY", 100, "FORMAT", "ARROW", payload) == 1
    world.write("k", "early")
    assert world.offsets(READ) == [2501]
    assert world.group()[b"delayed"] == 2500
    world.clock.advance(100)
    assert world.offsets(READ) == [*range(1, 11)]


def test_what_is_evicted_before_it_is_visible_is_lost(world: World) -> None:
    world.run("TWRITE k DELAY 100 ENTRIES t a t b t c")
    assert world.run(READ) == []
    world.run("TEVICT k 2")
    world.clock.advance(100)
    assert world.offsets(READ) == [3]
    assert (world.group()[b"lost"], world.group()[b"delayed"]) == (2, 0)
    assert visible(world.restarted(later=0)) == visible(world)


def test_delays_of_evicted_messages_are_forgotten(world: World) -> None:
    for number in range(5000):
        offset = world.run(f"TWRITE k DELAY {10**12 + number} ENTRIES t late")
        world.run(f"TEVICT k {offset}")
    delays = world.stream().delays
    assert delays is not None and delays.size() < 50_000


def test_delays_that_are_over_take_no_memory_after_a_read(world: World) -> None:
    world.run("TWRITE k DELAY 100 ENTRIES t late")
    world.clock.advance(100)
    assert world.offsets(READ) == [1]
    assert world.stream().delays is None
    assert visible(world.restarted(later=0)) == visible(world)


def test_a_time_that_has_passed_delays_nothing(world: World) -> None:
    world.run("TWRITE k AT 5 ENTRIES t a")
    world.run("TWRITE k DELAY 0 ENTRIES t b")
    assert world.offsets(READ) == [1, 2]
    assert world.stream().delays is None


@pytest.mark.parametrize("jump", [-5000, 0, 5000])
def test_times_beyond_all_clocks_are_shown_as_the_last_one_there_is(world: World, jump: int) -> None:
    """A number of more than 64 bits is no reply: clients lose their connection over it."""
    world.clock.jump(jump)
    last = 2**63 - 1
    world.run(f"TWRITE k DELAY {last} ENTRIES t late")
    world.run(f"TWRITE k AT {last} ENTRIES t late")
    world.write("k", "early")
    shown = [row[4] for row in world.run("TREAD k 1 2 WITHTIME")]
    table = pa.ipc.open_stream(world.run("TREAD k 1 2 WITHTIME FORMAT ARROW")).read_all()
    assert table.column("visible_at").to_pylist() == shown
    assert world.offsets(f"TREAD k 0 1 GROUP g RETRY {last} {last}") == [3]
    ((*_, retry, expiry),) = world.run("TGROUP PENDING k g")
    assert all(time >= last - 5000 for time in (*shown, retry, expiry, world.group()[b"next-retry"]))
    world.run(f"TNACK k g 3 DELAY {last}")
    world.run("TINFO k")
    waiting = world.client(f"{READ} BLOCK 0")
    world.timers.advance(10_000)
    assert waiting.blocked


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("TWRITE k DELAY x ENTRIES t e", "DELAY is not an integer"),
        ("TWRITE k AT -1 ENTRIES t e", "AT must be at least 0"),
        ("TWRITE k DELAY 1 AT 5 ENTRIES t e", "unknown or incomplete option 'AT'"),
        ("TWRITE k DELAY 1 DELAY 1 ENTRIES t e", "option 'DELAY' of TWRITE is given twice"),
        ("TREAD k 0 1 GROUP g WITHTIME", "WITHTIME is for reads without GROUP"),
    ],
)
def test_what_makes_no_sense_is_refused(world: World, words: str, error: str) -> None:
    assert error in world.error(words)


def test_a_tag_may_be_spelled_like_an_option(world: World) -> None:
    assert world.run("TWRITE k DELAY 100") == 1
    assert world.run("TREAD k 1 1") == [[1, b"DELAY", b"100"]]
