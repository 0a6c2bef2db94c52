"""Deliveries of a group: their tokens, messages that are reserved and begun, leases that are extended, and attempts."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from tests.support.commands.stream_world import World, visible

READ = "TREAD k 0 10 GROUP g RETRY 100 0"


@pytest.fixture
def world() -> World:
    return World()


def lease(world: World, words: str = READ) -> tuple[int, list[list[Any]]]:
    """The token and the messages of a read, as [offset, attempts]."""
    token, *messages = world.run(f"{words} WITHLEASE")
    return token, [[message[0], message[4]] for message in messages]


# -- tokens ---------------------------------------------------------------------------------------------------


def test_a_delivery_says_its_token_and_each_message_its_time_and_attempts(world: World) -> None:
    world.run("TWRITE k t first")
    world.clock.advance(5)
    world.run("TWRITE k u second")
    written = world.clock.now
    token, *messages = world.run(f"{READ} WITHLEASE")
    assert messages == [[1, b"t", b"first", written - 5, 1], [2, b"u", b"second", written, 1]]
    world.clock.advance(100)
    again, info, *messages = world.run(f"{READ} WITHLEASE WITHINFO")
    assert again > token
    assert info == [1, 2]
    assert messages == [[1, b"t", b"first", written - 5, 2], [2, b"u", b"second", written, 2]]
    assert world.run(f"{READ} WITHLEASE") == [0]
    assert world.run(f"{READ} WITHLEASE WITHINFO") == [0, [1, 2]]


def test_messages_of_sealed_nodes_have_their_lease_too(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 5000")
    world.write("k", *[f"{number}" for number in range(2500)])
    world.run("TREAD k 0 900 GROUP g RETRY 100 0")
    world.run("TACK k g 1-899")
    world.clock.advance(100)
    _, *messages = world.run("TREAD k 0 1200 GROUP g RETRY 100 0 WITHLEASE")
    assert [(row[0], row[2], row[4]) for row in messages] == [
        (offset, b"%d" % (offset - 1), 2 if offset == 900 else 1) for offset in range(900, 2100)
    ]


def test_in_arrow_attempts_are_a_column_and_the_token_is_metadata(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 5000")
    world.write("k", *[f"{number}" for number in range(1500)])
    world.run("TREAD k 0 2 GROUP g RETRY 100 0")
    world.clock.advance(100)
    table = pa.ipc.open_stream(
        world.run("TREAD k 0 1400 GROUP g RETRY 100 0 WITHLEASE FORMAT ARROW COMPRESSED")
    ).read_all()
    assert table.schema.names == ["offset", "time", "tag", "entry", "attempts"]
    assert table["attempts"].to_pylist() == [2, 2, *[1] * 1398]
    assert table["offset"].to_pylist() == [*range(1, 1401)]
    assert table["entry"].to_pylist() == [b"%d" % number for number in range(1400)]
    assert set(table.schema.metadata) == {b"token"}
    assert world.run("TACK", "k", "g", "TOKEN", table.schema.metadata[b"token"], "1-1400") == 1400


@pytest.mark.parametrize("schema", [False, True])
def test_an_arrow_delivery_of_nothing_has_token_0(world: World, schema: bool) -> None:
    world.write("k", "{}")
    world.run(READ)
    if schema:
        world.run("TSCHEMA SET k a:int")
    table = pa.ipc.open_stream(world.run(f"{READ} WITHLEASE WITHINFO FORMAT ARROW")).read_all()
    known = {key: int(value) for key, value in table.schema.metadata.items() if key != b"schema"}
    assert (known, table.num_rows) == ({b"token": 0, b"first": 1, b"last": 1}, 0)
    assert (b"schema" in table.schema.metadata) == schema


def test_a_stale_holder_changes_nothing_and_is_told(world: World) -> None:
    world.write("k", *"abc")
    stale, _ = lease(world)
    world.clock.advance(100)
    current, messages = lease(world)
    assert messages == [[1, 2], [2, 2], [3, 2]]
    before = visible(world)
    for words in (f"TACK k g TOKEN {stale} 1-3", f"TNACK k g TOKEN {stale} 1-3", f"TEXTEND k g 500 TOKEN {stale} 1"):
        assert world.run(words) == 0
    assert visible(world) == before
    assert world.run(f"TACK k g TOKEN {current} 1-2") == 2
    assert world.run("TACK k g 1-3") == 1  # without a token, as ever


def test_of_a_range_that_several_hold_only_the_own_part_changes(world: World) -> None:
    world.write("k", *"abcdef")
    first, _ = lease(world, "TREAD k 0 2 GROUP g RETRY 100 0")
    second, _ = lease(world, "TREAD k 0 2 GROUP g RETRY 100 0")
    lease(world, "TREAD k 0 2 GROUP g RETRY 100 0")
    assert world.run(f"TACK k g TOKEN {second} 1-6") == 2
    assert world.run(f"TNACK k g TOKEN {first} 2-6 DELAY 50") == 1
    world.clock.advance(50)
    assert world.offsets(READ) == [2]


def test_what_was_given_back_is_no_longer_held(world: World) -> None:
    """A heartbeat that is late must not take a message back from its delay."""
    world.write("k", *"ab")
    token, _ = lease(world)
    assert world.run(f"TNACK k g TOKEN {token} 1 DELAY 10") == 1
    assert world.run(f"TEXTEND k g 5000 TOKEN {token} 1-2") == 1
    world.clock.advance(10)
    assert world.offsets(READ) == [1]


def test_a_group_that_is_made_again_repeats_no_token(world: World) -> None:
    world.write("k", *"ab")
    tokens = [lease(world)[0]]
    for _ in range(3):
        world.run("TGROUP DEL k g")
        tokens.append(lease(world)[0])
    world.run("TGROUP SET k g 1")
    tokens.append(lease(world)[0])
    assert tokens[0] == world.clock.now * 1000
    world = world.restarted(later=0)
    world.run("TGROUP SET k g 1")
    tokens.append(lease(world)[0])
    assert tokens == sorted(set(tokens))


def test_tokens_survive_a_restart(world: World) -> None:
    world.write("k", *"ab")
    token, _ = lease(world)
    again = world.restarted(later=0)
    assert again.run(f"TACK k g TOKEN {token - 1} 1") == 0
    assert again.run(f"TACK k g TOKEN {token} 1") == 1


def test_a_fenced_acknowledgement_is_replayed_as_it_was(world: World) -> None:
    world.write("k", *"abc")
    stale, _ = lease(world)
    world.clock.advance(100)
    token, _ = lease(world)
    world.run(f"TACK k g TOKEN {stale} 1-3")
    world.run(f"TACK k g TOKEN {token} 1")
    world.run(f"TEXTEND k g 700 TOKEN {token} 2")
    assert visible(world.restarted(later=0)) == visible(world)


# -- extending ------------------------------------------------------------------------------------------------


def test_a_lease_is_held_as_long_as_it_is_extended(world: World) -> None:
    world.write("k", *"ab")
    token, _ = lease(world)
    for _ in range(5):
        world.pass_time(90)
        assert world.run(f"TEXTEND k g 100 TOKEN {token} 1") == 1
    assert world.offsets(READ) == [2]
    world.pass_time(100)
    assert world.offsets("TREAD k 0 1 GROUP g RETRY 100 0") == [1]


def test_a_shorter_time_wakes_a_waiting_member(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 10000 0")
    waiting = world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 10000 0")
    assert world.run("TEXTEND k g 50 1") == 1
    world.timers.advance(50)
    assert waiting.replies == [[[1, b"", b"a"]]]


@pytest.mark.parametrize("words", ["TEXTEND none g 5 1", "TEXTEND k none 5 1", "TEXTEND k g 5 9"])
def test_to_extend_what_is_not_there_is_no_error(world: World, words: str) -> None:
    world.write("k", "a")
    world.run(READ)
    assert world.run(words) == 0


# -- reserving and beginning ------------------------------------------------------------------------------------


def test_a_reserved_message_burns_neither_attempts_nor_time(world: World) -> None:
    world.write("k", *"ab")
    read = "TREAD k 0 2 GROUP g RETRY 100 300 RESERVE DEADLETTER dead"
    for _ in range(5):
        assert lease(world, read)[1] == [[1, 0], [2, 0]]
        world.pass_time(100)
    token, _ = lease(world, read)
    assert world.run("TGROUP PENDING k g 1")[0][2:6:3] == [0, 0]
    assert world.run(f"TEXTEND k g 100 TOKEN {token} BEGIN 1") == 1
    (row,) = world.run("TGROUP PENDING k g 1")
    assert (row[2], row[5]) == (1, world.clock.now + 300)
    world.pass_time(299)
    assert world.group()[b"pending"] == 2
    world.pass_time(1)
    assert [row[0] for row in world.run("TGROUP PENDING k g")] == [2]
    (letter,) = world.run("TREAD dead 1 10")
    assert json.loads(letter[2])["attempts"] == 1


def test_beginning_twice_in_one_delivery_counts_once(world: World) -> None:
    """A command that is sent again after its reply was lost must not cost an attempt."""
    world.write("k", "a")
    token, _ = lease(world, f"{READ} RESERVE")
    for _ in range(3):
        assert world.run(f"TEXTEND k g 100 TOKEN {token} BEGIN 1") == 1
    world.clock.advance(100)
    token, messages = lease(world, f"{READ} RESERVE")
    assert messages == [[1, 1]]
    world.run(f"TEXTEND k g 100 TOKEN {token} BEGIN 1")
    world.clock.advance(100)
    assert lease(world)[1] == [[1, 3]]


def test_a_message_that_was_begun_keeps_its_clock_when_it_is_reserved(world: World) -> None:
    world.write("k", "a")
    lease(world, "TREAD k 0 1 GROUP g RETRY 100 250")
    world.pass_time(100)
    assert lease(world, "TREAD k 0 1 GROUP g RETRY 100 250 RESERVE")[1] == [[1, 1]]
    world.pass_time(150)
    assert world.group()[b"pending"] == 0


def test_a_reserved_message_that_is_given_back_has_no_attempt(world: World) -> None:
    world.write("k", "a")
    token, _ = lease(world, f"{READ} RESERVE MAXATTEMPTS 1")
    assert world.run(f"TNACK k g TOKEN {token} 1") == 1
    assert lease(world, f"{READ} MAXATTEMPTS 1")[1] == [[1, 1]]


def test_reserved_messages_count_for_the_cap(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 2")
    world.write("k", *"abc")
    assert lease(world, f"{READ} RESERVE")[1] == [[1, 0], [2, 0]]
    assert lease(world)[1] == []


# -- attempts -------------------------------------------------------------------------------------------------


def test_a_message_is_given_up_after_its_attempts_without_anybody_reading(world: World) -> None:
    world.write("k", *"ab")
    read = "TREAD k 0 1 GROUP g RETRY 100 0 MAXATTEMPTS 2 DEADLETTER dead"
    assert world.offsets(read) == [1]
    world.pass_time(100)
    assert world.offsets(read) == [1]
    world.pass_time(99)
    assert world.group()[b"pending"] == 1
    world.pass_time(1)
    assert world.group()[b"pending"] == 0
    (letter,) = world.run("TREAD dead 1 10")
    assert (json.loads(letter[2])["offset"], json.loads(letter[2])["attempts"]) == (1, 2)
    assert visible(world.restarted(later=0), b"dead") == visible(world, b"dead")


def test_a_read_gives_up_what_had_its_attempts(world: World) -> None:
    world.write("k", *"ab")
    read = "TREAD k 0 1 GROUP g RETRY 100 0 MAXATTEMPTS 1 DEADLETTER dead"
    assert world.offsets(read) == [1]
    world.clock.advance(100)
    assert world.offsets(read) == [2]
    assert world.offsets("TREAD dead 1 10") == [1]


def test_a_later_read_may_limit_the_attempts_of_what_is_pending(world: World) -> None:
    world.write("k", *"ab")
    world.run("TREAD k 0 1 GROUP g RETRY 100 0")
    world.clock.advance(100)
    assert world.offsets("TREAD k 0 1 GROUP g RETRY 100 0 MAXATTEMPTS 1 DEADLETTER dead") == [2]
    assert world.offsets("TREAD dead 1 10") == [1]


def test_a_message_that_is_given_back_after_its_last_attempt_is_given_up_at_once(world: World) -> None:
    world.write("k", "a")
    token, _ = lease(world, f"{READ} MAXATTEMPTS 1 DEADLETTER dead")
    world.pass_time(1)
    world.run(f"TNACK k g TOKEN {token} 1")
    world.pass_time(1)
    assert world.group()[b"pending"] == 0
    assert world.offsets("TREAD dead 1 10") == [1]


def test_the_last_attempt_lasts_as_long_as_it_is_extended(world: World) -> None:
    world.write("k", "a")
    token, _ = lease(world, f"{READ} MAXATTEMPTS 1")
    world.pass_time(99)
    assert world.run(f"TEXTEND k g 500 TOKEN {token} 1") == 1
    world.pass_time(499)
    assert world.group()[b"pending"] == 1
    world.pass_time(1)
    assert world.group()[b"pending"] == 0


def test_a_message_may_expire_before_its_retry(world: World) -> None:
    world.write("k", "a")
    assert world.offsets("TREAD k 0 1 GROUP g RETRY 1000 200 DEADLETTER dead") == [1]
    world.pass_time(200)
    assert world.group()[b"pending"] == 0
    assert world.offsets("TREAD dead 1 10") == [1]


# -- what older servers wrote -----------------------------------------------------------------------------------

OLD_DUMP = bytes.fromhex(
    "06090000002a00000028000000300000001c0000002200000001000000880000000100000020000000010000000002000000000000000000"
    "0000000000000000000000000000000000000000000000000000000100000000000000060000000000000000000000000000000100000000"
    "00000000000000000000000068e5cf8b0100000068e5cf8b0100000068e5cf8b0100000068e5cf8b0100000068e5cf8b0100000068e5cf8b"
    "0100000600000000000000000000000000000000000000000000000000000006000000010000000100000001000000010000000100000001"
    "0000006162636465666703000000140000006000000004000000040000000000000000000000000000000000000002000000000000000300"
    "0000000000002c69e5cf8b010000887be5cf8b0100000068e5cf8b010000020000000000000003000000000000000400000000000000e86b"
    "e5cf8b01000000000000000000000068e5cf8b01000001000000ffffffff6465616468020000001400000000000000030000000000000000"
    "000000000000000000000001006369fa8238903f70"
)
"""What DUMP answered before leases had tokens: groups g, with two leases, and h."""

OLD_CHANGE = bytes.fromhex(
    "030000001400000030000000040000000400000000000000000000000000000000000000020000000000000003000000000000002c69e5cf"
    "8b010000887be5cf8b0100000068e5cf8b010000020000000000000064656164"
)
"""A change of a group in the log of the same server."""


def test_dumps_without_tokens_are_loaded(world: World) -> None:
    world.clock.advance(100)
    assert world.run("RESTORE", "k", 0, OLD_DUMP) == b"OK"
    times = [1700000000000, 1700000000300, 1700000005000]
    assert world.run("TGROUP PENDING k g") == [[2, 2, 2, *times], [3, 3, 1, 1700000000000, 1700000001000, 0]]
    assert world.group(b"h")[b"position"] == 3
    assert world.run("TACK k g 3") == 1
    world.pass_time(200)
    token, messages = lease(world, "TREAD k 0 1 GROUP g RETRY 100 0")
    assert (messages, token >= 1700000000000000) == ([[2, 3]], True)
    assert visible(world.restarted(later=0)) == visible(world)


def test_changes_without_tokens_are_replayed_and_leave_the_counters(world: World) -> None:
    world.write("k", *"abcdef")
    world.run("TREAD k 0 1 GROUP g RETRY 100 0")
    world.run("TACK k g 1")
    world.run("TREAD k 0 3 GROUP g RETRY 100 0")
    group = world.stream().groups[b"g"]
    before = group.token
    world.run("TAPPLY", "k", "GROUP", "g", OLD_CHANGE)
    assert (group.token, group.acknowledged, group.position) == (before, 1, 4)
    assert world.run("TGROUP PENDING k g 2")[0][2:] == [2, 1700000000000, 1700000000300, 1700000005000]


@pytest.mark.parametrize("retry", ["RETRY 60000 0", ""])
def test_a_group_that_was_moved_back_delivers_a_message_once_in_a_reply(world: World, retry: str) -> None:
    world.write("k", *"abcdef")
    world.run("TREAD k 0 4 GROUP g RETRY 60000 0")
    world.run("TNACK k g 2 3")
    world.run("TGROUP SET k g 1")
    before = world.group()[b"acknowledged"]
    assert world.offsets(f"TREAD k 0 9 GROUP g {retry}") == [2, 3, 1, 4, 5, 6]
    assert world.group()[b"acknowledged"] - before == (0 if retry else 6)
    attempts = {first: count for first, _, count, *_ in world.run("TGROUP PENDING k g")}
    assert not retry or attempts[2] == 2
    assert visible(world.restarted(later=0)) == visible(world)


@pytest.mark.parametrize("words", ["TACK k g TOKEN 0 1", "TNACK k g TOKEN 0 1", "TEXTEND k g 100 TOKEN 0 1"])
def test_the_token_of_an_empty_reply_settles_nothing(world: World, words: str) -> None:
    world.write("k", "a")
    world.run(READ)
    world.run("TNACK k g 1 DELAY 1000")
    assert lease(world) == (0, [])
    assert "TOKEN must be at least 1" in world.error(words)
    assert world.group()[b"pending"] == 1
