"""Work that was given up must end: a blocked command whose caller is gone, a shutdown that would reach the next server,
an attempt to connect that takes longer than its caller waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import gc
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import redis
from tests.support.client.clients import Connect
from tests.support.client.interrupts import Interrupt, ask_interrupted
from tests.support.client.scripted import World, many, single

from penstock import Client, Server, State, aio
from penstock.client.delivery import Delivery
from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import Kind
from penstock.client.errors import NoReplyInTime, NotReplayed, NotSent, NotSentInTime, OutcomeUnknown
from penstock.testing.proxy import FaultProxy
from penstock.testing.redis import RedisServer


def up(**settings: Any) -> World:
    world = World(**settings)
    world.connect()
    world.run_until_idle()
    return world


def blocked(world: World, patience: float = 30) -> Batch:
    batch = single("BLPOP", "a", patience)
    batch.patience, batch.blocks = patience, True
    world.submit(batch)
    world.write()
    return batch


def test_the_connection_of_a_blocked_command_ends_with_it() -> None:
    world = up()
    batch, behind = blocked(world), world.submit(single("INCR", "b"))
    world.write()
    assert world.core.cancel(batch, world.now) and not world.core.up
    world.run_until_idle()
    assert isinstance(batch.results[0], OutcomeUnknown) and behind.results == [1]
    assert world.core.counters.reconnects == 0  # nothing was wrong


def test_a_blocked_command_that_was_not_sent_leaves_the_connection_alone() -> None:
    world = up()
    batch = single("BLPOP", "a", 30)
    batch.blocks = True
    world.submit(batch)
    assert not world.core.cancel(batch, world.now) and world.core.up
    assert isinstance(batch.results[0], NotSent)


def test_a_blocked_command_whose_time_is_up_is_taken_back() -> None:
    world = up(silence_timeout=None, command_timeout=10)
    batch = blocked(world)
    world.now += 40
    assert world.core.tick(world.now) and not world.core.up
    assert isinstance(batch.results[0], NoReplyInTime) and "command_timeout=10" in str(batch.results[0])


def test_commands_given_up_again_and_again_slow_nothing_down() -> None:
    world = up(delivery=Delivery.AT_MOST_ONCE, backoff_base=1)
    for _ in range(5):
        batch = blocked(world)
        world.core.cancel(batch, world.now)
        world.submit(single("INCR", "a"))  # not refused
        world.run_until_idle()
    assert world.server.runs[b"a"] == 5


def test_a_shutdown_is_not_repeated_after_a_reconnect() -> None:
    world = up()
    batch = many(("INCR", "a"), ("SHUTDOWN",), ("INCR", "b"))
    batch.notable = {1: Kind.FINAL}
    world.submit(batch)
    world.write()
    world.cut()
    world.run_until_idle()
    assert batch.results[0] == 1 and isinstance(batch.results[1], NotReplayed) and batch.results[2] == 1
    assert (b"SHUTDOWN",) not in world.server.log


@pytest.mark.parametrize("level", [Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE])
@pytest.mark.parametrize("wait", [("WAIT", 1, 1000), ("WAITAOF", 1, 1, 1000)])
def test_a_wait_for_replicas_is_not_repeated_on_another_connection(level: Delivery, wait: tuple[object, ...]) -> None:
    """What a server says about the writes of a new connection says nothing about those before."""
    world = up(delivery=level)
    batch = many(wait)
    batch.patience = 1
    world.submit(batch)
    world.write()
    world.cut()
    world.run_until_idle()
    assert isinstance(batch.results[0], NotReplayed) and "the connection that is lost" in str(batch.results[0])
    assert not world.server.log


def test_a_wait_is_repeated_together_with_all_writes_of_its_pipeline() -> None:
    world = up()
    batch = many(("INCR", "a"), ("WAIT", 1, 1000), ("INCR", "b"))
    batch.patience = 1
    world.submit(batch)
    world.write()
    world.cut()
    world.run_until_idle()
    assert batch.results == [1, b"OK", 1]


@pytest.mark.parametrize("written", [1, 2, 3])
def test_a_wait_fails_if_a_write_of_its_pipeline_is_not_repeated(written: int) -> None:
    """The reply to the first write came, so it is not written again; the others were written, or not yet."""
    commands = ("INCR", "a"), ("WAIT", 1, 1000), ("INCR", "b")
    world = up()
    batch = many(*commands)
    batch.patience = 1
    world.submit(batch)
    world.write(len(many(*commands[:written]).data))
    world.serve(len(many(*commands[:1]).data))
    world.read()
    world.cut()
    world.run_until_idle()
    assert batch.results[0] == 1 and batch.results[2] == 1 and world.server.runs[b"a"] == 1
    assert isinstance(batch.results[1], NotReplayed if written > 1 else NotSent)
    assert all(argv[0] != b"WAIT" for argv in world.server.log)


def test_a_command_that_ends_every_connection_is_sent_less_and_less_often() -> None:
    """Such as one whose reply is over the server's limit: each new connection answers its PING, and that is
    no progress.
    """
    world = up(backoff_base=1, backoff_cap=4)
    world.submit(single("INCR", "a"))
    delays = []
    for _ in range(5):
        assert world.write()  # the command
        world.cut()
        assert world.core.connect_at is not None
        delays.append(world.core.connect_at - world.now)
        world.now = world.core.connect_at
        world.connect()
        world.write()
        world.serve()
        world.read()  # PONG
    assert delays == [0, 1, 2, 4, 4]


def fail_to_connect(world: World) -> float:
    """An attempt at its time, and when that was."""
    assert world.core.connect_at is not None
    world.now = world.core.connect_at
    world.core.connecting()
    world.core.connect_failed(redis.ConnectionError("refused"), world.now)
    world.core.tick(world.now)
    return world.now


@pytest.mark.parametrize("delivery", list(Delivery)[1:])
def test_a_command_is_not_given_up_before_a_last_attempt_to_connect(delivery: Delivery) -> None:
    world = up(delivery=delivery, command_timeout=10, backoff_base=1, backoff_cap=4)
    began = world.now
    batch = world.submit(single("INCR", "a"))
    world.cut()
    attempts = [fail_to_connect(world) - began for _ in range(4)]
    assert attempts == [0, 1, 3, 7], "and the next one would be after 11 seconds"
    assert world.core.connect_at == began + 9.5
    world.run_until_idle()
    assert batch.results == [1]


def test_a_command_of_little_patience_finds_a_server_that_is_back() -> None:
    world = up(command_timeout=2, backoff_base=8, backoff_cap=8)
    world.submit(single("INCR", "a"))
    world.cut()
    fail_to_connect(world)
    fail_to_connect(world)
    world.now += 2
    world.core.tick(world.now)
    batch = world.submit(single("INCR", "b"))
    world.now += 3
    world.core.tick(world.now)
    assert isinstance(batch.results[0], NotSentInTime), "one attempt in backoff_cap is added, and no more"
    world.now += 2
    batch = world.submit(single("INCR", "c"))
    assert world.core.connect_at is not None and world.core.connect_at <= world.now + 2
    world.run_until_idle()
    assert batch.results == [1]


def test_commands_with_deadlines_one_after_the_other_do_not_undo_the_delays() -> None:
    world = up(command_timeout=10, backoff_base=1, backoff_cap=4)
    began = world.now
    for number in range(100):
        world.now = began + number / 10
        world.submit(single("INCR", str(number)))
    world.cut()
    attempts = 0
    while world.core.connect_at is not None:
        fail_to_connect(world)
        attempts += 1
    assert world.now > began + 18
    assert attempts < 10


# -- on servers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_single", [False, True])
def test_a_cancelled_blpop_takes_nothing_and_delays_no_call(peer: str, is_single: bool) -> None:
    async def main() -> None:
        async with (
            aio.Client.from_url(peer, single_connection_client=is_single) as client,
            aio.Client.from_url(peer) as other,
        ):
            await other.flushall()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.blpop("queue", 0), 0.05)
            while (await other.info("clients"))["blocked_clients"]:
                await asyncio.sleep(0.001)
            await other.rpush("queue", "x")
            assert await other.llen("queue") == 1
            assert list(await client.blpop("queue", 0)) == [b"queue", b"x"]
            assert client.counters.reconnects == 0

    asyncio.run(main())


def test_wait_is_about_the_writes_of_the_same_connection(client: Any) -> None:
    """On another one it would answer at once, whatever the replicas have."""
    number = client.client_id()
    assert client.wait(0, 10) == 0
    pipe = client.pipeline(transaction=False)
    assert pipe.set("a", 1).wait(0, 10).execute() == [True, 0]
    assert [int(row["id"]) for row in client.client_list() if row["cmd"] == "wait"] == []
    assert client.client_id() == number and len(client._own_connections) == 0


def test_shutdown_ends_one_server_and_is_not_sent_to_the_next(connect: Connect) -> None:
    with RedisServer() as server:
        client = connect(server.url)
        client.ping()
        client.shutdown(nosave=True)  # which waits for the end of the connection
        assert client.counters.replayed == 0 and client.counters.buffered_commands == 0


@pytest.fixture
def mute() -> Iterator[int]:
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("socket_timeout", [None, 600])
def test_a_server_that_says_nothing_costs_no_more_than_the_commands_time(
    connect: Connect, mute: int, socket_timeout: float | None
) -> None:
    client = connect(f"redis://127.0.0.1:{mute}", command_timeout=0.2, socket_timeout=socket_timeout)
    with pytest.raises(NotSentInTime, match="was not sent") as failure:
        client.get("a")
    assert failure.value.state is State.QUEUED and isinstance(failure.value, redis.TimeoutError)


def test_a_handshake_without_an_answer_names_the_server(connect: Connect, mute: int) -> None:
    client = connect(f"redis://127.0.0.1:{mute}", socket_timeout=0.1)
    with pytest.raises(NotSentInTime, match=f"127.0.0.1:{mute}"):
        client.get("a")


def test_a_command_that_waited_in_vain_says_what_for(connect: Connect) -> None:
    with RedisServer() as server:
        client = connect(server.url, backoff_base=0.01)
        client.ping()
        port = server.port
    client.settings.command_timeout = 0.2
    with pytest.raises(NotSentInTime, match=rf"command_timeout=0.2, and there is no connection.*{port}"):
        client.get("a")


def test_a_client_of_a_loop_that_still_runs_says_so_in_another(ours: Server) -> None:
    """Redis-py's goes astray, silently."""
    client = aio.Client.from_url(ours.url)
    began, may_end = threading.Event(), threading.Event()

    async def first() -> None:
        await client.ping()
        began.set()
        await asyncio.to_thread(may_end.wait)
        assert await client.ping()
        await client.aclose()

    async def second() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await client.ping()

    thread = threading.Thread(target=asyncio.run, args=(first(),))
    thread.start()
    began.wait()
    asyncio.run(second())
    may_end.set()
    thread.join()


