"""`penstock letters`: dead letters are listed, and their messages put back once, whatever happens in between."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import redis
from tests.support.waiting import wait_until
from typer.testing import CliRunner

from penstock import Server
from penstock.cli import dead_letters as subcommand
from penstock.cli import remote_server
from penstock.cli.main import app
from penstock.client import dead_letters
from penstock.protocol.dead_letters import Letter
from penstock.testing.proxy import FaultProxy

SECONDS = 100


@pytest.fixture
def client(ours: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(ours.url, socket_timeout=SECONDS) as client:
        client.flushall()
        yield client


def run(server: Server, *words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["letters", *words, "--url", server.url])
    return done.exit_code, done.stdout, done.stderr


def write_letters(client: redis.Redis, *entries: bytes, stream: bytes = b"clicks") -> None:
    for offset, entry in enumerate(entries, 1):
        client.execute_command("TWRITE", "dead", b"tag", Letter(stream, entry, "not JSON", offset).encode())


def entries(client: redis.Redis, stream: str | bytes = "clicks") -> list[bytes]:
    return [message[2] for message in client.execute_command("TREAD", stream, 1, 10_000)]


def test_letters_hold_any_bytes() -> None:
    for some in (b"", b"{}", b"\xff\x00", b"\\xff", "é".encode()):
        letter = Letter(some, some, "why", 7)
        assert Letter.decode(letter.encode()) == letter
    assert Letter.decode(rb'{"stream": "\\xff", "entry": "e"}') == Letter(rb"\xff", b"e"), (
        "as the server wrote it before"
    )
    for wrong in (b"", b"[]", b"{}", b'{"stream":"s","offset":"1","entry":""}', b'{"stream":"s"}', b"\xff"):
        with pytest.raises(ValueError, match=r"."):
            Letter.decode(wrong)


def test_a_replay_puts_messages_back_with_their_tags_and_bytes(ours: Server, client: redis.Redis) -> None:
    write_letters(client, b"no json", b"\xff")
    write_letters(client, b"other", stream=b"orders")
    code, _, said = run(ours, "replay", "dead")
    assert code == 0
    assert said == "3 letters of 'dead' were put back: 'clicks' 2, 'orders' 1\n"
    assert client.execute_command("TREAD", "clicks", 1, 10) == [[1, b"tag", b"no json"], [2, b"tag", b"\xff"]]
    assert entries(client, "orders") == [b"other"]
    assert len(entries(client, "dead")) == 3, "letters stay"


def test_a_replay_finds_a_stream_whose_name_is_no_text(ours: Server, client: redis.Redis) -> None:
    name = b"\xff\x00"
    client.execute_command("TSCHEMA", "SET", name, "n int", "CHECK", "deadletter", "dead")
    client.execute_command("TWRITE", name, "tag", "no json")
    (letter,) = entries(client, "dead")
    assert json.loads(letter)["stream"] == "\\xff\x00", "people read it"
    client.execute_command("TSCHEMA", "SET", name, "n int", "CHECK", "off")
    assert run(ours, "list", "dead")[1].startswith("1\t\\xff")
    assert run(ours, "replay", "dead")[0] == 0
    assert entries(client, name) == [b"no json"]
    assert sorted(client.keys()) == [b"dead", name]


def test_a_second_replay_puts_back_only_what_is_new(ours: Server, client: redis.Redis) -> None:
    write_letters(client, b"one", b"two")
    assert run(ours, "replay", "dead")[0] == 0
    assert run(ours, "replay", "dead")[2] == "0 letters of 'dead' were put back\n"
    write_letters(client, b"three")
    assert run(ours, "replay", "dead")[2] == "1 letter of 'dead' was put back: 'clicks' 1\n"
    assert entries(client) == [b"one", b"two", b"three"]


def test_a_dry_run_changes_nothing(ours: Server, client: redis.Redis) -> None:
    write_letters(client, b"one", b"two")
    assert run(ours, "replay", "dead", "--dry-run")[2] == "2 letters of 'dead' would be put back: 'clicks' 2\n"
    assert not client.exists("clicks")
    assert client.execute_command("TGROUP", "LIST", "dead") == []


def test_a_count_limits_a_replay_and_the_next_goes_on(ours: Server, client: redis.Redis) -> None:
    write_letters(client, *(b"%d" % number for number in range(5)))
    assert run(ours, "replay", "dead", "--count", "3")[2].startswith("3 letters")
    assert entries(client) == [b"0", b"1", b"2"]
    assert run(ours, "replay", "dead")[2].startswith("2 letters")
    assert entries(client) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("cut", ["cut_after_execution", "cut_before_forwarding"])
def test_a_lost_connection_puts_no_letter_back_twice_and_none_never(
    ours: Server, client: redis.Redis, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subcommand, "AT_ONCE", 2)
    monkeypatch.setattr(remote_server, "PAUSE", 0.0)
    write_letters(client, *(b"%d" % number for number in range(7)))
    with FaultProxy(("127.0.0.1", ours.port)) as proxy:
        fault = getattr(proxy, cut)(b"EXEC", nth=2)
        done = CliRunner().invoke(app, ["letters", "replay", "dead", "--url", f"redis://127.0.0.1:{proxy.port}"])
        assert fault.has_fired
    assert done.exit_code == 0, done.stderr
    assert entries(client) == [b"%d" % number for number in range(7)]


def test_a_letter_that_comes_during_a_replay_is_not_lost(
    ours: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_letters(client, b"one")
    server = subcommand.RemoteServer(ours.url, "letters")
    box = subcommand._LetterBox(server, "dead")
    position = dead_letters.position

    def interrupted(key: bytes, first: int) -> dead_letters.Steps:
        if len(entries(client, "dead")) == 1:
            write_letters(client, b"two")
        return (yield from position(key, first))

    monkeypatch.setattr(dead_letters, "position", interrupted)
    progress = subcommand._Progress(server, dry_run=False)
    assert box.put_back(1, 10, progress) == 1, "the stream changed, so nothing was done"
    assert not client.exists("clicks")
    assert box.put_back(1, 10, progress) == 3
    assert entries(client) == [b"one", b"two"]


@pytest.mark.parametrize("written", ["hello", '{"stream": 1}', "[" * 100_000, '{"stream": "\\ud800", "entry": ""}'])
def test_a_message_that_is_no_letter_is_reported_and_skipped(ours: Server, client: redis.Redis, written: str) -> None:
    write_letters(client, b"one")
    client.execute_command("TWRITE", "dead", "t", written)
    write_letters(client, b"two")
    code, _, said = run(ours, "replay", "dead")
    assert code == 0
    assert "penstock letters: offset 2 was skipped: it is not a letter\n" in said
    assert entries(client) == [b"one", b"two"]


@pytest.mark.parametrize("count", [1, 1200])
def test_a_stream_without_letters_is_left_as_it_is(ours: Server, client: redis.Redis, count: int) -> None:
    client.execute_command("TWRITE", "clicks", "ENTRIES", *["t", "{}"] * count)
    what = "1 message was left as it is" if count == 1 else "1,200 messages were left as they are"
    for words in ((), ("--dry-run",), ("--skip",)):
        said = run(ours, "replay", "clicks", *words)
        assert said == (1, "", f"penstock letters: 'clicks' holds no dead letters: {what}\n")
    assert client.execute_command("TGROUP", "LIST", "clicks") == []


def test_a_replay_that_only_skips_fails(ours: Server, client: redis.Redis) -> None:
    client.set("clicks", "a string")
    write_letters(client, b"one")
    code, _, said = run(ours, "replay", "dead", "--skip")
    assert (code, "offset 1 was skipped: 'clicks' is no stream" in said) == (1, True)
    assert run(ours, "replay", "dead", "--skip")[0] == 0, "nothing is left to put back"


def test_a_letter_to_a_key_that_is_no_stream_stops_the_replay(ours: Server, client: redis.Redis) -> None:
    write_letters(client, b"one")
    client.set("clicks", "a string")
    code, _, said = run(ours, "replay", "dead")
    assert code == 1
    assert "the letter at offset 1 cannot be put back: 'clicks' is no stream. The letters from offset 1 on" in said
    client.delete("clicks")
    assert run(ours, "replay", "dead")[2].startswith("1 letter ")


def test_letters_that_cannot_be_put_back_are_passed_over_if_asked(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TSCHEMA", "SET", "clicks", "n int", "CHECK", "deadletter", "dead")
    write_letters(client, b'{"n":1}', b'{"n":"x"}', b'{"n":2}')
    write_letters(client, b"lost", stream=b"text")
    client.set("text", "a string")
    code, _, said = run(ours, "replay", "dead", "--skip")
    assert code == 0
    assert "offset 2 was skipped: it still does not fit the schema of 'clicks'" in said
    assert "offset 4 was skipped: 'text' is no stream" in said
    assert said.endswith("2 letters of 'dead' were put back: 'clicks' 2\n")
    assert entries(client) == [b'{"n":1}', b'{"n":2}']
    assert run(ours, "replay", "dead")[2] == "0 letters of 'dead' were put back\n"


def test_letters_of_a_group_that_gave_up_are_put_back(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "clicks", "ENTRIES", "a", "one", "b", b"\xff")
    client.execute_command("TREAD", "clicks", 0, 2, "GROUP", "g", "RETRY", 1, 1, "DEADLETTER", "dead")
    wait_until(lambda: len(entries(client, "dead")) == 2)
    assert run(ours, "replay", "dead")[2] == "2 letters of 'dead' were put back: 'clicks' 2\n"
    assert entries(client)[2:] == [b"one", b"\xff"]


def test_letters_of_a_schema_are_put_back_when_they_fit(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TSCHEMA", "SET", "clicks", "n int", "CHECK", "deadletter", "dead")
    client.execute_command("TWRITE", "clicks", "t", '{"n":5000000000}')
    assert run(ours, "list", "dead")[1] == '1\tclicks -\tn is out of the range of int\t{"n":5000000000}\n'
    code, _, said = run(ours, "replay", "dead")
    assert code == 1
    assert "it still does not fit the schema of 'clicks' (n is out of the range of int)" in said
    assert len(entries(client, "dead")) == 1
    client.execute_command("TSCHEMA", "SET", "clicks", "n bigint")
    assert run(ours, "replay", "dead")[2] == "1 letter of 'dead' was put back: 'clicks' 1\n"
    assert entries(client) == [b'{"n":5000000000}']


def test_letters_are_listed_with_their_reasons(ours: Server, client: redis.Redis) -> None:
    write_letters(client, b"one", b"\x1b[2J", b"three")
    assert run(ours, "replay", "dead", "--count", "1")[0] == 0
    code, shown, said = run(ours, "list", "dead", "--count", "1")
    assert code == 0
    assert shown == "2\tclicks 2\tnot JSON\t\\x1b[2J\n"
    assert "1 more; --count 2 shows them" in said
    assert [line.split("\t")[0] for line in run(ours, "list", "dead", "--all")[1].splitlines()] == ["1", "2", "3"]


def test_a_stream_that_is_not_there_is_a_mistake(ours: Server, client: redis.Redis) -> None:
    for word in ("list", "replay"):
        code, _, said = run(ours, word, "nothing")
        assert (code, "there is no stream 'nothing' at 127.0.0.1" in said) == (1, True)


@pytest.mark.parametrize("word", ["list", "replay"])
def test_a_server_that_is_lost_at_once_is_told_in_one_line(ours: Server, client: redis.Redis, word: str) -> None:
    write_letters(client, b"0")
    with FaultProxy(("127.0.0.1", ours.port)) as proxy:
        proxy.cut_before_forwarding(b"TREAD")
        done = CliRunner().invoke(app, ["letters", word, "dead", "--url", f"redis://127.0.0.1:{proxy.port}"])
    assert done.exit_code == 1
    assert re.fullmatch(rf"penstock letters: lost 127.0.0.1:{proxy.port} \(.+\)\n", done.stderr)
