"""A stream whose key is renamed, copied, replaced or deleted: what was promised in it is kept, and waiting readers go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from tests.commands.stream_world import World

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
    assert world.run("TREAD moved 1 0 WITHINFO") == [[1001, 1500]]
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
