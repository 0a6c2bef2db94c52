"""TREAD ... GROUP: which member gets what, retries, and what happens to messages that are never acknowledged."""

from __future__ import annotations

from itertools import count

import pytest
from tests.support.commands.stream_world import BLOCKED, World, visible

from penstock.commands.dumping import to_payload
from penstock.engine import stream_upkeep as upkeep
from penstock.types.stream.active import Active
from penstock.types.stream.changes import Change
from penstock.types.stream.groups import Group
from penstock.types.stream.lease_chunk import Lease
from penstock.types.stream.messages import MOST
from penstock.types.stream.nodes import Storage
from penstock.types.stream.stream import Stream


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(("place", "offsets"), [("0", [3, 4]), ("4", [4]), ("1", [3, 4]), ("$", []), ("9", [])])
def test_the_offset_places_a_new_group(world: World, place: str, offsets: list[int]) -> None:
    world.write("k", "a", "b", "c", "d")
    world.run("TEVICT k 2")
    assert world.offsets(f"TREAD k {place} 10 GROUP g") == offsets
    assert world.offsets("TREAD k 1 10 GROUP g") == []  # known now: the offset is disregarded


def test_a_group_ahead_of_the_stream_waits_for_its_offset(world: World) -> None:
    world.write("k", "a")
    assert world.run("TREAD k 3 10 GROUP g") == []
    world.write("k", "b", "c")
    assert world.offsets("TREAD k 0 10 GROUP g") == [3]


def test_a_group_may_come_before_its_stream(world: World) -> None:
    assert world.run("TREAD k 0 10 GROUP g") == []
    assert world.run("TYPE k") == b"tstream"
    waiting = world.client("TREAD other $ 10 BLOCK 0 GROUP g")
    world.write("k", "a")
    world.write("other", "a")
    assert world.offsets("TREAD k 0 10 GROUP g") == [1]
    assert waiting.replies == [[[1, b"", b"a"]]]


def test_without_retry_a_delivery_is_its_acknowledgement(world: World) -> None:
    world.write("k", "a", "b", "c")
    assert world.offsets("TREAD k 0 2 GROUP g") == [1, 2]
    assert world.group()[b"pending"] == 0
    assert world.run("TACK k g 1 2") == 0
    world.pass_time(100_000)
    assert world.offsets("TREAD k 0 10 GROUP g") == [3]


def test_groups_do_not_know_of_each_other(world: World) -> None:
    world.write("k", "a", "b")
    assert world.offsets("TREAD k 0 10 GROUP g") == [1, 2]
    assert world.offsets("TREAD k 0 1 GROUP h RETRY 100 0") == [1]
    assert world.run("TACK k g 1") == 0
    assert world.group(b"h")[b"pending"] == 1


def test_what_is_not_acknowledged_comes_again_before_what_is_new(world: World) -> None:
    world.write("k", "a", "b", "c", "d")
    read = "TREAD k 0 2 GROUP g RETRY 100 0"
    assert world.offsets(read) == [1, 2]
    assert world.run("TACK k g 2") == 1
    world.clock.advance(99)
    assert world.offsets("TREAD k 0 1 GROUP g RETRY 100 0") == [3]
    world.clock.advance(1)
    assert world.offsets(read) == [1, 4]
    assert world.run("TGROUP PENDING k g 1-1")[0][2] == 2


