"""TREAD ... GROUP ... ALSO: several streams in one read, in order of priority or in turns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.support.commands.stream_world import World, visible

READ = "TREAD high 0 3 GROUP g RETRY 100 0 ALSO 2 middle low"


@pytest.fixture
def world() -> World:
    world = World()
    for key in ("high", "middle", "low"):
        world.write(key, *[f"{key}-{number}" for number in range(1, 5)])
    return world


def given(world: World, words: str) -> list[tuple[str, list[int]]]:
    return [(key.decode(), [message[0] for message in messages]) for key, messages in world.run(words)]


def test_a_stream_gives_what_those_before_it_left_room_for(world: World) -> None:
    assert given(world, READ) == [("high", [1, 2, 3])]
    assert given(world, READ) == [("high", [4]), ("middle", [1, 2])]
    assert given(world, READ) == [("middle", [3, 4]), ("low", [1])]
    world.write("high", "urgent")
    assert given(world, READ) == [("high", [5]), ("low", [2, 3])]
    assert given(world, READ) == [("low", [4])]
    assert given(world, READ) == []
    assert world.run("TACK high g 1-5") == 5
    assert world.run("TACK low g 1-4") == 4
    for key in (b"high", b"middle", b"low"):
        assert visible(world.restarted(later=0), key) == visible(world, key)


def test_in_turns_each_read_begins_with_another_stream(world: World) -> None:
    firsts = [given(world, f"{READ.replace('0 3', '0 1')} FAIR")[0][0] for _ in range(6)]
    assert sorted(firsts) == ["high", "high", "low", "low", "middle", "middle"]
    assert set(firsts[:3]) == {"high", "middle", "low"}


def test_groups_that_read_alternately_all_get_messages_of_all_streams(world: World) -> None:
    read = "TREAD high 0 1 GROUP {} ALSO 1 low FAIR"
    firsts = [(group, given(world, read.format(group))[0][0]) for _ in range(4) for group in "xy"]
    for group in "xy":
        assert sorted(key for reader, key in firsts if reader == group) == ["high", "high", "low", "low"]


def test_retries_of_all_streams_come_again(world: World) -> None:
    assert given(world, READ.replace("0 3", "0 6")) == [("high", [1, 2, 3, 4]), ("middle", [1, 2])]
    world.run("TACK high g 1-4")
    world.clock.advance(100)
    assert given(world, READ) == [("middle", [1, 2, 3])]


def test_max_bytes_are_shared(world: World) -> None:
    cost = 16 + len("high-1")
    assert given(world, f"{READ.replace('0 3', '0 9')} MAXBYTES {4 * cost + 1}") == [
        ("high", [1, 2, 3, 4]),
        ("middle", [1]),
    ]
    assert given(world, f"{READ.replace('0 3', '0 9')} MAXBYTES 1") == [("middle", [2])]


def test_replies_have_the_form_that_was_asked_for(world: World) -> None:
    ((key, (token, info, *messages)),) = world.run(f"{READ} WITHLEASE WITHINFO")
    assert (key, info, [message[4] for message in messages]) == (b"high", [1, 4], [1, 1, 1])
    assert world.run(f"TACK high g TOKEN {token} 1-3") == 3
    (_, one), (_, other) = world.run(f"{READ} FORMAT ARROW")
    assert pa.ipc.open_stream(one).read_all()["offset"].to_pylist() == [4]
    assert pa.ipc.open_stream(other).read_all()["entry"].to_pylist() == [b"middle-1", b"middle-2"]


@pytest.mark.parametrize("key", ["high", "middle", "low"])
def test_a_waiting_member_gets_what_comes_in_any_of_them(world: World, key: str) -> None:
    given(world, READ.replace("0 3", "0 99"))
    waiting = world.client(f"{READ} BLOCK 0 ")
    world.write(key, "new")
    assert waiting.replies == [[[key.encode(), [[5, b"", b"new"]]]]]
    assert not waiting.blocked


def test_a_waiting_member_gets_a_retry_of_any_of_them(world: World) -> None:
    given(world, READ.replace("0 3", "0 99"))
    world.run("TACK high g 1-4")
    world.run("TACK middle g 1-4")
    world.run("TACK low g 1-3")
    waiting = world.client(f"{READ} BLOCK 0")
    world.timers.advance(100)
    assert waiting.replies == [[[b"low", [[4, b"", b"low-4"]]]]]


def test_a_wait_that_ends_is_null(world: World) -> None:
    given(world, READ.replace("0 3", "0 99").replace("RETRY 100 0", ""))
    waiting = world.client(f"{READ} BLOCK 50")
    world.timers.advance(50)
    assert waiting.replies == [None]


def test_groups_are_made_in_all_streams_and_streams_that_are_not_there_too(world: World) -> None:
    waiting = world.client("TREAD a $ 3 BLOCK 0 GROUP g ALSO 1 b")
    world.write("b", "x")
    assert waiting.replies == [[[b"b", [[1, b"", b"x"]]]]]
    assert world.group(key=b"a")[b"position"] == 1


def test_a_member_learns_that_its_group_was_deleted_in_one_of_them(world: World) -> None:
    given(world, READ.replace("0 3", "0 99"))
    waiting = world.client(f"{READ} BLOCK 0")
    world.run("TGROUP DEL middle g")
    assert isinstance(waiting.replies[0], Exception) and "UNBLOCKED" in str(waiting.replies[0])


def test_a_key_of_another_type_refuses_all_before_anything_is_delivered(world: World) -> None:
    world.run("SET text value")
    assert "WRONGTYPE" in world.error("TREAD high 0 3 GROUP g RETRY 100 0 ALSO 1 text")
    assert world.run("TGROUP LIST high") == []


def test_a_read_that_fails_at_a_later_stream_delivers_nothing(world: World) -> None:
    given(world, READ.replace("0 3", "0 99"))
    waiting = world.client(f"{READ} BLOCK 0")
    for words in ("MULTI", "TWRITE high tag precious", "TGROUP DEL low g", "EXEC"):
        world.run(words)
    assert "UNBLOCKED" in str(waiting.replies[0])
    assert given(world, READ)[0] == ("high", [5])


def test_a_read_for_which_there_is_no_memory_at_a_later_stream_changes_and_logs_nothing(world: World) -> None:
    given(world, "TREAD high 0 1 GROUP g RETRY 100 0 ALSO 1 middle")
    world.run("TGROUP DEL middle g")
    world.run("CONFIG SET maxmemory 1")
    before, logged = visible(world, b"high"), len(world.logged)
    for consumer in ("", "CONSUMER ada"):
        assert "OOM" in world.error(f"TREAD high 0 3 GROUP g RETRY 100 0 {consumer} ALSO 1 middle")
        assert (visible(world, b"high"), len(world.logged)) == (before, logged)
    assert "OOM" in world.error("TREAD high 0 3 GROUP g RETRY 100 0 CONSUMER ada")
    assert "OOM" in world.error("TREAD unknown 0 3 GROUP g")
    assert world.run("EXISTS unknown") == 0
    assert (visible(world, b"high"), len(world.logged)) == (before, logged)


def test_dead_letters_of_all_streams_go_to_one(world: World) -> None:
    read = "TREAD high 0 5 GROUP g RETRY 100 100 DEADLETTER dead ALSO 1 low"
    assert given(world, read) == [("high", [1, 2, 3, 4]), ("low", [1])]
    world.pass_time(100)
    assert len(world.run("TREAD dead 1 10")) == 5


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("TREAD high 1 3 ALSO 1 low", "ALSO needs GROUP"),
        ("TREAD high 0 3 GROUP g ALSO 1 high", "ALSO names a stream twice"),
        ("TREAD high 0 3 GROUP g ALSO 2 low low", "ALSO names a stream twice"),
        ("TREAD high 0 3 GROUP g FAIR", "FAIR needs ALSO"),
        ("TREAD high 0 3 GROUP g ALSO 2 low", "unknown or incomplete option 'ALSO'"),
        ("TREAD high 0 3 GROUP g ALSO 0", "unknown or incomplete option 'ALSO'"),
        ("TREAD high 0 3 GROUP g ALSO", "unknown or incomplete option 'ALSO'"),
        ("TREAD high 0 3 GROUP g ALSO x low", "unknown or incomplete option 'ALSO'"),
        ("TREAD high 0 3 GROUP g RETRY 5 0 DEADLETTER low ALSO 1 low", "DEADLETTER must be another key"),
    ],
)
def test_what_makes_no_sense_is_refused(world: World, words: str, error: str) -> None:
    assert error in world.error(words)


def test_the_keys_are_known_to_command_getkeys(world: World) -> None:
    words = "COMMAND GETKEYS TREAD high 0 3 ALSO 2 middle low GROUP g RETRY 5 0 DEADLETTER dead"
    assert world.run(words) == [b"high", b"middle", b"low", b"dead"]
