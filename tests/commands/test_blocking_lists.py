"""Waiting for lists over real sockets, on ours and on a real Redis. The order of clients is in tests/engine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from penstock.protocol.resp import pack


class Waiter:
    """A client on a socket of its own that sends a command and reads its reply later."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("redis://").removesuffix("/0").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)

    def send(self, *commands: str) -> None:
        self._socket.sendall(b"".join(pack(*(word.encode() for word in line.split())) for line in commands))

    def read(self, expected: bytes) -> None:
        """Read exactly what is expected, and fail with what came instead."""
        got = b""
        while len(got) < len(expected) and expected.startswith(got):
            data = self._socket.recv(len(expected) - len(got))
            if not data:
                break
            got += data
        assert got == expected

    def close(self) -> None:
        self._socket.close()


class Crowd:
    """Makes waiters, and knows when they wait."""

    def __init__(self, r: redis.Redis, url: str) -> None:
        self._r = r
        self._url = url
        self._waiters: list[Waiter] = []

    def connect(self) -> Waiter:
        waiter = Waiter(self._url)
        self._waiters.append(waiter)
        return waiter

    def waiting(self, *commands: str) -> Waiter:
        """A client that is blocked in the first of its commands when this returns."""
        waiter = self.connect()
        before = self.blocked()
        waiter.send(*commands)
        self.until_blocked(before + 1)
        return waiter

    def blocked(self) -> int:
        return sum("b" in row["flags"] for row in self._r.client_list())

    def until_blocked(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while self.blocked() != count:
            assert time.monotonic() < deadline, f"{self.blocked()} clients are blocked, not {count}"
            time.sleep(0.002)

    def close(self) -> None:
        for waiter in self._waiters:
            waiter.close()
        self.until_blocked(0)


@pytest.fixture
def crowd(r: redis.Redis, peer: str) -> Iterator[Crowd]:
    made = Crowd(r, peer)
    yield made
    made.close()


def popped(key: str, item: str) -> bytes:
    return f"*2\r\n${len(key)}\r\n{key}\r\n${len(item)}\r\n{item}\r\n".encode()


def test_what_is_there_is_answered_at_once_in_the_order_of_the_keys(r: redis.Redis) -> None:
    r.rpush("a", 1, 2)
    r.rpush("b", 3)
    assert r.blpop(["none", "b", "a"], 1) == (b"b", b"3")
    assert r.brpop(["b", "a"], 1) == (b"a", b"2")
    assert r.blmove("a", "c", 1, "LEFT", "RIGHT") == b"1"
    assert r.brpoplpush("c", "d", 1) == b"1"
    assert r.lrange("d", 0, -1) == [b"1"]
    assert r.exists("a", "b", "c") == 0


@pytest.mark.since("7.0")
def test_multi_pop_answers_at_once_or_waits(r: redis.Redis, crowd: Crowd) -> None:
    r.rpush("b", 1, 2, 3)
    assert r.blmpop(1, 2, "a", "b", direction="RIGHT", count=2) == [b"b", [b"3", b"2"]]
    waiter = crowd.waiting("BLMPOP 0 2 x y LEFT COUNT 10")
    r.rpush("y", "p", "q")
    waiter.read(b"*2\r\n$1\r\ny\r\n*2\r\n$1\r\np\r\n$1\r\nq\r\n")


def test_timeouts_answer_null_after_their_time(r: redis.Redis) -> None:
    for call in (
        lambda: r.blpop("none", 0.05),
        lambda: r.brpop(["none", "other"], 0.05),
        lambda: r.blmove("none", "other", 0.05),
        lambda: r.brpoplpush("none", "other", 0.05),
    ):
        started = time.monotonic()
        assert call() is None
        assert time.monotonic() - started > 0.04


@pytest.mark.parametrize("line", ["BLMOVE a b LEFT LEFT 0.01", "BRPOPLPUSH a b 0.01", "BLPOP a 0.01"])
def test_every_timeout_is_a_null_array(r: redis.Redis, crowd: Crowd, line: str) -> None:
    waiter = crowd.connect()
    waiter.send(line)
    waiter.read(b"*-1\r\n")


def test_clients_are_served_in_the_order_they_came(r: redis.Redis, crowd: Crowd) -> None:
    waiters = [crowd.waiting(line) for line in ("BLPOP a b 0", "BLPOP b 0", "BLPOP a 0", "BLPOP b a 0")]
    r.rpush("a", 1)
    r.rpush("b", 2, 3)
    r.rpush("a", 4)
    for waiter, (key, item) in zip(waiters, [("a", "1"), ("b", "2"), ("a", "4"), ("b", "3")], strict=True):
        waiter.read(popped(key, item))
    assert crowd.blocked() == 0
    assert r.exists("a", "b") == 0


def test_commands_after_a_blocking_one_wait_for_it(r: redis.Redis, crowd: Crowd) -> None:
    waiter = crowd.waiting("BLPOP k 0", "RPUSH log after", "BLPOP k 0", "PING")
    assert r.exists("log") == 0
    r.rpush("k", "a")
    waiter.read(popped("k", "a") + b":1\r\n")
    crowd.until_blocked(1)
    r.rpush("k", "b")
    waiter.read(popped("k", "b") + b"+PONG\r\n")


def test_clients_that_feed_each_other_do_not_recurse(r: redis.Redis, crowd: Crowd) -> None:
    """Each waits for the one before it and pushes to the one behind: a chain longer than Python's stack is deep."""
    length = 60
    turns = 40
    waiters = [
        crowd.waiting(*(line for _ in range(turns) for line in (f"BLPOP q{n} 0", f"RPUSH q{(n + 1) % length} x")))
        for n in range(length)
    ]
    r.rpush("q0", "x")
    for n, waiter in enumerate(waiters):
        waiter.read((popped(f"q{n}", "x") + b":1\r\n") * turns)
    assert r.lrange("q0", 0, -1) == [b"x"]


def test_a_transaction_serves_after_it_ends(r: redis.Redis, crowd: Crowd) -> None:
    waiter = crowd.waiting("BLPOP a b 0")
    with r.pipeline(transaction=True) as pipe:
        pipe.rpush("b", 1)
        pipe.rpush("a", 2)
        pipe.llen("b")
        assert pipe.execute() == [1, 1, 1]
    waiter.read(popped("b", "1"))
    assert r.lrange("a", 0, -1) == [b"2"]


def test_a_script_serves_after_it_ends(r: redis.Redis, crowd: Crowd) -> None:
    waiter = crowd.waiting("BLPOP k 0")
    script = "redis.call('RPUSH', KEYS[1], 'a', 'b'); return redis.call('LLEN', KEYS[1])"
    assert r.eval(script, 1, "k") == 2
    waiter.read(popped("k", "a"))


def test_a_blocking_command_in_a_transaction_answers_at_once(r: redis.Redis) -> None:
    with r.pipeline(transaction=True) as pipe:
        pipe.blpop("none", 0)
        pipe.blmove("none", "other", 0)
        pipe.rpush("k", "a")
        pipe.blpop("k", 0)
        assert pipe.execute() == [None, None, 1, (b"k", b"a")]


@pytest.mark.parametrize("arrival", ["RENAME", "COPY", "SORT", "RESTORE"])
def test_a_list_that_arrives_whole_wakes_its_waiters(r: redis.Redis, crowd: Crowd, arrival: str) -> None:
    waiter = crowd.waiting("BLPOP k 0")
    r.rpush("other", 1)
    match arrival:
        case "RENAME":
            r.rename("other", "k")
        case "COPY":
            r.copy("other", "k")
        case "SORT":
            r.sort("other", store="k")
        case "RESTORE":
            r.restore("k", 0, r.dump("other"))
    waiter.read(popped("k", "1"))


def test_a_wrong_type_keeps_the_client_waiting(r: redis.Redis, crowd: Crowd) -> None:
    waiter = crowd.waiting("BLPOP a b 0")
    r.set("a", "text")
    r.rpush("b", 1)
    waiter.read(popped("b", "1"))


def test_a_move_to_a_wrong_type_is_an_error_and_loses_nothing(r: redis.Redis, crowd: Crowd) -> None:
    waiter = crowd.waiting("BLMOVE from to LEFT LEFT 0")
    r.set("to", "text")
    r.rpush("from", 1)
    waiter.read(b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n")
    assert r.lrange("from", 0, -1) == [b"1"]


def test_a_client_that_disconnects_while_it_waits_takes_nothing(r: redis.Redis, crowd: Crowd) -> None:
    waiter = crowd.waiting("BLPOP k 0")
    waiter.close()
    crowd.until_blocked(0)
    r.rpush("k", "a")
    assert r.lrange("k", 0, -1) == [b"a"]


def test_client_unblock_ends_a_wait(r: redis.Redis, crowd: Crowd) -> None:
    waiter = crowd.connect()
    for how, reply in (("TIMEOUT", b"*-1\r\n"), ("ERROR", b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n")):
        waiter.send("CLIENT SETNAME me", "BLPOP k 0")
        waiter.read(b"+OK\r\n")
        crowd.until_blocked(1)
        (me,) = [row for row in r.client_list() if row["name"] == "me"]
        assert r.execute_command("CLIENT", "UNBLOCK", me["id"], how) == 1
        waiter.read(reply)
        assert r.execute_command("CLIENT", "UNBLOCK", me["id"]) == 0


@pytest.mark.since("7.0")
@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("BLMPOP x 0 a LEFT", "numkeys should be greater than 0"), ("BLMPOP -1 1 a UP", "syntax error"),
        ("BLMPOP x 1 a LEFT COUNT 0", "count should be greater than 0"),
        ("BLMPOP x 1 a LEFT", "timeout is not a float or out of range"), ("BZMPOP -1 1 a UP", "syntax error"),
    ],
)  # fmt: skip
def test_of_many_arguments_the_timeout_is_looked_at_last(r: redis.Redis, line: str, complaint: str) -> None:
    with pytest.raises(redis.ResponseError, match=complaint):
        r.execute_command(*line.split())


@pytest.mark.since("7.0")
def test_a_wait_that_ends_with_an_error_is_a_failed_call(r: redis.Redis, crowd: Crowd) -> None:
    r.config_resetstat()
    waiter = crowd.waiting("BLPOP k 0")
    (blocked,) = [row for row in r.client_list() if "b" in row["flags"]]
    r.client_unblock(blocked["id"], error=True)
    waiter.read(b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n")
    counted = r.info("commandstats")["cmdstat_blpop"]
    assert (counted["calls"], counted["rejected_calls"], counted["failed_calls"]) == (1, 0, 1)


def test_a_silenced_client_is_served_in_silence(r: redis.Redis, crowd: Crowd) -> None:
    waiter = crowd.connect()
    waiter.send("CLIENT REPLY SKIP", "BLPOP k 0", "ECHO on")
    crowd.until_blocked(1)
    r.rpush("k", "a")
    waiter.read(b"$2\r\non\r\n")
    assert r.exists("k") == 0


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["BLPOP", "k", "-1"], "timeout is negative"),
        (["BLPOP", "k", "x"], "timeout is not a float or out of range"),
        (["BLMOVE", "k", "l", "LEFT", "UP", "x"], "syntax error"),
        (["BRPOPLPUSH", "k", "l", "-0.5"], "timeout is negative"),
        (["BLPOP", "0"], "wrong number of arguments for 'blpop' command"),
    ],
)
def test_bad_arguments_are_refused(r: redis.Redis, argv: list[str], text: str) -> None:
    with pytest.raises(redis.ResponseError) as refused:
        r.execute_command(*argv)
    assert str(refused.value) == text


def test_every_element_reaches_exactly_one_of_many_workers(r: redis.Redis, peer: str) -> None:
    total, workers = 600, 8
    taken: list[list[int]] = [[] for _ in range(workers)]

    def work(mine: list[int]) -> None:
        with redis.Redis.from_url(peer) as client:
            while (job := client.blpop("jobs", 10)) is not None and job[1] != b"stop":
                mine.append(int(job[1]))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for start in range(0, total, 30):
        r.rpush("jobs", *range(start, start + 30))
    r.rpush("jobs", *["stop"] * workers)
    for thread in threads:
        thread.join(timeout=100)
    everything: list[Any] = sorted(item for mine in taken for item in mine)
    assert everything == list(range(total))
    assert all(mine == sorted(mine) for mine in taken), "each worker sees the queue's order"
