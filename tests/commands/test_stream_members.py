"""Named members of a group: what TGROUP LIST says of them, and what is given back when their connection ends."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
import redis
from tests.support.commands.stream_world import Client, World, visible

from penstock import Server
from penstock.engine.stream_upkeep import LOOK_FOR_MEMBERS
from penstock.types.stream import members

READ = "TREAD k 0 2 GROUP g RETRY 10000 0"


@pytest.fixture
def world() -> World:
    return World()


def consumers(world: World) -> dict[bytes, tuple[int, int]]:
    """What each holds, and since when it did not ask."""
    found: dict[bytes, tuple[int, int]] = {}
    for row in world.group()[b"consumers"]:
        fields = dict(zip(row[::2], row[1::2], strict=True))
        found[fields[b"name"]] = fields[b"pending"], fields[b"idle"]
    return found


def reading(world: World, words: str) -> Client:
    """A client that reads as a member."""
    client = world.client()
    client.run(words)
    return client


def test_a_group_knows_what_its_members_hold_and_when_they_asked(world: World) -> None:
    world.write("k", *"abcdef")
    token = world.run(f"{READ} CONSUMER ada WITHLEASE")[0]
    world.clock.advance(30)
    world.run(f"{READ} CONSUMER bob")
    world.run(READ)
    world.clock.advance(5)
    assert consumers(world) == {b"ada": (2, 35), b"bob": (2, 5)}
    world.run(f"TACK k g TOKEN {token} 1")
    world.run("TACK k g 3-4")
    assert consumers(world) == {b"ada": (1, 35), b"bob": (0, 5)}


def test_a_message_that_went_to_another_member_is_held_by_that_one(world: World) -> None:
    world.write("k", *"ab")
    world.run(f"{READ} CONSUMER ada")
    world.run("TNACK k g 1")
    world.run("TREAD k 0 1 GROUP g RETRY 10000 0 CONSUMER bob")
    assert consumers(world) == {b"ada": (1, 0), b"bob": (1, 0)}


def test_members_that_read_and_acknowledge_for_long_take_no_more_memory(world: World) -> None:
    world.write("k", *["x"] * 4000)
    world.run("TREAD k 0 1 GROUP g RETRY 10000 0 CONSUMER ada")  # one that stays
    before = world.stream().groups[b"g"].size()
    for offset in range(2, 4001):
        world.run("TREAD k 0 1 GROUP g RETRY 10000 0 CONSUMER ada")
        world.run(f"TACK k g {offset}")
    assert world.stream().groups[b"g"].size() < before + 5000
    assert consumers(world) == {b"ada": (1, 0)}


def test_what_a_member_holds_is_given_back_when_its_connection_ends(world: World) -> None:
    world.write("k", *"abcd")
    ada = reading(world, f"{READ} CONSUMER ada RELEASE")
    reading(world, f"{READ} CONSUMER bob").leave()
    waiting = world.client("TREAD k 0 9 BLOCK 0 GROUP g RETRY 10000 0")
    ada.leave()
    assert [message[0] for message in waiting.replies[0]] == [1, 2]
    assert consumers(world) == {b"ada": (0, 0), b"bob": (2, 0)}
    again = world.restarted(later=0)
    assert again.run("TGROUP PENDING k g") == world.run("TGROUP PENDING k g")


def test_only_what_is_still_held_is_given_back(world: World) -> None:
    world.write("k", *"abcd")
    ada = reading(world, "TREAD k 0 4 GROUP g RETRY 10000 0 CONSUMER ada RELEASE")
    world.run("TACK k g 2")
    world.run("TNACK k g 3")
    assert world.offsets("TREAD k 0 1 GROUP g RETRY 10000 0 CONSUMER bob") == [3]
    ada.leave()
    assert world.offsets(READ) == [1, 4]


def test_a_member_that_came_back_on_another_connection_keeps_what_it_holds(world: World) -> None:
    world.write("k", *"abcd")
    first = reading(world, f"{READ} CONSUMER ada RELEASE")
    second = reading(world, f"{READ} CONSUMER ada RELEASE")
    first.leave()
    assert consumers(world) == {b"ada": (4, 0)}
    second.leave()
    assert consumers(world) == {b"ada": (0, 0)}


def test_the_last_read_says_whether_to_release(world: World) -> None:
    world.write("k", *"abcd")
    client = reading(world, f"{READ} CONSUMER ada RELEASE")
    client.run(f"{READ} CONSUMER ada")
    client.leave()
    assert consumers(world) == {b"ada": (4, 0)}


@pytest.mark.parametrize("move", ["RENAME k moved", "MOVE k 3", "SWAPDB 0 3"])
def test_messages_are_given_back_wherever_their_stream_is(world: World, move: str) -> None:
    world.write("k", *"abcd")
    client = reading(world, f"{READ} CONSUMER ada RELEASE")
    world.run(move)
    client.leave()
    if "3" in move:
        world.run("SELECT 3")
    key = "moved" if "moved" in move else "k"
    assert world.offsets(f"TREAD {key} 0 2 GROUP g RETRY 10000 0") == [1, 2]


@pytest.mark.parametrize("end", ["DEL k", "TGROUP DEL k g", "FLUSHALL", "SET k text"])
def test_a_stream_that_is_gone_gets_nothing_back(world: World, end: str) -> None:
    world.write("k", *"abcd")
    client = reading(world, f"{READ} CONSUMER ada RELEASE")
    world.run(end)
    logged = len(world.logged)
    client.leave()
    assert len(world.logged) == logged


def test_nothing_is_given_back_while_writes_are_paused(world: World) -> None:
    world.write("k", *"abcd")
    client = reading(world, f"{READ} CONSUMER ada RELEASE")
    world.run("CLIENT PAUSE 100 WRITE")
    client.leave()
    assert consumers(world) == {b"ada": (2, 0)}
    world.pass_time(100)
    world.pass_time(1)
    assert consumers(world)[b"ada"][0] == 0


def test_a_message_in_its_last_attempt_that_is_given_back_is_given_up(world: World) -> None:
    world.write("k", "a")
    client = reading(world, f"{READ} MAXATTEMPTS 1 DEADLETTER dead CONSUMER ada RELEASE")
    world.pass_time(1)
    client.leave()
    world.pass_time(1)
    assert world.group()[b"pending"] == 0
    assert world.offsets("TREAD dead 1 10") == [1]


def test_names_that_may_be_forgotten_are_looked_for_once_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand of them that hold something took a fifth of the server's time."""
    looks: list[int] = []
    forget = members.Members.forget

    def counting(each: members.Members, before: int, *rest: Any) -> None:
        looks.append(before)
        forget(each, before, *rest)

    monkeypatch.setattr(members.Members, "forget", counting)
    world.write("k", "a")
    world.run(f"{READ} CONSUMER ada")
    for _ in range(1200):
        world.pass_time(100)
    assert len(looks) == 2


