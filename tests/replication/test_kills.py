"""Servers are killed at random moments: no write is lost for which WAIT had answered that a replica has it.

A few clients write all the time, each write followed by WAIT. Meanwhile one of the two servers is killed and started
again, stopped for a moment, or told to rewrite its log; and twice the leader is killed, the replica promoted, and the
former leader follows it. After each promotion every confirmed write must be there.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from pathlib import Path

import redis
from redis.exceptions import RedisError
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock.testing.redis import free_port

EVENTS = 2
"""Between two promotions."""
CLIENTS = 3


class Node:
    """A server that is killed, and started again on the same folder and port."""

    def __init__(self, folder: Path, policy: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.port = free_port()
        self._options = f"--appendfsync {policy} --enable-debug-command yes"
        self.process: Process | None = None

    def start(self, leader: Node | None) -> None:
        following = f" --replicaof 127.0.0.1 {leader.port}" if leader is not None else ""
        self.process = Process(self.folder, self.port, options=self._options + following)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None

    def call(self, *words: object) -> object:
        with redis.Redis(port=self.port, retry=None, socket_timeout=60) as client:
            return client.execute_command(*words)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.process.send_signal(number)


class Clients:
    """They write to the leader, and remember which writes were confirmed by a replica."""

    def __init__(self, leader: Node) -> None:
        self.leader = leader
        self.confirmed: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _write(self, number: int) -> None:
        written = 0
        while not self._stop.is_set():
            port = self.leader.port
            with contextlib.suppress(RedisError), redis.Redis(port=port, retry=None, socket_timeout=60) as client:
                while not self._stop.is_set() and port == self.leader.port:
                    written += 1
                    key = f"{number}:{written}"
                    with client.pipeline(transaction=False) as pipe:
                        answer = pipe.set(key, written).execute_command("WAIT", 1, 200).execute()
                    if answer == [True, 1]:
                        self.confirmed.append(key)
            time.sleep(0.01)  # its server is gone, or follows

    def wait_for_some(self) -> None:
        count = len(self.confirmed)
        wait_until(lambda: len(self.confirmed) > count + 20)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def disturb(chance: random.Random, leader: Node, replica: Node) -> None:
    """One of the things that happen to servers."""
    time.sleep(chance.random() * 0.05)
    match chance.choice(["leader", "replica", "replica", "rewrite", "stop"]):
        case "leader":
            leader.kill()
            leader.start(None)
        case "replica":
            replica.kill()
            replica.start(leader)
        case "rewrite":
            with contextlib.suppress(redis.ResponseError):  # one is under way
                chance.choice([leader, replica]).call("BGREWRITEAOF")
            time.sleep(chance.random() * 0.05)
            leader.kill()
            leader.start(None)
        case "stop":
            node = chance.choice([leader, replica])
            node.signal(signal.SIGSTOP)
            time.sleep(chance.random() * 0.3)
            node.signal(signal.SIGCONT)


def promote(leader: Node, replica: Node, at_restart: bool) -> None:
    """The leader is gone, and the replica leads: at once, or it dies as well with what it has not read yet."""
    if not at_restart:
        leader.kill()
        replica.call("REPLICAOF", "NO", "ONE")
        return
    replica.signal(signal.SIGSTOP)
    time.sleep(0.3)  # clients go on writing
    leader.kill()
    replica.kill()
    replica.start(None)


def test_no_confirmed_write_is_lost(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    policy = chance.choice(["everysec", "always", "no"])
    leader, replica = Node(tmp_path / "one", policy), Node(tmp_path / "other", policy)
    with contextlib.ExitStack() as stack:
        stack.callback(leader.kill)
        leader.start(None)
        stack.callback(replica.kill)
        replica.start(leader)
        clients = Clients(leader)
        stack.callback(clients.stop)
        for at_restart in (True, False):
            for _ in range(EVENTS):
                clients.wait_for_some()
                disturb(chance, leader, replica)
            clients.wait_for_some()
            promote(leader, replica, at_restart)
            confirmed = list(clients.confirmed)
            leader, replica = replica, leader
            values = leader.call("MGET", *confirmed)
            assert isinstance(values, list)
            lost = [key for key, value in zip(confirmed, values, strict=True) if value is None]
            assert not lost, f"{len(lost)} of {len(confirmed)} confirmed writes are lost; seed {seed}, {policy}"
            clients.leader = leader
            replica.start(leader)
        clients.wait_for_some()
        clients.stop()
        wait_until(lambda: leader.call("DEBUG", "DIGEST") == replica.call("DEBUG", "DIGEST"))
    for node in (leader, replica):
        text = (node.folder / "server.log").read_text()
        assert "Traceback" not in text and "internal error" not in text, text
