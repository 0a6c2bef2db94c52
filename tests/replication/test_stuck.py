"""A replica that cannot use what its leader sends keeps what it has, and says what is the matter."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.servers import Servers, caught_up, servers
from tests.support.waiting import wait_until

from penstock.engine.interfaces import LogEntry
from penstock.storage import snapshot
from penstock.storage.files import StorageError
from penstock.storage.persistence import Persistence


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def test_a_batch_with_an_unknown_command_changes_nothing(world: Servers, caplog: pytest.LogCaptureFixture) -> None:
    leader = world.start("leader")
    replica = world.start("replica", leader)
    leader.client.set("before", 1)
    caught_up(leader, replica)
    batch: list[LogEntry] = [(0, [b"INCR", b"n"]), (0, [b"OF.A.MODULE", b"n"])]
    with caplog.at_level(logging.WARNING):
        leader.server.call(lambda app: app.persistence.aof.writer.log(batch))
        wait_until(lambda: "the command OF.A.MODULE is unknown. Load the module it is from" in caplog.text)
    assert replica.client.get("n") is None, "the first command of the batch neither"
    assert replica.client.get("before") == b"1"


def test_a_replica_with_too_few_databases_puts_nothing_into_another_one(
    world: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    leader = world.start("leader")
    replica = world.start("replica", leader, databases=4)
    caught_up(leader, replica)
    with redis.Redis(port=leader.server.port, db=9) as other, caplog.at_level(logging.WARNING):
        other.set("in 9", 1)
        wait_until(lambda: "there is no database 9 here. Raise `databases`" in caplog.text)
    assert replica.client.keys() == []


def test_a_copy_with_too_many_databases_does_not_cost_a_server_its_data(
    world: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    leader, own = world.start("leader"), world.start("own", databases=4)
    with redis.Redis(port=leader.server.port, db=9) as other:
        other.set("in 9", 1)
    leader.client.bgrewriteaof()
    wait_until(lambda: not leader.client.info("persistence")["aof_rewrite_in_progress"])
    own.client.set("mine", 1)
    with caplog.at_level(logging.WARNING):
        own.follow(leader)
        wait_until(lambda: "raise `databases` to load this" in caplog.text)
    assert own.client.get("mine") == b"1"
    own.client.execute_command("REPLICAOF", "NO", "ONE")
    own.client.set("mine", 2)
    own.server.stop()
    assert world.start("own", databases=4).client.get("mine") == b"2"


def test_a_damaged_copy_is_found_before_it_replaces_anything(world: Servers, tmp_path: Path) -> None:
    leader = world.start("leader")
    leader.client.set("k", "value")
    leader.client.bgrewriteaof()
    wait_until(lambda: not leader.client.info("persistence")["aof_rewrite_in_progress"])
    (base,) = (world.folder("leader") / "appendonlydir").glob("*.base.pns")
    snapshot.verify(base, 16)
    copy = tmp_path / "copy"
    copy.write_bytes(base.read_bytes().replace(b"value", b"worth"))
    with pytest.raises(StorageError):
        snapshot.verify(copy, 16)


def test_a_disk_that_refuses_a_copy_leaves_everything_as_it_was(
    world: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader, own = world.start("leader"), world.start("own")
    leader.client.set("k", 1)
    own.client.set("mine", 1)
    folder = world.folder("own") / "appendonlydir"
    before = sorted(path.name for path in folder.iterdir())
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("penstock.storage.aof.install", refuse)
        own.follow(leader)
        wait_until(lambda: "No space left" in caplog.text)
        assert own.client.get("mine") == b"1"
        assert sorted(path.name for path in folder.iterdir()) == before
    caught_up(leader, own)
    assert own.digest() == leader.digest()


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_clients_that_wait_get_what_a_copy_brings(world: Servers) -> None:
    leader, former = world.start("leader"), world.start("former")
    own = world.start("own", former)
    caught_up(former, own)
    leader.client.xadd("x", {"a": 1})
    leader.client.bgrewriteaof()
    wait_until(lambda: not leader.client.info("persistence")["aof_rewrite_in_progress"])
    answers: list[object] = []
    with redis.Redis(port=own.server.port) as waiting:
        reader = threading.Thread(target=lambda: answers.append(waiting.xread({"x": "0"}, block=60_000)))
        reader.start()
        wait_until(lambda: own.client.info("clients")["blocked_clients"] == 1)
        own.follow(leader)
        reader.join()
    assert len(answers) == 1 and answers != [[]]


def test_clients_are_refused_as_soon_as_a_copy_replaces_the_data(world: Servers, tmp_path: Path) -> None:
    one = world.start("one")

    def begins(persistence: Persistence) -> bool:
        whole = persistence.replace_by(tmp_path / "base", 0, persistence.aof.lineage)
        whole.close()  # it has not run yet
        loading = persistence.loader._engine.loading
        persistence.loader.set_loading(False)
        return loading

    assert one.server.call(lambda app: begins(app.persistence))