def test_a_name_is_forgotten_an_hour_after_its_last_message(world: World) -> None:
    world.write("k", *"abcdef")
    world.run("TREAD k 0 2 GROUP g RETRY 10000000 0 CONSUMER holds")
    world.run("TREAD k 0 1 GROUP g RETRY 10000000 0 CONSUMER idle")
    world.run("TACK k g 3")
    world.run("TREAD k 0 10 GROUP g")
    waiting = world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 10000000 0 CONSUMER waits")
    world.pass_time(3_600_000)
    assert set(consumers(world)) == {b"holds", b"idle", b"waits"}
    world.pass_time(LOOK_FOR_MEMBERS)
    assert set(consumers(world)) == {b"holds", b"waits"}
    waiting.leave()
    world.run("TACK k g 1-2")
    world.pass_time(LOOK_FOR_MEMBERS)
    assert consumers(world) == {}


def test_a_group_remembers_so_many_names(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST", 3)
    for name in "abcad":
        world.run(f"TREAD k 0 1 GROUP g CONSUMER {name}")
    assert list(consumers(world)) == [b"c", b"a", b"d"]


def test_names_are_not_written_to_disk(world: World) -> None:
    world.write("k", *"ab")
    reading(world, f"{READ} CONSUMER ada RELEASE")
    again = world.restarted(later=0)
    assert consumers(again) == {}
    assert again.run("TGROUP PENDING k g") == world.run("TGROUP PENDING k g")
    world.run("TGROUP DEL k g")
    again.run("TGROUP DEL k g")
    assert visible(again) == visible(world)


def test_a_server_that_stops_gives_nothing_back() -> None:
    """Its clients go on with what they hold when it is back."""
    with Server() as server:
        holder = redis.Redis(port=server.port, single_connection_client=True)
        holder.execute_command("TWRITE", "k", "t", "e")
        holder.execute_command("TREAD", "k", 0, 1, "GROUP", "g", "RETRY", 10_000, 0, "CONSUMER", "ada", "RELEASE")
        group = server._app.engine.keyspace[0].data[b"k"].groups[b"g"]
    assert [lease.token != 0 for lease in group.leases] == [True]
    holder.close()


def test_another_worker_gets_at_once_what_a_worker_held_whose_socket_closed(ours: Server) -> None:
    read = ("TREAD", "k", 0, 1, "GROUP", "g", "RETRY", 600_000, 0, "CONSUMER")
    other = redis.Redis(port=ours.port, protocol=2)
    other.flushall()
    other.execute_command("TWRITE", "k", "t", "e")
    holder = redis.Redis(port=ours.port, protocol=2, single_connection_client=True)
    assert holder.execute_command(*read, "ada", "RELEASE") == [[1, b"t", b"e"]]
    holder.close()
    assert other.execute_command(*read, "bob", "BLOCK", 60_000) == [[1, b"t", b"e"]]
    other.close()


def test_the_end_of_a_connection_costs_the_same_however_many_names_others_have() -> None:
    """A look at all names of a group made the end of 10,000 connections take minutes."""

    def cost(names: int) -> float:
        world = World()
        world.write("k", *range(10))
        for number in range(names):
            world.run(f"TREAD k 0 0 GROUP g RETRY 60000 0 CONSUMER n{number} RELEASE")
        costs = []
        for number in range(10):
            leaving = world.client()
            leaving.run(f"TREAD k 0 1 GROUP g RETRY 60000 0 CONSUMER leaving{number} RELEASE")
            begin = perf_counter()
            leaving.leave()
            costs.append(perf_counter() - begin)
        assert world.offsets("TREAD k 0 1 GROUP g RETRY 60000 0") == [1]  # all were given back
        return min(costs)

    assert cost(9000) < 6 * cost(5)