def test_calls_left_in_a_closed_loop_do_not_affect_the_next_loop(ours: Server) -> None:
    client = aio.Client.from_url(ours.url)
    old = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[Any]:
        await client.delete("a")
        task = asyncio.ensure_future(client.eval("local n = 0 for i = 1, 300000 do n = n + 1 end return n", 0))
        await asyncio.sleep(0)  # it is queued
        return task

    async def go_on() -> int:
        async with client:
            return int(await client.incr("a"))

    task = old.run_until_complete(begin())
    assert asyncio.run(go_on()) == 1
    with pytest.raises((OutcomeUnknown, NotSent)):
        old.run_until_complete(task)
    old.close()


def test_an_asyncio_client_that_was_not_closed_warns_and_leaves_nothing_open(theirs: RedisServer) -> None:
    async def use() -> None:
        client = aio.Client.from_url(theirs.url)
        await client.ping()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.blpop("nothing", 0), 0.01)

    async def main() -> None:
        with redis.Redis.from_url(theirs.url) as plain:
            before = plain.info("clients")["connected_clients"]
            with pytest.warns(ResourceWarning, match="unclosed client"):
                await use()
                gc.collect()
            while plain.info("clients")["connected_clients"] > before:
                await asyncio.sleep(0.001)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("bad", "word"),
    [((), "no command"), ("GET a", "no command"), ((None,), "no name"), ((5,), "no name"), (("  ",), "no name")],
)
def test_an_unknown_command_is_refused_by_name(client: Any, bad: Any, word: str) -> None:
    with pytest.raises(redis.DataError, match=word):
        client.execute_many([("GET", "a"), bad])
    if isinstance(bad, tuple) and bad:
        with pytest.raises(redis.DataError, match=word):
            client.execute_command(*bad)
    assert client.ping() and client.counters.failed == 0


