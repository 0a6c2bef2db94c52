"""Leaders and replicas in this process, each with a folder of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from tests.support.waiting import wait_until

from penstock import Server


class Pair:
    """A server in this process, and a client of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = redis.Redis(port=server.port)

    @property
    def address(self) -> str:
        return f"127.0.0.1 {self.server.port}"

    def info(self) -> dict[str, Any]:
        return dict(self.client.info("replication"))

    def digest(self) -> bytes:
        return bytes(self.client.execute_command("DEBUG", "DIGEST"))

    def follow(self, leader: Pair) -> None:
        self.client.execute_command("REPLICAOF", *leader.address.split())


class Servers:
    """Makes servers in folders of one folder, and ends them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def start(self, name: str, leader: Pair | None = None, **directives: object) -> Pair:
        """A server on the folder of that name; a replica if there is a leader."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        settings: dict[str, object] = {"appendonly": True, "hz": 100, **directives}
        if leader is not None:
            settings["replicaof"] = leader.address
        pair = Pair(self._stack.enter_context(Server(dir=str(folder), **settings)))
        self._stack.callback(pair.client.close)
        return pair

    def folder(self, name: str) -> Path:
        return self._folder / name


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(folder, stack)


def is_up(replica: Pair) -> bool:
    with contextlib.suppress(redis.exceptions.BusyLoadingError):
        return bool(replica.info()["master_link_status"] == "up")
    return False


def takes_writes(leader: Pair) -> bool:
    """Whether it would take them; it is asked without a change that could be lost."""
    with contextlib.suppress(redis.ResponseError):
        return leader.client.delete("nothing") == 0
    return False


def caught_up(leader: Pair, *replicas: Pair) -> None:
    """Return when the replicas have everything."""

    def all_have() -> bool:
        end = leader.info()["master_repl_offset"]
        return all(is_up(replica) and replica.info()["slave_repl_offset"] == end for replica in replicas)

    leader.client.execute_command("WAIT", 0, 0)  # the log has what was written
    wait_until(all_have)
