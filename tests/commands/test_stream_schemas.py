"""TSCHEMA, and writes to streams that check it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.commands.stream_world import World, arrow, rows

from penstock import Client, Server
from penstock.types.packing import CorruptValue
from penstock.types.stream.schemas import Schemas
from penstock.types.stream.stream import Stream

FITS = '{"user":"ada","n":1}'


@pytest.fixture
def world() -> World:
    return World()


def described(world: World, *words: str) -> dict[str, Any] | None:
    pairs = world.run("TSCHEMA", "GET", *words)
    if pairs is None:
        return None
    return {name.decode(): value for name, value in zip(pairs[::2], pairs[1::2], strict=True)}


def letters(world: World) -> list[dict[str, Any]]:
    return [json.loads(entry) for _, _, entry in world.run("TREAD bad 1 100")]


# -- the schema ----------------------------------------------------------------------------------------------------


def test_a_schema_is_kept_in_versions_with_the_offset_they_hold_from(world: World) -> None:
    world.write("k", "before", "the schema")
    assert world.run("TSCHEMA", "SET", "k", "user utf8 not null") == 1
    assert world.run("TSCHEMA", "SET", "k", "user string NOT NULL") == 1  # says the same
    world.write("k", "between")
    assert world.run("TSCHEMA", "SET", "k", "user string, n int64") == 2
    newest = {"version": 2, "since": 4, "fields": b"user string, n bigint", "check": b"off", "deadletter": None}
    assert described(world, "k") == newest
    assert described(world, "k", "2") == newest
    assert described(world, "k", "1") == {**newest, "version": 1, "since": 3, "fields": b"user string NOT NULL"}
    assert described(world, "k", "3") is None
    assert world.run("TSCHEMA VERSIONS k") == [
        [b"version", 1, b"since", 3, b"fields", b"user string NOT NULL"],
        [b"version", 2, b"since", 4, b"fields", b"user string, n bigint"],
    ]


def test_where_there_is_no_schema(world: World) -> None:
    assert described(world, "k") is None
    assert world.run("TSCHEMA VERSIONS k") == []
    assert world.run("TSCHEMA DEL k") == 0
    world.write("k", "a stream")
    assert described(world, "k") is None


def test_a_schema_can_come_before_the_first_message(world: World) -> None:
    assert world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "refuse") == 1
    assert "SCHEMA entry 1" in world.error("TWRITE", "k", "t", "x")
    assert world.run("TWRITE", "k", "t", "{}") == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["a"], "ERR TSCHEMA SET: more is expected after 'a', at the end"),
        ([b"\xff int"], "ERR TSCHEMA SET: the fields are not UTF-8"),
        (
            ["a int", "CHECK"],
            "ERR TSCHEMA SET takes CHECK off, CHECK refuse, or CHECK deadletter and the name of a stream",
        ),
        (["a int", "CHECK", "deadletter"], "ERR TSCHEMA SET takes CHECK off"),
        (["a int", "CHECK", "refuse", "k"], "ERR TSCHEMA SET takes CHECK off"),
        (["a int", "CHECK", "perhaps"], "ERR TSCHEMA SET takes CHECK off"),
        (["a int", "CHECK", "deadletter", "k"], "ERR entries that do not fit must go to another stream"),
    ],
)
def test_mistakes_change_nothing(world: World, words: list[str | bytes], error: str) -> None:
    assert world.error("TSCHEMA", "SET", "k", *words).startswith(error)
    assert world.run("EXISTS k") == 0
    assert world.logged == []


def test_a_version_that_narrows_is_refused_and_changes_nothing(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a bigint")
    before = world.logged[:]
    why = "ERR TSCHEMA SET: a new version may only widen version 1: the field a was bigint, which int does not hold"
    assert world.error("TSCHEMA", "SET", "k", "a int", "CHECK", "refuse") == why
    assert described(world, "k") == {
        "version": 1, "since": 1, "fields": b"a bigint", "check": b"off", "deadletter": None,
    }  # fmt: skip
    assert world.logged == before


def test_check_stays_until_it_is_changed(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad")
    world.run("TSCHEMA", "SET", "k", "a int, b int")
    found = described(world, "k")
    assert found is not None
    assert (found["check"], found["deadletter"]) == (b"deadletter", b"bad")
    world.run("TSCHEMA", "SET", "k", "a int, b int", "CHECK", "off")
    assert world.run("TWRITE k t anything") == 1


def test_a_deleted_schema_is_gone_with_its_versions_and_its_check(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "refuse")
    world.run("TSCHEMA", "SET", "k", "a int, b int")
    assert world.run("TSCHEMA DEL k") == 2
    assert world.run("TWRITE k t anything") == 1
    assert world.run("TSCHEMA", "SET", "k", "quite string, other string") == 1


def test_other_types_have_no_schema(world: World) -> None:
    world.run("SET k v")
    for words in (["SET", "k", "a int"], ["GET", "k"], ["VERSIONS", "k"], ["DEL", "k"]):
        assert world.error("TSCHEMA", *words).startswith("WRONGTYPE")


# -- refuse --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["t", "{}"], ["ENTRIES", "t", FITS, "t", "{}"], ["PRODUCER", "p", "1", "ENTRIES", "t", "{}"]]
)
def test_a_write_with_an_entry_that_does_not_fit_writes_nothing(world: World, words: list[str]) -> None:
    world.run("TSCHEMA", "SET", "k", "user string NOT NULL", "CHECK", "refuse")
    before = world.logged[:]
    place = len(words) // 2
    number = place if words[0] == "ENTRIES" else 1
    error = f"SCHEMA entry {number} does not fit version 1 of the schema of 'k': user is missing"
    assert world.error("TWRITE", "k", *words) == error
    assert world.run("TREAD k 1 10") == []
    assert world.logged == before
    assert world.run("TWRITE", "k", "PRODUCER", "p", "1", "ENTRIES", "t", FITS) == 1


def test_arrow_and_staged_entries_are_checked(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "user string NOT NULL", "CHECK", "refuse")
    payload = arrow([b"t", b"t"], [FITS.encode(), b"null"])
    why = "SCHEMA entry 2 does not fit version 1 of the schema of 'k': it is not a JSON object"
    assert world.error("TWRITE", "k", "FORMAT", "ARROW", payload) == why
    assert world.error("TSTAGE", "k", "token", "ARROW", payload) == why
    assert world.error("TSTAGE", "k", "token", "ENTRIES", "t", FITS, "t", "null") == why
    assert world.stream().stages.by_token == {}
    assert world.run("TSTAGE", "k", "token", "ENTRIES", "t", FITS) == 1
    assert world.run("TCOMMIT", "k", "p", 1, "token") == [1, 1]


def test_a_pipeline_of_writes_gets_a_reply_for_each() -> None:
    """A run of short TWRITEs is one append unless the stream checks them."""
    with Server() as server, Client.from_url(server.url) as client:
        client.execute_command("TSCHEMA", "SET", "k", "n int", "CHECK", "refuse")
        pipeline = client.pipeline(transaction=False)
        for entry in ('{"n":1}', "x", '{"n":2}', '{"n":"3"}', '{"n":4}'):
            pipeline.twrite("k", "t", entry)
        replies = pipeline.execute(raise_on_error=False)
        assert [reply if isinstance(reply, int) else "refused" for reply in replies] == [1, "refused", 2, "refused", 3]
        assert "SCHEMA entry 1 does not fit" in str(replies[1])
        assert [message.entry for message in client.tread("k")] == [b'{"n":1}', b'{"n":2}', b'{"n":4}']


# -- deadletter ----------------------------------------------------------------------------------------------------


def test_entries_that_do_not_fit_go_to_the_dead_letters(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "user string NOT NULL", "CHECK", "deadletter", "bad")
    assert world.run("TWRITE", "k", "tag", b"\xff") is None
    assert world.run("TWRITE", "k", "ENTRIES", "a", "{}", "b", FITS, "c", "1", "d", FITS) == 1
    assert [(tag, entry.decode()) for _, tag, entry in world.run("TREAD k 1 10")] == [(b"b", FITS), (b"d", FITS)]
    assert letters(world) == [
        {"stream": "k", "version": 1, "why": "it is not UTF-8", "entry_base64": "/w=="},
        {"stream": "k", "version": 1, "why": "user is missing", "entry": "{}"},
        {"stream": "k", "version": 1, "why": "it is not a JSON object", "entry": "1"},
    ]
    assert [tag for _, tag, _ in world.run("TREAD bad 1 10")] == [b"tag", b"a", b"c"]


@pytest.mark.parametrize("misfits", [[0], [4], [1, 2], [0, 1, 2, 3, 4], []])
def test_rows_of_arrow_that_do_not_fit_are_left_out(world: World, misfits: list[int]) -> None:
    world.run("TSCHEMA", "SET", "k", "n int NOT NULL", "CHECK", "deadletter", "bad")
    entries = [b"{}" if n in misfits else b'{"n":%d}' % n for n in range(5)]
    times = [1000 + n for n in range(5)]
    reply = world.run("TWRITE", "k", "FORMAT", "ARROW", arrow([b"t"] * 5, entries, times))
    assert reply == (1 if len(misfits) < 5 else None)
    written = rows(world.run("TREAD k 1 10 FORMAT ARROW"))
    assert [(row["time"], row["entry"]) for row in written] == [
        (times[n], entries[n]) for n in range(5) if n not in misfits
    ]
    assert len(letters(world)) == len(misfits)


def test_a_producer_that_repeats_a_write_of_misfits_writes_no_letter_twice(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad")
    for _ in range(2):
        assert world.run("TWRITE", "k", "PRODUCER", "p", 7, "ENTRIES", "t", "x") is None
    assert len(letters(world)) == 1
    assert world.run("TWRITE", "k", "PRODUCER", "p", 8, "ENTRIES", "t", "{}") == 1


def test_a_write_that_must_be_whole_to_have_an_offset_says_so(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad")
    write = ["TWRITE", "k", "PRODUCER", "p"]
    assert world.run(*write, 1, "WHOLE", "ENTRIES", "t", "{}", "t", "{}") == 1
    for again in (world, world, world.restarted()):
        assert again.run(*write, 2, "WHOLE", "ENTRIES", "t", "x", "t", "{}") is None
        assert again.run(*write, 2, "ENTRIES", "t", "x", "t", "{}") == 3
        assert again.run("TPRODUCER", "k", "p") == [2, 3]
    assert world.run(*write, 1, "WHOLE", "ENTRIES", "t", "{}", "t", "{}") == 1
    payload = arrow([b"t"] * 2, [b"x", b"{}"])
    assert world.run("TWRITE", "k", "WHOLE", "FORMAT", "ARROW", payload) is None
    assert world.run("TINFO k")[3] == 4


def test_a_stage_is_whole_or_refused(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad")
    assert world.error("TSTAGE", "k", "token", "ENTRIES", "t", "x").startswith("SCHEMA entry 1")
    assert world.run("EXISTS bad") == 0


def test_a_write_is_refused_if_its_dead_letters_have_no_stream(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad")
    world.run("SET bad v")
    before = world.logged[:]
    error = world.error("TWRITE", "k", "ENTRIES", "t", "{}", "t", "x")
    assert error == "ERR an entry does not fit the schema, and the key 'bad' holds no stream"
    assert world.run("TREAD k 1 10") == []
    assert world.logged == before


def test_the_retention_of_dead_letters_is_obeyed_and_logged(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad")
    world.run("TWRITE bad t first")
    world.run("TRETAIN bad COUNT 1000")
    world.run("TWRITE", "k", "ENTRIES", *["t", "x"] * 2500)
    assert world.stream(b"bad").messages.first == 1001
    again = world.restarted()
    assert again.stream(b"bad").messages.first == 1001
    assert again.run("TREAD bad 1001 1") == world.run("TREAD bad 1001 1")


# -- everything else that a stream goes through ----------------------------------------------------------------------


def test_a_restart_gives_the_same_schemas_messages_and_letters(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad")
    world.run("TWRITE", "k", "ENTRIES", "t", "{}", "t", "x")
    world.run("TSCHEMA", "SET", "k", "a bigint", "CHECK", "refuse")
    world.error("TWRITE", "k", "t", "y")
    world.run("TWRITE", "k", "t", '{"a":5000000000}')
    again = world.restarted()
    assert again.run("TSCHEMA VERSIONS k") == world.run("TSCHEMA VERSIONS k")
    assert described(again, "k") == described(world, "k")
    for key in (b"k", b"bad"):
        assert again.stream(key).dump() == world.stream(key).dump()


def test_a_dump_has_the_schemas_and_a_stream_without_is_dumped_as_before(world: World) -> None:
    world.write("k", "x")
    plain = world.stream().dump()
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad")
    world.run("TSCHEMA", "SET", "k", "a int, b struct<c int>")
    loaded = Stream.load(world.stream().dump())
    assert loaded.schemas == world.stream().schemas
    assert loaded.checked == loaded.schemas
    assert loaded.dead_letter_keys() == {b"bad"}
    assert Stream.load(plain).schemas is None
    world.run("TSCHEMA DEL k")
    assert world.stream().dump() == plain


def test_damaged_schemas_are_refused(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad")
    world.run("TSCHEMA", "SET", "k", "a bigint")
    whole = world.stream().dump()
    assert Stream.load(whole).schemas is not None
    for damaged in (whole.replace(b"a bigint", b"a bogint"), whole.replace(b"a bigint", b"b bigint")):
        with pytest.raises(CorruptValue):
            Stream.load(damaged)


def test_copies_and_new_names_keep_the_schema(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "refuse")
    world.run("COPY k copy")
    world.run("RENAME k renamed")
    for key in ("copy", "renamed"):
        assert world.error("TWRITE", key, "t", "x").startswith("SCHEMA")
    world.run("TSCHEMA", "SET", "copy", "a int, b int")
    assert len(world.run("TSCHEMA VERSIONS renamed")) == 1


def test_a_user_may_only_name_dead_letters_that_the_user_may_write(world: World) -> None:
    world.run("ACL", "SETUSER", "limited", "on", "nopass", "~k", "+@all")
    world.run("AUTH", "limited", "x")
    assert world.error("TSCHEMA", "SET", "k", "a int", "CHECK", "deadletter", "bad").startswith("NOPERM")
    assert world.run("TSCHEMA", "SET", "k", "a int", "CHECK", "refuse") == 1


def test_a_user_who_may_only_read_sees_the_schema(world: World) -> None:
    world.run("TSCHEMA", "SET", "k", "a int")
    world.run("ACL", "SETUSER", "reader", "on", "nopass", "%R~*", "+@read")
    world.run("AUTH", "reader", "x")
    assert described(world, "k") is not None
    assert world.error("TSCHEMA", "SET", "k", "a int").startswith("NOPERM")


def test_nothing_is_lazy_about_schemas(world: World) -> None:
    assert "may not be LAZY" in world.error("LAZY", "TSCHEMA", "SET", "k", "a int")
    assert "may not be LAZY" in world.error("LAZY", "TSCHEMA", "DEL", "k")


# -- long entries --------------------------------------------------------------------------------------------------

LONG_FIT = json.dumps({"user": "ada", "n": 1, "more": list(range(4000))})
LONG_MISFIT = json.dumps({"user": "ada", "n": "one", "more": list(range(4000))})
ADA = "user string NOT NULL, n int"


@pytest.fixture
def checked_in(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that checked entries."""
    names: set[str] = set()
    misfit = Schemas.misfit

    def noting(self: Schemas, entry: bytes) -> str | None:
        names.add(threading.current_thread().name)
        return misfit(self, entry)

    monkeypatch.setattr(Schemas, "misfit", noting)
    return names