class Level(enum.IntEnum):
    HIGH = 7


class Measured(float):
    """As numpy.float64 is one."""

    def __repr__(self) -> str:
        return f"Measured({super().__repr__()})"


def test_a_word_that_is_nearly_a_number_or_text_is_sent_as_what_it_is(client: Any) -> None:
    words = [Level.HIGH, -(2**80), Measured(1.5), bytearray(b"ab"), memoryview(b"cd")]
    wanted = [b"7", b"%d" % -(2**80), b"1.5", b"ab", b"cd"]
    assert [client.echo(word) for word in words] == wanted
    assert client.execute_many([("ECHO", word) for word in words]) == wanted


def test_a_number_without_end_is_refused(client: Any) -> None:
    """It would be the end of the process, in hiredis."""
    with pytest.raises(redis.DataError, match="16610 bits"):
        client.echo(10**5000)
    with pytest.raises(redis.DataError, match="16610 bits"):
        client.execute_many([("ECHO", "a"), ("ECHO", 10**5000)])


def test_quit_ends_a_connection_but_not_the_one_that_others_share(client: Any) -> None:
    number = client.client_id()
    assert client.quit() and client.quit()
    assert client.client_id() == number and client.blpop("nothing", 0.01) is None
    with pytest.raises(redis.RedisError, match=r"close\(\)"):
        client.execute_many([("QUIT",)])


