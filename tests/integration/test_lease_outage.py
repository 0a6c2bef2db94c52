"""Leases that end while the server cannot be asked: their holders may extend them when it is back."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import redis
from tests.support.server_process import Process

from penstock.testing.redis import free_port

RETRY = 2000
READ = f"TREAD k 0 1 GROUP g RETRY {RETRY} 0 MAXATTEMPTS 1 DEADLETTER dead WITHLEASE"


def lease(client: redis.Redis) -> int:
    """Write a message and begin its only attempt; the token."""
    client.execute_command("TWRITE", "k", "", "a")
    return int(client.execute_command(*READ.split())[0])


def test_a_server_that_was_stopped_gives_up_nothing_whose_holder_extends_it(tmp_path: Path) -> None:
    server = Process(tmp_path, free_port())
    try:
        with redis.Redis(port=server.port, protocol=2) as other, redis.Redis(port=server.port, protocol=2) as holder:
            connection = holder.connection_pool.get_connection()
            token = lease(other)
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(1.5 * RETRY / 1000)  # the lease ends
            server.process.send_signal(signal.SIGCONT)
            assert other.execute_command(*READ.split()) == [0]
            connection.send_command("TEXTEND", "k", "g", 60_000, "TOKEN", token, 1)
            assert connection.read_response() == 1
            assert not other.exists("dead")
            assert other.execute_command("TEXTEND", "k", "g", 1, "TOKEN", token, 1) == 1
            until = time.monotonic() + 60
            while not other.exists("dead"):  # when nothing extends it any more
                assert time.monotonic() < until
                time.sleep(0.05)
    finally:
        server.kill()


def test_a_server_that_was_killed_gives_up_nothing_whose_holder_comes_back(tmp_path: Path) -> None:
    server = Process(tmp_path, free_port())
    try:
        with redis.Redis(port=server.port, protocol=2) as client:
            token = lease(client)
        server.kill()
        time.sleep(1.5 * RETRY / 1000)  # the lease ends
        server = Process(tmp_path, server.port)
        with redis.Redis(port=server.port, protocol=2) as client:
            assert client.execute_command(*READ.split()) == [0]
            assert client.execute_command("TACK", "k", "g", "TOKEN", token, 1) == 1
            assert not client.exists("dead")
    finally:
        server.kill()
