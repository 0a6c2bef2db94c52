"""Transactions and scripts that read files of history: a thread reads them, and other clients go on meanwhile."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.storage.history import connected, files, fill, started, until, write
from tests.support.storage.slow_reads import SlowReads

from penstock import Server
from penstock.engine import scripting, stream_history

Run = Callable[[redis.Redis], Any]

READ = "return redis.call('TREAD', KEYS[1], ARGV[1], ARGV[2])"


class Waiting:
    """A client whose transaction or script waits for a file."""

    def __init__(self, server: Server, run: Run) -> None:
        self.client = connected(server)
        self.client.ping()
        self._outcome: list[Any] = []
        self._thread = threading.Thread(target=self._main, args=(run,))
        self._thread.start()

    def _main(self, run: Run) -> None:
        try:
            self._outcome.append(run(self.client))
        except redis.RedisError as error:
            self._outcome.append(error)

    def result(self) -> Any:
        self._thread.join(100)
        self.client.close()
        return self._outcome[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, entries: list[bytes]) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("history")) as server, connected(server) as client:
        fill(client, entries, "whole")
        client.config_set("stream-memory", "50mb")
        yield server


@pytest.fixture(autouse=True)
def _scripts_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a script may be interrupted for longer than it may take, and then it reads on the loop."""
    monkeypatch.setattr(scripting, "REHEARSAL", 1000.0)
    monkeypatch.setattr(stream_history, "REHEARSALS", 1000.0)
    monkeypatch.setattr(stream_history, "MOST_SPENT", 1000.0)


@pytest.fixture
def server(folder: Server) -> Iterator[Server]:
    with connected(folder) as client:
        client.copy("whole", "s")
        yield folder
        client.execute_command("CLIENT", "UNPAUSE")
        client.delete(*[key for key in client.scan_iter() if key != b"whole"])


@pytest.fixture
def disk(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowReads]:
    disk = SlowReads(monkeypatch)
    yield disk
    disk.open.set()


def transaction(*commands: Sequence[Any], watch: str | None = None) -> Run:
    def run(client: redis.Redis) -> Any:
        with client.pipeline(transaction=True) as pipe:
            if watch is not None:
                pipe.watch(watch)
                pipe.multi()
            for command in commands:
                pipe.execute_command(*command)
            return pipe.execute(raise_on_error=False)

    return run


def begin(server: Server, disk: SlowReads, run: Run) -> Waiting:
    """Returns when a thread has come for a file."""
    before = len(disk.threads)
    waiting = Waiting(server, run)
    until(lambda: len(disk.threads) > before)
    return waiting


def entries_in(rows: list[Any]) -> list[bytes]:
    return [row[2] for row in rows]


def test_others_go_on_while_a_transaction_waits_for_files(
    server: Server, disk: SlowReads, entries: list[bytes]
) -> None:
    run = transaction(
        ("SET", "a", "1"), ("TREAD", "s", 1, 1500), ("TREAD", "s", 2500, 10, "GROUP", "g"), ("TSEEK", "s", "TIME", 1)
    )
    waiting = begin(server, disk, run)
    with connected(server) as other:
        assert other.ping()
        assert other.get("a") is None, "nothing of it has run"
        disk.open.set()
        done, plain, grouped, offset = waiting.result()
        assert (done, offset, other.get("a")) == (True, 1, b"1")
    assert entries_in(plain) == entries[:1500]
    assert entries_in(grouped) == entries[2499:2509]
    assert not disk.on_the_loop


def test_others_go_on_while_a_script_waits(server: Server, disk: SlowReads, entries: list[bytes]) -> None:
    waiting = begin(server, disk, lambda client: client.eval(READ, 1, "s", 4000, 1500))
    with connected(server) as other:
        assert other.ping()
    disk.open.set()
    assert entries_in(waiting.result()) == entries[3999:5499]
    assert not disk.on_the_loop


READ_TWICE = """
    local count = redis.call('GET', 'count')
    local first = redis.call('TREAD', KEYS[1], 1, 1)[1][3]
    local second = redis.pcall('TREAD', KEYS[1], 3000, 1)[1][3]
    return {first, second, redis.call('INCR', 'count'), count}
"""


