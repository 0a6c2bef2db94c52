"""URLs of shards: which server leads, and connections to it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.client.clients import Connect
from tests.support.replication.sentinels import NAME, Sentinels
from tests.support.replication.servers import Pair, Servers, caught_up, is_up, servers
from tests.support.tls import Authority, tls_server
from tests.support.waiting import wait_until
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.client.api.urls import options_of_url, sync_pool
from penstock.client.drivers import leader_search
from penstock.client.engine.leader import Answer, Shard
from penstock.client.errors import WrongShard
from penstock.testing.redis import free_port

A, B, C, D = (("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6379), ("10.0.0.4", 6379))
DOWN = redis.ConnectionError("connection refused")


def leads(offset: int = 0, replicas: tuple[Any, ...] = (), info: str = "") -> Answer:
    return [[b"master", offset, [(host.encode(), b"%d" % port, b"0") for host, port in replicas]], info.encode()]


def follows(node: tuple[str, int], info: str = "") -> Answer:
    return [[b"slave", node[0].encode(), node[1], b"connected", 0], info.encode()]


def found(shard: Shard, **world: Answer) -> Any:
    """What a search finds among servers that answer so; those that are not named do not answer."""
    nodes = {node: world[name] for name, node in zip("abcd", (A, B, C, D), strict=True) if name in world}
    search = shard.search()
    questions = next(search)
    while True:
        answers = {question: nodes.get(question.node, DOWN) for question in questions}
        try:
            questions = search.send(answers)
        except StopIteration as result:
            return result.value


def test_the_server_that_says_master_leads() -> None:
    assert found(Shard("", [A, B, C]), a=follows(C), b=follows(C), c=leads()) == C


def test_of_two_leaders_the_one_with_the_higher_epoch_is_taken_and_not_the_longer_log() -> None:
    old, new = leads(900, (B,), "shard:orders\r\nepoch:4\r\n"), leads(100, (), "shard:orders\r\nepoch:5\r\n")
    assert found(Shard("orders", [A, B]), a=old, b=new) == B


def test_without_epochs_the_one_that_has_replicas_is_taken_and_else_the_known_one() -> None:
    assert found(Shard("", [A, B]), a=leads(900), b=leads(100, (C,))) == B
    shard = Shard("", [A, B])
    assert found(shard, b=leads(100)) == B
    assert found(shard, a=leads(900), b=leads(100)) == B


def test_servers_that_others_name_are_asked_too_and_remembered() -> None:
    shard = Shard("", [A])
    assert found(shard, a=follows(C), c=leads(0, (A, D))) == C
    assert set(shard.learned) == {C, D}
    assert found(shard, d=leads()) == D, "none of the URL's answers"


def test_a_server_of_another_shard_is_an_error_that_names_both() -> None:
    with pytest.raises(WrongShard, match=r"10\.0\.0\.2:6379 .*'users', and the URL names 'orders'"):
        found(Shard("orders", [A, B]), a=leads(info="shard:orders"), b=follows(C, "shard:users"))
    assert found(Shard("orders", [A]), a=leads()) == A, "a server without etcd has no name"


def test_without_a_leader_the_error_says_what_each_server_said() -> None:
    with pytest.raises(
        redis.ConnectionError, match=r"orders .*10\.0\.0\.1:6379: connection refused; .* follows 10\.0\.0\.1"
    ):
        found(Shard("orders", [A, B]), b=follows(A))


def test_a_wrong_password_is_told_at_once_unless_some_server_may_still_come_up() -> None:
    refused = redis.AuthenticationError("WRONGPASS")
    with pytest.raises(redis.AuthenticationError):
        found(Shard("", [A, B]), a=refused, b=refused)
    with pytest.raises(redis.ConnectionError) as failure:
        found(Shard("", [A, B]), a=refused)
    assert not isinstance(failure.value, redis.AuthenticationError)


def test_what_a_url_says() -> None:
    options = options_of_url("penstocks://ada:p%40ss@a,b:7000,[::1]:7001/orders?db=2&socket_timeout=3")
    shard = options["shard"]
    assert (shard.name, shard.nodes) == ("orders", (("a", 6379), ("b", 7000), ("::1", 7001)))
    assert (options["username"], options["password"], options["db"], options["socket_timeout"]) == ("ada", "p@ss", 2, 3)
    assert options["has_tls"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("penstock:///orders", "'' in the URL is no server"),
        ("penstock://ada:secret@a,b:port/orders", "'b:port' in the URL is no server"),
        ("penstock://a/orders/0", "the database is said by"),
        ("penstock+sentinel://a,b", "ends with the name"),
        ("redis://ada:secret@a:1,b:2/0", "names several servers, and only penstock://"),
    ],
)
def test_a_url_that_is_none_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as failure:
        penstock.Client.from_url(url)
    assert "secret" not in str(failure.value)


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, Pair, Pair, Pair]]:
    with servers(tmp_path_factory.mktemp("shard")) as made:
        leader = made.start("one")
        first, second = made.start("two", leader), made.start("three", leader)
        caught_up(leader, first, second)
        yield made, leader, first, second


def hosts(*pairs: Pair) -> str:
    return ",".join(f"127.0.0.1:{pair.server.port}" for pair in pairs)


def test_clients_find_the_leader_wherever_it_stands(trio: Any, connect: Connect) -> None:
    _, leader, first, second = trio
    for order in ((leader, first, second), (second, first), (first,)):
        client = connect(f"penstock://{hosts(*order)}/orders?db=3&delivery=exactly-once")
        client.set("k", "v")
        assert client.get("k") == b"v" and client.delivery is penstock.Delivery.EXACTLY_ONCE
    assert leader.client.info("keyspace")["db3"]["keys"] == 1


def test_a_server_in_the_place_of_a_sentinel_is_named(trio: Any, connect: Connect) -> None:
    _, leader, *_ = trio
    with pytest.raises(redis.ResponseError, match=f"127.0.0.1:{leader.server.port} is no Sentinel.* penstock://"):
        connect(f"penstock+sentinel://{hosts(leader)}/orders").ping()


def test_a_user_who_may_not_ask_who_leads_is_told_once_what_is_missing(trio: Any, connect: Connect) -> None:
    _, leader, *_ = trio
    leader.client.execute_command("ACL", "SETUSER", "ann", "on", ">one", "+@all", "-role")
    with pytest.raises(redis.exceptions.NoPermissionError) as failure:
        connect(f"penstock://ann:one@{hosts(leader)}").ping()
    assert str(failure.value).count("must be able to run ROLE and INFO") == 1


def test_a_server_that_does_not_answer_holds_no_one_up(trio: Any, connect: Connect, monkeypatch: Any) -> None:
    """The limit is raised so far that to wait for it would be noticed."""
    monkeypatch.setattr(leader_search, "NODE_TIMEOUT", 600)
    _, leader, first, _ = trio
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = connect(f"penstock://127.0.0.1:{silent.getsockname()[1]},{hosts(first, leader)}", socket_timeout=600)
        assert client.set("k", "v")


def test_pubsub_and_redis_py_find_the_leader_too(trio: Any) -> None:
    _, leader, first, _ = trio
    pool = sync_pool(f"penstock://{hosts(first)}")
    with contextlib.closing(pool), redis.Redis(connection_pool=pool) as client, client.pubsub() as pubsub:
        pubsub.subscribe("news")
        assert pubsub.get_message(timeout=60)
        assert leader.client.publish("news", "x") == 1
        assert client.set("k", "v")


def test_producers_and_consumers_take_the_url(trio: Any) -> None:
    _, _, first, second = trio
    with penstock.Client.from_url(f"penstock://{hosts(first, second)}/orders") as client:
        with client.producer("clicks") as producer:
            producer.send("tag", b"one")
        with client.consumer("clicks", "group") as consumer:
            assert next(iter(consumer)).entry == b"one"


def test_the_command_line_takes_the_url(trio: Any) -> None:
    _, leader, first, second = trio
    leader.client.execute_command("TWRITE", "orders", "tag", "one")
    shown = CliRunner().invoke(app, ["streams", "--url", f"penstock://{hosts(first, second)}/orders"])
    assert shown.exit_code == 0 and "orders" in shown.output, shown.output


def test_after_a_fork_the_child_finds_the_leader_by_itself(trio: Any) -> None:
    _, leader, first, _ = trio
    with penstock.Client.from_url(f"penstock://{hosts(first)}") as client:
        client.set("forked", "no")
        child = os.fork()
        if not child:
            os._exit(not client.set("forked", "yes"))
        assert os.waitpid(child, 0)[1] == 0
        assert leader.client.get("forked") == b"yes"


def test_over_tls(tmp_path: Path, connect: Connect) -> None:
    authority = Authority(tmp_path, "authority")
    with tls_server(authority, tls_auth_clients="no") as server:
        nodes = f"localhost:{server.app.tls_port},localhost:{free_port()}"
        client = connect(f"penstocks://{nodes}/orders?ssl_ca_certs={authority.file}")
        assert client.set("k", "v")


def test_sentinels_say_who_leads(tmp_path: Path, connect: Connect) -> None:
    with servers(tmp_path) as made:
        leader = made.start("one")
        replica = made.start("two", leader)
        wait_until(lambda: is_up(replica))
        with Sentinels(tmp_path, leader.server.port, down_after=60_000) as sentinels:
            wait_until(lambda: sentinels.knows(replicas=1))
            addresses = ",".join(f"127.0.0.1:{port}" for port in (free_port(), *sentinels.ports))
            assert connect(f"penstock+sentinel://{addresses}/{NAME}").set("k", "v")
            with pytest.raises(redis.ConnectionError, match="knows no 'users'"):
                connect(f"penstock+sentinel://{addresses}/users").set("k", "v")
