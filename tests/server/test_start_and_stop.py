"""The first and the last moments of a server: no command runs before loading has begun or after the log was closed."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import redis
from tests.support.server_process import Process

from penstock.engine.config import Config
from penstock.server.app import App
from penstock.server.connection import Connection
from penstock.storage.persistence import Persistence
from penstock.testing.redis import free_port


def run_app(scenario: Callable[[App], Awaitable[None]], folder: Path, **directives: str) -> None:
    """Make an App inside a loop and pass it on, before its start."""

    async def main() -> None:
        config = Config()
        for name, value in {"dir": str(folder), "bind": "127.0.0.1", "port": "0", "save": "", **directives}.items():
            config.load(name, value.split())
        await scenario(App(config, choose_port=True))

    asyncio.run(main())


async def ask(port: int, command: bytes) -> bytes:
    """Send one inline command on a connection of its own; the line that comes back."""
    return await answer(*await asyncio.open_connection("127.0.0.1", port), command)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: bytes) -> bytes:
    """Send one inline command; the line that comes back, empty if the server closes the connection instead."""
    try:
        async with asyncio.timeout(60):
            writer.write(command + b"\r\n")
            await writer.drain()
            return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_no_command_runs_between_the_first_socket_and_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = []
    load = Persistence.start

    async def scenario(app: App) -> None:
        async def ask_first(persistence: Persistence, stopped: Callable[[], bool]) -> None:
            """The sockets are open by now."""
            for command in (b"SET a 1", b"LAZY SET a 1", b"DEBUG RELOAD NOSAVE", b"GET a"):
                replies.append(await ask(app.port, command))
            await load(persistence, stopped)

        monkeypatch.setattr(Persistence, "start", ask_first)
        await app.start()
        replies.append(await ask(app.port, b"SET a 2"))
        await app.stop()

    run_app(scenario, tmp_path, appendonly="yes")
    assert [reply.split()[0] for reply in replies] == [b"-LOADING"] * 4 + [b"+OK"]


def test_a_client_that_connects_while_the_server_stops_is_not_served(tmp_path: Path) -> None:
    async def scenario(app: App) -> None:
        await app.start()
        await app.stop()
        ours, theirs = socket.socketpair()
        await app.loop.connect_accepted_socket(lambda: Connection(app, theirs, "", ""), theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        assert await answer(reader, writer, b"SET a 1") == b"", "the log is closed, so this is acknowledged and lost"

    run_app(scenario, tmp_path, appendonly="yes")


def test_nothing_runs_between_the_last_snapshot_and_the_end(tmp_path: Path) -> None:
    async def scenario(app: App) -> None:
        await app.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(b"SET a 1\r\n")
        assert await reader.readline() == b"+OK\r\n"
        app.persistence.shut_down(save=None, force=False)
        assert await answer(reader, writer, b"SET a 2") == b"", "this is in no snapshot"
        assert app.stop_requested.is_set()
        await app.stop()

    run_app(scenario, tmp_path, save="3600 1")


def test_a_signal_ends_no_server_that_cannot_write_its_snapshot(tmp_path: Path) -> None:
    port, options = free_port(), "--appendonly no --save 3600 1"
    blocked = tmp_path / "dump.pns"
    server = Process(tmp_path, port, options=options)
    try:
        assert str(blocked.name) == redis.Redis(port=port).config_get("dbfilename")["dbfilename"]
        (blocked / "inside").mkdir(parents=True)  # a folder has the snapshot's name
        with redis.Redis(port=port, retry=None, socket_timeout=60) as client:
            client.set("a", 1)
            server.process.send_signal(signal.SIGTERM)
            refused = b"the data cannot be written (the snapshot could not be written: "
            for count in (1, 2):
                while (tmp_path / "server.log").read_bytes().count(refused) < count:
                    assert server.process.poll() is None, "the data is gone"
                    time.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
            assert client.get("a") == b"1"
            (blocked / "inside").rmdir()
            blocked.rmdir()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=60) == 0
        assert blocked.is_file()
    finally:
        server.kill()


def test_a_second_interrupt_ends_a_server_that_cannot_write_its_snapshot(tmp_path: Path) -> None:
    server = Process(tmp_path, free_port(), options="--appendonly no --save 3600 1")
    try:
        (tmp_path / "dump.pns").mkdir()
        for count, number in enumerate((signal.SIGTERM, signal.SIGINT), 1):
            server.process.send_signal(number)
            advice = b"press Ctrl-C (SIGINT) twice within 10 seconds"
            while (tmp_path / "server.log").read_bytes().count(advice) < count:
                assert server.process.poll() is None
                time.sleep(0.01)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=60) == 1
        assert b"asked to stop a second time" in (tmp_path / "server.log").read_bytes()
    finally:
        server.kill()