@pytest.mark.parametrize("how", ["transaction", "by its hash", "once", "once in a transaction"])
def test_others_go_on_while_a_script_inside_another_command_waits(
    server: Server, disk: SlowReads, entries: list[bytes], how: str
) -> None:
    with connected(server) as other:
        sha = other.script_load(READ_TWICE)
        words: dict[str, tuple[Any, ...]] = {
            "transaction": ("EVAL", READ_TWICE, 1, "s"),
            "by its hash": ("EVALSHA", sha, 1, "s"),
            "once": ("ONCE", "client", 1, 1, "EVAL", READ_TWICE, 1, "s"),
            "once in a transaction": ("ONCE", "client 2", 1, 1, "EVAL", READ_TWICE, 1, "s"),
        }
        alone = how == "once"
        run = (lambda client: client.execute_command(*words[how])) if alone else transaction(words[how])
        waiting = begin(server, disk, run)
        assert other.ping()
        assert not other.exists("count"), "nothing of it has run"
        disk.open.set()
        reply = waiting.result()
        assert (reply if alone else reply[0]) == [entries[0], entries[2999], 1, None]
        assert other.get("count") == b"1", "it has run once"
        if alone:
            assert other.execute_command(*words[how]) == reply, "the reply was kept"
            assert other.get("count") == b"1"
    assert not disk.on_the_loop


@pytest.mark.parametrize("how", ["transaction", "once"])
def test_others_go_on_while_a_group_read_by_a_script_inside_another_command_waits(
    server: Server, disk: SlowReads, entries: list[bytes], how: str
) -> None:
    words = ("EVAL", "return redis.call('TREAD', KEYS[1], 4000, 5, 'GROUP', 'g')", 1, "s")
    runs: dict[str, Run] = {
        "transaction": lambda client: transaction(words)(client)[0],
        "once": lambda client: client.execute_command("ONCE", "group client", 1, 1, *words),
    }
    waiting = begin(server, disk, runs[how])
    with connected(server) as other:
        assert other.execute_command("TGROUP", "LIST", "s") == [], "nothing of it has run"
    disk.open.set()
    assert entries_in(waiting.result()) == entries[3999:4004]
    assert not disk.on_the_loop


def test_a_rehearsal_of_a_script_has_no_effects(
    server: Server, disk: SlowReads, entries: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    script = """
        redis.log(redis.LOG_WARNING, ARGV[1])
        if ARGV[1] == 'write' then redis.pcall('SET', 'a', 'x') redis.pcall('PUBLISH', 'news', 'x') end
        if ARGV[1] == 'loop' then for n = 1, 2000000 do end end
        local rows = redis.pcall('TREAD', KEYS[1], 1, 1)
        redis.pcall('RPUSH', 'list', rows[1][3])
        return redis.pcall('LLEN', 'list')
    """
    disk.open.set()
    with connected(server) as client, client.pubsub() as subscriber:
        subscriber.subscribe("news")
        assert subscriber.get_message(timeout=60)["type"] == "subscribe"
        for number, what in enumerate(["write", "loop", "read"], 1):
            assert transaction(("EVAL", script, 1, "s", what))(client) == [number]
        assert client.lrange("list", 0, -1) == [entries[0]] * 3
        client.publish("news", "the next")
        got = [subscriber.get_message(timeout=60)["data"] for _ in range(2)]
        assert got == [b"x", b"the next"]
    assert [each.getMessage() for each in caplog.records if each.name == "penstock.script"] == ["write", "loop", "read"]


def test_a_rehearsal_is_not_counted_and_not_shown(server: Server, disk: SlowReads, entries: list[bytes]) -> None:
    disk.open.set()
    with connected(server) as client, connected(server) as other, client.monitor() as monitor:
        before = calls(other)
        assert transaction(("EVAL", READ_TWICE, 1, "s"))(other)[0][:2] == [entries[0], entries[2999]]
        after = calls(other)
        other.echo("the end")
        shown = []
        while "ECHO" not in (line := monitor.next_command()["command"].upper()):
            shown.append(line.split()[0])
        assert shown.count("GET") == shown.count("INCR") == 1
        assert shown.count("TREAD") == 2
    assert disk.threads, "there were rehearsals"
    assert (after["get"] - before["get"], after["tread"] - before["tread"]) == (1, 2)


def calls(client: redis.Redis) -> Counter[str]:
    found = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()})


