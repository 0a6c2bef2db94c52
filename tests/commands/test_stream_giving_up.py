"""TGIVEUP: messages that a member gives up with a reason."""

from __future__ import annotations

import json

import pytest
from tests.support.commands.stream_world import World

from penstock.commands import stream_giving_up
from penstock.engine.declarations import REGISTRY

READ = "TREAD k 0 {} GROUP g RETRY 5000 0 DEADLETTER dead WITHLEASE"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def leased(world: World) -> int:
    """Three messages are delivered; the token."""
    world.write("k", "a", "b", "c")
    token: int = world.run(READ.format(3))[0]
    return token


def letters(world: World) -> list[dict[str, object]]:
    return [json.loads(entry) for _, _, entry in world.run("TREAD dead 1 100")]


def test_a_message_that_is_given_up_becomes_a_letter_with_the_reason(world: World, leased: int) -> None:
    assert world.run("TGIVEUP", "k", "g", "TOKEN", leased, "REASON", "no such user", "2") == 1
    (letter,) = letters(world)
    assert letter["why"] == "no such user" and letter["offset"] == 2 and letter["attempts"] == 1
    assert letter["stream"] == "k" and letter["group"] == "g"
    group = world.group()
    assert (group[b"pending"], group[b"acknowledged"], group[b"lost"]) == (2, 0, 0)
    again = world.restarted(later=0)
    assert letters(again) == [letter]
    assert again.group()[b"pending"] == 2
    again.pass_time(5000)
    assert again.offsets("TREAD k 0 9 GROUP g RETRY 5000 0") == [1, 3]


def test_a_member_that_holds_a_message_no_longer_gives_up_nothing(world: World, leased: int) -> None:
    world.pass_time(5000)
    current = world.run(READ.format(1))[0]
    assert world.run("TGIVEUP", "k", "g", "TOKEN", leased, "1") == 0
    assert world.run("EXISTS dead") == 0
    assert world.run("TGIVEUP", "k", "g", "TOKEN", current, "1") == 1
    assert world.run("TGIVEUP", "k", "g", "TOKEN", current, "1") == 0, "once"
    assert len(letters(world)) == 1


@pytest.mark.parametrize("target", ["dead", "k"])
def test_a_letter_that_cannot_be_written_leaves_the_message_pending(world: World, target: str) -> None:
    world.write("k", "a")
    if target == "k":
        world.write("other", "a")
        world.run("TREAD other 0 1 GROUP g RETRY 5000 0 DEADLETTER k")
        world.run("RENAME other k")
    else:
        world.run("TREAD k 0 1 GROUP g RETRY 5000 0 DEADLETTER dead")
        world.run("SET dead string")
    assert "the messages stay pending" in world.error("TGIVEUP k g 1")
    assert world.group()[b"pending"] == 1


def test_without_a_dead_letter_stream_the_message_is_done_with(world: World) -> None:
    world.write("k", "a", "b")
    world.run("TREAD k 0 2 GROUP g RETRY 5000 0")
    assert world.run("TGIVEUP k g 1-2 1 2") == 2
    assert world.run("KEYS *") == [b"k"]
    assert world.group()[b"pending"] == 0


def test_one_call_writes_a_bounded_number_of_letters(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_giving_up, "MOST", 3)
    world.write("k", *"abcdefgh")
    for _ in range(4):
        world.run(READ.format(2))
    assert world.run("TGIVEUP k g 1-9223372036854775806") == 3
    assert world.run("TGIVEUP k g 1-9223372036854775806") == 3
    assert world.run("TGIVEUP k g 1-9223372036854775806") == 2
    assert [letter["offset"] for letter in letters(world)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_messages_that_were_evicted_become_no_letters_and_are_lost(world: World, leased: int) -> None:
    world.run("TEVICT k 1")
    assert world.run("TGIVEUP k g 1-3") == 3
    assert [letter["offset"] for letter in letters(world)] == [2, 3]
    assert world.group()[b"lost"] == 1


@pytest.mark.parametrize(
    "words", ["TOKEN 5", "REASON because", "TOKEN 5 REASON because", "REASON why x", "5-3", "TOKEN x 1"]
)
def test_bad_words_change_nothing(world: World, leased: int, words: str) -> None:
    assert world.error(f"TGIVEUP k g {words}")
    assert world.group()[b"pending"] == 3


def test_a_group_or_stream_that_is_not_there_has_nothing_to_give_up(world: World) -> None:
    assert world.run("TGIVEUP none g 1") == 0
    world.write("k", "a")
    assert world.run("TGIVEUP k g 1") == 0
    world.run("SET text x")
    assert "WRONGTYPE" in world.error("TGIVEUP text g 1")


def test_a_reason_is_cut_so_that_a_thousand_letters_have_room_for_it(world: World, leased: int) -> None:
    world.run("TGIVEUP", "k", "g", "REASON", "é" * 1_000_000, "1")
    (letter,) = letters(world)
    assert letter["why"] == "é" * stream_giving_up.LONGEST_REASON


@pytest.mark.parametrize("reason", [b"x" * 4000, b"\x01" * 4000, b"\xff" * 4000])
def test_the_memory_of_the_letters_is_known_before_they_are_written(world: World, reason: bytes) -> None:
    """However long the reason and the names in each of them are."""
    key, group = b"k" * 5000, b"\x02" * 5000
    world.write(key, *["e"] * 100)
    world.run("TREAD", key, 0, 100, "GROUP", group, "RETRY", 5000, 0, "DEADLETTER", "dead")
    world.run("CONFIG SET maxmemory 1gb")
    argv = [b"TGIVEUP", key, group, b"REASON", reason, b"1-100"]
    growth = world.engine.growth(world.first_client.session, REGISTRY.resolve(argv), argv)
    world.run(*argv)
    assert growth >= world.stream(b"dead").size()