def test_an_exec_is_the_end_of_its_watch(client: Any, peer: str) -> None:
    """One round trip less than with an UNWATCH after it."""
    client.config_resetstat()
    with client.pipeline() as pipe:
        pipe.watch("a")
        pipe.multi()
        assert pipe.set("a", 1).execute() == [True]
    with client.pipeline() as pipe, redis.Redis.from_url(peer) as other:
        pipe.watch("a")
        other.set("a", 2)
        pipe.multi()
        pipe.set("a", 3)
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert client.info("commandstats").get("cmdstat_unwatch", {"calls": 0})["calls"] == 0
    with client.pipeline() as pipe:
        pipe.watch("a")
    assert client.info("commandstats")["cmdstat_unwatch"]["calls"] == 1


def test_options_in_the_url_of_a_pool_hold_for_all_its_clients(ours: Server) -> None:
    with redis.ConnectionPool.from_url(f"{ours.url}?delivery=at-most-once") as pool:
        levels = [Client(connection_pool=pool).delivery for _ in range(2)]
    assert levels == [Delivery.AT_MOST_ONCE] * 2


def test_a_server_that_takes_bytes_does_not_count_as_silent() -> None:
    """A value that takes longer to send than the server may be silent."""
    world = up(silence_timeout=5)
    batch = world.submit(single("SET", "a", "x" * 100))
    for _ in range(4):
        world.write(20)
        world.core.timeouts.heard = world.now
        world.now += 3
        assert not world.core.tick(world.now) and world.core.up
    world.run_until_idle()
    assert batch.results == [b"OK"]


def test_a_large_value_may_take_longer_than_the_server_may_be_silent(connect: Connect, theirs: RedisServer) -> None:
    with FaultProxy(("127.0.0.1", theirs.port)) as proxy:
        client = connect(proxy.url, socket_timeout=60, max_buffered_bytes=1 << 30)
        client.ping()
        client.settings.silence_timeout = 10  # more than a busy machine keeps a thread waiting
        proxy.slow_down(bytes_per_second=5 << 19)  # 32 MiB take 13 seconds, of which the kernel hides less than three
        assert client.set("large", bytes(32 << 20))
        assert client.counters.reconnects == 0
        client.close()


def test_calls_that_wait_for_room_are_served_in_order(peer: str) -> None:
    async def main() -> None:
        async with aio.Client.from_url(peer, max_buffered_bytes=100_000) as client:
            await client.flushall()
            values = [f"{number}".ljust(20_000 if number % 7 == 0 else 1) for number in range(300)]
            await asyncio.gather(*(client.rpush("list", value) for value in values))
            assert [int(value) for value in await client.lrange("list", 0, -1)] == list(range(300))

    asyncio.run(main())


