"""Bugs and gaps of other brokers, each as a test that ours does not have it. The docstring names the report."""

from __future__ import annotations

import pytest
from tests.support.commands.stream_world import BLOCKED, Runs, World, visible


@pytest.fixture
def world() -> World:
    return World()


def test_a_spurious_wake_up_does_not_restart_the_deadline(world: World) -> None:
    """redis#12998: a blocked client whose key was touched in vain waited its whole time again."""
    world.write("k", "a")
    plain = world.client("TREAD k 5 1 BLOCK 1000")
    member = world.client("TREAD k $ 1 BLOCK 1000 GROUP g RETRY 100 0")
    for _ in range(9):
        world.timers.advance(100)
        world.run("TRETAIN", "k", "COUNT", world.clock.now)  # changes the key, and gives no reader a message
    assert plain.blocked
    assert member.blocked
    world.timers.advance(100)
    assert (plain.replies, member.replies) == ([None], [None])


def test_one_message_wakes_one_member_of_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """kvrocks#2120: every blocked consumer of the group was woken for one message."""
    members = [world.client("TREAD k 0 1 BLOCK 0 GROUP g") for _ in range(300)]
    runs = Runs(monkeypatch)
    world.write("k", "a")
    assert [index for index, member in enumerate(members) if not member.blocked] == [0]
    assert runs.count == 1
    world.write("k", *"bcdefghijk")
    assert [index for index, member in enumerate(members) if not member.blocked] == list(range(11))
    assert runs.count == 11


def test_a_read_blocks_on_a_stream_that_was_emptied(world: World) -> None:
    """redis#5299: XREAD BLOCK with `$` returned at once when the stream had been emptied."""
    world.write("k", "a", "b")
    world.run("TEVICT k 2")
    readers = [world.client(f"TREAD k {offset} 10 BLOCK 0") for offset in ("$", "3")]
    member = world.client("TREAD k 0 10 BLOCK 0 GROUP g")
    world.write("k", "c")
    assert [reader.replies for reader in (*readers, member)] == [[[[3, b"", b"c"]]]] * 3


def test_pending_messages_that_were_evicted_do_not_come_back_as_nothing(world: World) -> None:
    """redis#6199: entries whose messages were trimmed stayed pending for ever and were claimed as nil."""
    world.run("CONFIG SET stream-max-pending 3")
    world.write("k", *"abcdef")
    world.run("TREAD k 0 3 GROUP g RETRY 100 0")
    world.run("TEVICT k 2")
    world.clock.advance(100)
    assert world.run("TREAD k 0 10 GROUP g RETRY 100 0") == [[3, b"", b"c"], [4, b"", b"d"], [5, b"", b"e"]]
    assert (world.group()[b"pending"], world.group()[b"lost"]) == (3, 2)


def test_evicted_pending_messages_do_not_eat_up_the_count_of_a_read(world: World) -> None:
    """redis#10756: XAUTOCLAIM spent its count on deleted entries, and returned fewer than there were, or none."""
    world.write("k", *"abcdefgh")
    world.run("TREAD k 0 6 GROUP g RETRY 100 0")
    world.run("TEVICT k 4")
    world.clock.advance(100)
    assert world.offsets("TREAD k 0 3 GROUP g RETRY 100 0") == [5, 6, 7]


def test_the_lag_is_right_after_an_eviction(world: World) -> None:
    """redis#13337: deleting messages in front of the group's position made the lag wrong or unknown."""
    world.write("k", *"abcdef")
    world.run("TREAD k 0 2 GROUP g")
    for evicted, lag in ((1, 4), (2, 4), (4, 2), (6, 0)):
        world.run("TEVICT", "k", evicted)
        assert world.group()[b"lag"] == lag
    world.write("k", "g", "h")
    assert world.group()[b"lag"] == 2
    assert world.offsets("TREAD k 0 10 GROUP g") == [7, 8]
    assert world.group()[b"lag"] == 0


def test_the_lag_is_right_for_a_group_placed_on_an_emptied_stream(world: World) -> None:
    """redis#13957: a stream that was emptied and filled again gave a wrong lag."""
    world.write("k", *"abc")
    world.run("TEVICT k 3")
    for name, place in (("zero", 0), ("first", 1), ("new", "$")):
        world.run("TREAD", "k", place, 1, "GROUP", name)
        assert world.group(name.encode())[b"lag"] == 0
    world.write("k", "d", "e")
    for name in ("zero", "first", "new"):
        assert world.group(name.encode())[b"lag"] == 2


