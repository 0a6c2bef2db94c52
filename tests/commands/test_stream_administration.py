"""TINFO, TSEEK, TRETAIN, TGROUP, TNACK, and the staged commits TSTAGE and TCOMMIT."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from tests.support.commands.stream_world import World, arrow, rows, visible

from penstock.engine import stream_upkeep as streams
from penstock.types.stream.compaction import compact
from penstock.types.stream.stream import Stream


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """One in which a tenth of a millisecond passes whenever periodic work looks at the time: a tick has ten of them."""
    monkeypatch.setattr(streams, "perf_counter_ns", count(0, streams.SLICE // 10).__next__)
    return World()


# -- looking in -----------------------------------------------------------------------------------------------


def test_info_tells_what_there_is(world: World) -> None:
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 2500)
    world.run("TEVICT k 1200")
    world.run("TREAD k 0 10 GROUP g RETRY 500 0")
    world.run("TACK k g 1201-1203")
    world.run("TWRITE k PRODUCER p 1 ENTRIES t e")
    world.run("TSTAGE k token ENTRIES t e")
    world.run("TRETAIN k COUNT 9000 AGE 8000 BYTES 700000 COMPACT no")
    pairs = world.run("TINFO k")
    info = dict(zip(pairs[::2], pairs[1::2], strict=True))
    stored = info.pop(b"bytes-stored")
    assert stored > 500
    assert info == {
        b"first": 1201, b"last": 2501, b"length": 1301, b"nodes": 2, b"nodes-hot": 1, b"nodes-cold": 0,
        b"bytes-raw": 1500 * 24 + 18, b"history": [b"length", 0, b"bytes", 0, b"files", 0],
        b"retention": [b"count", 9000, b"age", 8000, b"bytes", 700000, b"compact", 0],
        b"producers": 1, b"stages": 1, b"delayed": 0,
        b"groups": [[
            b"name", b"g", b"position", 1211, b"lag", 1291, b"lag-ms", 0, b"pending", 7, b"delayed", 0,
                b"acknowledged", 3, b"done-through", 1203, b"lost", 0,
            b"next-retry", world.clock.now + 500, b"dead-letters", [], b"consumers", [],
        ]],
    }  # fmt: skip
    assert world.run("TGROUP LIST k") == info[b"groups"]


def test_info_of_nothing(world: World) -> None:
    assert world.error("TINFO k") == "ERR no such key"
    assert world.run("TGROUP LIST k") == []
    world.run("TREAD k 0 1 GROUP g")
    assert world.group()[b"next-retry"] is None


def test_seeking_by_time(world: World) -> None:
    start = world.clock.now
    for _ in range(5):
        world.write("k", "a", "b")
        world.clock.advance(100)
    for moment, offset in ((0, 1), (start, 1), (start + 1, 3), (start + 100, 3), (start + 400, 9), (start + 401, 11)):
        assert world.run("TSEEK", "k", "TIME", moment) == offset
    world.run("TEVICT k 4")
    assert world.run("TSEEK k time 0") == 5
    assert world.run("TSEEK missing TIME 0") == 1


# -- TRETAIN --------------------------------------------------------------------------------------------------


def fill(world: World, nodes: int, tags: int = 0) -> None:
    for _ in range(nodes):
        words = [word for n in range(1000) for word in (f"t{n % tags}" if tags else "", "x" * 84)]
        world.run("TWRITE", "k", "ENTRIES", *words)


def test_count_is_kept_at_the_least(world: World) -> None:
    fill(world, 3)
    world.run("TRETAIN k COUNT 1500")
    assert world.run("TREAD k 1 0 WITHINFO") == [[1001, 3000]]
    fill(world, 1)
    assert world.run("TREAD k 1 0 WITHINFO") == [[2001, 4000]]
    for _ in range(1000):
        world.run("TWRITE", "k", "", "x")
    assert world.run("TREAD k 1 0 WITHINFO") == [[3001, 5000]]
    world.run("TRETAIN k COUNT 0")
    fill(world, 3)
    assert world.run("TREAD k 1 0 WITHINFO") == [[3001, 8000]]


def test_bytes_are_held_at_the_most(world: World) -> None:
    fill(world, 3, tags=0)
    world.run("TRETAIN k BYTES 200000")
    assert world.run("TREAD k 1 0 WITHINFO") == [[1001, 3000]]
    fill(world, 2)
    assert world.run("TREAD k 1 0 WITHINFO") == [[3001, 5000]]


@pytest.mark.parametrize("form", ["tag entry", "ENTRIES", "ARROW", "TCOMMIT"])
def test_bytes_are_held_at_the_most_when_messages_are_large(world: World, form: str) -> None:
    """A thousand messages of a megabyte are a node of a gigabyte: BYTES must not wait until it is sealed."""
    large = b"x" * 100_000
    world.run("TWRITE", "k", "", large)
    world.run("TRETAIN k BYTES 350000")
    for epoch in range(6):
        if form == "tag entry":
            world.run("TWRITE", "k", "", large)
        elif form == "ENTRIES":
            world.run("TWRITE", "k", "ENTRIES", "", large)
        elif form == "ARROW":
            world.run("TWRITE", "k", "FORMAT", "ARROW", arrow([b""], [large]))
        else:
            world.run("TSTAGE", "k", "token", "ENTRIES", "", large)
            world.run("TCOMMIT", "k", "p", epoch, "token")
    assert world.run("TREAD k 1 0 WITHINFO") == [[5, 7]]
    assert world.stream().size() < 400_000
    assert visible(world.restarted()) == visible(world)
    world.run("TWRITE", "k", "", large * 5)
    assert world.run("TREAD k 1 0 WITHINFO") == [[8, 8]]


def test_age_goes_by_a_nodes_newest_message_and_needs_no_command(world: World) -> None:
    fill(world, 1)
    world.clock.advance(1000)
    fill(world, 1)
    world.write("k", "last")
    world.run("TRETAIN k AGE 5000")
    world.pass_time(4000)
    assert world.run("TREAD k 1 0 WITHINFO") == [[1, 2001]]
    world.pass_time(1)
    assert world.run("TREAD k 1 0 WITHINFO") == [[1001, 2001]]
    world.pass_time(999)
    assert world.run("TREAD k 1 0 WITHINFO") == [[1001, 2001]]
    world.write("k", "newer")
    world.pass_time(2)
    assert world.run("TREAD k 1 0 WITHINFO") == [[2001, 2002]]  # the node being written stays while it is written
    world.pass_time(4998)
    assert world.run("TREAD k 1 0 WITHINFO") == [[2001, 2002]]
    world.pass_time(1)
    assert world.run("TREAD k 1 0 WITHINFO") == [[2003, 2002]]
    assert world.write("k", "after") == 2003
    assert visible(world.restarted()) == visible(world)


def test_compaction_keeps_the_last_entry_of_every_tag_at_its_offset(world: World) -> None:
    words = [word for n in range(2000) for word in (f"t{n % 7}", f"{n}")]
    world.run("TWRITE", "k", "ENTRIES", *words, "", "untagged", "t0", "active")
    world.run("TRETAIN k COMPACT yes")
    world.pass_time(0)
    messages = [message for message in world.run("TREAD k 1 3000") if message is not None]
    expected = [[n + 1, b"t%d" % (n % 7), b"%d" % n] for n in range(1993, 2000)]
    assert messages == [*expected, [2001, b"", b"untagged"], [2002, b"t0", b"active"]]
    assert world.run("TREAD k 1 0 WITHINFO") == [[1, 2002]]
    assert len(rows(world.run("TREAD k 1 3000 FORMAT ARROW"))) == 9
    assert world.offsets("TREAD k 0 3000 GROUP g") == [message[0] for message in messages]
    world.stream().check()


@pytest.mark.parametrize("other", ["COUNT 5000", "COMPACT yes", "BYTES 1000000000", "COUNT 5000 COMPACT yes"])
def test_a_message_goes_when_any_of_the_limits_lets_it_go(world: World, other: str) -> None:
    world.write("k", *["a"] * 2500)
    world.run(f"TRETAIN k AGE 1000 {other}")
    world.pass_time(1000)
    assert world.run("TREAD k 1 0 WITHINFO") == [[1, 2500]]
    world.pass_time(1)
    assert world.run("TREAD k 1 0 WITHINFO") == [[2501, 2500]]
    assert visible(world.restarted()) == visible(world)


def test_limits_that_are_not_named_stay(world: World) -> None:
    world.write("k", "a")
    world.run("TRETAIN k COUNT 5 AGE 6")
    world.run("TRETAIN k BYTES 7 compact YES")
    retention = world.stream().retention
    assert (retention.count, retention.age_ms, retention.bytes, retention.compact) == (5, 6, 7, True)
    logged = len(world.logged)
    assert world.run("TRETAIN k COUNT 5") == b"OK"
    assert world.run("TRETAIN k") == b"OK"
    assert len(world.logged) == logged
    assert world.error("TRETAIN missing COUNT 5") == "ERR no such key"


@pytest.mark.parametrize(
    "evict", ["TEVICT k -5", "TWRITE k BACKLOG 5 ENTRIES a b", "TRETAIN k COUNT 5", "TRETAIN k BYTES 3000"]
)
def test_what_went_from_a_compacted_stream_is_the_same_after_a_restart(world: World, evict: str) -> None:
    """Limits count what is there: what they came to is logged, and not found again."""
    fill(world, 4, tags=10)
    world.run("TRETAIN k COMPACT yes")
    world.pass_time(0)
    world.run(evict)
    assert visible(world.restarted()) == visible(world)


def test_retention_while_writing_is_the_same_after_a_restart(world: World) -> None:
    fill(world, 2, tags=10)
    world.run("TRETAIN k COMPACT yes COUNT 1500")
    world.pass_time(0)
    fill(world, 3, tags=10)
    world.run("TSTAGE", "k", "token", "ENTRIES", *["t", "x"] * 1000)
    world.run("TCOMMIT k p 1 token")
    world.pass_time(0)
    assert visible(world.restarted()) == visible(world)


@pytest.mark.parametrize("rule", ["COUNT 1500", "AGE 5000", "BYTES 150000"])
def test_what_a_rule_evicts_is_logged_and_not_found_again(world: World, rule: str) -> None:
    """The restart is months later: a rule that were applied anew would keep nothing, or other messages."""
    fill(world, 1)
    world.run(f"TRETAIN k {rule}")
    world.clock.advance(4000)
    fill(world, 2)
    world.pass_time(1001)
    (first, last), *_ = world.run("TREAD k 1 0 WITHINFO")
    assert (first in (1001, 2001), last) == (True, 3000)
    assert (0, [b"TEVICT", b"k", b"%d" % (first - 1)]) in world.logged
    assert visible(world.restarted()) == visible(world)


def test_what_was_compacted_and_no_more_is_gone_after_a_restart(world: World) -> None:
    """After a crash a reader must not find what it was told is gone, and must find what it could have read."""
    fill(world, 12, tags=10)
    world.run("TRETAIN k COMPACT yes")
    left = [12000]
    while left[-1] > 10:
        dirty = world.engine.keyspace.dirty
        world.pass_time(0)
        left.append(len([message for message in world.run("TREAD k 1 12000") if message]))
        assert (world.engine.keyspace.dirty != dirty) == (left[-1] != left[-2]), "the save rules must hear of it"
        assert visible(world.restarted()) == visible(world)
        world.run("COPY k copy REPLACE")
        assert visible(world.restarted(), b"copy") == visible(world, b"copy")
    assert len(left) > 3, "it was not done in slices"


def test_compaction_goes_on_by_itself_after_a_pause(world: World) -> None:
    fill(world, 12, tags=10)
    world.run("TRETAIN k COMPACT yes")
    world.pass_time(0)
    assert compact(world.stream().messages, 0).more
    world.timers.advance(1000)
    assert len([message for message in world.run("TREAD k 1 12000") if message]) == 10


def test_a_tick_compacts_one_node_if_that_takes_all_its_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, 4, tags=10)
    world.run("TRETAIN k COMPACT yes")
    monkeypatch.setattr(streams, "perf_counter_ns", count(0, streams.SLICE).__next__)
    compactor = world.stream().messages.compactor
    assert compactor is not None
    for done in range(1, 5):
        world.pass_time(0)
        assert (compactor.next, len(compactor.superseded)) == (done, done)
    for left in (3, 2, 1, 0):
        world.pass_time(0)
        assert len(compactor.superseded) == left


def test_compaction_that_is_turned_off_stops_where_it_is(world: World) -> None:
    fill(world, 12, tags=10)
    world.run("TRETAIN k COMPACT yes")
    world.pass_time(0)
    world.pass_time(0)  # some of it
    before = world.run("TREAD k 1 12000")
    assert 10 < len([message for message in before if message]) < 12000
    world.run("TRETAIN k COMPACT no")
    world.pass_time(0)
    assert world.run("TREAD k 1 12000") == before
    assert visible(world.restarted()) == visible(world)


# -- TGROUP ---------------------------------------------------------------------------------------------------


def test_a_group_is_moved_and_what_is_pending_stays_so(world: World) -> None:
    world.write("k", *"abcdef")
    world.run("TREAD k 0 3 GROUP g RETRY 1000 0")
    assert world.run("TGROUP SET k g 5") == b"OK"
    assert (world.group()[b"position"], world.group()[b"pending"], world.group()[b"lag"]) == (5, 3, 2)
    assert world.offsets("TREAD k 0 10 GROUP g") == [5, 6]
    world.run("TGROUP SET k g 0")
    assert world.group()[b"position"] == 1
    world.run("TGROUP SET k g $")
    assert world.group()[b"position"] == 7
    world.run("TGROUP SET k made 2")
    assert world.offsets("TREAD k 0 10 GROUP made") == [2, 3, 4, 5, 6]


def test_rewinding_wakes_a_blocked_member(world: World) -> None:
    world.write("k", "a")
    waiting = world.client("TREAD k $ 1 BLOCK 0 GROUP g")
    world.run("TGROUP SET k g 1")
    assert waiting.replies == [[[1, b"", b"a"]]]


def test_a_group_is_forgotten(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 1000 0")
    assert world.run("TGROUP DEL k g") == 1
    assert world.run("TGROUP DEL k g") == 0
    assert world.run("TGROUP DEL missing g") == 0
    assert world.run("TGROUP LIST k") == []
    assert world.offsets("TREAD k 0 1 GROUP g") == [1]


def test_pending_is_listed_by_range_and_count(world: World) -> None:
    world.write("k", *"abcdef")
    first = world.clock.now
    world.run("TREAD k 0 3 GROUP g RETRY 100 5000")
    world.clock.advance(100)
    world.run("TREAD k 0 1 GROUP g RETRY 100 5000")
    world.run("TREAD k 0 5 GROUP g RETRY 1000 0")
    now = world.clock.now
    listed = [
        [1, 1, 2, first, now + 100, first + 5000],
        [2, 3, 2, first, now + 1000, first + 5000],
        [4, 6, 1, now, now + 1000, 0],
    ]
    assert world.run("TGROUP PENDING k g") == listed
    assert [row[:2] for row in world.run("TGROUP PENDING k g 2-4")] == [[2, 3], [4, 4]]
    assert [row[:2] for row in world.run("TGROUP PENDING k g COUNT 2")] == [[1, 1], [2, 2]]
    assert [row[:2] for row in world.run("TGROUP PENDING k g 3-9 count 2")] == [[3, 3], [4, 4]]
    assert world.run("TGROUP PENDING k g COUNT 0") == []
    assert "no such group 'h'" in world.error("TGROUP PENDING k h")


# -- TNACK ----------------------------------------------------------------------------------------------------


def test_a_tnack_is_logged_as_a_line_however_many_leases_it_touches_and_is_the_same_after_a_restart(
    world: World,
) -> None:
    world.write("k", *range(300))
    for _ in range(150):
        world.run("TREAD k 0 2 GROUP g RETRY 1000 9000")
    world.clock.advance(7)
    logged = len(world.logged)
    assert world.run("TNACK k g 2-299 DELAY 500") == 298
    moment = b"%d" % world.clock.now
    command = [b"TNACK", b"k", b"g", b"2-299", b"DELAY", b"500"]
    assert world.logged[logged:] == [(0, [b"TAPPLY", b"k", b"AT", moment, *command])]
    again = world.restarted()
    assert visible(again) == visible(world)
    assert again.run("TGROUP PENDING k g") == world.run("TGROUP PENDING k g")


def test_refused_messages_come_again_at_once_or_after_a_delay(world: World) -> None:
    world.write("k", *"abcd")
    read = "TREAD k 0 10 GROUP g RETRY 60000 0"
    world.run(read)
    waiting = world.client("TREAD k 0 10 BLOCK 0 GROUP g RETRY 60000 0")
    assert world.run("TNACK k g 2") == 1
    assert waiting.replies == [[[2, b"", b"b"]]]
    waiting = world.client("TREAD k 0 10 BLOCK 0 GROUP g RETRY 60000 0")
    assert world.run("TNACK k g 3-4 99 DELAY 500") == 2
    world.timers.advance(499)
    assert waiting.blocked
    world.timers.advance(1)
    assert waiting.replies == [[[3, b"", b"c"], [4, b"", b"d"]]]
    assert world.run("TNACK k g 1-3 2-4 3 3") == 4, "a message named twice was counted twice"
    assert world.run("TNACK k g 99") == 0
    assert world.run("TNACK k h 1") == 0
    assert world.run("TNACK missing g 1") == 0


def test_a_refusal_leaves_the_expiry_as_it_was(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100 1000")
    world.run("TNACK k g 1 DELAY 9223372036854775807")
    world.stream().check()
    world.pass_time(1000)
    assert world.group()[b"pending"] == 0


@pytest.mark.parametrize(
    "words", ["TREAD k 0 9 GROUP g RETRY 9223372036854775807 0", "TNACK k g 1 DELAY 9223372036854775807"]
)
def test_the_longest_times_are_kept_and_survive_a_restart(world: World, words: str) -> None:
    world.write("k", "a", "b")
    world.run("TREAD k 0 1 GROUP g RETRY 9223372036854775806 9223372036854775807")
    world.run(words)
    assert visible(world.restarted()) == visible(world)


# -- TSTAGE and TCOMMIT ---------------------------------------------------------------------------------------


def test_staged_entries_are_invisible_until_they_are_committed(world: World) -> None:
    world.write("k", "a")
    waiting = world.client("TREAD k 2 10 BLOCK 0")
    assert world.run("TSTAGE k one ENTRIES t b t c") == 2
    assert world.run("TSTAGE", "k", "two", "ARROW", arrow([b"u"], [b"d"])) == 1
    assert world.run("TSTAGE k one ENTRIES t e") == 3
    assert world.run("TREAD k 1 10") == [[1, b"", b"a"]]
    assert waiting.blocked
    assert world.run("TCOMMIT k p 1 two one") == [2, 4]
    assert waiting.replies == [[[2, b"u", b"d"], [3, b"t", b"b"], [4, b"t", b"c"], [5, b"t", b"e"]]]
    assert world.stream().stages.by_token == {}


def test_a_repeated_commit_answers_the_same_and_appends_nothing(world: World) -> None:
    world.run("TSTAGE k token ENTRIES t a t b")
    assert world.run("TCOMMIT k p 3 token") == [1, 2]
    logged = len(world.logged)
    assert world.run("TCOMMIT k p 3 token") == [1, 2]
    world.run("TSTAGE k other ENTRIES t c")
    assert world.run("TCOMMIT k p 3 other") == [1, 2]
    assert len(world.logged) == logged + 1
    assert world.run("TREAD k 1 0 WITHINFO") == [[1, 2]]


def test_an_older_epoch_is_fenced_and_its_stage_stays(world: World) -> None:
    world.run("TSTAGE k token ENTRIES t a")
    world.run("TCOMMIT k p 3 token")
    world.run("TSTAGE k late ENTRIES t b")
    assert world.error("TCOMMIT k p 2 late") == "FENCED producer p: epoch 2 is older than 3"
    assert world.run("TREAD k 1 0 WITHINFO") == [[1, 1]]
    assert world.run("TCOMMIT k p 4 late") == [2, 1]


def test_producers_are_fenced_each_by_its_own_epochs(world: World) -> None:
    for producer, epoch in (("p", 5), ("q", 1)):
        world.run("TSTAGE", "k", producer, "ENTRIES", "", producer)
        world.run("TCOMMIT", "k", producer, epoch, producer)
    assert [message[2] for message in world.run("TREAD k 1 10")] == [b"p", b"q"]


@pytest.mark.parametrize("tokens", ["unknown", "token unknown", "token token"])
def test_a_commit_with_a_token_it_cannot_have_changes_nothing(world: World, tokens: str) -> None:
    world.run("TSTAGE k token ENTRIES t a")
    before = visible(world)
    assert f"nothing is staged under '{tokens.split()[-1]}'" in world.error(f"TCOMMIT k p 1 {tokens}")
    assert visible(world) == before
    assert "nothing is staged under" in world.error(f"TCOMMIT missing p 1 {tokens}")
    assert world.run("EXISTS missing") == 0


def test_an_empty_stage_is_an_empty_commit(world: World) -> None:
    """A Spark task may have no rows; its batch is committed all the same, and once."""
    assert world.run("TSTAGE", "k", "token", "ARROW", arrow([], [])) == 0
    assert world.run("TCOMMIT k p 1 token") == [1, 0]
    assert world.run("TCOMMIT k p 1 token") == [1, 0]
    assert visible(world.restarted()) == visible(world)


def test_what_is_staged_can_be_dropped(world: World) -> None:
    assert world.run("TUNSTAGE k token") == 0
    world.run("TSTAGE k token ENTRIES a one")
    world.run("TSTAGE k other ENTRIES a two")
    assert world.run("TUNSTAGE k token missing") == 1
    assert "nothing is staged under 'token'" in world.error("TCOMMIT k p 1 token")
    assert world.restarted().run("TCOMMIT k p 1 other") == [1, 1]
    assert "nothing is staged under 'token'" in world.restarted().error("TCOMMIT k p 1 token")


def test_stages_that_nobody_commits_go(world: World) -> None:
    world.run("CONFIG SET stream-stage-timeout 1000")
    world.run("TSTAGE k stale ENTRIES t a")
    world.pass_time(600)
    world.run("TSTAGE k fresh ENTRIES t b")
    world.pass_time(401)
    assert list(world.stream().stages.by_token) == [b"fresh"]
    assert "nothing is staged" in world.error("TCOMMIT k p 1 stale")
    again = world.restarted()
    assert list(again.stream().stages.by_token) == [b"fresh"]
    assert again.run("TCOMMIT k p 1 fresh") == [1, 1]


@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
def test_stages_go_when_their_time_has_passed_however_the_clock_is_set(world: World, jump: int) -> None:
    world.run("CONFIG SET stream-stage-timeout 5000")
    world.clock.jump(-jump)
    world.run("TSTAGE k token ENTRIES t a")
    world.clock.jump(jump)
    world.pass_time(5000)
    for each in (world.restarted(later=0), world):
        each.run("CONFIG SET stream-stage-timeout 5000")
        assert list(each.stream().stages.by_token) == [b"token"]
        each.pass_time(1)
        assert list(each.stream().stages.by_token) == []


# -- TAPPLY ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "TAPPLY k AT 5 SET k v", "TAPPLY k AT 5 TWRITE other t e", "TAPPLY k AT 5 TAPPLY k UNSTAGE 5",
        "TAPPLY k AT x TWRITE k t e", "TAPPLY k GROUP g nonsense", "TAPPLY k UNSTAGE x", "TAPPLY k NOTHING g x",
        "TAPPLY k AT 5 TREAD k 1 1",
    ],
)  # fmt: skip
def test_only_effects_are_applied(world: World, words: str) -> None:
    assert world.error(words).startswith("ERR")
    assert world.run("EXISTS k other") == 0


def test_leases_of_messages_that_were_never_written_are_not_applied(world: World) -> None:
    """A snapshot with them would be refused at the next start."""
    world.write("longer", "a", "b", "c")
    world.run("TREAD longer 0 3 GROUP g RETRY 1000 0")
    words = ("TAPPLY", "k", "GROUP", "g", world.stream(b"longer").groups[b"g"].dump())
    assert "never written" in world.error(*words)
    assert world.run("EXISTS k") == 0
    world.write("k", "a", "b")
    assert "never written" in world.error(*words)
    assert world.run("TGROUP LIST k") == []
    world.write("k", "c")
    assert world.run(*words) == b"OK"
    assert world.run("TGROUP PENDING k g") == world.run("TGROUP PENDING longer g")
    assert world.run("RESTORE", "copy", 0, world.run("DUMP", "k")) == b"OK"


# -- compression between commands -----------------------------------------------------------------------------


def compressed(world: World, key: bytes = b"k") -> list[bool]:
    return [node.compressed for node in world.stream(key).messages.nodes.values()]


def test_nodes_are_compressed_when_they_have_rested(world: World) -> None:
    for key in ("k", "other"):
        world.run("TWRITE", key, "ENTRIES", *["tag", "entry"] * 12_000)
    world.pass_time(9_999)
    assert not any(compressed(world))
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 1_000)
    world.pass_time(200)
    assert compressed(world) == [True] * 5 + [False] * 8  # the fifth has rested too, as one of the hot
    assert not any(compressed(world, b"other"))  # it came while the other's rest had begun, and has its own
    world.pass_time(10_000)
    assert compressed(world, b"other") == [True] * 4 + [False] * 8
    world.pass_time(10_000)
    assert world.timers.pending == 0


def test_what_is_written_all_the_time_is_compressed_after_at_most_two_rests(world: World) -> None:
    for _ in range(30):
        world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 1_000)
        world.pass_time(1_000)
    assert compressed(world)[:10] == [True] * 10
    assert not any(compressed(world)[20:])
    world.pass_time(20_200)
    assert compressed(world) == [True] * 22 + [False] * 8
    world.pass_time(10_000)
    assert world.timers.pending == 0


def test_without_a_rest_nodes_are_compressed_as_soon_as_there_is_time(world: World) -> None:
    world.run("CONFIG SET stream-compression-rest 0")
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    assert not any(compressed(world))
    world.pass_time(200)
    assert compressed(world) == [True] * 4 + [False] * 8


def test_without_a_backlog_they_are_compressed_at_once(world: World) -> None:
    world.run("CONFIG SET stream-compression-backlog 0")
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    assert compressed(world) == [True] * 4 + [False] * 8
    assert world.timers.pending == 0


def test_a_stream_that_is_deleted_is_not_compressed(world: World) -> None:
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    world.run("DEL k")
    world.pass_time(10_100)
    assert world.timers.pending == 0


def test_what_was_not_compressed_when_it_was_copied_or_dumped_is_later(world: World) -> None:
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    dumped = world.run("DUMP k")
    world.run("COPY k copied")
    world.run("DEL k")
    world.run("RESTORE", "restored", 0, dumped)
    assert not any(compressed(world, b"restored"))
    world.pass_time(20_200)
    assert compressed(world, b"copied") == compressed(world, b"restored") == [True] * 4 + [False] * 8
    world.stream(b"restored").check()


def test_a_stream_whose_cold_nodes_are_evicted_rests_no_longer(world: World) -> None:
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    world.run("TEVICT k 11000")
    world.pass_time(10_100)
    assert world.timers.pending == 0
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    world.pass_time(10_200)
    assert compressed(world) == [True] * 5 + [False] * 8


def test_nodes_are_compressed_before_a_write_is_refused_for_memory(world: World) -> None:
    world.run("TWRITE", "k", "ENTRIES", *["tag", "x" * 10_000] * 12_000)
    world.engine.memory.measure()
    world.engine.memory.measure()
    world.run("CONFIG", "SET", "maxmemory", world.engine.memory.used_memory - 20_000_000)
    assert compressed(world) == [True] * 4 + [False] * 8
    assert world.run("TWRITE k tag entry") == 12_001


class Thread:
    """A thread that works when the test says so, in the place of Workers.in_background."""

    def __init__(self, world: World) -> None:
        world.run("CONFIG SET stream-compression-rest 0")
        world.engine.compression.in_background = self._take
        self.chores: list[tuple[Callable[[], object], Callable[[], None]]] = []

    def _take(self, compute: Callable[[], object], over: Callable[[], None]) -> bool:
        self.chores.append((compute, over))
        return True

    def work(self) -> None:
        compute, over = self.chores.pop(0)
        compute()
        over()


def test_a_thread_compresses_while_the_loop_serves(world: World) -> None:
    thread = Thread(world)
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    world.run("TWRITE", "other", "ENTRIES", *["tag", "entry"] * 12_000)
    world.pass_time(100)
    assert not any(compressed(world)) and len(thread.chores) == 1, "one portion at a time"
    dumped, read = world.run("DUMP k"), world.run("TREAD k 1 12000")
    thread.work()
    world.pass_time(100)
    thread.work()
    assert compressed(world) == compressed(world, b"other") == [True] * 4 + [False] * 8
    assert world.run("TREAD k 1 12000") == read
    world.run("RESTORE", "again", 0, dumped)
    assert world.run("TREAD again 1 12000") == read
    world.pass_time(100)
    thread.work()
    assert compressed(world, b"again") == [True] * 4 + [False] * 8
    world.pass_time(100)
    assert not thread.chores and world.timers.pending == 0


@pytest.mark.parametrize(
    "words", ["DEL k", "FLUSHALL", "TEVICT k 12000", "TRETAIN k COUNT 1", "SET k text", "RENAME k other"]
)
def test_what_a_thread_compressed_of_a_stream_that_changed_is_for_nobody(world: World, words: str) -> None:
    thread = Thread(world)
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    world.pass_time(100)
    world.run(words)
    thread.work()
    world.pass_time(100)
    for value in world.engine.keyspace[0].data.values():
        if isinstance(value, Stream):
            value.check()
    assert not thread.chores and world.timers.pending == 0


def test_what_a_thread_fails_at_is_done_by_the_loop(world: World) -> None:
    thread = Thread(world)
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    world.pass_time(100)
    _, over = thread.chores.pop()
    world.engine.compression.in_background = lambda compute, over: False
    over()
    world.pass_time(100)
    assert compressed(world) == [True] * 4 + [False] * 8


def test_a_write_beyond_the_backlog_does_not_wait_for_a_thread(world: World) -> None:
    thread = Thread(world)
    node = 1000 * (len("tagentry") + 16)
    world.run("CONFIG", "SET", "stream-compression-backlog", 4 * node)
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 11_000)
    world.pass_time(100)
    assert len(thread.chores) == 1 and not any(compressed(world))
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 3_000)
    assert compressed(world) == [False] * 3 + [True] * 3 + [False] * 8
    thread.work()
    assert compressed(world) == [True] * 6 + [False] * 8
    world.stream().check()


def test_memory_is_not_kept_short_by_a_thread_that_is_held_up(world: World) -> None:
    thread = Thread(world)
    world.run("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 12_000)
    world.pass_time(100)
    assert world.engine.compression.now()
    assert compressed(world) == [True] * 4 + [False] * 8
    thread.work()
    world.stream().check()
