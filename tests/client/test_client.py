"""Both clients on both servers: a program written for redis-py works, and what cannot share a connection does not."""

from __future__ import annotations

import inspect
import re
import threading
import weakref
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.support.client.clients import Connect

from penstock import Client, Server, State, aio
from penstock.client.api.shared import OPTIONS
from penstock.client.delivery import Delivery
from penstock.client.errors import NotSent
from penstock.testing.proxy import FaultProxy


def ask(one: Any) -> list[Any]:
    one.flushall()
    return [
        one.set("a", 1), one.set("a", 2, nx=True), one.set("a", 2, ex=100), one.get("a"), one.incr("a", 5),
        one.mget(["a", "b"]), one.hset("h", mapping={"x": 1, "y": 2}), one.hgetall("h"), one.sadd("s", 1, 2),
        one.smembers("s"), one.zadd("z", {"m": 1.5}), one.zrange("z", 0, -1, withscores=True),
        one.config_get("maxmemory"), one.mget([]), one.client_setname("me"), one.client_getname(), one.exists("a", "h"),
        one.type("z"), one.object("encoding", "a"),
    ]  # fmt: skip


def test_command_methods_answer_as_redis_py_does(client: Any, peer: str) -> None:
    with redis.Redis.from_url(peer) as plain:
        assert ask(client) == ask(plain)


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_decoded_if_asked(connect: Connect, peer: str, protocol: int) -> None:
    client = connect(peer, decode_responses=True, protocol=protocol)
    client.flushall()
    client.hset("h", "field", "värde")
    assert client.hgetall("h") == {"field": "värde"} and client.get("none") is None
    client.set("raw", b"\xff")
    assert isinstance(client.dump("raw"), bytes)  # redis-py asks for bytes there


def test_a_reply_that_cannot_be_decoded_fails_its_command_only(connect: Connect, peer: str) -> None:
    client = connect(peer, decode_responses=True)
    client.set("bad", b"\xff")
    with pytest.raises(UnicodeDecodeError) as failure:
        client.get("bad")
    assert failure.value.state is State.REPLIED  # type: ignore[attr-defined]
    assert client.set("good", "x") and client.get("good") == "x" and client.counters.reconnects == 0


def test_an_argument_that_cannot_be_encoded_fails_its_call_only(client: Any) -> None:
    for bad in (None, ["list"], True, "\ud800"):
        with pytest.raises(redis.DataError):
            client.execute_command("SET", "a", bad)
    assert client.counters.sent == 1  # FLUSHALL
    assert client.set(bytearray(b"k"), memoryview(b"v")) and client.get("k") == b"v"


def test_errors_of_the_server_are_redis_pys_and_have_a_state(client: Any) -> None:
    client.set("a", "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE") as failure:
        client.lpush("a", 1)
    assert failure.value.state is State.REPLIED  # type: ignore[attr-defined]
    with pytest.raises(redis.exceptions.NoScriptError):
        client.evalsha("0" * 40, 0)


def test_a_pipeline_answers_in_order_and_names_the_command_that_failed(client: Any) -> None:
    pipe = client.pipeline(transaction=False)
    pipe.set("a", 1)
    pipe.lpush("a", 2)
    pipe.incr("a")
    answers = pipe.execute(raise_on_error=False)
    assert answers[0] is True and isinstance(answers[1], redis.ResponseError) and answers[2] == 2
    pipe.lpush("a", 2)
    with pytest.raises(redis.ResponseError, match=r"Command # 1 \(LPUSH a 2\) of pipeline"):
        pipe.execute()
    assert pipe.execute() == []


def test_a_transaction_is_all_or_nothing(client: Any) -> None:
    pipe = client.pipeline()
    pipe.set("a", 1)
    pipe.hset("h", mapping={"x": 1})
    pipe.mget([])
    pipe.hgetall("h")
    assert pipe.execute() == [True, 1, [], {b"x": b"1"}]
    pipe.set("a", 2)
    pipe.execute_command("NOSUCHCOMMAND")
    with pytest.raises(redis.ResponseError, match="Command # 2"):
        pipe.execute()
    assert client.get("a") == b"1"


def test_watch_notices_a_change_and_transaction_tries_again(client: Any) -> None:
    client.set("a", 1)
    pipe = client.pipeline()
    pipe.watch("a")
    value = int(pipe.get("a"))
    client.set("a", 10)
    pipe.multi()
    pipe.set("a", value + 1)
    with pytest.raises(redis.WatchError):
        pipe.execute()
    assert client.get("a") == b"10"
    pipe.watch("a")
    pipe.multi()
    pipe.incr("a")
    assert pipe.execute() == [11]
    assert client.counters.buffered_commands == 0