def test_files_of_a_key_that_a_script_may_not_read_are_not_read(
    server: Server, disk: SlowReads, entries: list[bytes]
) -> None:
    disk.open.set()
    script = "return redis.pcall('TREAD', 'whole', 3000, 1)"
    with connected(server) as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~s", "+@all")
        client.execute_command("ACL", "LOG", "RESET")
        client.execute_command("AUTH", "reader", "x")
        (refused,) = transaction(("EVAL", script, 1, "s"))(client)
        assert isinstance(refused, redis.ResponseError)
    with connected(server) as client:
        assert sum(entry["count"] for entry in client.acl_log()) == 1
        client.execute_command("ACL", "DELUSER", "reader")
    assert not disk.threads


def test_scripts_of_a_transaction_are_rehearsed_for_a_bounded_time(
    server: Server, disk: SlowReads, entries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.open.set()
    monkeypatch.setattr(stream_history, "REHEARSALS", 0.0)
    with connected(server) as client:
        assert entries_in(transaction(("EVAL", READ, 1, "s", 1, 1))(client)[0]) == entries[:1]
        assert disk.on_the_loop, "what was not seen in advance is read in place"
        disk.threads.clear()
        transaction(("TREAD", "s", 4000, 1))(client)
        assert not disk.on_the_loop, "commands that say what they read take no time"


SLOW = """
    redis.call('KEYS', '*')
    local found = {}
    for at = 1, 5001, 1000 do found[#found + 1] = redis.call('TREAD', KEYS[1], at, 1)[1][3] end
    return found
"""


def test_a_rehearsal_ends_before_the_next_command_when_its_time_is_over(
    server: Server, disk: SlowReads, entries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.open.set()
    monkeypatch.setattr(scripting, "REHEARSAL", 0.0)
    with connected(server) as client:
        assert transaction(("EVAL", SLOW, 1, "s"))(client) == [entries[0:5002:1000]]
    assert set(disk.threads) == {"penstock-server"}, "it was rehearsed again for each file"


@pytest.mark.parametrize("how", ["by itself", "transaction", "once"])
def test_a_script_that_is_slow_before_it_reads_files_starts_again_for_a_bounded_time(
    server: Server, disk: SlowReads, entries: list[bytes], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    runs: dict[str, Run] = {
        "by itself": lambda client: client.eval(SLOW, 1, "s"),
        "transaction": lambda client: transaction(("EVAL", SLOW, 1, "s"))(client)[0],
        "once": lambda client: client.execute_command("ONCE", "slow client", 1, 1, "EVAL", SLOW, 1, "s"),
    }
    disk.open.set()
    monkeypatch.setattr(stream_history, "MOST_SPENT", 0.0)
    with connected(server) as client:
        assert runs[how](client) == entries[0:5002:1000]
    assert disk.on_the_loop == len(disk.threads) - 1, "it waited once"


def leased(client: redis.Redis) -> None:
    """A group holds the messages from 501 to 1500, of two nodes, and has a stream for its dead letters."""
    client.execute_command("TREAD", "s", 501, 1000, "GROUP", "g", "RETRY", 10**6, 0, "DEADLETTER", "dead")


@pytest.mark.parametrize("how", ["by itself", "transaction", "script"])
def test_others_go_on_while_messages_in_files_are_given_up(
    server: Server, disk: SlowReads, entries: list[bytes], how: str
) -> None:
    words = ("TGIVEUP", "s", "g", "REASON", "bad", "503-505", "900-1100")
    script = "return redis.call(unpack(ARGV))"
    runs: dict[str, Run] = {
        "by itself": lambda client: client.execute_command(*words),
        "transaction": lambda client: transaction(words)(client)[0],
        "script": lambda client: client.eval(script, 2, "s", "dead", *words),
    }
    disk.open.set()
    with connected(server) as other:
        leased(other)
        disk.open.clear()
        waiting = begin(server, disk, runs[how])
        assert other.ping()
        assert not other.exists("dead"), "nothing of it has run"
        disk.open.set()
        assert waiting.result() == 204
        letters = other.execute_command("TREAD", "dead", 1, 1000)
        assert [json.loads(row[2])["offset"] for row in letters] == [*range(503, 506), *range(900, 1101)]
    assert not disk.on_the_loop


def test_what_giving_up_adds_is_estimated_without_reading_files(
    server: Server, disk: SlowReads, entries: list[bytes]
) -> None:
    disk.open.set()
    with connected(server) as client:
        leased(client)
        client.config_set("maxmemory", "10gb")
        try:
            assert client.execute_command("TGIVEUP", "s", "g", "507-509") == 3
            client.config_set("maxmemory", client.info("memory")["used_memory"] + 1000)
            with pytest.raises(redis.ResponseError, match="used memory > 'maxmemory'"):
                client.execute_command("TGIVEUP", "s", "g", "510-1400")
        finally:
            client.config_set("maxmemory", 0)
    assert not disk.on_the_loop


@pytest.mark.parametrize("how", ["transaction", "script"])
def test_others_go_on_while_a_stream_in_files_is_dumped(
    server: Server, disk: SlowReads, entries: list[bytes], how: str
) -> None:
    runs: dict[str, Run] = {
        "transaction": lambda client: transaction(("DUMP", "s"))(client)[0],
        "script": lambda client: client.eval("return redis.call('DUMP', KEYS[1])", 1, "s"),
    }
    waiting = begin(server, disk, runs[how])
    with connected(server) as other:
        assert other.ping()
        disk.open.set()
        other.restore("t", 0, waiting.result())
        assert not disk.on_the_loop
        assert entries_in(other.execute_command("TREAD", "t", 1, len(entries))) == entries


def test_a_script_that_catches_errors_starts_again_and_writes_once(
    server: Server, disk: SlowReads, entries: list[bytes]
) -> None:
    script = """
        local before = redis.call('GET', 'count')
        local first = redis.pcall('TREAD', 's', 1, 1)
        redis.pcall('INCR', 'count')
        local ok, second = pcall(redis.call, 'TREAD', 's', 3000, 1)
        return {first[1][3], second[1][3], before}
    """
    disk.open.set()
    with connected(server) as client:
        assert client.eval(script, 0) == [entries[0], entries[2999], None]
        assert client.get("count") == b"1"
    assert disk.threads[0] != "penstock-server"
    assert disk.on_the_loop == 1, "it cannot start again after it has written"


def test_a_script_that_published_does_not_start_again(server: Server, disk: SlowReads) -> None:
    disk.open.set()
    with connected(server) as client, client.pubsub() as subscriber:
        subscriber.subscribe("news")
        assert subscriber.get_message(timeout=60)["type"] == "subscribe"
        client.eval("redis.call('PUBLISH', 'news', 'x') return redis.call('TREAD', 's', 1, 1)", 0)
        client.publish("news", "the next")
        got = [subscriber.get_message(timeout=60)["data"] for _ in range(2)]
    assert got == [b"x", b"the next"]


def test_a_script_waits_a_bounded_number_of_times(server: Server, disk: SlowReads, entries: list[bytes]) -> None:
    disk.open.set()
    script = """
        local found = {}
        for at = 1, 9001, 500 do found[#found + 1] = redis.call('TREAD', 's', at, 1)[1][3] end
        return found
    """
    with connected(server) as client:
        assert client.eval(script, 0) == entries[0:9001:500]
    assert len(disk.threads) - disk.on_the_loop <= 8


@pytest.mark.parametrize("how", ["by itself", "once", "transaction"])
def test_what_was_read_for_a_script_is_let_go_of_if_it_fails_before_it_runs_again(
    server: Server, disk: SlowReads, how: str
) -> None:
    with connected(server) as other:
        sha = other.script_load(READ)
        words = ("EVALSHA", sha, 1, "s", 4000, 10)
        kept: list[bool] = []

        def run(client: redis.Redis) -> Any:
            try:
                if how == "transaction":
                    return transaction(words)(client)[0]
                return client.execute_command(*(("ONCE", "failing client", 1, 1) if how == "once" else ()), *words)
            except redis.ResponseError as error:
                return error
            finally:
                sessions = server.call(lambda app: [*app.engine.sessions.values()])
                kept.extend(session.fetched is not None for session in sessions)

        waiting = begin(server, disk, run)
        other.script_flush()
        disk.open.set()
        assert isinstance(waiting.result(), redis.exceptions.NoScriptError)
        assert kept and not any(kept)


def test_a_watched_key_that_changes_meanwhile_stops_the_transaction(server: Server, disk: SlowReads) -> None:
    waiting = begin(server, disk, transaction(("SET", "a", "1"), ("TREAD", "s", 1, 10), watch="w"))
    with connected(server) as other:
        other.set("w", "changed")
        disk.open.set()
        assert isinstance(waiting.result(), redis.WatchError)
        assert other.get("a") is None


def test_a_stream_that_is_deleted_or_replaced_meanwhile_is_read_as_it_is_then(
    server: Server, disk: SlowReads, entries: list[bytes]
) -> None:
    waiting = begin(server, disk, transaction(("TREAD", "s", 1, 10)))
    with connected(server) as other:
        other.delete("s")
        write(other, [b"new"], "s")
        disk.open.set()
        (rows,) = waiting.result()
        assert entries_in(rows) == [b"new"]
        disk.open.clear()
        other.delete("s")
        other.copy("whole", "s")
        waiting = begin(server, disk, transaction(("TREAD", "s", 1, 10)))
        other.execute_command("TEVICT", "s", 3)
        disk.open.set()
        (rows,) = waiting.result()
        assert [row and row[2] for row in rows] == [None, None, None, *entries[3:10]]


def test_a_permission_that_is_taken_away_meanwhile_refuses_that_command(server: Server, disk: SlowReads) -> None:
    with connected(server) as other:
        other.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@all")

        def run(client: redis.Redis) -> Any:
            client.execute_command("AUTH", "reader", "x")
            return transaction(("SET", "a", "1"), ("TREAD", "s", 1, 10))(client)

        waiting = begin(server, disk, run)
        other.execute_command("ACL", "SETUSER", "reader", "-tread")
        disk.open.set()
        done, refused = waiting.result()
        assert done and isinstance(refused, redis.exceptions.NoPermissionError)
        other.execute_command("ACL", "DELUSER", "reader")


def test_a_pause_that_begins_meanwhile_holds_the_transaction(server: Server, disk: SlowReads) -> None:
    waiting = begin(server, disk, transaction(("SET", "a", "1"), ("TREAD", "s", 1, 10)))
    with connected(server) as other:
        other.execute_command("CLIENT", "PAUSE", 100_000, "WRITE")
        done = server.app.engine.workers.done
        disk.open.set()
        until(lambda: server.app.engine.workers.done > done)
        assert other.get("a") is None
        other.execute_command("CLIENT", "UNPAUSE")
        assert len(waiting.result()) == 2
        assert other.get("a") == b"1"


def test_a_client_that_goes_meanwhile_has_run_nothing(server: Server, disk: SlowReads) -> None:
    waiting = begin(server, disk, transaction(("SET", "a", "1"), ("TREAD", "s", 1, 10)))
    with connected(server) as other:
        (found,) = [each["id"] for each in other.client_list() if each["cmd"] == "exec"]
        other.client_kill_filter(_id=found)
        assert isinstance(waiting.result(), redis.ConnectionError)
        done = server.app.engine.workers.done
        disk.open.set()
        until(lambda: server.app.engine.workers.done > done)
        assert other.get("a") is None
        assert other.ping()


def test_the_end_of_the_threads_is_the_end_of_the_transaction(server: Server, disk: SlowReads) -> None:
    def run(client: redis.Redis) -> Any:
        with client.pipeline(transaction=True) as pipe:
            pipe.set("a", "1")
            pipe.execute_command("TREAD", "s", 1, 10)
            try:
                pipe.execute()
            except redis.RedisError as error:
                return str(error), client.ping()

    waiting = begin(server, disk, run)
    abandoned = threading.Event()

    def abandon() -> None:
        server.app.engine.workers.abandon()
        abandoned.set()

    server.app.loop.call_soon_threadsafe(abandon)
    assert abandoned.wait(60)
    disk.open.set()
    problem, pong = waiting.result()
    assert "changed nothing" in problem
    assert pong is True, "it is not in a transaction any more"


def test_a_lost_file_fails_the_command_that_reads_it_alone(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
        lost = min(files(tmp_path), key=lambda name: int(name.split("-")[0]))
        (tmp_path / "history" / lost).unlink()
        done, refused, rows = transaction(("SET", "a", "1"), ("TREAD", "s", 1, 10), ("TREAD", "s", 6000, 2))(client)
        assert done and lost in str(refused)
        assert entries_in(rows) == entries[5999:6001]


def test_another_database_and_copies_inside_the_transaction_are_read(
    server: Server, disk: SlowReads, entries: list[bytes]
) -> None:
    with connected(server) as client:
        client.copy("whole", "t", destination_db=3)
    waiting = begin(
        server, disk, transaction(("SELECT", 3), ("TREAD", "t", 1, 10), ("COPY", "t", "u"), ("TREAD", "u", 1, 10),
                                  ("FLUSHDB",), ("SELECT", 0)),
    )  # fmt: skip
    disk.open.set()
    _, one, _, other, *_ = waiting.result()
    assert entries_in(one) == entries_in(other) == entries[:10]
    assert not disk.on_the_loop