def test_a_position_survives_a_restart_from_the_log(world: World) -> None:
    """redis#7105: the group's last delivered id was not in the rewritten log, and messages came twice."""
    world.write("k", *"abcd")
    world.run("TREAD k 0 2 GROUP plain")
    world.run("TREAD k 0 3 GROUP retrying RETRY 1000 0")
    world.run("TREAD k $ 3 GROUP new")
    again = world.restarted()
    assert visible(again) == visible(world)
    assert again.offsets("TREAD k 0 10 GROUP plain") == [3, 4]
    assert again.offsets("TREAD k 0 10 GROUP retrying RETRY 1000 0") == [1, 2, 3, 4]
    assert again.run("TREAD k 0 10 GROUP new") == []


def test_acknowledgements_survive_a_restart(world: World) -> None:
    """redis#5433: an acknowledgement was not replicated, so what was done came again after a failover."""
    world.write("k", *"abcdef")
    world.run("TREAD k 0 6 GROUP g RETRY 100 0")
    world.run("TACK k g 1 3-4")
    again = world.restarted()
    assert [row[:2] for row in again.run("TGROUP PENDING k g")] == [[2, 2], [5, 6]]
    assert again.offsets("TREAD k 0 10 GROUP g RETRY 100 0") == [2, 5, 6]


@pytest.mark.parametrize("room", ["TACK k g 1", "TNACK k g 1", "TEVICT k 1", "wait for the retry"])
def test_delivery_goes_on_after_the_cap_was_reached(world: World, room: str) -> None:
    """nats-server#4112: a consumer that had reached MaxAckPending stopped delivering for good."""
    world.run("CONFIG SET stream-max-pending 2")
    world.write("k", *"abcdef")
    world.run("TREAD k 0 2 GROUP g RETRY 1000 0")
    waiting = world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 1000 0")
    if room.startswith("T"):
        world.run(room)
    else:
        world.timers.advance(1000)
    assert len(waiting.replies) == 1
    for _ in range(10):  # and on to the end
        world.clock.advance(1000)
        for offset, _, _ in world.run("TREAD k 0 2 GROUP g RETRY 1000 0"):
            world.run("TACK", "k", "g", offset)
    assert (world.group()[b"lag"], world.group()[b"pending"]) == (0, 0)


# -- asked for there, and missing -----------------------------------------------------------------------------


def test_what_is_given_up_goes_to_a_dead_letter_stream(world: World) -> None:
    """redis#7386: there is no dead letter; every consumer has to count deliveries itself."""
    world.write("k", "poison", "fine")
    for _ in range(3):
        for offset, _, entry in world.run("TREAD k 0 10 GROUP g RETRY 100 300 DEADLETTER dead"):
            if entry == b"fine":
                world.run("TACK", "k", "g", offset)
        world.pass_time(100)
    assert b'"attempts": 3, "entry": "poison"' in world.run("TREAD dead 1 10")[0][2]
    assert world.group()[b"pending"] == 0
    assert visible(world.restarted(), b"dead") == visible(world, b"dead")


def test_a_message_can_be_put_off(world: World) -> None:
    """redis#6139: a consumer cannot say "not now, in ten seconds"."""
    world.write("k", "a")
    read = "TREAD k 0 1 BLOCK 0 GROUP g RETRY 1000 0"
    world.run(read)
    world.run("TNACK k g 1 DELAY 10000")
    waiting = world.client(read)
    world.timers.advance(9_999)
    assert waiting.blocked
    world.timers.advance(1)
    assert waiting.replies == [[[1, b"", b"a"]]]


def test_a_stream_is_bounded_by_bytes(world: World) -> None:
    """redis#5853: MAXLEN counts messages; memory is what runs out."""
    world.write("k", "a")
    world.run("TRETAIN k BYTES 1000000")
    for size in (10, 1000, 5000):
        for _ in range(4):
            world.write("k", *["x" * size] * 500)
        assert world.stream().messages.info().raw_bytes <= 1_000_000 + 1000 * 26  # and a node of the small ones
    assert world.run("TREAD k 1 0 WITHINFO")[0][0] > 1


def test_a_group_is_made_by_its_first_read(world: World) -> None:
    """redis#10747: XREADGROUP fails with NOGROUP until a client has run XGROUP CREATE MKSTREAM."""
    member = world.client()
    assert member.run("TREAD k 0 10 BLOCK 0 GROUP g RETRY 1000 0") == BLOCKED
    world.write("k", "a")
    assert member.replies == [[[1, b"", b"a"]]]


def test_a_range_is_counted_without_reading_it(world: World) -> None:
    """redis#5813: how many messages are in a range can only be found by reading them all."""
    world.run("TWRITE", "k", "ENTRIES", *["", "x"] * 5000)
    world.run("TEVICT k 1234")
    first, last = world.run("TREAD k 1 0 WITHINFO")[0]
    assert last - first + 1 == 3766
    world.run("TGROUP SET k counter 2001")
    assert world.group(b"counter")[b"lag"] == 3000
