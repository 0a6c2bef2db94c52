"""What Sentinel sends to a server whose role it changes: REPLICAOF and CONFIG REWRITE, in a transaction."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.replication.servers import Servers, caught_up, servers
from tests.support.waiting import wait_until

from penstock.testing.redis import free_port


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def test_a_promoted_server_starts_with_the_file_that_it_has_rewritten(world: Servers, tmp_path: Path) -> None:
    leader = world.start("leader")
    file = tmp_path / "own.conf"
    port = free_port()
    file.write_text(f"port {port}\ndir {tmp_path}\nappendonly yes\nsave ''\nreplicaof {leader.address}\n")

    def order(*commands: tuple[str, ...]) -> list[Any]:
        """Start a server with the file, send it commands, and kill it."""
        process = subprocess.Popen([sys.executable, "-m", "penstock", "serve", str(file)], stdout=subprocess.DEVNULL)
        try:
            with redis.Redis(port=port, retry=None) as client:
                wait_until(lambda: accepts(client))
                return [client.execute_command(*command) for command in commands]
        finally:
            process.kill()
            process.wait()

    order(("REPLICAOF", "NO", "ONE"), ("CONFIG", "REWRITE"))
    ((role, *_),) = order(("ROLE",))
    assert role == b"master"


def accepts(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


def test_a_transaction_that_makes_a_replica_writes_nothing_after_that(world: Servers) -> None:
    one, other = world.start("one"), world.start("other")
    one.client.set("before", 1)
    with one.client.pipeline() as pipe:
        pipe.get("before").execute_command("REPLICAOF", *other.address.split())
        pipe.set("after", 2).get("before")
        *done, refused, read = pipe.execute(raise_on_error=False)
    assert done == [b"1", b"OK"] and read == b"1"
    assert isinstance(refused, redis.exceptions.ReadOnlyError)
    other.client.set("k", 1)
    caught_up(other, one)
    assert one.digest() == other.digest()
