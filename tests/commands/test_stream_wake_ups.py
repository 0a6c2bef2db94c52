"""A change runs those blocked commands that find something, and no others: by count."""

from __future__ import annotations

import pytest
from tests.support.commands.stream_world import BLOCKED, Runs, World, decoded


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def runs(world: World, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def test_a_read_that_many_wait_for_is_run_once(world: World, runs: Runs) -> None:
    readers = [world.client("TREAD k 1 10 BLOCK 0") for _ in range(100)]
    runs.count = 0
    world.write("k", "a", "b")
    assert [reader.replies for reader in readers] == [[[[1, b"", b"a"], [2, b"", b"b"]]]] * 100
    assert runs.count == 1


def test_readers_that_differ_in_anything_get_their_own(world: World) -> None:
    world.write("k", "a")
    world.run("TEVICT k 1")
    words = ["TREAD k 2 1", "TREAD k 2 2", "TREAD k 2 9 MAXBYTES 1", "TREAD k 2 2 WITHINFO", "TREAD k 3 2"]
    readers = [world.client(f"{read} BLOCK 0") for read in words for _ in range(2)]
    world.write("k", "b", "c")
    two, three = [2, b"", b"b"], [3, b"", b"c"]
    expected = [[two], [two, three], [two], [[2, 3], two, three], [three]]
    assert [reader.replies for reader in readers] == [[reply] for reply in expected for _ in range(2)]


def test_readers_in_two_protocols_get_each_their_own(world: World) -> None:
    sent: dict[int, list[bytes]] = {}
    for protocol in (2, 3, 2, 3):
        reader = world.client()
        reader.session.protocol = protocol
        reader.send = sent.setdefault(protocol, []).append  # type: ignore[method-assign]
        assert reader.run("TREAD k 1 10 BLOCK 0") == BLOCKED
    with_gap = world.client()
    with_gap.run("MULTI")
    with_gap.run("TWRITE k ENTRIES a a b b")
    with_gap.run("TEVICT k 1")
    with_gap.run("EXEC")
    message = b"*3\r\n:2\r\n$1\r\nb\r\n$1\r\nb\r\n"
    assert sent == {2: [b"*2\r\n$-1\r\n" + message] * 2, 3: [b"*2\r\n_\r\n" + message] * 2}
    assert decoded(sent[2][0]) == [None, [2, b"b", b"b"]]


def test_a_change_without_messages_for_readers_runs_nothing(world: World, runs: Runs) -> None:
    world.write("k", "a", "b")
    world.run("TREAD k 0 1 GROUP g RETRY 1000 0")
    world.run("TREAD k 0 5 GROUP h")
    blocked = [
        world.client(f"TREAD k {words}")
        for words in ("3 1 BLOCK 0", "9 1 BLOCK 0", "$ 1 BLOCK 0 GROUP h", "0 1 BLOCK 0 GROUP h RETRY 1000 0")
        for _ in range(3)
    ]
    runs.count = 0
    for change in ("TACK k g 1", "TRETAIN k COUNT 10", "TEVICT k 1", "EXPIRE k 100", "TGROUP DEL k g"):
        world.run(change)
    assert runs.count == 0
    assert all(client.blocked for client in blocked)


def test_a_full_group_is_run_again_when_there_is_room(world: World, runs: Runs) -> None:
    world.run("CONFIG SET stream-max-pending 1")
    world.write("k", "a", "b", "c")
    world.run("TREAD k 0 1 GROUP g RETRY 1000 0")
    members = [world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 1000 0") for _ in range(10)]
    runs.count = 0
    world.write("k", "d")
    assert runs.count == 0
    world.run("TACK k g 1")
    assert [member.replies for member in members[:2]] == [[[[2, b"", b"b"]]], []]
    assert (runs.count, runs.in_vain) == (1, 0)


def test_members_that_were_not_run_are_woken_when_something_falls_due(world: World, runs: Runs) -> None:
    """The waiting members did not look when another one took the message: they must learn of its lease all the same."""
    first, second = (world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 1000 0") for _ in range(2))
    world.write("k", "a")
    assert (first.blocked, second.blocked) == (False, True)
    world.timers.advance(999)
    assert second.blocked
    world.timers.advance(1)
    assert second.replies == [[[1, b"", b"a"]]]
    assert runs.in_vain == 0


def test_a_delayed_retry_is_not_waited_for_longer_than_it_was_delayed(world: World) -> None:
    world.write("k", "a")
    world.run("TREAD k 0 1 GROUP g RETRY 100000 0")
    member = world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 1000 0")
    world.run("TNACK k g 1 DELAY 500")
    world.timers.advance(499)
    assert member.blocked
    world.timers.advance(1)
    assert member.replies == [[[1, b"", b"a"]]]


def test_a_deleted_group_is_made_again_by_its_waiting_member(world: World) -> None:
    member = world.client("TREAD k 0 1 BLOCK 0 GROUP g")
    world.run("DEL k")
    world.write("k", "a")
    assert member.replies == [[[1, b"", b"a"]]]


def test_a_key_that_comes_back_as_another_type_wakes_no_reader(world: World, runs: Runs) -> None:
    readers = [world.client("TREAD k 1 1 BLOCK 0"), world.client("TREAD k 0 1 BLOCK 0 GROUP g")]
    runs.count = 0
    world.run("SET k string")
    assert all(reader.blocked for reader in readers)
    assert runs.count == 0
    world.run("DEL k")
    world.write("k", "a")
    assert [reader.replies for reader in readers] == [[[[1, b"", b"a"]]]] * 2


def test_a_raised_cap_wakes_members_that_wait_for_room(world: World, runs: Runs) -> None:
    world.run("CONFIG SET stream-max-pending 2")
    world.write("k", *"abcde")
    assert world.offsets("TREAD k 0 9 GROUP g RETRY 1000000 0") == [1, 2]
    members = [world.client("TREAD k 0 1 BLOCK 0 GROUP g RETRY 1000000 0") for _ in range(3)]
    world.run("CONFIG SET stream-max-pending 4")
    assert [member.replies for member in members] == [[[[3, b"", b"c"]]], [[[4, b"", b"d"]]], []]
    assert runs.in_vain == 0
    world.run("CONFIG SET stream-max-pending 1")
    assert members[2].blocked
