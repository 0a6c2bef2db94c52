"""ONCE: a command that ran is answered from its record, also after a restart; one that did not run, runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.everything_long import everything_long
from tests.support.waiting import wait_until

from penstock import Server
from penstock.engine.config import Config
from penstock.engine.declarations import REGISTRY, Flag, command
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import OnceFull, OnceUnknown, ReplyError
from penstock.protocol.resp import OK
from penstock.testing.clock import ManualClock
from penstock.types.once_records import ClientRecord


class Numbered:
    """A client that says ONCE around everything; `floor` stays where it is until a test moves it."""

    def __init__(self, client: redis.Redis, name: str = "me") -> None:
        self.client = client
        self.name = name
        self.number = 0
        self.floor = 1

    def send(self, *words: Any) -> Any:
        self.number += 1
        return self.again(self.number, *words)

    def again(self, number: int, *words: Any) -> Any:
        return self.client.execute_command("ONCE", self.name, number, self.floor, *words)


@pytest.fixture(params=["loop", "threads"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with everything_long() if request.param == "threads" else nullcontext(), Server(worker_threshold=1) as server:
        yield server


@pytest.fixture
def once(server: Server) -> Iterator[Numbered]:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        yield Numbered(client)


def info(client: redis.Redis) -> dict[str, Any]:
    found: dict[str, Any] = client.info("once")
    return found


def test_a_repeat_is_answered_as_the_first_and_runs_nothing(once: Numbered) -> None:
    assert once.send("INCR", "n") == 1
    assert once.send("INCRBY", "n", 10) == 11
    assert once.again(1, "INCR", "n") == 1
    assert once.again(2, "INCRBY", "n", 10) == 11
    assert once.client.get("n") == b"11"
    assert info(once.client)["once_repeated"] == 2


def test_numbers_may_arrive_in_any_order(once: Numbered) -> None:
    assert once.again(3, "RPUSH", "l", "c") == 1
    assert once.again(1, "RPUSH", "l", "a") == 2
    assert once.again(3, "RPUSH", "l", "c") == 1
    assert once.client.lrange("l", 0, -1) == [b"c", b"a"]


def test_clients_are_told_apart(once: Numbered) -> None:
    other = Numbered(once.client, "other")
    assert once.send("INCR", "n") == 1
    assert other.send("INCR", "n") == 2


def test_an_error_is_kept_too(once: Numbered) -> None:
    once.client.rpush("l", 1)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        once.send("INCR", "l")
    once.client.delete("l")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        once.again(1, "INCR", "l")
    assert not once.client.exists("l")


def test_the_floor_lets_replies_go(once: Numbered) -> None:
    for _ in range(10):
        once.send("INCR", "n")
    assert info(once.client)["once_replies"] == 10
    once.floor = 8
    once.send("INCR", "n")
    assert info(once.client)["once_replies"] == 4
    with pytest.raises(redis.ResponseError, match="ONCESTALE 7 is below the floor 8"):
        once.client.execute_command("ONCE", "me", 7, 7, "INCR", "n")
    assert once.client.get("n") == b"11"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["x", 0, 1, "INCR", "n"], "the number is 0; it starts at 1"),
        (["x", 1, 0, "INCR", "n"], "the floor is 0; it starts at 1"),
        (["x", "one", 1, "INCR", "n"], "not an integer"),
        (["x", 1, 2, "INCR", "n"], "the floor 2 is above the number 1"),
        (["x" * 129, 1, 1, "INCR", "n"], "a client-id has at most 128 bytes"),
        (["x", 1, 1, "NOPE"], "unknown command 'NOPE'"),
        (["x", 1, 1, "INCR"], "wrong number of arguments for 'incr'"),
        (["x", 1, 1, "GET", "n"], "GET changes nothing"),
        (["x", 1, 1, "EVAL_RO", "return 1", "0"], "EVAL_RO changes nothing"),
        (["x", 1, 1, "PING"], "PING changes nothing"),
        (["x", 1, 1, "MULTI"], "MULTI cannot run under ONCE"),
        (["x", 1, 1, "ONCE", "y", 1, 1, "INCR", "n"], "ONCE cannot run under ONCE"),
        (["x", 1, 1, "LAZY", "INCR", "n"], "LAZY cannot run under ONCE"),
        (["x", 1, 1, "ONCEKEPT", "y", 1, 1, "+OK\r\n"], "ONCEKEPT cannot run under ONCE"),
        (["x", 9, 5, "INCR", "n"], "ONCEUNKNOWN nothing is known of client x"),
    ],
)
def test_what_is_refused_says_why_and_runs_nothing(once: Numbered, words: list[Any], problem: str) -> None:
    with pytest.raises(redis.ResponseError, match=problem.replace("'", ".")):
        once.client.execute_command("ONCE", *words)
    assert once.client.dbsize() == 0
    assert info(once.client)["once_clients"] == 0


def test_a_refusal_is_not_kept(once: Numbered) -> None:
    once.client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        once.send("SET", "a", "1")
    once.client.config_set("maxmemory", 0)
    assert once.again(1, "SET", "a", "1") == b"OK"


def test_the_room_for_replies_has_a_bound(once: Numbered) -> None:
    once.send("INCR", "n")
    once.client.config_set("once-max-bytes", 100)
    with pytest.raises(redis.ResponseError, match=r"ONCEFULL .* once-max-bytes allows 100"):
        once.send("INCR", "n")
    assert once.again(1, "INCR", "n") == 1, "what was kept is still answered"
    assert once.client.get("n") == b"1"


def test_permissions_are_those_of_the_command_inside(server: Server, once: Numbered) -> None:
    once.client.execute_command("ACL", "SETUSER", "bob", "on", "nopass", "~mine*", "+once", "+incr", "+select")
    with redis.Redis.from_url(server.url, username="bob", password="x", protocol=2, driver_info=None) as bob:
        mine = Numbered(bob, "bob")
        assert mine.send("INCR", "mine") == 1
        with pytest.raises(redis.exceptions.NoPermissionError):
            mine.send("SET", "mine", 1)
        with pytest.raises(redis.exceptions.NoPermissionError):
            mine.send("INCR", "yours")
    assert once.client.keys() == [b"mine"]


def user(server: Server, name: str, rules: str) -> redis.Redis:
    """A client of a new user."""
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", name, "on", "nopass", *rules.split())
    return redis.Redis.from_url(server.url, username=name, password="x", protocol=2, driver_info=None)


def test_a_kept_reply_is_not_for_who_may_no_longer_run_the_command(server: Server, once: Numbered) -> None:
    with user(server, "bob", "~mine* +once +set +select") as bob:
        mine = Numbered(bob)
        once.client.set("mine", "secret")
        assert mine.send("SET", "mine", 1, "GET") == b"secret"
        once.client.execute_command("ACL", "SETUSER", "bob", "-set")
        with pytest.raises(redis.exceptions.NoPermissionError, match="no permissions to run the 'set' command"):
            mine.again(1, "SET", "mine", 1, "GET")
        once.client.execute_command("ACL", "SETUSER", "bob", "+set", "resetkeys", "%W~mine*")
        with pytest.raises(redis.exceptions.NoPermissionError, match="one of the keys"):
            mine.again(1, "SET", "mine", 1, "GET")


@pytest.mark.parametrize("rules", ["~mine* +once +oncebegin +incr +select", "~* &* +@all"])
def test_the_same_id_of_another_user_is_another_client(server: Server, once: Numbered, rules: str) -> None:
    assert once.send("INCR", "n") == 1
    with user(server, "bob", rules) as bob:
        stranger = Numbered(bob)
        assert stranger.send("INCR", "mine") == 1, "it ran: what was answered to another user is not known to this one"
        bob.execute_command("ONCEBEGIN", "me")
        assert [stranger.send("INCR", "mine") for _ in range(8)] == [*range(2, 10)]
        stranger.floor = 9
        assert stranger.send("INCR", "mine") == 10
        assert once.again(1, "INCR", "n") == 1, "the floor is where its own user left it"
        for forged in ("bob\0me", "default\0me", "\0me"):
            for client in (bob, once.client):
                with pytest.raises(redis.ResponseError, match="no NUL bytes"):
                    Numbered(client, forged).send("INCR", "mine")
    assert info(once.client)["once_clients"] == 2
    assert once.client.get("n") == b"1"


def test_replies_are_not_kept_in_the_name_of_others(server: Server, once: Numbered) -> None:
    once.send("INCR", "n")
    refused = pytest.raises(redis.exceptions.NoPermissionError, match="in the name of others")
    with user(server, "bob", "~mine* +@all") as bob, refused:
        bob.execute_command("ONCEKEPT", "me", 2, 2, "+forged\r\n")
    assert once.send("INCR", "n") == 2


def test_a_users_clients_are_known_after_a_restart(tmp_path: Path) -> None:
    directives = {"dir": tmp_path, "appendonly": "yes", "user": ["bob on nopass ~* &* +@all"]}
    for start in ("first", "second"):
        with Server(**directives) as server, user(server, "bob", "") as bob:
            bob.execute_command("ONCEBEGIN", "me")
            mine = Numbered(bob)
            mine.number = 1
            assert [mine.send("INCR", "n"), mine.send("INCR", "n")] == [1, 2], start
            assert info(bob)["once_clients"] == 1


def test_both_versions_of_the_protocol_get_theirs(server: Server, once: Numbered) -> None:
    with redis.Redis.from_url(server.url, protocol=3) as client:
        new = Numbered(client)
        assert once.send("ZADD", "z", 1.5, "a") == 1
        assert once.send("ZPOPMIN", "z", 1) == [b"a", b"1.5"]
        assert new.again(2, "ZPOPMIN", "z", 1) == [[b"a", 1.5]]
        assert once.again(2, "ZPOPMIN", "z", 1) == [b"a", b"1.5"]


def test_inside_a_transaction_each_command_has_its_number(once: Numbered) -> None:
    def transaction() -> list[Any]:
        with once.client.pipeline(transaction=True) as pipe:
            pipe.execute_command("ONCE", "me", 1, 1, "INCR", "n")
            pipe.execute_command("ONCE", "me", 2, 1, "RPUSH", "l", "x")
            replies: list[Any] = pipe.execute()
        return replies

    assert transaction() == [1, 1]
    assert transaction() == [1, 1]
    assert once.client.get("n") == b"1"
    assert once.client.llen("l") == 1


def test_a_script_runs_once(once: Numbered) -> None:
    script = "redis.call('INCR', KEYS[1]); return redis.call('INCR', KEYS[1])"
    assert once.send("EVAL", script, 1, "n") == 2
    assert once.again(1, "EVAL", script, 1, "n") == 2
    with pytest.raises(redis.ResponseError, match="not allowed from script"):
        once.client.eval("return redis.call('ONCE', 'c', '1', '1', 'INCR', 'n')", 0)


def test_command_getkeys_sees_the_keys_inside(once: Numbered) -> None:
    words = ["ONCE", "me", "1", "1", "SINTERSTORE", "d", "a", "b"]
    assert once.client.command_getkeys(*words) == ["d", "a", "b"]


def test_a_blocked_command_is_kept_when_it_is_served(server: Server, once: Numbered) -> None:
    replies: list[Any] = []
    with redis.Redis.from_url(server.url, protocol=2) as blocked:
        reader = threading.Thread(target=lambda: replies.append(Numbered(blocked).send("BLPOP", "l", 0)))
        reader.start()
        while not once.client.info("clients")["blocked_clients"]:
            pass
        once.client.rpush("l", "a", "b")
        reader.join()
    assert replies == [[b"l", b"a"]]
    assert once.again(1, "BLPOP", "l", 0) == [b"l", b"a"]
    assert once.client.lrange("l", 0, -1) == [b"b"]


def test_a_repeat_of_a_blocked_command_waits_in_its_place(server: Server, once: Numbered) -> None:
    outcomes: dict[str, Any] = {}

    def wait(name: str, client: redis.Redis) -> None:
        try:
            outcomes[name] = Numbered(client).send("BLPOP", "l", 0)
        except redis.ResponseError as error:
            outcomes[name] = str(error)

    with redis.Redis.from_url(server.url) as first, redis.Redis.from_url(server.url) as second:
        threads = [threading.Thread(target=wait, args=("first", first))]
        threads[0].start()
        while not once.client.info("clients")["blocked_clients"]:
            pass
        threads.append(threading.Thread(target=wait, args=("second", second)))
        threads[1].start()
        threads[0].join()
        assert "the same command was sent again" in outcomes["first"]
        once.client.rpush("l", "a")
        threads[1].join()
    assert outcomes["second"] == [b"l", b"a"]


def test_a_stranger_does_not_take_the_place_of_a_blocked_command(server: Server, once: Numbered) -> None:
    with user(server, "bob", "~mine* +@all") as bob, redis.Redis.from_url(server.url, protocol=2) as blocked:
        replies: list[Any] = []
        reader = threading.Thread(target=lambda: replies.append(Numbered(blocked).send("BLPOP", "l", 0)))
        reader.start()
        while not once.client.info("clients")["blocked_clients"]:
            pass
        assert Numbered(bob).send("BLPOP", "mine", 0.01) is None
        once.client.rpush("l", "a")
        reader.join()
    assert replies == [[b"l", b"a"]]


@pytest.mark.parametrize("source", ["log", "snapshot"])
def test_a_client_that_has_begun_is_known_also_after_a_restart_and_is_not_taken_for_a_new_one(
    tmp_path: Path, source: str
) -> None:
    settings = {"appendonly": "no" if source == "snapshot" else "yes", "appendfsync": "always"}
    with Server(dir=tmp_path, **settings) as server, redis.Redis.from_url(server.url) as client:
        assert client.execute_command("ONCEBEGIN", "me") == client.execute_command("ONCEBEGIN", "me") == b"OK"
        if source == "snapshot":
            client.save()
    with Server(dir=tmp_path, **settings) as server, redis.Redis.from_url(server.url) as client:
        for _ in range(2):
            assert client.execute_command("ONCE", "me", 2, 2, "INCR", "n") == 1
        server.call(lambda app: app.engine.keyspace.once_records.forget_idle(1 << 62))
        with pytest.raises(redis.ResponseError, match="ONCEUNKNOWN nothing is known of client me"):
            client.execute_command("ONCE", "me", 2, 2, "INCR", "n")
        assert client.get("n") == b"1"


def test_a_client_that_begins_is_refused_for_what_it_would_be_refused_for_later(once: Numbered) -> None:
    with pytest.raises(redis.ResponseError, match="at most 128 bytes"):
        once.client.execute_command("ONCEBEGIN", "x" * 129)
    once.client.execute_command("ONCEBEGIN", "known")
    once.client.config_set("once-max-bytes", 100)
    with pytest.raises(redis.ResponseError, match="ONCEFULL"):
        once.client.execute_command("ONCEBEGIN", "another")
    assert once.client.execute_command("ONCEBEGIN", "known") == b"OK" and info(once.client)["once_clients"] == 1


@pytest.mark.parametrize("source", ["log", "snapshot", "rewritten log"])
def test_what_was_kept_is_there_after_a_restart(tmp_path: Path, source: str) -> None:
    settings = {"appendonly": "no" if source == "snapshot" else "yes", "appendfsync": "always"}
    with Server(dir=tmp_path, **settings) as server, redis.Redis.from_url(server.url, protocol=2) as client:
        mine = Numbered(client)
        assert mine.send("INCR", "n") == 1
        mine.floor = 2
        assert mine.send("ZADD", "z", 1.5, "a") == 1
        assert mine.send("ZPOPMIN", "z", 1) == [b"a", b"1.5"]
        assert mine.send("EVAL", "return redis.call('INCR', KEYS[1])", 1, "n") == 2
        if source == "snapshot":
            client.save()
        elif source == "rewritten log":
            client.bgrewriteaof()
            while client.info("persistence")["aof_rewrites"] == 0:
                pass
    with Server(dir=tmp_path, **settings) as server, redis.Redis.from_url(server.url, protocol=2) as client:
        again = Numbered(client)
        again.floor = 2
        assert again.again(2, "ZADD", "z", 1.5, "a") == 1
        assert again.again(3, "ZPOPMIN", "z", 1) == [b"a", b"1.5"]
        assert again.again(4, "EVAL", "return redis.call('INCR', KEYS[1])", 1, "n") == 2
        assert client.get("n") == b"2"
        with pytest.raises(redis.ResponseError, match="ONCESTALE"):
            again.client.execute_command("ONCE", "me", 1, 1, "INCR", "n")
        client.flushall()
        assert again.again(3, "ZPOPMIN", "z", 1) == [b"a", b"1.5"], "FLUSHALL is about data"
        client.execute_command("DEBUG", "RELOAD")
        assert again.again(3, "ZPOPMIN", "z", 1) == [b"a", b"1.5"]


def test_a_client_that_is_idle_for_long_is_forgotten_and_told_so() -> None:
    clock = ManualClock()
    engine = Engine(Config(), clock)
    session = Session(engine)
    for number in (1, 2):
        engine.execute(session, [b"ONCE", b"me", b"%d" % number, b"%d" % number, b"INCR", b"n"])
    clock.advance(engine.config.once_idle_timeout)
    engine.once.tick()
    assert engine.once.info()["once_clients"] == 1
    clock.advance(1000)
    engine.once.tick()
    assert engine.once.info()["once_clients"] == 0
    assert engine.once.info()["once_forgotten_clients"] == 1
    with pytest.raises(OnceUnknown, match="start with a new client-id"):
        engine.execute(session, [b"ONCE", b"me", b"2", b"2", b"INCR", b"n"])
    assert engine.execute(session, [b"GET", b"n"]) in (2, b"2")


def test_a_clock_that_is_set_forward_forgets_nobody() -> None:
    """Forgetting a client whose reply is on its way would let its repeat run again."""
    clock = ManualClock()
    engine = Engine(Config(), clock)
    session = Session(engine)
    engine.once.tick()
    engine.execute(session, [b"ONCE", b"me", b"1", b"1", b"INCR", b"n"])
    clock.advance(10 * engine.config.once_idle_timeout)
    engine.once.tick()
    engine.execute(session, [b"ONCE", b"me", b"1", b"1", b"INCR", b"n"])
    assert engine.execute(session, [b"GET", b"n"]) in (1, b"1")
    for _ in range(engine.config.once_idle_timeout // 10_000 + 1):
        clock.advance(10_000)
        engine.once.tick()
    assert engine.once.info()["once_clients"] == 0  # but one that stays away is


def test_a_clock_that_is_set_back_keeps_nobody_for_longer() -> None:
    clock = ManualClock(1_000_000_000_000)
    engine = Engine(Config(), clock)
    session = Session(engine)
    engine.once.tick()
    engine.execute(session, [b"ONCE", b"me", b"1", b"1", b"INCR", b"n"])
    clock.advance(-500_000_000_000)
    engine.once.tick()
    assert engine.once.info()["once_clients"] == 1
    for _ in range(engine.config.once_idle_timeout // 10_000 + 1):
        clock.advance(10_000)
        engine.once.tick()
    assert engine.once.info()["once_clients"] == 0


@pytest.mark.parametrize("jump", [100, -100])
def test_a_client_that_comes_just_after_the_clock_was_set_is_not_forgotten(jump: int) -> None:
    """The server notices the new time a moment later, when the client has it already."""
    clock = ManualClock(1_000_000_000_000)
    engine = Engine(Config(), clock)
    session = Session(engine)
    timeout = engine.config.once_idle_timeout
    engine.once.tick()
    engine.execute(session, [b"ONCE", b"me", b"1", b"1", b"INCR", b"n"])
    clock.advance(jump * timeout)
    engine.execute(session, [b"ONCE", b"me", b"2", b"2", b"INCR", b"n"])
    engine.once.tick()
    engine.execute(session, [b"ONCE", b"me", b"3", b"3", b"INCR", b"n"])
    assert engine.execute(session, [b"GET", b"n"]) in (3, b"3")
    for _ in range(timeout // 10_000 + 1):
        clock.advance(10_000)
        engine.once.tick()
    assert engine.once.info()["once_clients"] == 0, "it stays away"


class CountedLookups(dict[bytes, ClientRecord]):
    """Counts how often it is looked at."""

    looks = 0

    def __contains__(self, name: object) -> bool:
        self.looks += 1
        return super().__contains__(name)

    def __iter__(self) -> Iterator[bytes]:
        self.looks += len(self)
        return super().__iter__()


def test_a_thousand_clients_of_one_connection_cost_no_more_than_each_alone() -> None:
    engine = Engine(Config(), ManualClock())
    clients = engine.keyspace.once_records.clients = CountedLookups()
    session = Session(engine)
    for number in range(1000):
        engine.execute(session, [b"ONCEBEGIN", b"%d" % number])
    assert clients.looks < 10_000
    for number in range(1000):  # those that have said goodbye elsewhere take no room
        engine.execute(Session(engine), [b"ONCEEND", b"%d" % number])
    for number in range(1000, 2000):
        engine.execute(session, [b"ONCEBEGIN", b"%d" % number])
        engine.execute(Session(engine), [b"ONCEEND", b"%d" % number])
    assert len(session.once_clients) <= 64


def test_an_effect_and_its_reply_are_one_unit_of_the_log() -> None:
    engine = Engine(Config(), ManualClock())
    units: list[list[tuple[int, list[bytes]]]] = []
    engine.log = units.append
    session = Session(engine)
    engine.execute(session, [b"SELECT", b"3"])
    engine.execute(session, [b"ONCE", b"me", b"1", b"1", b"SPOP", b"s"])
    engine.execute(session, [b"SADD", b"s", b"a"])
    engine.execute(session, [b"ONCE", b"me", b"2", b"1", b"SPOP", b"s"])
    engine.execute(session, [b"ONCE", b"me", b"2", b"1", b"SPOP", b"s"])
    assert units == [
        [(3, [b"SADD", b"s", b"a"])],
        [(3, [b"SREM", b"s", b"a"]), (3, [b"ONCEKEPT", b"me", b"2", b"1", b"$1\r\na\r\n"])],
    ]
    with pytest.raises(ReplyError, match="the number is 0"):
        engine.execute(session, [b"ONCEKEPT", b"me", b"0", b"1", b"+OK\r\n"])


@pytest.mark.parametrize(
    ("number", "floor", "problem"),
    [
        (b"60", b"100", "above the number 60"),
        (b"007", b"1", "not an integer"),
        (b"7", b"01", "not an integer"),
        (b"1" * 5000, b"1", "not an integer"),
        (b"7", b"1" * 5000, "not an integer"),
        (b"0", b"0", "it starts at 1"),
    ],
)
@pytest.mark.parametrize("said", [b"1", b"100"])
def test_the_short_way_refuses_what_the_long_way_does(
    once: Numbered, said: bytes, number: bytes, floor: bytes, problem: str
) -> None:
    """A number between the highest that ran and the floor, numbers in unusual spellings, and huge numbers."""
    once.send("SET", "a", "first")
    once.client.execute_command("ONCE", once.name, 200, said, "SET", "a", "second")
    with pytest.raises(redis.ResponseError, match=problem):
        once.client.execute_command("ONCE", once.name, number, floor, "SET", "a", "third")
    assert once.client.get("a") == b"second"


# -- clients that are done, or gone ---------------------------------------------------------------------------


def test_a_client_that_says_goodbye_is_forgotten_at_once_and_after_a_restart(tmp_path: Path) -> None:
    settings = {"dir": tmp_path, "appendonly": "yes", "appendfsync": "always"}
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        for name in ("me", "you"):
            client.execute_command("ONCEBEGIN", name)
            client.execute_command("ONCE", name, 2, 2, "INCR", "n")
        assert client.execute_command("ONCEEND", "me", "stranger") == 1
        assert client.execute_command("ONCEEND", "me") == 0
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        assert info(client)["once_clients"] == 1
        assert client.execute_command("ONCE", "you", 2, 2, "INCR", "n") == 2
        with pytest.raises(redis.ResponseError, match="ONCEUNKNOWN nothing is known of client me"):
            client.execute_command("ONCE", "me", 2, 2, "INCR", "n")


def test_the_refusal_of_a_forgotten_client_says_why_it_was_forgotten(once: Numbered) -> None:
    once.send("INCR", "n")
    once.client.execute_command("ONCEEND", "me")
    with pytest.raises(redis.ResponseError, match=r"ONCEUNKNOWN .* it has said goodbye"):
        once.client.execute_command("ONCE", "me", 2, 2, "INCR", "n")


def test_a_user_ends_only_its_own_clients(server: Server, once: Numbered) -> None:
    once.send("INCR", "n")
    with user(server, "bob", "~mine* +@all") as bob:
        assert bob.execute_command("ONCEEND", "me") == 0
    assert info(once.client)["once_clients"] == 1


def test_many_clients_that_are_gone_with_large_replies_shut_out_no_other(tmp_path: Path) -> None:
    """Consumers read a large piece of a stream each, and are killed: their last replies fill once-max-bytes."""
    settings = {"dir": tmp_path, "appendonly": "yes", "appendfsync": "always", "once-max-bytes": 2_000_000}
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        for number in range(26):
            client.execute_command("TWRITE", "s", "tag", b"x" * 100_000)
            with redis.Redis.from_url(server.url) as consumer:
                consumer.execute_command("ONCEBEGIN", f"c{number}")
                consumer.execute_command("ONCE", f"c{number}", 2, 2, "TREAD", "s", 1, 1, "GROUP", f"g{number}")
        assert info(client)["once_bytes"] > 2_000_000
        assert client.execute_command("ONCEBEGIN", "new") == b"OK"
        assert client.execute_command("ONCE", "new", 2, 2, "INCR", "n") == 1
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        assert info(client)["once_bytes"] > 2_000_000
        assert client.execute_command("ONCE", "new", 3, 3, "INCR", "n") == 2
        assert client.execute_command("ONCEBEGIN", "newer") == b"OK"
        assert client.execute_command("ONCE", "newer", 2, 2, "INCR", "n") == 3
        with pytest.raises(redis.ResponseError, match=r"ONCEFULL this client keeps .* more than its share") as refused:
            client.execute_command("ONCE", "c7", 3, 2, "INCR", "n")
        assert "of 28 clients, with" in str(refused.value) and "have no connection" in str(refused.value)
        assert client.execute_command("ONCE", "c7", 3, 3, "INCR", "n") == 4, "it has moved its floor up"


class Connected:
    """Clients of an engine with a clock of its own."""

    def __init__(self, **directives: int) -> None:
        self.clock = ManualClock()
        self.engine = Engine(Config(), self.clock)
        for name, value in directives.items():
            setattr(self.engine.config, name, value)
        self.engine.once.tick()

    def connect(self) -> Session:
        session = Session(self.engine)
        self.engine.sessions[session.id] = session
        return session

    def run(self, session: Session, *words: bytes) -> Any:
        return self.engine.execute(session, list(words))

    def wait(self, milliseconds: int) -> None:
        """Let time pass as it passes for a server: in small steps."""
        for _ in range(milliseconds // 1000):
            self.clock.advance(1000)
            self.engine.once.tick()

    @property
    def known(self) -> int:
        return len(self.engine.keyspace.once_records.clients)


def test_a_client_without_a_connection_is_forgotten_soon() -> None:
    world = Connected(once_gone_timeout=60_000)
    gone, idle = world.connect(), world.connect()
    world.run(gone, b"ONCE", b"gone", b"1", b"1", b"INCR", b"n")
    world.run(idle, b"ONCE", b"idle", b"1", b"1", b"INCR", b"n")
    world.wait(120_000)
    assert world.known == 2, "both have a connection"
    world.engine.forget(gone)
    world.wait(60_000)
    assert world.known == 2
    world.wait(2000)
    assert world.known == 1
    with pytest.raises(OnceUnknown, match="its connection had ended"):
        world.run(idle, b"ONCE", b"gone", b"2", b"2", b"INCR", b"n")


def test_a_client_that_comes_back_within_its_patience_gets_its_answers() -> None:
    world = Connected(once_gone_timeout=60_000)
    first = world.connect()
    world.run(first, b"ONCEBEGIN", b"me", b"PATIENCE", b"600000")
    world.run(first, b"ONCE", b"me", b"2", b"2", b"INCR", b"n")
    world.engine.forget(first)
    world.wait(590_000)
    second = world.connect()
    assert world.run(second, b"ONCE", b"me", b"2", b"2", b"INCR", b"n") == b":1\r\n"
    world.wait(1_200_000)
    assert world.known == 1, "it has a connection again"
    world.engine.forget(second)
    world.wait(602_000)
    assert world.known == 0


def test_the_connection_that_a_client_came_from_may_end_after_it_has_another() -> None:
    world = Connected(once_gone_timeout=60_000)
    first, second = world.connect(), world.connect()
    for number, session in ((b"2", first), (b"3", second)):
        world.run(session, b"ONCEBEGIN", b"me")
        world.run(session, b"ONCE", b"me", number, b"2", b"INCR", b"n")
    world.engine.forget(first)
    world.wait(120_000)
    assert world.known == 1


def test_no_patience_is_longer_than_the_idle_timeout() -> None:
    world = Connected()
    session = world.connect()
    world.run(session, b"ONCEBEGIN", b"me", b"PATIENCE", b"%d" % (1 << 40))
    world.engine.forget(session)
    world.wait(world.engine.config.once_idle_timeout + 2000)
    assert world.known == 0


def test_the_time_without_the_server_does_not_count(tmp_path: Path) -> None:
    """All clients have lost their connection with the server, and find it again as soon as it is there."""
    settings = {"dir": tmp_path, "appendonly": "yes", "appendfsync": "always"}
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        client.execute_command("ONCEBEGIN", "me", "PATIENCE", 90_000)
        client.execute_command("ONCE", "me", 2, 2, "INCR", "n")
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        records = server.call(lambda app: app.engine.keyspace.once_records)
        assert [record.patience for record in records.clients.values()] == [90_000]
    world = Connected()
    world.engine.keyspace.once_records.meet(b"me", world.clock.now - 10_000_000)
    world.engine.once._records = None  # as after loading
    world.engine.once._looked = 0
    world.engine.once.tick()
    assert world.known == 1


def test_a_reload_leaves_clients_their_connections(tmp_path: Path) -> None:
    with Server(dir=tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.execute_command("ONCEBEGIN", "me")
        client.execute_command("DEBUG", "RELOAD")
        wait_until(lambda: info(client)["once_clients_without_connection"] == 0)
        assert info(client)["once_clients"] == 1


def test_a_client_learns_at_its_beginning_what_it_would_have_to_ask(once: Numbered) -> None:
    said = once.client.execute_command("ONCEBEGIN", "me", "PATIENCE", 5, "WITHINFO")
    told = dict(zip(said[::2], said[1::2], strict=True)) if isinstance(said, list) else said
    assert told[b"once-idle-timeout"] == 3_600_000 and told[b"once-gone-timeout"] == 120_000
    assert told[b"commands"].decode() == REGISTRY.digest() and told[b"version"]
    for wrong in (["SOON"], ["PATIENCE"], ["PATIENCE", -1]):
        with pytest.raises(redis.ResponseError, match=r"syntax error|out of range"):
            once.client.execute_command("ONCEBEGIN", "me", *wrong)


def test_another_table_of_commands_has_another_digest() -> None:
    before, digest = REGISTRY.saved(), REGISTRY.digest()
    try:
        command("NEWCOMER", arity=1, flags=Flag.WRITE, group="generic")(newcomer)
        assert REGISTRY.digest() != digest
    finally:
        REGISTRY.restore(before)
    assert REGISTRY.digest() == digest


def newcomer(session: Session, argv: list[bytes]) -> int:
    """Do nothing."""
    return 0


def test_lazy_is_refused_with_the_reason(once: Numbered) -> None:
    with pytest.raises(redis.ResponseError, match="LAZY cannot run under ONCE: the reply that is kept"):
        once.send("LAZY", "SADD", "s", "a")
    assert not once.client.exists("s")


def test_many_clients_are_forgotten_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 of them held the server up for a second."""
    monkeypatch.setattr("penstock.engine.concurrency.once.SLICE", 10)
    world = Connected()
    session = world.connect()
    for number in range(35):
        world.run(session, b"ONCEBEGIN", b"me%d" % number)
    world.engine.forget(session)
    known = [35]
    for _ in range(4):  # the connection is taken from some at a time, too
        world.engine.once.tick()
    while known[-1]:
        world.clock.advance(5000)
        world.engine.once.tick()
        known.append(world.known)
    assert all(before - after <= 10 for before, after in pairwise(known))
    assert {35, 25, 15, 5} <= set(known)


def test_a_user_with_many_clients_locks_no_other_user_out() -> None:
    world = Connected(once_max_bytes=100_000)
    eve, bob = world.connect(), world.connect()
    for session, name in ((eve, b"eve"), (bob, b"bob")):
        world.run(session, b"ACL", b"SETUSER", name, b"on", b"nopass", b"+@all", b"~*")
        world.run(session, b"AUTH", name, b"x")
    with pytest.raises(OnceFull, match="more than its share"):
        for number in range(1000):
            world.run(eve, b"ONCEBEGIN", b"id%d" % number)
    assert world.known > 100
    longer = b"a-client-that-takes-more-than-one-of-eves"
    assert world.run(bob, b"ONCEBEGIN", longer) == OK
    assert world.run(bob, b"ONCE", longer, b"2", b"2", b"INCR", b"n")
    with pytest.raises(OnceUnknown, match="client other:"):
        world.run(bob, b"ONCE", b"other", b"2", b"2", b"INCR", b"n")
    world.engine.keyspace.once_records.check()