def test_long_entries_are_checked_in_a_thread(checked_in: set[str]) -> None:
    with Server() as server, Client.from_url(server.url) as client:
        client.execute_command("TSCHEMA", "SET", "k", ADA, "CHECK", "refuse")
        assert client.execute_command("TWRITE", "k", "t", LONG_FIT) == 1
        with pytest.raises(redis.ResponseError, match=r"entry 2 does not fit version 1 .*: n must be of type int"):
            client.execute_command("TWRITE", "k", "ENTRIES", "t", LONG_FIT, "t", LONG_MISFIT)
        payload = arrow([b"t", b"t"], [LONG_FIT.encode(), FITS.encode()])
        assert client.execute_command("TWRITE", "k", "FORMAT", "ARROW", payload) == 2
        assert client.execute_command("TSTAGE", "k", "token", "ENTRIES", "t", LONG_FIT) == 1
        assert client.execute_command("TSTAGE", "k", "token", "ARROW", payload) == 3
        with pytest.raises(redis.ResponseError, match="entry 1 does not fit"):
            client.execute_command("TSTAGE", "k", "token", "ENTRIES", "t", LONG_MISFIT)
        assert checked_in == {"penstock-worker"}
        assert client.execute_command("TCOMMIT", "k", "p", 1, "token").first == 4
        assert client.execute_command("TWRITE", "k", "t", FITS) == 7
        assert len(checked_in) == 2, "a short one is checked on the loop"


