"""TWRITE, TREAD, TACK and TEVICT, and what other commands do with a stream. No Redis has them, so ours runs alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis
from tests.support.commands.stream_world import BLOCKED, World, arrow, rows, visible
from tests.support.replies import error_of, raw

from penstock import Server
from penstock.commands import stream_read_replies


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def r(ours: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(ours.url, protocol=2) as client:
        client.flushall()
        yield client


@pytest.fixture
def r3(ours: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(ours.url, protocol=3) as client:
        client.flushall()
        yield client


# -- TWRITE ---------------------------------------------------------------------------------------------------


def test_offsets_begin_at_one_and_follow_each_other(world: World) -> None:
    assert world.run("TWRITE", "k", "tag", "one") == 1
    assert world.run("TWRITE", "k", "ENTRIES", "tag", "two", "", "three") == 2
    assert world.run("TWRITE", "k", "", "") == 4
    assert world.run("TREAD k 1 10") == [[1, b"tag", b"one"], [2, b"tag", b"two"], [3, b"", b"three"], [4, b"", b""]]


def test_four_words_are_a_tag_and_an_entry_whatever_they_say(world: World) -> None:
    for offset, words in enumerate([("ENTRIES", "x"), ("ARROW", "x"), ("BACKLOG", "5"), ("FORMAT", "ARROW")], 1):
        assert world.run("TWRITE", "k", *words) == offset
        assert world.run("TREAD", "k", offset, 1) == [[offset, words[0].encode(), words[1].encode()]]


def test_an_arrow_table_is_appended_at_once(world: World) -> None:
    world.write("k", "zero")
    payload = arrow([b"a", b"b"], [b"1", b"2"])
    assert world.run("TWRITE", "k", "FORMAT", "ARROW", payload) == 2
    assert world.run("TWRITE", "k", "PRODUCER", "p", 1, "ARROW", payload) == 4
    assert world.run("TREAD k 2 10") == [[2, b"a", b"1"], [3, b"b", b"2"], [4, b"a", b"1"], [5, b"b", b"2"]]


def test_an_arrow_table_may_bring_its_own_times(world: World) -> None:
    world.run("TWRITE", "k", "FORMAT", "ARROW", arrow([b"", b""], [b"1", b"2"], [5000, 7000]))
    assert [row["time"] for row in rows(world.run("TREAD k 1 5 FORMAT ARROW"))] == [5000, 7000]
    assert world.run("TSEEK k TIME 6000") == 2


def test_an_arrow_table_without_rows_appends_nothing(world: World) -> None:
    world.write("k", "a")
    assert world.run("TWRITE", "k", "FORMAT", "ARROW", arrow([], [])) == 2
    assert world.run("TREAD k 1 10") == [[1, b"", b"a"]]


def test_a_table_of_several_nodes_keeps_its_order(world: World) -> None:
    entries = [b"%d" % number for number in range(3500)]
    world.write("k", "before")
    assert world.run("TWRITE", "k", "FORMAT", "ARROW", arrow([b""] * 3500, entries)) == 2
    assert [message[2] for message in world.run("TREAD k 2 5000")] == entries


def test_backlog_frees_old_nodes_and_keeps_at_least_so_many(world: World) -> None:
    entries = ["", "x"] * 1000
    for _ in range(3):
        world.run("TWRITE", "k", "BACKLOG", 1500, "ENTRIES", *entries)
    assert world.run("TREAD k 1 0 WITHINFO") == [[1001, 3000]]
    world.run("TWRITE", "k", "BACKLOG", 1, "ENTRIES", "", "x")
    assert world.run("TREAD k 1 0 WITHINFO") == [[3001, 3001]]


def test_a_repeated_producer_sequence_appends_nothing(world: World) -> None:
    write = ("TWRITE", "k", "PRODUCER", "p")
    assert world.run(*write, 1, "ENTRIES", "", "a", "", "b") == 1
    assert world.run(*write, 2, "ENTRIES", "", "c") == 3
    logged = len(world.logged)
    assert world.run(*write, 1, "ENTRIES", "", "a", "", "b") == 1
    assert world.run(*write, 2, "ENTRIES", "", "another") == 3
    assert len(world.logged) == logged
    assert world.run("TREAD k 1 0 WITHINFO") == [[1, 3]]
    assert world.run("TWRITE", "k", "PRODUCER", "q", 1, "ENTRIES", "", "d") == 4


def test_a_producer_behind_its_successor_is_fenced(world: World) -> None:
    write = ("TWRITE", "k", "PRODUCER", "p")
    world.run(*write, 5, "ENTRIES", "", "a")
    assert world.error(*write, 4, "ENTRIES", "", "b") == "FENCED PRODUCER p: sequence 4 is older than 5"
    assert world.run("TREAD k 1 0 WITHINFO") == [[1, 1]]


def test_options_of_twrite_may_be_combined_and_written_in_any_case(world: World) -> None:
    assert world.run("TWRITE", "k", "producer", "p", 1, "backlog", 10, "entries", "t", "e") == 1
    assert world.run("TWRITE", "k", "Backlog", 10, "Format", "arrow", arrow([b"t"], [b"f"])) == 2


# -- TREAD, plain ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_plain_read_is_positional_and_evicted_messages_are_null(ours: Server, protocol: int) -> None:
    with redis.Redis.from_url(ours.url, protocol=protocol) as client:
        client.flushall()
        client.execute_command("TWRITE", "k", "ENTRIES", *["", "a", "", "b", "", "c", "", "d"])
        client.execute_command("TEVICT", "k", 2)
        assert client.execute_command("TREAD", "k", 1, 10) == [None, None, [3, b"", b"c"], [4, b"", b"d"]]
        assert client.execute_command("TREAD", "k", 2, 2) == [None, [3, b"", b"c"]]
        assert client.execute_command("TREAD", "k", 1, 2, "WITHINFO") == [[3, 4], None, None]


def test_a_read_stops_at_the_last_offset(world: World) -> None:
    world.write("k", "a", "b")
    assert world.run("TREAD k 2 100") == [[2, b"", b"b"]]
    assert world.run("TREAD k 3 100") == []
    assert world.run("TREAD k 9223372036854775807 9223372036854775807") == []
    assert world.run("TREAD missing 1 10") == []
    assert world.run("TREAD k $ 10") == []
    assert world.run("EXISTS missing") == 0


def test_count_zero_only_informs(world: World) -> None:
    assert world.run("TREAD k 1 0 WITHINFO") == [[1, 0]]
    world.write("k", "a", "b", "c")
    assert world.run("TREAD k 1 0") == []
    assert world.run("TREAD k 1 0 WITHINFO") == [[1, 3]]
    world.run("TEVICT k 3")
    assert world.run("TREAD k 1 0 WITHINFO") == [[4, 3]]
    assert world.run("TREAD k 4 0 BLOCK 0 WITHINFO") == [[4, 3]]
    assert world.run("TREAD k $ 0 BLOCK 0") == []
    assert world.run("TREAD k 0 0 BLOCK 0 GROUP g WITHINFO") == [[4, 3]]


def test_withinfo_comes_before_the_messages(world: World) -> None:
    world.write("k", "a", "b")
    assert world.run("TREAD k 2 5 WITHINFO") == [[1, 2], [2, b"", b"b"]]
    assert world.run("TREAD k 0 1 GROUP g WITHINFO") == [[1, 2], [1, b"", b"a"]]


def test_maxbytes_ends_with_the_message_that_reaches_it(world: World) -> None:
    world.write("k", *["x" * 84] * 10)  # a hundred bytes each, with what a message takes itself
    assert world.offsets("TREAD k 1 10 MAXBYTES 1") == [1]
    assert world.offsets("TREAD k 1 10 MAXBYTES 300") == [1, 2, 3]
    assert world.offsets("TREAD k 1 10 MAXBYTES 301") == [1, 2, 3, 4]
    assert world.offsets("TREAD k 1 2 MAXBYTES 301") == [1, 2]
    assert len(rows(world.run("TREAD k 1 10 MAXBYTES 300 FORMAT ARROW"))) == 3
    assert world.offsets("TREAD k 0 10 GROUP g MAXBYTES 300") == [1, 2, 3]
    assert world.offsets("TREAD k 0 10 GROUP g RETRY 100 0 MAXBYTES 300") == [4, 5, 6]


def test_blocked_readers_all_get_what_is_written(world: World) -> None:
    world.write("k", "a")
    one = world.client("TREAD k 2 10 BLOCK 0")
    other = world.client("TREAD k $ 10 BLOCK 1000 WITHINFO")
    ahead = world.client("TREAD k 4 10 BLOCK 0")
    world.write("k", "b", "c")
    assert one.replies == [[[2, b"", b"b"], [3, b"", b"c"]]]
    assert other.replies == [[[1, 3], [2, b"", b"b"], [3, b"", b"c"]]]
    assert ahead.blocked
    world.write("k", "d")
    assert ahead.replies == [[[4, b"", b"d"]]]


def test_a_reader_may_wait_for_a_key_that_is_not_there(world: World) -> None:
    waiting = world.client("TREAD k 1 1 BLOCK 0")
    world.run("SET k 1")
    assert waiting.blocked
    world.run("DEL k")
    world.run("TWRITE k t e")
    assert waiting.replies == [[[1, b"t", b"e"]]]


def test_a_long_lost_past_is_told_in_bounded_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_read_replies, "MAX_NULLS", 5)
    world.run("TWRITE", "k", "ENTRIES", *["t", "e"] * 20)
    world.run("TEVICT", "k", 15)
    assert world.run("TREAD k 1 100") == [None] * 5
    assert world.run("TREAD k 11 100")[:6] == [None] * 5 + [[16, b"t", b"e"]]


def test_a_wait_that_ends_without_anything_answers_a_null_array(world: World) -> None:
    world.write("k", "a")
    waiting = [
        world.client(f"TREAD k {words} BLOCK 500{more}")
        for words in ("2 1", "$ 1")
        for more in ("", " WITHINFO", " FORMAT ARROW")
    ]
    waiting.append(world.client("TREAD k $ 1 BLOCK 500 GROUP g"))
    world.timers.advance(499)
    assert all(client.blocked for client in waiting)
    world.timers.advance(1)
    assert [client.replies for client in waiting] == [[None]] * 7
    assert world.timers.pending == 0


def test_only_new_means_new_when_the_read_was_called(world: World) -> None:
    """The wake-up by an eviction must not move `$` on: what is written after it is still new."""
    world.write("k", "a")
    waiting = world.client("TREAD k $ 10 BLOCK 0")
    world.run("TEVICT k 1")
    assert waiting.blocked
    for words in ("MULTI", "TWRITE k t b", "TWRITE k t c", "EXEC"):
        world.run(words)
    assert waiting.replies == [[[2, b"t", b"b"], [3, b"t", b"c"]]]


def test_a_blocked_reader_can_be_unblocked(world: World) -> None:
    one = world.client("TREAD k 1 1 BLOCK 0")
    other = world.client("TREAD k 0 1 BLOCK 0 GROUP g")
    assert world.run("CLIENT", "UNBLOCK", one.session.id) == 1
    assert world.run("CLIENT", "UNBLOCK", other.session.id, "ERROR") == 1
    assert one.replies == [None]
    assert str(other.replies[0]).startswith("UNBLOCKED")
    world.write("k", "a")
    assert world.group()[b"lag"] == 1, "a reader that went took a message along"


def test_a_stream_that_arrives_under_the_name_is_read_at_once(world: World) -> None:
    waiting = world.client("TREAD k 2 1 BLOCK 0")
    member = world.client("TREAD k 0 1 BLOCK 0 GROUP g")
    world.write("other", "a", "b")
    world.run("RENAME other k")
    assert waiting.replies == [[[2, b"", b"b"]]]
    assert member.replies == [[[1, b"", b"a"]]]


def test_evicted_offsets_are_answered_at_once(world: World) -> None:
    world.write("k", "a", "b")
    world.run("TEVICT k 2")
    assert world.run("TREAD k 1 5 BLOCK 0") == [None, None]


@pytest.mark.parametrize("wait", ["9223372036854775807", "4611686018427387904"])
def test_the_longest_wait_is_a_wait(ours: Server, r: redis.Redis, wait: str) -> None:
    with redis.Redis.from_url(ours.url) as other:
        waiting = other.connection_pool.get_connection()
        waiting.send_command("TREAD", "k", "1", "1", "BLOCK", wait)
        while not ours.call(lambda app: app.engine.blocking.count):
            pass
        r.execute_command("TWRITE", "k", "t", "e")
        assert waiting.read_response() == [[1, b"t", b"e"]]
        waiting.send_command("TREAD", "k", "1", "1", "GROUP", "g", "RETRY", wait, wait)
        assert waiting.read_response() == [[1, b"t", b"e"]]
        waiting.send_command("TREAD", "k", "1", "1", "BLOCK", "20", "GROUP", "g", "RETRY", wait, wait)
        assert waiting.read_response() is None
        other.connection_pool.release(waiting)


def test_an_arrow_read_needs_nothing_but_pyarrow(r3: redis.Redis) -> None:
    r3.execute_command("TWRITE", "k", "ENTRIES", *["t", "a", "t", "b", "u", "c"])
    r3.execute_command("TEVICT", "k", 1)
    table = pa.ipc.open_stream(r3.execute_command("TREAD", "k", 1, 10, "FORMAT", "ARROW")).read_all()
    assert table.schema.names == ["offset", "time", "tag", "entry"]
    assert table.select(["offset", "tag", "entry"]).to_pylist() == [
        {"offset": 2, "tag": b"t", "entry": b"b"},
        {"offset": 3, "tag": b"u", "entry": b"c"},
    ]
    grouped = r3.execute_command("TREAD", "k", 0, 10, "GROUP", "g", "RETRY", 1000, 0, "FORMAT", "ARROW")
    assert pa.ipc.open_stream(grouped).read_all().equals(table)
    for nothing in (("k", 4, 10), ("missing", 1, 10), ("k", 1, 0), ("k", 0, 10, "GROUP", "g")):
        empty = pa.ipc.open_stream(r3.execute_command("TREAD", *nothing, "FORMAT", "ARROW")).read_all()
        assert empty.num_rows == 0
        assert empty.schema == table.schema


def test_what_one_stream_answers_in_arrow_another_can_be_given(world: World) -> None:
    world.run("TWRITE", "k", "ENTRIES", "t", "a", "u", "b")
    table = pa.ipc.open_stream(world.run("TREAD k 1 10 FORMAT ARROW")).read_all().drop_columns(["offset"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    world.run("TWRITE", "copy", "FORMAT", "ARROW", sink.getvalue().to_pybytes())
    assert world.run("TREAD copy 1 10") == world.run("TREAD k 1 10")


# -- TACK, TEVICT ---------------------------------------------------------------------------------------------


def test_acknowledgements_name_offsets_and_ranges(world: World) -> None:
    world.write("k", *"abcdefghij")
    world.run("TREAD k 0 10 GROUP g RETRY 1000 0")
    assert world.run("TACK k g 2 4-6 6 9999 5-7") == 5
    assert [row[:2] for row in world.run("TGROUP PENDING k g")] == [[1, 1], [3, 3], [8, 10]]
    assert world.run("TACK k g 1-9223372036854775807") == 5
    assert world.run("TACK k g 1") == 0
    assert world.run("TACK k nobody 1") == 0
    assert world.run("TACK missing g 1") == 0


def test_evicting_by_offset_by_count_and_not_at_all(world: World) -> None:
    world.write("k", *"abcdefgh")
    assert world.run("TEVICT k 0") == 0
    assert world.run("TEVICT k 3") == 3
    assert world.run("TEVICT k 2") == 0
    assert world.run("TEVICT k -2") == 3
    assert world.run("TREAD k 1 0 WITHINFO") == [[7, 8]]
    assert world.run("TEVICT k -100") == 0
    assert world.run("TEVICT k 9223372036854775807") == 2
    assert world.run("TREAD k 1 0 WITHINFO") == [[9, 8]]
    assert world.run("EXISTS k") == 1
    assert world.write("k", "i") == 9
    assert world.run("TEVICT missing 5") == 0


# -- with everything else -------------------------------------------------------------------------------------


def test_other_commands_know_the_type(r: redis.Redis) -> None:
    r.execute_command("TWRITE", "k", "t", "e" * 1000)
    assert r.type("k") == b"tstream"
    assert r.object("encoding", "k") == b"tstream"
    assert 1000 < r.memory_usage("k") < 4000
    assert list(r.scan_iter(_type="tstream")) == [b"k"]
    assert r.expire("k", 100)
    assert 0 < r.ttl("k") <= 100
    assert r.rename("k", "other")
    assert r.copy("other", "twin")
    r.execute_command("TWRITE", "twin", "t", "more")
    assert r.execute_command("TREAD", "other", 1, 0, "WITHINFO") == [[1, 1]]
    assert r.execute_command("TREAD", "twin", 1, 0, "WITHINFO") == [[1, 2]]
    assert r.delete("other") == 1
    assert r.execute_command("TWRITE", "other", "t", "e") == 1


def test_dump_and_restore_carry_all_of_it(world: World) -> None:
    world.write("k", *"abcdef")
    world.run("TEVICT k 1")
    world.run("TREAD k 0 2 GROUP g RETRY 100 0")
    world.run("TWRITE k PRODUCER p 7 ENTRIES t e")
    world.run("TSTAGE k token ENTRIES t staged")
    payload = world.run("DUMP k")
    assert world.run("RESTORE", "twin", 0, payload) == b"OK"
    assert visible(world, b"twin") == visible(world, b"k")
    assert world.run("TWRITE twin PRODUCER p 7 ENTRIES t e") == 7
    assert world.run("TCOMMIT twin p 1 token") == [8, 1]
    for at in range(0, len(payload), 7):
        damaged = payload[:at] + bytes([payload[at] ^ 0x55]) + payload[at + 1 :]
        assert "ERR" in world.error("RESTORE", "damaged", 0, damaged)
    assert world.run("EXISTS damaged") == 0


def test_a_key_that_expires_takes_the_groups_along(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100 200 DEADLETTER dead")
    world.run("PEXPIRE k 150")
    world.pass_time(300)
    assert world.run("EXISTS k dead") == 0
    world.write("k", "new")
    assert world.run("TGROUP LIST k") == []


def test_a_group_read_breaks_a_watch_and_a_plain_read_does_not(world: World) -> None:
    world.write("k", "a", "b")
    watcher = world.client()
    for words, result in (("TREAD k 1 1", [b"PONG"]), ("TREAD k 0 1 GROUP g", None), ("TACK k g 9", [b"PONG"])):
        watcher.run("WATCH k")
        world.run(words)
        watcher.run("MULTI")
        watcher.run("PING")
        assert watcher.run("EXEC") == result, words


def test_nothing_blocks_inside_a_transaction_or_a_script(r: redis.Redis) -> None:
    unit = r.pipeline(transaction=True)
    unit.execute_command("TREAD", "k", "$", 1, "BLOCK", 0)
    unit.execute_command("TREAD", "k", 0, 1, "BLOCK", 0, "GROUP", "g", "RETRY", 100, 0)
    unit.execute_command("TWRITE", "k", "t", "e")
    unit.execute_command("TREAD", "k", 0, 1, "BLOCK", 0, "GROUP", "g", "RETRY", 100, 0)
    unit.execute_command("TREAD", "k", 1, 5, "BLOCK", 0, "WITHINFO")
    unit.execute_command("TACK", "k", "g", 1)
    assert unit.execute() == [None, None, 1, [[1, b"t", b"e"]], [[1, 1], [1, b"t", b"e"]], 1]
    call = "return redis.call('TREAD', KEYS[1], unpack(ARGV))"
    assert r.eval(call, 1, "k", "$", "1", "BLOCK", "0") is None
    assert r.eval(call, 1, "k", "1", "1", "BLOCK", "0", "GROUP", "g") is None
    assert r.eval(call, 1, "k", "1", "5", "WITHINFO") == [[1, 1], [1, b"t", b"e"]]
    r.execute_command("TEVICT", "k", 1)
    assert r.eval("return {redis.call('TREAD', KEYS[1], 1, 5)[1] == false}", 1, "k") == [1]
    assert r.eval("redis.setresp(3) return {redis.call('TREAD', KEYS[1], 1, 5)[1] == nil}", 1, "k") == [1]
    assert r.eval("return redis.call('TWRITE', KEYS[1], 't', 'e')", 1, "k") == 2


def test_a_reader_needs_only_to_read(ours: Server, r: redis.Redis) -> None:
    r.acl_setuser("reader", enabled=True, nopass=True, reset=True, commands=["+@all"], keys=[])
    r.execute_command("ACL", "SETUSER", "reader", "%R~k", "%W~dead", "~own")
    r.execute_command("TWRITE", "k", "t", "e")
    try:
        with redis.Redis.from_url(ours.url, username="reader", password="x", protocol=2) as reader:
            assert reader.execute_command("TREAD", "k", 1, 1, "WITHINFO", "BLOCK", 1) == [[1, 1], [1, b"t", b"e"]]
            assert reader.execute_command("TINFO", "k")[:2] == [b"first", 1]
            refusals: list[tuple[Any, ...]] = [
                ("TREAD", "k", 0, 1, "GROUP", "g"), ("TREAD", "k", 0, 1, "withinfo", "group", "g"),
                ("TACK", "k", "g", 1), ("TWRITE", "k", "t", "e"), ("TEVICT", "k", 1), ("TRETAIN", "k", "COUNT", 1),
                ("TGROUP", "DEL", "k", "g"),
                ("TREAD", "own", 0, 1, "GROUP", "g", "RETRY", 1, 0, "DEADLETTER", "elsewhere"),
                ("TREAD", "own", 0, 1, "GROUP", "g", "RETRY", 1, 0, "DEADLETTER", "k"),
                ("TSTAGE", "k", "t", "ENTRIES", "a", "b"), ("TCOMMIT", "k", "p", 1, "t"), ("TNACK", "k", "g", 1),
                ("TEXTEND", "k", "g", 5, 1),
            ]  # fmt: skip
            for words in refusals:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    reader.execute_command(*words)
            reader.execute_command("TREAD", "own", 0, 1, "GROUP", "g", "RETRY", 1, 0, "DEADLETTER", "dead")
    finally:
        r.acl_deluser("reader")


def test_plain_reads_go_on_while_writes_are_refused(ours: Server, r: redis.Redis) -> None:
    r.execute_command("TWRITE", "k", "t", "e")

    def refuse(reason: str | None) -> None:
        def change(app: Any) -> None:
            app.engine.write_error = reason
            app.engine.require_gates("a full disk", reason is not None)

        ours.call(change)

    refuse("the disk is full")
    try:
        assert r.execute_command("TREAD", "k", 1, 1) == [[1, b"t", b"e"]]
        for words in (("TREAD", "k", 0, 1, "GROUP", "g"), ("TWRITE", "k", "t", "e"), ("TACK", "k", "g", 1)):
            assert "disk is full" in error_of(r, *words)
    finally:
        refuse(None)


def test_a_read_only_script_may_read_but_not_as_a_group(r: redis.Redis) -> None:
    r.execute_command("TWRITE", "k", "t", "e")
    call = "return redis.call('TREAD', KEYS[1], unpack(ARGV))"
    for script in (("EVAL_RO", call), ("EVAL", "#!lua flags=no-writes\n" + call)):
        assert r.execute_command(*script, 1, "k", 1, 5, "BLOCK", 0) == [[1, b"t", b"e"]]
        assert "Write commands are not allowed" in error_of(r, *script, 1, "k", 0, 5, "GROUP", "g")
    assert "Write commands are not allowed" in error_of(r, "EVAL_RO", "return redis.call('SORT', KEYS[1])", 1, "none")
    assert r.execute_command("TGROUP", "LIST", "k") == []


def test_a_pause_of_writes_holds_group_reads_and_lets_plain_ones_pass(world: World) -> None:
    world.write("k", "a")
    reader, member = world.client(), world.client()
    for client, words in ((reader, "TREAD k 1 1"), (member, "TREAD k 0 1 GROUP g")):
        client.run("MULTI")
        client.run(words)
    world.run("CLIENT PAUSE 1000 WRITE")
    assert world.run("TREAD k 1 1") == [[1, b"", b"a"]]
    assert reader.run("EXEC") == [[[1, b"", b"a"]]]
    assert member.run("EXEC") == BLOCKED
    world.client("TREAD k 0 1 GROUP g")
    assert world.stream().groups == {}


def test_nothing_falls_due_while_writes_are_paused(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 300 0")
    world.run("TREAD k 0 1 GROUP h RETRY 300 300 DEADLETTER dead")
    waiting = world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 300 0")
    world.run("CLIENT PAUSE 1000 WRITE")
    logged = len(world.logged)
    world.pass_time(999)
    assert waiting.blocked
    assert len(world.logged) == logged
    world.pass_time(100)
    assert waiting.replies == [[[1, b"", b"a"]]]
    assert world.offsets("TREAD dead 1 10") == [1]


def test_the_keys_of_a_read_are_found_wherever_they_stand(r: redis.Redis) -> None:
    for words, keys in (
        ("TREAD k 0 1 GROUP DEADLETTER RETRY 1 0 DEADLETTER d WITHINFO", [b"k", b"d"]), ("TREAD k 0 1 BLOCK 5", [b"k"]),
        ("TWRITE k t e", [b"k"]), ("TGROUP PENDING k g", [b"k"]), ("TCOMMIT k p 1 token", [b"k"]),
        ("TSEEK k TIME 1", [b"k"]),
    ):  # fmt: skip
        assert raw(r, "COMMAND", "GETKEYS", *words.split()) == keys
