"""`penstock tail`, `write` and `streams` as a shell runs them: real processes against an embedded server.

Most are forked, with their imports done; some of each subcommand are started as a shell does.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
import typer
from tests.support.forked_program import ForkedProgram

from penstock import Server
from penstock.cli.remote_server import RemoteServer
from penstock.testing.redis import RedisServer, free_port

PENSTOCK = [sys.executable, "-m", "penstock"]
SECONDS = 100


@pytest.fixture
def client(ours: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(ours.url, socket_timeout=SECONDS) as client:
        client.flushall()
        yield client


def run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    with running(*words) as process:
        output, errors = process.communicate(stdin, timeout=SECONDS)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


@contextmanager
def running(*words: str, **options: int) -> Iterator[subprocess.Popen[bytes]]:
    process = ForkedProgram(
        [*PENSTOCK, *words],
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(client: redis.Redis, true: Callable[[], object]) -> None:
    """Wait for something to become true, asking the server in between so that this does not spin for nothing."""
    for _ in range(100_000):
        if true():
            return
        client.ping()
    raise TimeoutError


def blocked(client: redis.Redis) -> int:
    return int(client.info("clients")["blocked_clients"])


# -- write ----------------------------------------------------------------------------------------------------


def test_lines_are_appended_in_order_and_counted(ours: Server, client: redis.Redis) -> None:
    lines = [b"line %d" % number for number in range(2500)]
    done = run("write", "events", "--tag", "t", "--url", ours.url, stdin=b"\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert done.stderr == b"2,500 messages appended to 'events', the last at offset 2500\n"
    assert client.execute_command("TREAD", "events", 1, 3000) == [
        [offset, b"t", line] for offset, line in enumerate(lines, 1)
    ]


def test_a_line_is_visible_before_the_input_ends(ours: Server, client: redis.Redis) -> None:
    with running("write", "events", "--url", ours.url) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\nunfinished")
        process.stdin.flush()
        assert client.execute_command("TREAD", "events", 1, 10, "BLOCK", 60_000) == [[1, b"", b"first"]]
        _, errors = process.communicate(timeout=SECONDS)
    assert errors == b"2 messages appended to 'events', the last at offset 2\n"


def test_no_lines_make_no_stream(ours: Server, client: redis.Redis) -> None:
    assert run("write", "events", "--url", ours.url).stderr == b"0 messages appended to 'events'\n"
    assert not client.exists("events")


def test_a_line_of_many_megabytes_is_read_in_one_pass(ours: Server, client: redis.Redis) -> None:
    """Joined anew with every piece a pipe gives, 80 MB took minutes: too long for `run`."""
    line = b"x" * 80_000_000
    done = run("write", "events", "--url", ours.url, stdin=line + b"\nshort\n\n")
    assert done.stderr == b"3 messages appended to 'events', the last at offset 3\n"
    assert client.execute_command("TREAD", "events", 1, 9) == [[1, b"", line], [2, b"", b"short"], [3, b"", b""]]


def test_a_write_waits_for_a_server_that_went_away_and_appends_each_line_once(tmp_path: object) -> None:
    settings = {"port": free_port(), "dir": str(tmp_path), "appendonly": "yes"}
    with Server(**settings) as server:
        url = server.url
        process = subprocess.Popen(
            [*PENSTOCK, "write", "events", "--url", url], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(b"before\n")
        process.stdin.flush()
        with redis.Redis.from_url(url, socket_timeout=SECONDS) as client:
            assert client.execute_command("TREAD", "events", 1, 9, "BLOCK", 60_000) == [[1, b"", b"before"]]
    process.stdin.write(b"meanwhile\n")
    process.stdin.flush()
    assert process.stderr is not None
    assert b"trying again" in process.stderr.readline()
    with Server(**settings) as server, redis.Redis.from_url(url) as client:
        _, errors = process.communicate(timeout=SECONDS)
        assert errors == b"2 messages appended to 'events', the last at offset 2\n"
        assert client.execute_command("TREAD", "events", 1, 9) == [[1, b"", b"before"], [2, b"", b"meanwhile"]]


def test_control_c_ends_write_and_reports_messages_without_an_answer(ours: Server, client: redis.Redis) -> None:
    client.client_pause(60_000, all=False)
    try:
        with running("write", "events", "--url", ours.url) as process:
            assert process.stdin is not None
            process.stdin.write(b"first\nunfinished")
            process.stdin.flush()
            until(client, lambda: blocked(client))
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=SECONDS)
    finally:
        client.client_unpause()
    assert process.returncode == 130
    assert errors == b"0 messages appended to 'events'; 1 more may be written, the server did not answer\n"


def test_names_and_tags_that_are_no_text_are_taken_as_they_are(ours: Server, client: redis.Redis) -> None:
    done = subprocess.run(
        [*PENSTOCK, "write", b"\xff", "--tag", b"\xfe", "--url", ours.url], input=b"x", check=True, capture_output=True
    )
    assert done.stderr.startswith(b"1 message appended")
    assert client.execute_command("TREAD", b"\xff", 1, 9) == [[1, b"\xfe", b"x"]]
    tail = [*PENSTOCK, "tail", b"\xff", "--from", "first", "--count", "1", "--json", "--url", ours.url]
    for words in (tail, [*tail, "--group", b"\xfd"]):
        shown = subprocess.run(words, check=True, capture_output=True).stdout
        assert json.loads(shown) == {"offset": 1, "tag_base64": "/g==", "entry": "x"}


def test_a_closed_input_is_reported(ours: Server) -> None:
    words = f"exec {sys.executable} -m penstock write events --url {ours.url} <&-"
    done = subprocess.run(["sh", "-c", words], capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr == b"penstock write: standard input is closed; the messages are read from there\n"


def test_brackets_in_brackets_are_no_json_line(ours: Server) -> None:
    done = run("write", "events", "--json-tag", "user", "--url", ours.url, stdin=b"[" * 200_000)
    assert done.returncode == 1
    assert b"line 1: not JSON" in done.stderr.splitlines()[-1]


def test_the_tag_comes_from_a_field_of_the_line(ours: Server, client: redis.Redis) -> None:
    run("write", "events", "--json-tag", "user", "--url", ours.url, stdin=b'{"user":"ada"}\n{"user":7}\n')
    assert client.execute_command("TREAD", "events", 1, 9) == [
        [1, b"ada", b'{"user":"ada"}'],
        [2, b"7", b'{"user":7}'],
    ]


@pytest.mark.parametrize(("line", "complaint"), [(b"no json", b"not JSON"), (b'{"id":1}', b"a field 'user'")])
def test_a_line_without_its_tag_is_named_and_nothing_after_it_is_written(
    line: bytes, complaint: bytes, ours: Server, client: redis.Redis
) -> None:
    done = run(
        "write", "events", "--json-tag", "user", "--url", ours.url, stdin=b'{"user":"a"}\n' + line + b'\n{"user":"b"}\n'
    )
    assert done.returncode == 1
    assert b"line 2: " in done.stderr and complaint in done.stderr
    assert client.execute_command("TREAD", "events", 1, 9) == [[1, b"a", b'{"user":"a"}']]


def test_progress_is_shown_on_a_terminal(ours: Server, client: redis.Redis) -> None:
    ours_end, its_end = pty.openpty()
    with running("write", "events", "--url", ours.url, stderr=its_end) as process:
        process.communicate(b"x\n" * 10, timeout=SECONDS)
    assert b"\r10 messages\r10 messages appended to 'events'" in os.read(ours_end, 1000).replace(b"\n", b"")
    os.close(ours_end)
    os.close(its_end)


# -- tail -----------------------------------------------------------------------------------------------------


def test_tail_prints_from_an_offset_and_ends_after_a_count(ours: Server, client: redis.Redis) -> None:
    client.execute_command(
        "TWRITE", "events", "ENTRIES", "a", "one", "b", "two\nlines\x1b[2J", "c", b"\xff", "d", "four"
    )
    done = run("tail", "events", "--from", "2", "--count", "2", "--url", ours.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == "2\tb\ttwo\\nlines\\x1b[2J\n3\tc\t\\xff\n"


def test_tail_prints_json_that_keeps_every_byte(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "events", "ENTRIES", "a", "é", "b", b"\xff")
    done = run("tail", "events", "--from", "first", "--count", "2", "--json", "--url", ours.url)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"offset": 1, "tag": "a", "entry": "é"},
        {"offset": 2, "tag": "b", "entry_base64": "/w=="},
    ]


def test_tail_prints_what_a_terminal_of_another_encoding_can_show_and_json_as_utf_8(
    ours: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    client.execute_command("TWRITE", "events", "", "\xe9\u20ac\U0001f600")
    words = ("tail", "events", "--from", "first", "--count", "1", "--url", ours.url)
    assert run(*words).stdout == b"1\t\t\xe9\\u20ac\\U0001f600\n"
    assert json.loads(run(*words, "--json").stdout.decode())["entry"] == "\xe9\u20ac\U0001f600"


def test_tail_prints_only_new_messages_as_they_come(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "events", "t", "old")
    with running("tail", "events", "--url", ours.url) as process:
        assert process.stdout is not None
        until(client, lambda: blocked(client))
        client.execute_command("TWRITE", "events", "t", "new")
        assert process.stdout.readline() == b"2\tt\tnew\n"


def test_evicted_messages_are_reported_and_skipped(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "events", "ENTRIES", "t", "1", "t", "2", "t", "3")
    client.execute_command("TEVICT", "events", 2)
    done = run("tail", "events", "--from", "1", "--count", "1", "--url", ours.url)
    assert done.stdout == b"3\tt\t3\n"
    assert b"offsets 1 to 2 of 'events' were evicted" in done.stderr


def test_a_group_goes_on_where_its_last_tail_ended(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "events", "ENTRIES", *(word for n in range(5) for word in ("t", str(n))))
    words = ("tail", "events", "--group", "g", "--from", "first", "--url", ours.url)
    assert run(*words, "--count", "2").stdout == b"1\tt\t0\n2\tt\t1\n"
    assert run(*words, "--count", "3").stdout == b"3\tt\t2\n4\tt\t3\n5\tt\t4\n"
    (group,) = client.execute_command("TINFO", "events")[b"groups"]
    assert (group[b"lag"], group[b"pending"]) == (0, 0)


def test_control_c_ends_tail_without_a_trace(ours: Server, client: redis.Redis) -> None:
    with running("tail", "events", "--url", ours.url) as process:
        until(client, lambda: blocked(client))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (130, b"")
    assert errors == (b"penstock tail: there is no stream 'events' yet, or nothing was written to it; waiting for it\n")


def test_a_reader_that_goes_away_ends_tail_quietly_and_its_group_keeps_the_rest(
    ours: Server, client: redis.Redis
) -> None:
    client.execute_command("TWRITE", "events", "ENTRIES", *(word for n in range(500) for word in ("t", "x" * 1000)))
    with running("tail", "events", "--group", "g", "--from", "first", "--url", ours.url) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=SECONDS)
        assert (process.returncode, process.stderr.read()) == (0, b"")
    (group,) = client.execute_command("TINFO", "events")[b"groups"]
    assert 0 < group[b"pending"] < 500


def test_tail_waits_for_a_server_that_went_away_and_misses_nothing(tmp_path: object) -> None:
    port = free_port()
    keep = {"port": port, "dir": tmp_path, "appendonly": True}
    with Server(**keep) as server, redis.Redis.from_url(server.url) as client:
        tail = running("tail", "events", "--url", server.url)
        process = tail.__enter__()
        assert process.stdout is not None and process.stderr is not None
        until(client, lambda: blocked(client))
        client.execute_command("TWRITE", "events", "t", "before")
        assert process.stdout.readline() == b"1\tt\tbefore\n"
    try:
        assert b"there is no stream 'events' yet" in process.stderr.readline()
        assert b"lost 127.0.0.1:%d" % port in process.stderr.readline()
        with Server(**keep) as server, redis.Redis.from_url(server.url) as client:
            client.execute_command("TWRITE", "events", "t", "after")
            assert process.stdout.readline() == b"2\tt\tafter\n"
            assert process.stderr.readline() == b"penstock tail: 127.0.0.1:%d is back\n" % port
    finally:
        tail.__exit__(None, None, None)


# -- streams --------------------------------------------------------------------------------------------------


def test_streams_are_listed_with_length_bytes_and_lag(ours: Server, client: redis.Redis) -> None:
    client.set("no stream", "x")
    client.execute_command("TWRITE", "events", "ENTRIES", "t", "1", "t", "2", "t", "3")
    client.execute_command("TREAD", "events", 0, 1, "GROUP", "g", "RETRY", 60_000, 0)
    done = run("streams", "--json", "--url", ours.url)
    (row,) = map(json.loads, done.stdout.splitlines())
    assert row.pop("bytes") > 0
    assert row == {
        "stream": "events", "length": 3, "first": 1, "last": 3, "rate": 0.0, "groups": {"g": {"lag": 2, "pending": 1}},
    }  # fmt: skip
    table = subprocess.run([*PENSTOCK, "streams", "--url", ours.url], capture_output=True, check=True).stdout.decode()
    assert "events" in table and "g: 2 (1)" in table and "no stream" not in table


def test_a_name_is_shown_as_it_is_whatever_is_in_it(ours: Server, client: redis.Redis) -> None:
    """Square brackets are markup to the library that draws the table, and `[/x]` was an error of it."""
    client.execute_command("TWRITE", "[/x]", "", "entry")
    client.execute_command("TWRITE", "line\nline", "", "entry")
    client.execute_command("TREAD", "[/x]", 0, 1, "GROUP", "[red]:smile:")
    done = run("streams", "--url", ours.url)
    assert done.returncode == 0, done.stderr
    assert "[/x]" in done.stdout.decode()
    assert "[red]:smile:: 0" in done.stdout.decode()
    assert r"line\nline" in done.stdout.decode()
    rows = [json.loads(line) for line in run("streams", "--json", "--url", ours.url).stdout.splitlines()]
    assert [(row["stream"], list(row["groups"])) for row in rows] == [("[/x]", ["[red]:smile:"]), ("line\nline", [])]


def test_a_stream_that_goes_while_it_is_listed_is_left_out(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "there", "", "entry")
    server = RemoteServer(ours.url, "streams")
    assert server.find("TINFO", "there")[b"length"] == 1
    assert server.find("TINFO", "gone") is None
    client.set("text", "of another type")
    assert server.find("TINFO", "text") is None
    with pytest.raises(typer.Exit):
        server.find("TINFO")


def test_the_rate_is_what_is_written_in_a_second(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "events", "t", "x")
    with running("streams", "--json", "--watch", "--url", ours.url) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["rate"] == 0
        client.execute_command("TWRITE", "events", "ENTRIES", *["t", "x"] * 1000)
        rate = 0.0
        while not rate:
            rate = json.loads(process.stdout.readline())["rate"]
        assert rate <= 1000
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130


# -- What can be wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("tail", "events"), ("write", "events"), ("streams",)])
def test_a_server_that_is_not_there_is_named_with_the_remedy(words: tuple[str, ...]) -> None:
    port = free_port()
    done = run(*words, "--url", f"redis://:secret@127.0.0.1:{port}/0")
    assert done.returncode == 1
    assert f"no server answers at 127.0.0.1:{port}".encode() in done.stderr
    assert f"penstock serve --port {port}".encode() in done.stderr
    assert b"Traceback" not in done.stderr and b"secret" not in done.stderr


def test_a_leader_that_is_not_there_is_named_with_the_remedy() -> None:
    port = free_port()
    done = run("streams", "--url", f"penstock://:secret@127.0.0.1:{port},127.0.0.1:{port + 1}")
    assert done.returncode == 1
    assert f"no leader answers at 127.0.0.1:{port},127.0.0.1:{port + 1}".encode() in done.stderr
    assert b"REPLICAOF NO ONE" in done.stderr and b"penstock serve" not in done.stderr
    assert b"Traceback" not in done.stderr and b"secret" not in done.stderr


@pytest.mark.parametrize("words", [("tail", "events"), ("write", "events"), ("streams",)])
def test_a_redis_server_is_recognised(words: tuple[str, ...], theirs: RedisServer) -> None:
    done = run(*words, "--url", theirs.url)
    assert done.returncode == 1
    assert f"127.0.0.1:{theirs.port} is a Redis ".encode() in done.stderr and b"penstock serve" in done.stderr


def test_a_key_of_another_type_is_refused_with_the_servers_words(ours: Server, client: redis.Redis) -> None:
    client.set("events", "x")
    done = run("write", "events", "--url", ours.url, stdin=b"x\n")
    assert done.returncode == 1
    assert b"refuses TWRITE" in done.stderr and b"wrong kind of value" in done.stderr
    assert done.stderr.endswith(b"\n0 messages appended to 'events'\n"), "nothing is unsure: the server said no"


def test_a_password_that_is_missing_is_asked_for() -> None:
    with Server(requirepass="secret") as server:
        done = run("streams", "--url", server.url)
    assert done.returncode == 1
    assert b"redis://user:password@host:port/0" in done.stderr and b"Traceback" not in done.stderr
    assert f"penstock streams: 127.0.0.1:{server.port} needs a password: name a user".encode() in done.stderr
    assert b"HELLO" not in done.stderr and done.stderr.count(b"\n") == 1


def test_a_password_that_is_wrong_is_told_in_a_line() -> None:
    with Server(requirepass="secret") as server:
        done = run("streams", "--url", f"redis://:other@127.0.0.1:{server.port}/0")
    assert done.returncode == 1
    assert b"refuses: invalid username-password pair or user is disabled. Name a user and password in" in done.stderr


def test_a_host_that_does_not_exist_is_no_reason_to_start_a_server() -> None:
    done = run("streams", "--url", "redis://nosuch.invalid:6379/0")
    assert done.returncode == 1
    assert b"no host has the name in nosuch.invalid:6379" in done.stderr and b"penstock serve" not in done.stderr


@pytest.mark.parametrize("start", ["0", "-1", "last"])
def test_a_bad_place_is_refused(start: str, ours: Server) -> None:
    done = run("tail", "events", "--from", start, "--url", ours.url)
    assert done.returncode == 1
    assert b"--from takes an offset from 1 on, 'first' or 'new'" in done.stderr


def test_tail_ends_when_its_output_is_closed_though_no_message_comes(ours: Server) -> None:
    with redis.Redis.from_url(ours.url) as client:
        client.execute_command("TWRITE", "quiet", "t", "only")
    with running("tail", "quiet", "--from", "first", "--url", ours.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"1\tt\tonly\n"
        process.stdout.close()
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == b""


def test_the_command_line_takes_every_url_that_a_client_takes(ours: Server, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "events", "t", "x")
    for query in (
        "delivery=at-most-once&command_timeout=5&when_full=raise&max_buffered_commands=5&backoff_cap=1",
        "protocol=2&decode_responses=True&encoding=utf-16&socket_timeout=0.1&retry_on_timeout=yes&max_connections=1",
    ):
        done = run("streams", "--json", "--url", f"{ours.url}?{query}")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["stream"] == "events"


@pytest.mark.parametrize("words", [("streams",), ("tail", "events"), ("console", "--port", "0")])
def test_a_misspelt_option_of_a_url_is_one_line(words: tuple[str, ...]) -> None:
    done = run(*words, "--url", "redis://ada:secret@127.0.0.1:1/0?delivry=at-most-once")
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1 and b"secret" not in done.stderr
    assert b"'delivry' is no option of a URL; did you mean delivery?" in done.stderr
    wrong_value = run(*words, "--url", "redis://127.0.0.1:1/0?command_timeout=soon")
    assert wrong_value.returncode == 1 and wrong_value.stderr.count(b"\n") == 1
    assert b"command_timeout='soon' in the URL is no number" in wrong_value.stderr


def test_an_invalid_address_is_reported_without_its_password() -> None:
    for url in ("redis://ada:secret@host:port/0", "nonsense://ada:secret@host"):
        ran = run("streams", "--url", url)
        assert ran.returncode == 1 and b"host" in ran.stderr and b"is not the URL of a server" in ran.stderr
        assert b"secret" not in ran.stderr + ran.stdout
