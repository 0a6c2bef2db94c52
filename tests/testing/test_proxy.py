"""Each fault seen from both sides: what the client got, and what the server did."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.support.raw_client import Closed, RawClient
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack
from penstock.testing.proxy import FaultProxy
from penstock.testing.redis import RedisServer, free_port


@pytest.fixture
def proxy(theirs: RedisServer) -> Iterator[FaultProxy]:
    with redis.Redis(port=theirs.port) as client:
        client.flushall()
    with FaultProxy(("127.0.0.1", theirs.port)) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[RawClient]:
    with RawClient(proxy.port) as client:
        yield client


@pytest.fixture
def server(theirs: RedisServer) -> Iterator[RawClient]:
    with RawClient(theirs.port) as client:
        yield client


def test_everything_passes_until_a_fault_is_armed(proxy: FaultProxy, client: RawClient) -> None:
    for number in range(1, 4):
        assert client.ask("INCR n") == number
    assert client.ask("HELLO 3")[b"proto"] == 3
    assert proxy.forwarded == {b"INCR": 3, b"HELLO": 1}
    assert proxy.answered == proxy.forwarded
    assert proxy.connections == 1


def test_a_cut_before_forwarding_leaves_the_server_untouched(
    proxy: FaultProxy, client: RawClient, server: RawClient
) -> None:
    fault = proxy.cut_before_forwarding(command=b"INCR", nth=3)
    client.send(pack(b"INCR", b"n") * 5)
    assert (client.read(), client.read()) == (1, 2), "what was asked before it is answered first"
    with pytest.raises(Closed):
        client.read()
    assert fault.has_fired
    assert server.ask("GET n") == b"2"


def test_a_cut_in_the_middle_of_a_request_is_not_executed(
    proxy: FaultProxy, client: RawClient, server: RawClient
) -> None:
    proxy.cut_mid_request(after_bytes=12, command=b"incr")
    assert client.ask("SET n 7") == b"OK"
    client.command("INCR", "n")
    assert client.is_closed()
    assert server.ask("GET n") == b"7"
    assert proxy.forwarded[b"INCR"] == 0


def test_a_cut_after_execution_hides_what_the_server_did(
    proxy: FaultProxy, client: RawClient, server: RawClient
) -> None:
    proxy.cut_after_execution(command=b"INCR", nth=2)
    assert client.ask("INCR n") == 1
    client.command("INCR", "n")
    with pytest.raises(Closed):
        client.read()
    assert server.ask("GET n") == b"2"
    assert (proxy.forwarded[b"INCR"], proxy.answered[b"INCR"]) == (2, 1)


def test_a_hundred_are_executed_and_fifty_answered(proxy: FaultProxy, client: RawClient, server: RawClient) -> None:
    proxy.cut_after_execution(command=b"INCR", nth=100, replies=50)
    client.send(pack(b"INCR", b"n") * 100)
    assert [client.read() for _ in range(50)] == list(range(1, 51))
    with pytest.raises(Closed):
        client.read()
    assert server.ask("GET n") == b"100"


def test_a_cut_in_the_middle_of_a_reply(proxy: FaultProxy, client: RawClient) -> None:
    proxy.cut_mid_reply(after_bytes=6, command=b"GET")
    assert client.ask("SET k hello") == b"OK"
    client.command("GET", "k")
    received = b""
    while data := client.socket.recv(100):
        received += data
    assert received == b"$5\r\nhe"


def test_a_delay_holds_the_reply_and_those_behind_it(proxy: FaultProxy, client: RawClient) -> None:
    started = time.monotonic()
    fault = proxy.delay(0.2, command=b"GET")
    client.send(pack(b"INCR", b"n") + pack(b"GET", b"n") + pack(b"INCR", b"n"))
    assert client.read() == 1 and fault.wait()
    assert (client.read(), client.read()) == (b"1", 2)
    assert time.monotonic() - started >= 0.2


def test_other_bytes_in_the_place_of_a_reply(proxy: FaultProxy, client: RawClient) -> None:
    proxy.replace_reply(b"?!\r\n", command=b"GET")
    client.command("GET", "k")
    assert client.socket.recv(100) == b"?!\r\n"
    assert client.ask("INCR n") == 1


@pytest.mark.parametrize("executed", [False, True])
def test_a_swallowed_request_leaves_the_connection_half_open(
    proxy: FaultProxy, client: RawClient, server: RawClient, executed: bool
) -> None:
    fault = proxy.swallow(command=b"INCR", nth=2, executed=executed)
    assert client.ask("INCR n") == 1
    client.send(pack(b"INCR", b"n") * 2)
    assert fault.wait()
    client.socket.settimeout(0.02)
    with pytest.raises(TimeoutError):
        client.read()
    assert server.ask("GET n") in ((b"2", b"3") if executed else (b"1",))


def test_of_two_faults_at_the_same_request_one_hits_the_next(proxy: FaultProxy) -> None:
    first, second = proxy.cut_after_execution(b"INCR"), proxy.cut_after_execution(b"INCR")
    for fault in (first, second):
        with RawClient(proxy.port) as client:
            client.command("INCR", "n")
            assert client.is_closed() and fault.has_fired
    with RawClient(proxy.port) as client:
        assert client.ask("INCR n") == 3


def test_replies_are_held_back_until_they_are_released(proxy: FaultProxy, client: RawClient, server: RawClient) -> None:
    proxy.hold_replies()
    assert not proxy.is_holding
    client.send(pack(b"INCR", b"n") * 2)
    wait_until(lambda: proxy.forwarded[b"INCR"] == 2 and server.ask("GET n") == b"2" and proxy.is_holding)
    assert proxy.answered[b"INCR"] == 0 and not select.select([client.socket], [], [], 0)[0]
    proxy.release_replies()
    assert [client.read(), client.read()] == [1, 2] and not proxy.is_holding
    assert client.ask("INCR n") == 3 and proxy.answered[b"INCR"] == 3


def test_replies_that_are_held_back_are_lost_with_their_connection(proxy: FaultProxy, client: RawClient) -> None:
    proxy.hold_replies()
    client.command("PING")
    wait_until(lambda: proxy.is_holding)
    proxy.cut_connections()
    proxy.release_replies()
    with pytest.raises(Closed):
        client.read()


def test_a_slow_connection_takes_no_more_than_it_was_told_to(proxy: FaultProxy, client: RawClient) -> None:
    proxy.slow_down(bytes_per_second=1 << 22)
    began = time.monotonic()
    client.command("ECHO", b"x" * (6 << 20))
    assert client.read() == b"x" * (6 << 20)
    assert time.monotonic() - began > 0.5  # one second of it may be made up for


def test_connections_can_be_cut_and_refused(proxy: FaultProxy, client: RawClient) -> None:
    assert client.ask("PING") == b"PONG"
    proxy.refuse_connections()
    proxy.cut_connections()
    assert client.is_closed()
    with RawClient(proxy.port) as refused:
        assert refused.is_closed() and proxy.refused == 1
    proxy.accept_connections()
    with RawClient(proxy.port) as accepted:
        assert accepted.ask("PING") == b"PONG"
    assert proxy.connections == 2


def test_a_cut_is_seen_by_the_client_as_soon_as_it_is_made(proxy: FaultProxy) -> None:
    for _ in range(20):
        with RawClient(proxy.port) as client:
            assert client.ask("PING") == b"PONG"
            proxy.cut_connections()
            assert select.select([client.socket], [], [], 0)[0], (
                "one who looks before it writes must not write into the void"
            )


def test_a_dead_server_closes_the_connection() -> None:
    with FaultProxy(("127.0.0.1", free_port())) as proxy, RawClient(proxy.port) as client:
        assert client.is_closed()


def test_clear_disarms_and_starts_counting_again(proxy: FaultProxy, client: RawClient) -> None:
    proxy.cut_before_forwarding(command=b"INCR", nth=2)
    assert client.ask("INCR n") == 1
    proxy.clear()
    assert client.ask("INCR n") == 2
    assert proxy.forwarded == {b"INCR": 1}


def test_a_stopped_proxy_listens_no_more(theirs: RedisServer) -> None:
    proxy = FaultProxy(("127.0.0.1", theirs.port)).start()
    with RawClient(proxy.port) as client:
        assert client.ask("PING") == b"PONG"
        proxy.stop()
        assert client.is_closed()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


@pytest.mark.parametrize("arguments", [{"nth": 0}, {"nth": 3, "replies": 3}, {"replies": -1}])
def test_a_fault_that_could_never_fire_is_refused(proxy: FaultProxy, arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        proxy.cut_after_execution(**arguments)  # type: ignore[arg-type]


def test_redis_py_counts_twice_when_the_reply_is_lost(proxy: FaultProxy) -> None:
    """What the proxy is for: the peer's default, which ours must not share."""
    proxy.cut_after_execution(command=b"INCRBY")
    with redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 3)) as client:
        assert client.incr("n") == 2
    assert proxy.forwarded[b"INCRBY"] == 2
