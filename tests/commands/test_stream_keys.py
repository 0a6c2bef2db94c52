"""A stream whose key is renamed, copied, replaced or deleted: its promises hold, and waiting readers continue."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from tests.support.commands.stream_world import World
from tests.support.raw_client import RawClient

from penstock import Server


@pytest.fixture
def world() -> World:
    return World()


# -- what falls due after the stream moved --------------------------------------------------------------------


def restore(world: World) -> None:
    world.run("RESTORE", "moved", 0, world.run("DUMP k"), "REPLACE")
    world.run("DEL k")


def rename(world: World) -> None:
    world.run("RENAME k moved")


def copy(world: World) -> None:
    world.run("COPY k moved REPLACE")
    world.run("DEL k")


def swap(world: World) -> None:
    world.run("RENAME k moved")
    world.pass_time(0)
    world.run("SWAPDB 0 1")
    world.run("SELECT 1")


def move(world: World) -> None:
    world.run("RENAME k moved")
    world.pass_time(0)
    world.run("MOVE moved 1")
    world.run("SELECT 1")


MOVES = [rename, copy, restore, move, swap]


@pytest.mark.parametrize("moved", MOVES)
def test_leases_expire_at_their_time_wherever_the_stream_went(world: World, moved: Callable[[World], None]) -> None:
    world.write("k", "a", "b")
    world.run("TREAD k 0 1 GROUP g RETRY 100 200 DEADLETTER dead")
    moved(world)
    world.pass_time(199)
    assert world.group(key=b"moved")[b"pending"] == 1
    world.pass_time(1)
    assert world.group(key=b"moved")[b"pending"] == 0
    assert world.offsets("TREAD dead 1 10") == [1]


@pytest.mark.parametrize("moved", MOVES)
def test_ages_and_stages_run_out_wherever_the_stream_went(world: World, moved: Callable[[World], None]) -> None:
    world.run("TWRITE", "k", "ENTRIES", *["", "x"] * 1500)
    world.run("TRETAIN k AGE 5000")
    world.run("CONFIG SET stream-stage-timeout 4000")
    world.run("TSTAGE k token ENTRIES t e")
    moved(world)
    world.pass_time(5001)
    assert world.run("TREAD moved 1 0 WITHINFO") == [[1501, 1500]]
    assert "nothing is staged" in world.error("TCOMMIT moved p 1 token")


def test_leases_expire_at_their_time_after_a_restart(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100 200 DEADLETTER dead")
    again = world.restarted(later=0)
    again.pass_time(200)
    assert again.offsets("TREAD dead 1 10") == [1]


def test_leases_expire_after_a_reload(tmp_path: Path) -> None:
    with Server(dir=str(tmp_path)) as server, redis.Redis.from_url(server.url, protocol=3) as client:
        call = client.execute_command
        call("TWRITE", "k", "t", "e")
        call("TREAD", "k", 0, 1, "GROUP", "g", "RETRY", 100, 100, "DEADLETTER", "dead")
        call("SAVE")
        call("DEL", "k")
        while server.call(lambda app: app.engine.streams._noted):
            pass
        call("DEBUG", "RELOAD", "NOSAVE")
        assert call("TREAD", "dead", 1, 1, "BLOCK", 10_000)[0][:2] == [1, b"t"]


@pytest.mark.parametrize("reload", ["RELOAD", "LOADAOF"])
@pytest.mark.parametrize("options", [[], ["GROUP", "g"], ["GROUP", "g", "RETRY", 50, 0]], ids=str)
def test_a_reader_of_what_is_new_goes_on_after_a_reload(tmp_path: Path, reload: str, options: list[object]) -> None:
    with (
        Server(dir=str(tmp_path), appendonly=True) as server,
        redis.Redis.from_url(server.url) as client,
        RawClient(server.port) as reader,
    ):
        client.execute_command("TWRITE", "k", "t", "old")
        reader.command("TREAD", "k", "$", "10", "BLOCK", "0", *map(str, options))
        while client.info("clients")["blocked_clients"] == 0:
            pass
        client.execute_command("DEBUG", reload)
        assert client.info("clients")["blocked_clients"] == 1
        client.execute_command("TWRITE", "k", "t", "new")
        assert reader.read() == [[2, b"t", b"new"]]


@pytest.mark.parametrize("deleted", ["j", "k"])
def test_a_reader_of_several_streams_knows_each_of_them_after_a_reload(tmp_path: Path, deleted: str) -> None:
    with (
        Server(dir=str(tmp_path)) as server,
        redis.Redis.from_url(server.url) as client,
        RawClient(server.port) as reader,
    ):
        client.execute_command("TWRITE", "j", "t", "old")
        client.execute_command("TWRITE", "k", "t", "old")
        client.execute_command("TREAD", "j", "0", "10", "GROUP", "g", "ALSO", "1", "k", "FAIR")  # k is first next time
        reader.command("TREAD", "j", "0", "10", "BLOCK", "0", "GROUP", "g", "ALSO", "1", "k", "FAIR")
        while client.info("clients")["blocked_clients"] == 0:
            pass
        client.execute_command("DEBUG", "RELOAD")
        client.execute_command("TGROUP", "DEL", deleted, "g")
        client.execute_command("TWRITE", deleted, "t", "new")
        assert str(reader.read()).startswith("UNBLOCKED the group 'g' was deleted")


@pytest.mark.parametrize("moved", [rename, copy, restore])
def test_a_waiting_member_gets_the_retries_of_the_stream_that_came(
    world: World, moved: Callable[[World], None]
) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100 0")
    waiting = world.client("TREAD moved 0 1 BLOCK 0 GROUP g RETRY 50 0")
    moved(world)
    world.timers.advance(99)
    assert waiting.blocked
    world.timers.advance(1)
    assert waiting.replies == [[[1, b"", b"a"]]]


# -- readers that wait while the stream is replaced -----------------------------------------------------------

REPLACEMENTS = [
    ["DEL k", "TWRITE k t new"],
    ["UNLINK k", "TWRITE k ENTRIES t new"],
    ["FLUSHALL", "TWRITE k t new"],
    ["FLUSHDB", "TWRITE k t new"],
    ["SET k text", "DEL k", "TWRITE k t new"],
    ["PEXPIRE k 1", "PASS 1", "TWRITE k t new"],
    ["TWRITE other t new", "RENAME other k"],
    ["TWRITE other t new", "COPY other k REPLACE"],
    ["TWRITE other t new", "RESTORE k"],
    ["SELECT 1", "TWRITE k t new", "SWAPDB 0 1"],
    ["DEL k", "SELECT 1", "TWRITE k t new", "MOVE k 0"],
    ["DEL k", "TSTAGE k token ENTRIES t new", "TCOMMIT k p 1 token"],
    ["DEL k", "TREAD k 0 1 GROUP another", "TWRITE k t new"],
]


def replace(world: World, steps: list[str]) -> None:
    for step in steps:
        if step.startswith("PASS"):
            world.pass_time(1)
        elif step.startswith("RESTORE"):
            world.run("RESTORE", "k", 0, world.run("DUMP other"), "REPLACE")
        else:
            world.run(step)


@pytest.mark.parametrize("in_one_transaction", [False, True])
@pytest.mark.parametrize("steps", REPLACEMENTS, ids="; ".join)
@pytest.mark.parametrize("options", ["", " WITHINFO", " GROUP g", " GROUP g RETRY 100 0"])
def test_everything_in_the_stream_that_took_the_key_is_new(
    world: World, options: str, steps: list[str], in_one_transaction: bool
) -> None:
    world.write("k", "a", "b", "c")
    waiting = world.client("TREAD k $ 10 BLOCK 0" + options)
    if in_one_transaction and not any(step.startswith(("PASS", "RESTORE", "SELECT")) for step in steps):
        steps = ["MULTI", *steps, "EXEC"]
    replace(world, steps)
    info = [[1, 1]] if options == " WITHINFO" else []
    assert waiting.replies == [[*info, [1, b"t", b"new"]]]


def test_what_was_evicted_from_the_new_stream_is_not_told_as_lost(world: World) -> None:
    world.write("k", "a")
    plain, member = world.client("TREAD k $ 10 BLOCK 0"), world.client("TREAD k $ 10 BLOCK 0 GROUP g")
    world.write("other", "b", "c", "d")
    world.run("TEVICT other 2")
    world.run("RENAME other k")
    assert plain.replies == member.replies == [[[3, b"", b"d"]]]
    assert world.group()[b"lost"] == 0


def test_a_number_waits_for_that_number_in_the_stream_that_took_the_key(world: World) -> None:
    world.write("k", "a", "b", "c")
    plain, member = world.client("TREAD k 4 10 BLOCK 0"), world.client("TREAD k 4 10 BLOCK 0 GROUP g")
    world.run("DEL k")
    world.write("k", "d", "e", "f")
    assert plain.blocked
    assert member.blocked
    world.write("k", "g")
    assert plain.replies == member.replies == [[[4, b"", b"g"]]]


def test_another_type_is_not_what_a_reader_waits_for(world: World) -> None:
    world.write("k", "a")
    waiting = [world.client(f"TREAD k $ 10 BLOCK 0{options}") for options in ("", " GROUP g")]
    world.run("SET k text")
    world.run("DEL k")
    world.run("RPUSH k item")
    assert all(client.blocked for client in waiting)
    world.run("DEL k")
    world.write("k", "b")
    assert [client.replies for client in waiting] == [[[[1, b"", b"b"]]]] * 2


def test_a_deleted_stream_is_not_kept_for_those_who_wait_for_it(world: World) -> None:
    world.write("k", "a")
    world.client("TREAD k $ 1 BLOCK 0")
    stream = weakref.ref(world.stream())
    world.run("DEL k")
    assert stream() is None


def test_members_that_wait_are_told_that_their_group_was_deleted(world: World) -> None:
    world.write("k", "a")
    waiting = [world.client("TREAD k $ 1 BLOCK 0 GROUP g RETRY 100 0") for _ in range(2)]
    other = world.client("TREAD k $ 1 BLOCK 0 GROUP other")
    assert world.run("TGROUP DEL k g") == 1
    told = "UNBLOCKED the group 'g' was deleted while this read waited"
    assert [list(map(str, client.replies)) for client in waiting] == [[told]] * 2
    assert list(world.stream().groups) == [b"other"], "the group was made again"
    world.write("k", "b")
    assert other.replies == [[[2, b"", b"b"]]]