def test_a_watch_is_on_a_connection_of_its_own(client: Any) -> None:
    with client.pipeline() as pipe:
        pipe.watch("a")
        client.set("b", 1)  # would be queued, or would end the WATCH, if it were the same
        pipe.multi()
        pipe.set("a", 1)
        assert pipe.execute() == [True]


def test_blocking_commands_do_not_hold_others_up(client: Any) -> None:
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(client.blpop("queue", 10)))
    waiting.start()
    while not any(session["cmd"] == "blpop" for session in client.client_list()):
        pass
    assert client.incr("a") == 1
    client.rpush("queue", "x")
    waiting.join()
    assert [list(answer) for answer in answers] == [[b"queue", b"x"]]


def test_a_blocking_command_may_wait_for_ever(client: Any, peer: str) -> None:
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(client.blpop("queue", 0)))
    waiting.start()
    with redis.Redis.from_url(peer) as other:
        other.rpush("queue", "x")
    waiting.join()
    assert answers[0][1] == b"x"


def test_an_unreferenced_client_is_freed_at_once(peer: str) -> None:
    client = Client.from_url(peer)
    client.blpop("nothing", 0.01)
    gone = weakref.ref(client)
    del client
    assert gone() is None


def test_scripts_locks_and_pub_sub_work(client: Any, peer: str) -> None:
    script = client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert client.evalsha(client.script_load(script.script), 1, "n", 5) == 5
    with Client.from_url(peer) as plain:
        with plain.lock("lock", timeout=60):
            assert plain.exists("lock")
        assert not plain.exists("lock")
        channel = plain.pubsub(ignore_subscribe_messages=True)
        channel.subscribe("news")
        channel.get_message(timeout=60)
        plain.publish("news", "hello")
        message = None
        while message is None:
            message = channel.get_message(timeout=60)
        assert message["data"] == b"hello"
        channel.close()
        pipe = plain.pipeline()
        plain.register_script("return 7")(client=pipe)
        assert pipe.execute() == [7]


@pytest.mark.parametrize("is_pipeline", [False, True])
def test_a_script_that_the_server_keeps_forgetting_runs_all_the_same(
    connect: Connect, proxy: FaultProxy, witness: redis.Redis, is_pipeline: bool
) -> None:
    """As when a server dies between SCRIPT LOAD and EVALSHA."""
    witness.script_flush()
    for nth in (1, 2, 3):
        proxy.replace_reply(b"-NOSCRIPT No matching script.\r\n", command=b"EVALSHA", nth=nth)
    client = connect(f"redis://127.0.0.1:{proxy.address[1]}")
    real = getattr(client, "real", client)
    count = real.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    if not is_pipeline:
        assert (client._do(lambda: count(["n"], [5])) if real is not client else count(["n"], [5])) == 5
    elif real is client:
        pipe = real.pipeline()
        count(["n"], [5], client=pipe)
        assert pipe.execute() == [5]
    else:

        async def queue() -> Any:
            pipe = real.pipeline()
            await count(["n"], [5], client=pipe)
            return await pipe.execute()

        assert client._do(queue) == [5]
    assert witness.get("n") == b"5"


def test_iterators_work(client: Any, peer: str) -> None:
    with Client.from_url(peer) as plain:
        plain.execute_many([(b"SET", b"key%d" % number, b"") for number in range(100)])
        assert sum(1 for _ in plain.scan_iter(match="key*")) == 100


def test_execute_many_gives_replies_as_they_are(client: Any) -> None:
    assert client.execute_many([(b"SET", b"a", b"1"), ("INCR", "a"), ["GET", "a"], ("CONFIG GET", "save")])[:3] == [
        b"OK",
        2,
        b"2",
    ]
    assert client.execute_many([]) == []
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.execute_many([("LPUSH", "a", 1), ("GET", "a")])
    answers = client.execute_many([("LPUSH", "a", 1), ("GET", "a")], raise_on_error=False)
    assert isinstance(answers[0], redis.ResponseError) and answers[1] == b"2"
    with pytest.raises(redis.DataError):
        client.execute_many([("SET", "never", 1), ("SET", "b", None)])
    assert client.get("never") is None