def test_at_the_cap_only_retries_are_given(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 3")
    world.write("k", *"abcdef")
    assert world.offsets("TREAD k 0 10 GROUP g RETRY 100 0") == [1, 2, 3]
    assert world.run("TREAD k 0 10 GROUP g RETRY 100 0") == []
    world.clock.advance(100)
    assert world.offsets("TREAD k 0 2 GROUP g RETRY 100 0") == [1, 2]
    assert world.run("TACK k g 1-2") == 2
    assert world.offsets("TREAD k 0 10 GROUP g RETRY 100 0") == [3, 4, 5]
    assert world.run("TREAD k 0 10 GROUP g") == []
    assert world.run("TACK k g 3") == 1
    assert world.offsets("TREAD k 0 10 GROUP g") == [6]


def test_a_member_blocked_at_the_cap_gets_new_ones_when_there_is_room(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 2")
    world.write("k", *"abc")
    world.run("TREAD k 0 2 GROUP g RETRY 10000 0")
    waiting = world.client("TREAD k 0 2 BLOCK 0 GROUP g RETRY 10000 0")
    world.run("TACK k g 1")
    assert waiting.replies == [[[3, b"", b"c"]]]


def test_a_blocked_member_gets_a_retry_when_it_falls_due(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 300 0")
    waiting = world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 300 0")
    world.timers.advance(299)
    assert waiting.blocked
    world.timers.advance(1)
    assert waiting.replies == [[[1, b"", b"a"]]]


def test_a_blocked_member_gets_a_new_message_when_an_expiry_makes_room(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 1")
    world.write("k", "a", "b")
    world.run("TREAD k 0 1 GROUP g RETRY 300 300")
    waiting = world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 1000 0")
    world.timers.advance(300)
    assert waiting.replies == [[[2, b"", b"b"]]]


def test_room_that_a_read_made_and_did_not_use_is_for_those_who_wait(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 2")
    world.write("k", "a", "b", "c", "d")
    world.run("TREAD k 0 2 GROUP g RETRY 300 300")
    waiting = world.client("TREAD k 0 5 BLOCK 0 GROUP g RETRY 300 300")
    world.clock.advance(300)  # and no timer yet
    assert world.offsets("TREAD k 0 1 GROUP g RETRY 300 300") == [3]
    assert waiting.replies == [[[4, b"", b"d"]]]


def test_a_member_without_retry_gets_what_is_due_and_is_done_with_it(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100 0")
    waiting = world.client("TREAD k 0 5 BLOCK 0 GROUP g")
    world.timers.advance(99)
    assert waiting.blocked
    world.timers.advance(1)
    assert waiting.replies == [[[1, b"", b"a"]]]
    assert (world.group()[b"pending"], world.group()[b"acknowledged"], world.group()[b"done-through"]) == (0, 1, 1)
    assert visible(world.restarted(later=0)) == visible(world)


def test_a_member_without_retry_gives_up_what_had_its_attempts(world: World) -> None:
    world.write("k", "a", "b")
    world.run("TREAD k 0 1 GROUP g RETRY 100 0 MAXATTEMPTS 1 DEADLETTER dead")
    world.clock.advance(100)
    assert world.offsets("TREAD k 0 5 GROUP g") == [2]
    assert world.offsets("TREAD dead 1 10") == [1]


def test_acknowledged_is_a_count_and_done_through_an_offset(world: World) -> None:
    world.write("k", *"abcdef")
    world.run("TREAD k 0 4 GROUP g RETRY 100 0")
    world.run("TACK k g 2-4")
    assert (world.group()[b"acknowledged"], world.group()[b"done-through"]) == (3, 0)
    world.run("TACK k g 1")
    world.run("TREAD k 0 1 GROUP g")
    assert (world.group()[b"acknowledged"], world.group()[b"done-through"]) == (5, 5)
    world.run("TGROUP SET k g 1")
    assert (world.group()[b"acknowledged"], world.group()[b"done-through"]) == (5, 0)
    assert visible(world.restarted(later=0)) == visible(world)


def test_what_compaction_removed_is_not_lost(world: World) -> None:
    world.run("TWRITE", "k", "ENTRIES", *["t", "x"] * 1005)
    world.run("TREAD k 0 10 GROUP g RETRY 100 0")
    world.run("TRETAIN k COMPACT yes")
    world.pass_time(100)
    assert world.offsets("TREAD k 0 10 GROUP g RETRY 100 0") == [*range(1000, 1006)]
    assert world.group()[b"lost"] == 0
    world.run("TEVICT k 1002")
    assert world.offsets("TREAD k 0 10 GROUP g RETRY 100 0") == []
    assert world.group()[b"lost"] == 3


def test_members_are_served_first_come_first_served_and_go_to_the_tail(world: World) -> None:
    members = [world.client("TREAD k 0 1 BLOCK 0 GROUP g") for _ in range(3)]
    for turn in range(7):
        world.write("k", f"{turn}")
        served = members[turn % 3]
        assert served.replies == [[[turn + 1, b"", b"%d" % turn]]]
        served.replies.clear()
        assert served.run("TREAD k 0 1 BLOCK 0 GROUP g") == BLOCKED


def test_a_member_that_went_away_takes_nothing_with_it(world: World) -> None:
    gone = world.client("TREAD k 0 1 BLOCK 0 GROUP g")
    stays = world.client("TREAD k 0 1 BLOCK 0 GROUP g")
    gone.leave()
    world.write("k", "a")
    assert stays.replies == [[[1, b"", b"a"]]]


def test_what_a_waiting_read_notes_is_not_known_to_the_next_one_of_the_same_words(world: World) -> None:
    world.write("k", "a", "b")
    read = "TREAD k 0 2 BLOCK 0 GROUP g"
    assert world.offsets(read) == [1, 2]
    world.client(read).leave()
    world.run("TGROUP DEL k g")
    assert world.offsets(read) == [1, 2]


def test_expiry_counts_from_the_first_delivery_and_drops_the_pending_entry_only(world: World) -> None:
    world.write("k", "a")
    read = "TREAD k 0 1 GROUP g RETRY 100 250"
    for _ in range(3):
        assert world.offsets(read) == [1]
        world.clock.advance(100)
    assert world.run(read) == []
    assert world.group()[b"pending"] == 0
    assert world.run("TREAD k 1 1") == [[1, b"", b"a"]]


def test_expired_messages_go_without_anybody_reading(world: World) -> None:
    world.write("k", "a", "b")
    world.run("TREAD k 0 2 GROUP g RETRY 100 200")
    world.pass_time(199)
    assert world.group()[b"pending"] == 2
    world.pass_time(1)
    assert world.group()[b"pending"] == 0


def test_a_dead_letter_says_where_it_came_from(world: World) -> None:
    world.run("TWRITE", "k", "ENTRIES", "t", "grüße", "u", b"\xff\x00")
    reader = world.client("TREAD dead 1 10 BLOCK 0")
    world.run("TREAD k 0 1 GROUP g RETRY 100 250 DEADLETTER dead")
    world.pass_time(100)
    world.run("TREAD k 0 2 GROUP g RETRY 100 250 DEADLETTER dead")
    world.pass_time(150)
    assert [[offset, tag] for offset, tag, _ in reader.replies[0]] == [[1, b"t"]]
    letter = '{"stream": "k", "group": "g", "offset": 1, "attempts": 2, "entry": "grüße"}'
    assert reader.replies[0][0][2].decode() == letter
    world.pass_time(100)
    _, tag, entry = world.run("TREAD dead 2 1")[0]
    assert (tag, entry) == (
        b"u",
        b'{"stream": "k", "group": "g", "offset": 2, "attempts": 1, "entry_base64": "/wA="}',
    )


def test_a_dead_letter_key_of_another_type_stops_nothing(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100 200 DEADLETTER dead")
    world.run("SET dead 1")
    world.pass_time(200)
    assert world.group()[b"pending"] == 0
    assert world.run("GET dead") == b"1"


def test_a_stream_that_got_the_name_of_its_dead_letters_gets_none(world: World) -> None:
    """A group that never succeeds would be given its own letters, each in a longer letter, without end."""
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100 200 DEADLETTER dead")
    world.run("RENAME k dead")
    world.pass_time(200)
    assert world.group(key=b"dead")[b"pending"] == 0
    assert world.offsets("TREAD dead 1 10") == [1]
    assert visible(world.restarted(), b"dead") == visible(world, b"dead")


def test_dead_letters_keep_to_their_own_retention(world: World) -> None:
    world.run("CONFIG SET stream-max-pending 5000")
    world.write("dead", "a")
    world.run("TRETAIN dead COUNT 100")
    world.write("k", *["x"] * 2500)
    world.run("TREAD k 0 2500 GROUP g RETRY 100 100 DEADLETTER dead")
    while world.run("TGROUP PENDING k g"):  # they are written in slices
        world.pass_time(100)
    assert world.run("TREAD dead 1 0 WITHINFO") == [[2001, 2501]]
    assert visible(world.restarted(), b"dead") == visible(world, b"dead")


def test_a_dead_letter_is_written_by_the_read_that_finds_it_too(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100 200 DEADLETTER dead")
    world.clock.advance(200)
    assert world.run("TREAD k 0 1 GROUP g RETRY 100 200") == []
    assert world.offsets("TREAD dead 1 10") == [1]


def test_thousands_of_streams_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "SLICE", 0)  # time for one
    keys = [b"k%d" % number for number in range(5)]
    for key in keys:
        world.write(key, "a")
        world.run("TREAD", key, 0, 1, "GROUP", "g", "RETRY", 100, 100)
    world.clock.advance(100)
    for done in range(1, 6):
        world.engine.streams.tick()
        assert [world.group(key=key)[b"pending"] for key in keys] == [0] * done + [1] * (5 - done)


@pytest.mark.parametrize("flush", ["FLUSHALL", "FLUSHDB"])
def test_streams_that_were_flushed_take_no_turns(world: World, monkeypatch: pytest.MonkeyPatch, flush: str) -> None:
    monkeypatch.setattr(upkeep, "SLICE", 0)  # time for one
    for number in range(5):
        world.run("TGROUP", "SET", b"k%d" % number, "g", world.write(b"k%d" % number, "a"))
    world.run(flush)
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100 100")
    world.clock.advance(100)
    world.engine.streams.tick()
    assert world.group()[b"pending"] == 0


def test_no_group_is_looked_at_before_something_can_have_expired(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Group] = []
    expire = Group.expire
    monkeypatch.setattr(Group, "expire", lambda group, *words: looked_at.append(group) or expire(group, *words))
    world.write("k", "a", "b")
    world.run("TREAD k 0 1 GROUP never RETRY 10 0")
    world.run("TREAD k 0 1 GROUP g RETRY 10 500")
    world.pass_time(1)  # finds out when
    looked_at.clear()
    world.run("TREAD k 0 1 GROUP h RETRY 10 200")
    world.pass_time(198)
    assert not looked_at
    world.pass_time(1)
    assert [world.group(name)[b"pending"] for name in (b"never", b"g", b"h")] == [1, 1, 1]
    world.pass_time(1)
    assert [world.group(name)[b"pending"] for name in (b"never", b"g", b"h")] == [1, 1, 0]
    looked_at.clear()
    world.pass_time(298)
    assert not looked_at
    world.pass_time(2)
    assert [world.group(name)[b"pending"] for name in (b"never", b"g", b"h")] == [1, 0, 0]
    looked_at.clear()
    world.pass_time(1_000_000)
    assert not looked_at


# -- a clock that is set: leases go by elapsed time, keys by the time of day --------------------------------------

HOUR = 3_600_000


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_retry_comes_when_its_time_has_passed_however_the_clock_is_set(world: World, jump: int) -> None:
    world.write("k", "a")
    assert world.offsets("TREAD k 0 1 GROUP g RETRY 5000 0") == [1]
    waiting = world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 5000 0")
    world.clock.jump(jump)
    world.pass_time(4999)
    assert waiting.replies == [] and world.offsets("TREAD k 0 1 GROUP g RETRY 5000 0") == []
    world.pass_time(1)
    assert waiting.replies == [[[1, b"", b"a"]]]


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_messages_are_given_up_when_their_time_has_passed_however_the_clock_is_set(world: World, jump: int) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 5000 60000 DEADLETTER dead")
    world.clock.jump(jump)
    world.pass_time(59_999)
    assert world.group()[b"pending"] == 1 and world.run("EXISTS dead") == 0
    world.pass_time(1)
    assert world.group()[b"pending"] == 0 and world.run("EXISTS dead") == 1


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_delay_is_the_same_after_a_restart_however_the_clock_was_set_before(world: World, jump: int) -> None:
    world.write("k", "a", "b")
    world.run("TREAD k 0 2 GROUP g RETRY 5000 0")
    world.clock.jump(jump)
    world.run("TNACK k g 1 DELAY 7000")
    again = world.restarted(later=-jump)  # and set right again
    assert again.run("TGROUP PENDING k g") == [
        [first, last, attempts, delivered - jump, retry - jump, expiry]
        for first, last, attempts, delivered, retry, expiry in world.run("TGROUP PENDING k g")
    ]
    for each in (world, again):
        each.pass_time(6999)
        assert each.offsets("TREAD k 0 2 GROUP g RETRY 5000 0") == [2]
        each.pass_time(1)
        assert each.offsets("TREAD k 0 2 GROUP g RETRY 5000 0") == [1]


@pytest.mark.parametrize("jump", [-HOUR, -10_000 * HOUR])
def test_a_server_that_starts_with_its_clock_set_back_does_not_keep_retries_waiting(world: World, jump: int) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 5000 0")
    again = world.restarted(later=jump)
    assert again.offsets("TREAD k 0 1 GROUP g RETRY 5000 0") == []
    again.pass_time(5000)
    assert again.offsets("TREAD k 0 1 GROUP g RETRY 5000 0") == [1]


def test_retries_do_not_wait_after_a_restart_if_the_clock_was_set_back_before_it(world: World) -> None:
    world.clock.jump(-10_000 * HOUR)
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 5000 0")
    again = world.restarted(later=1)
    again.pass_time(5000)
    assert again.offsets("TREAD k 0 1 GROUP g RETRY 5000 0") == [1]


def test_no_client_writes_leases_that_are_delivered_far_in_the_future(world: World) -> None:
    future = World(world.clock.now + HOUR)
    future.write("k", "a")
    future.run("TREAD k 0 1 GROUP g RETRY 5000 0")
    dump = future.run("DUMP k")
    change = next(argv[4] for _, argv in future.logged if argv[:3] == [b"TAPPLY", b"k", b"GROUP"])
    world.write("k", "a")
    for argv in ([b"RESTORE", b"new", b"0", dump], [b"TAPPLY", b"k", b"GROUP", b"g", change]):
        assert "a lease was delivered more than a minute from now" in world.error(*argv)
    assert world.run("EXISTS new") == 0 and world.run("TGROUP LIST k") == []
    world.clock.advance(HOUR - 50_000)
    assert world.run(b"RESTORE", b"new", b"0", dump) == b"OK"


@pytest.mark.parametrize(
    "change", [Change(1, 0, token=1 << 62), Change(1, 1 << 53), Change(1, 0, acknowledged=1 << 53)]
)
def test_no_client_writes_a_group_whose_counters_are_near_their_end(world: World, change: Change) -> None:
    """The next delivery would pass the bound, and a restart could not load what was logged."""
    world.write("k", "a")
    assert world.error("TAPPLY", "k", "GROUP", "g", change.encode())
    stream = Stream(Storage())
    stream.group(b"g", 1).apply(change)
    assert world.error(b"RESTORE", b"new", b"0", to_payload(stream))
    assert world.run("EXISTS new") == 0 and world.run("TGROUP LIST k") == []


def far(last: int) -> bytes:
    """A dump of a stream with this last offset, of which nothing is left."""
    stream = Stream(Storage())
    messages = stream.messages
    messages.first, messages.last, messages.active = last + 1, last, Active(last + 1, 0)
    messages.lowest = messages.active.number
    return to_payload(stream)


def test_no_client_writes_a_stream_that_is_near_its_end(world: World) -> None:
    assert world.error(b"RESTORE", b"new", b"0", far(MOST))
    assert world.run(b"RESTORE", b"new", b"0", far(MOST // 2)) == b"OK"


def test_a_group_that_is_moved_back_very_often_can_still_be_loaded(world: World) -> None:
    world.run(b"RESTORE", b"k", b"0", far(MOST // 2))
    for _ in range(4):
        world.run("TGROUP SET k g 1")
        world.run("TREAD k 0 1 GROUP g")
    assert world.stream(b"k").groups[b"g"].lost > MOST
    assert Stream.load(world.stream(b"k").dump()).groups[b"g"].lost == MOST


def test_times_of_leases_are_shown_as_times_of_day(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 5000 9000")
    world.clock.jump(-HOUR)
    now = world.clock.now
    assert world.run("TGROUP PENDING k g") == [[1, 1, 1, now, now + 5000, now + 9000]]
    assert world.group()[b"next-retry"] == now + 5000


def test_a_group_says_how_late_it_is_and_where_its_letters_go(world: World) -> None:
    world.write("k", "a")
    world.clock.now += 4000
    world.write("k", "b")
    world.run("TGROUP SET k g 1")
    assert (world.group()[b"lag-ms"], world.group()[b"dead-letters"]) == (4000, [])
    world.run("TREAD k 0 1 GROUP g RETRY 5000 9000 DEADLETTER k:dead")
    assert (world.group()[b"lag-ms"], world.group()[b"dead-letters"]) == (0, [b"k:dead"])
    assert world.restarted().group()[b"dead-letters"] == [b"k:dead"]
    world.clock.now += 300
    assert world.group()[b"lag-ms"] == 300
    world.run("TACK k g 1")
    world.run("TREAD k 0 1 GROUP g")
    assert (world.group()[b"lag-ms"], world.group()[b"dead-letters"]) == (0, [b"k:dead"])


def test_one_lease_of_a_far_future_does_not_make_the_others_due(world: World) -> None:
    world.write("k", "a", "b")
    world.run("TREAD k 0 2 GROUP g RETRY 5000 0")
    far = Change(3, 0, (), (Lease(2, 3, 1 << 62, 0, 1 << 61, 1, None),))
    assert "more than a minute from now" in world.error("TAPPLY", "k", "GROUP", "h", far.encode())
    assert world.restarted(later=0).offsets("TREAD k 0 1 GROUP g RETRY 5000 0") == []


def test_keys_expire_by_the_time_of_day(world: World) -> None:
    world.run("SET early 1 PX 5000")
    world.clock.jump(5000)
    assert world.run("EXISTS early") == 0
    world.clock.jump(-HOUR)
    world.run(f"SET late 1 PXAT {world.clock.now + HOUR}")
    world.pass_time(5000)
    assert world.run("PTTL late") == HOUR - 5000


def groups_with_leases(world: World, many: int) -> list[str]:
    """Groups of one stream, each with a lease that expires one millisecond after that of the group before."""
    world.write("k", "a")
    names = [f"g{number:03}" for number in range(many)]
    for number, name in enumerate(names):
        world.run(f"TREAD k 0 1 GROUP {name} RETRY 600000 {700_000 + number}")
    world.pass_time(0)
    return names


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """The groups that upkeep has looked at."""
    seen: list[Group] = []
    expire = Group.expire
    monkeypatch.setattr(Group, "expire", lambda self, *words: seen.append(self) or expire(self, *words))
    return seen


def test_upkeep_looks_at_those_groups_only_that_have_something_to_give_up(world: World, looked_at: list[Group]) -> None:
    groups_with_leases(world, 300)
    groups = world.stream().groups
    looked_at.clear()
    world.pass_time(699_000)
    assert looked_at == []
    world.run("TEXTEND k g007 600000 BEGIN 1")
    world.pass_time(1)
    assert looked_at == [groups[b"g007"]]
    looked_at.clear()
    world.pass_time(1002)
    assert set(looked_at) == {groups[b"g%03d" % number] for number in range(4)}
    assert [world.group(b"g%03d" % number)[b"pending"] for number in range(5)] == [0, 0, 0, 0, 1]
    assert world.run("TGROUP DEL k g004") == 1
    world.pass_time(10)
    assert world.group(b"g005")[b"pending"] == 0


def test_upkeep_looks_at_many_groups_in_slices(
    world: World, looked_at: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = groups_with_leases(world, 20)
    world.timers.advance(800_000)
    looked_at.clear()
    monkeypatch.setattr(upkeep, "perf_counter_ns", count(0, upkeep.SLICE).__next__)
    for done in range(1, 20):
        world.engine.streams.tick()
        assert len(looked_at) == done
    world.timers.advance(1000)  # it goes on by itself
    assert [world.group(name.encode())[b"pending"] for name in names] == [0] * 20