def test_long_entries_that_do_not_fit_go_to_the_dead_letters(checked_in: set[str]) -> None:
    with Server() as server, Client.from_url(server.url) as client:
        client.execute_command("TSCHEMA", "SET", "k", ADA, "CHECK", "deadletter", "bad")
        words = ("ENTRIES", "a", LONG_FIT, "b", LONG_MISFIT, "c", FITS)
        assert client.execute_command("TWRITE", "k", "PRODUCER", "p", 1, *words) == 1
        assert client.execute_command("TWRITE", "k", "PRODUCER", "p", 1, *words) == 1, "a repeat"
        assert client.execute_command("TWRITE", "k", "b", LONG_MISFIT) is None
        assert [message.tag for message in client.tread("k")] == [b"a", b"c"]
        assert [message.tag for message in client.tread("bad")] == [b"b", b"b"]
        assert checked_in == {"penstock-worker"}


@pytest.mark.parametrize("log", ["no", "yes"])
def test_a_pipeline_with_long_entries_is_answered_in_order(tmp_path: Path, log: str) -> None:
    entries = [FITS, LONG_FIT, FITS, "no JSON", LONG_MISFIT, FITS, FITS, LONG_FIT]
    with Server(dir=str(tmp_path), appendonly=log) as server, Client.from_url(server.url) as client:
        client.execute_command("TSCHEMA", "SET", "k", ADA, "CHECK", "refuse")
        with client.pipeline(transaction=False) as pipeline:
            for entry in entries:
                pipeline.execute_command("TWRITE", "k", "t", entry)
            replies = pipeline.execute(raise_on_error=False)
        answered = [reply if isinstance(reply, int) else "refused" for reply in replies]
        assert answered == [1, 2, 3, "refused", "refused", 4, 5, 6]
        written = [entry.encode() for entry in entries if entry not in ("no JSON", LONG_MISFIT)]
        assert [message.entry for message in client.tread("k")] == written
    if log == "yes":
        with Server(dir=str(tmp_path), appendonly=log) as server, Client.from_url(server.url) as client:
            assert [message.entry for message in client.tread("k")] == written