@pytest.mark.parametrize("name", ["MULTI", "exec", b"WATCH", "DISCARD"])
def test_a_shared_connection_refuses_to_catch_the_commands_of_others(client: Any, name: Any) -> None:
    with pytest.raises(redis.RedisError, match="own"):
        client.execute_command(name, "a")


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (("SUBSCRIBE", "x"), "pubsub()"), (("SUNSUBSCRIBE",), "pubsub()"), (("MONITOR",), "monitor()"),
        (("PSYNC", "?", -1), "redis.Redis"), (("CLIENT", "reply", "off"), "execute_many()"),
        (("CLIENT REPLY", "OFF"), "pipeline()"),
    ],
)  # fmt: skip
def test_a_connection_of_commands_refuses_to_become_a_stream(
    client: Any, command: tuple[str, ...], remedy: str
) -> None:
    for send in (client.execute_command, lambda *words: client.pipeline().execute_command(*words).execute()):
        with pytest.raises(redis.RedisError, match=f"^{' '.join(command[:2]).upper()[:9]}.* use .*{re.escape(remedy)}"):
            send(*command)
    assert client.ping()


def test_a_single_connection_client_may_use_multi_by_hand(connect: Connect, peer: str) -> None:
    client = connect(peer, single_connection_client=True)
    client.flushall()
    assert client.execute_command("MULTI") in (b"OK", True)
    client.execute_command("INCR", "a")
    assert client.execute_command("EXEC") == [1]


def test_a_database_once_selected_is_that_of_blocking_commands_and_watches_too(client: Any) -> None:
    client.select(3)
    client.rpush("list", "x")
    assert client.blpop("list", 1) is not None
    with client.pipeline() as pipe:
        client.set("here", 1)
        pipe.watch("here")
        assert pipe.get("here") == b"1"
    client.select(0)
    client.rpush("list", "y")
    assert client.blpop("list", 1)[1] == b"y"


def test_options_may_stand_in_the_url(connect: Connect, peer: str) -> None:
    client = connect(peer + "?delivery=at_most_once&max_buffered_commands=7&command_timeout=2.5&when_full=raise")
    assert client.delivery is Delivery.AT_MOST_ONCE and client.settings.max_buffered_commands == 7
    assert client.settings.command_timeout == 2.5 and client.ping()
    if isinstance(client, Client):
        with client.client() as twin:
            assert twin.settings == client.settings
    with pytest.raises(ValueError, match="exactly-once"):
        connect(peer, delivery="twice")
    with pytest.raises(ValueError, match="'block'"):
        connect(peer, when_full="drop")


@pytest.mark.parametrize(("ours", "theirs"), [(Client, redis.Redis), (aio.Client, redis.asyncio.Redis)])
def test_help_shows_the_arguments_of_redis_py_and_ours(ours: Any, theirs: Any) -> None:
    shown = inspect.signature(ours).parameters
    assert list(inspect.signature(theirs).parameters) == [name for name in shown if name not in OPTIONS]
    assert (
        set(OPTIONS) <= shown.keys() and shown["command_timeout"].default == 60 and shown["on_replay"].default is None
    )


def test_exactly_once_is_refused_by_a_server_without_it(connect: Connect, theirs: Any) -> None:
    client = connect(theirs.url, delivery="exactly-once")
    with pytest.raises(redis.RedisError, match="ONCE, which this server does not have"):
        client.incr("a")
    client.delivery = "at-least-once"
    assert client.delete("a") is not None


def test_a_missing_password_is_told_with_the_remedy(connect: Connect) -> None:
    with Server(requirepass="secret") as server:
        for url in (server.url, f"penstock://127.0.0.1:{server.port}"):
            with pytest.raises(
                redis.AuthenticationError, match=r"^the server needs a password: name a user .*redis://u"
            ):
                connect(url).ping()


def test_a_wrong_password_raises_what_redis_py_raises(connect: Connect, peer: str) -> None:
    client = connect(peer.replace("redis://", "redis://nobody:wrong@"))
    for _ in range(2):
        with pytest.raises(redis.AuthenticationError):
            client.ping()


def test_a_port_without_a_listener_is_an_error_at_once(connect: Connect) -> None:
    client = connect("redis://127.0.0.1:1/0")
    for _ in range(2):
        with pytest.raises(NotSent, match="PING was not sent") as failure:
            client.ping()
        assert isinstance(failure.value, redis.ConnectionError) and failure.value.state is State.QUEUED


def test_many_threads_share_one_connection_and_each_gets_its_own_replies(client: Any) -> None:
    before = client.info("stats")["total_connections_received"]
    wrong: list[Any] = []

    def work(name: int) -> None:
        for number in range(50):
            value = f"{name}:{number}"
            client.set(f"k{name}", value)
            got = client.get(f"k{name}")
            if got != value.encode():
                wrong.append((value, got))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and client.info("stats")["total_connections_received"] == before