def test_a_call_that_waits_for_room_is_not_overtaken_for_ever(ours: Server) -> None:
    async def main() -> None:
        async with aio.Client.from_url(ours.url, max_buffered_commands=2) as client:
            turns = [0] * 6

            async def work(number: int) -> None:
                while min(turns) < 20:
                    await client.ping()
                    turns[number] += 1

            await asyncio.gather(*map(work, range(6)))
            assert max(turns) <= 22

    asyncio.run(main())


def test_a_watch_that_was_forgotten_is_not_passed_on(peer: str) -> None:
    async def forget(client: aio.Client) -> None:
        await client.pipeline().watch("a")

    async def main() -> None:
        async with aio.Client.from_url(peer) as client:
            await forget(client)
            gc.collect()
            async with client.pipeline() as pipe:
                await pipe.watch("b")  # on the same connection
                await client.set("a", 1)
                pipe.multi()
                assert await pipe.set("b", 1).execute() == [True]
            assert len(client._own_connections) == 1

    asyncio.run(main())


def test_exactly_once_says_which_permission_it_needs(ours: Server) -> None:
    with Client.from_url(ours.url) as admin:
        admin.acl_setuser("bob", enabled=True, passwords=["+pw"], keys=["*"], commands=["+incrby", "+once"])
        with Client(port=ours.port, username="bob", password="pw", delivery="exactly-once") as bob:
            with pytest.raises(redis.exceptions.NoPermissionError, match="needs ONCE and ONCEBEGIN"):
                bob.incr("of bob")
            admin.acl_setuser("bob", enabled=True, commands=["+oncebegin"])
            assert bob.incr("of bob") == 1, "neither COMMAND nor CONFIG is needed"
        admin.delete("of bob")
        admin.acl_deluser("bob")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that redis-py was just making
@pytest.mark.parametrize("bound", [2, 1000])  # two: most have to wait for room
@pytest.mark.parametrize("level", ["at-most-once", "at-least-once"])
def test_interrupts_between_any_two_steps_mix_up_no_replies(theirs: RedisServer, level: str, bound: int) -> None:
    client = Client.from_url(theirs.url, delivery=level, max_buffered_commands=bound)
    wrong: list[Any] = []

    def ask(number: int) -> None:
        value = b"%d" % number
        with contextlib.suppress(redis.RedisError):
            if (reply := client.echo(value)) != value:
                wrong.append((value, reply))

    ask_interrupted(ask, 300)
    assert not wrong
    assert client.counters.buffered_commands == 0
    while True:
        with contextlib.suppress(NotSent):  # at-most-once says at first that the connection is gone
            assert client.echo(b"x") == b"x"
            break
    client.close()


@pytest.mark.parametrize("line", range(7))
def test_an_interrupt_while_a_socket_is_made_leaves_none_open(theirs: RedisServer, line: int) -> None:
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code is not socket.socket.__init__.__code__:
            return None
        if event == "line":
            left -= 1
        if left < 0:
            left = 1 << 30
            made.append(frame.f_locals["self"])
            raise Interrupt
        return trace

    made: list[socket.socket] = []
    with Client.from_url(theirs.url) as client:
        sys.settrace(trace)
        try:
            with contextlib.suppress(Interrupt):
                client.ping()
        finally:
            sys.settrace(None)
        assert [sock.fileno() for sock in made] == [-1]
        assert client.ping()


def test_a_server_that_is_silent_during_a_handshake_does_not_block_the_next_connection(
    connect: Connect, proxy: FaultProxy
) -> None:
    client = connect(f"redis://127.0.0.1:{proxy.port}/0", socket_timeout=None)
    client.ping()
    client.settings.command_timeout = 0.1
    fault = proxy.swallow()
    proxy.cut_connections()
    while not fault.has_fired:  # if the machine is slow it does not come so far at first
        with pytest.raises(NotSentInTime):
            client.ping()
    client.settings.command_timeout = 60.0
    assert client.ping()
