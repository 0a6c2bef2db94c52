"""Exactly once over sockets: the scripted server, which knows ONCE and counts what runs, behind a door that slams."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.client.conftest import Connect
from tests.client.door import Door
from tests.client.scripted import ScriptedServer

from penstock.client.errors import OutcomeUnknown

QUICK: dict[str, Any] = {"backoff_base": 0.01, "backoff_cap": 0.05, "protocol": 2}


class Listening:
    """A ScriptedServer on a port; each connection has its own frame of mind, all have one memory."""

    def __init__(self) -> None:
        self.memory = ScriptedServer()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self._sockets: list[socket.socket] = []

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._sockets.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        session = ScriptedServer()
        session.runs, session.log, session.kept = self.memory.runs, self.memory.log, self.memory.kept
        with contextlib.suppress(OSError), sock:
            while data := sock.recv(65536):
                sock.sendall(session.feed(data))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


@pytest.fixture
def server() -> Iterator[Listening]:
    listening = Listening()
    yield listening
    listening.close()


def test_a_write_whose_reply_was_lost_runs_once(connect: Connect, server: Listening) -> None:
    with Door(server.port) as door:
        client = connect(door.url, delivery="exactly-once", **QUICK)
        assert client.execute_command("INCR", "a") == 1
        door.cut_reply()
        assert client.execute_command("INCR", "a") == 2
        assert server.memory.runs == {b"a": 2} and client.counters.replayed == 1


def test_pipelines_and_transactions_run_once(connect: Connect, server: Listening) -> None:
    with Door(server.port) as door:
        client = connect(door.url, delivery="exactly-once", **QUICK)
        client.ping()
        for transaction in (False, True):
            door.cut_reply(after=7)
            pipe = client.pipeline(transaction=transaction)
            for _ in range(5):
                pipe.execute_command("INCR", f"key{transaction}")
            pipe.execute_command("GET", f"key{transaction}")
            assert pipe.execute() == [1, 2, 3, 4, 5, 5]


def test_the_filter_holds_at_this_level_too(connect: Connect, server: Listening) -> None:
    with Door(server.port) as door:
        client = connect(door.url, delivery="exactly-once", replay_filter=lambda command: True, **QUICK)
        client.ping()
        door.cut_reply()
        with pytest.raises(OutcomeUnknown):
            client.execute_command("INCR", "a")


def test_many_threads_through_many_cuts_run_everything_once(connect: Connect, server: Listening) -> None:
    with Door(server.port) as door:
        client = connect(door.url, delivery="exactly-once", **QUICK)
        client.ping()

        def work(name: int) -> None:
            for number in range(20):
                assert client.execute_command("INCR", f"{name}:{number}") == 1

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            door.cut_reply()
            threads[0].join(0.02)
        for thread in threads:
            thread.join()
        assert set(server.memory.runs.values()) == {1} and len(server.memory.runs) == 160
