"""Where a server listens, also when that changes while it runs, and how it accepts."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.server import acceptor
from penstock.server.app import App
from penstock.testing.redis import free_port


def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    path = tmp_path / "penstock.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:  # by a server that was killed
        left_behind.bind(str(path))
    with Server(unixsocket=path, unixsocketperm="700") as server:
        assert path.stat().st_mode & 0o777 == 0o700
        with redis.Redis(unix_socket_path=str(path)) as client:
            assert client.set("a", 1)
            info = client.client_info()
            assert info["addr"] == f"{path}:0" and info["flags"] == "U"
        with redis.Redis.from_url(server.url) as client:
            assert client.get("a") == b"1"
    assert not path.exists()


def test_port_0_listens_on_the_unix_socket_alone(tmp_path: Path) -> None:
    path = tmp_path / "penstock.sock"
    with Server(port=0, unixsocket=path) as server:
        assert server.port == 0
        with redis.Redis(unix_socket_path=str(path)) as client:
            assert client.ping()


@pytest.mark.parametrize("directives", ["bind\n", 'bind ""\n', "port 0\n"])
def test_a_server_that_would_listen_nowhere_does_not_start(tmp_path: Path, directives: str) -> None:
    (tmp_path / "penstock.conf").write_text(directives)
    command = [sys.executable, "-m", "penstock", "serve", str(tmp_path / "penstock.conf"), "--save", ""]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "cannot start: there is no address to listen on: set port and bind" in ended.stderr + ended.stdout


def test_without_addresses_it_listens_on_the_unix_socket_alone(tmp_path: Path) -> None:
    with Server(bind="", unixsocket=str(tmp_path / "s")), redis.Redis(unix_socket_path=str(tmp_path / "s")) as client:
        assert client.ping()


def test_a_taken_port_is_an_error_at_start(tmp_path: Path) -> None:
    with Server() as server, pytest.raises(OSError):
        Server(port=server.port).start()


def test_an_address_with_a_dash_may_be_missing() -> None:
    with Server(bind="127.0.0.1 -192.0.2.1") as server, RawClient(server.port) as client:
        assert client.ask("PING") == b"PONG"
    with pytest.raises(OSError):
        Server(bind="192.0.2.1").start()


# -- moving ---------------------------------------------------------------------------------------------------


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_the_port_can_change_while_the_server_runs() -> None:
    with Server() as server, RawClient(server.port) as client:
        before, after = server.port, free_port()
        assert client.ask(f"CONFIG SET port {after}") == b"OK"
        assert client.ask("CONFIG GET port") == [b"port", b"%d" % after]
        assert server.port == after
        with RawClient(after) as another:
            assert another.ask("PING") == b"PONG"
            assert f"laddr=127.0.0.1:{after} ".encode() in another.ask("CLIENT INFO")
        assert not is_listening(before)
        assert client.ask("PING") == b"PONG"


def test_a_taken_port_is_refused_and_the_old_one_stays(taken: int) -> None:
    with Server() as server, RawClient(server.port) as client:
        refused = client.ask(f"CONFIG SET port {taken} maxclients 500")
        assert refused.startswith("ERR CONFIG SET failed (possibly related to argument 'port') - ")
        assert client.ask("CONFIG GET port") == [b"port", b"%d" % server.port]
        assert client.ask("CONFIG GET maxclients") == [b"maxclients", b"10000"]
        assert is_listening(server.port)


def test_port_0_closes_the_listener_and_a_port_opens_it_again() -> None:
    with Server() as server, RawClient(server.port) as client:
        port = server.port
        assert client.ask("CONFIG SET port 0") == b"OK"
        assert not is_listening(port)
        assert client.ask(f"CONFIG SET port {port}") == b"OK"
        assert is_listening(port)


def test_the_addresses_can_change_while_the_server_runs() -> None:
    with Server() as server, RawClient(server.port) as client:
        for value, here, there in (("127.0.0.2", False, True), ("*", True, True), ("127.0.0.1", True, False)):
            assert client.ask(f"CONFIG SET bind {value}") == b"OK"
            assert is_listening(server.port) is here
            assert is_listening(server.port, "127.0.0.2") is there
        assert client.ask("CONFIG SET bind 192.0.2.1").startswith("ERR CONFIG SET failed")
        assert client.ask("CONFIG GET bind") == [b"bind", b"127.0.0.1"]
        assert is_listening(server.port)


def test_an_address_that_cannot_be_had_leaves_those_that_were_in_its_way(taken: int) -> None:
    with Server(bind="127.0.0.2", port=taken) as server, socket.create_connection(("127.0.0.2", taken)) as client:
        client.sendall(b"CONFIG SET bind *\r\n")
        assert b"Address already in use" in client.recv(1000)
        assert server.call(lambda app: app.addresses) == [f"127.0.0.2:{taken}"]
        assert is_listening(taken, "127.0.0.2")


def test_port_and_addresses_change_together_or_not_at_all(taken: int) -> None:
    with Server() as server, RawClient(server.port) as client:
        port = free_port()
        client.command("CONFIG", "SET", "port", str(port), "bind", "127.0.0.1 127.0.0.2")
        assert client.read() == b"OK"
        assert is_listening(port) and is_listening(port, "127.0.0.2")
        client.command("CONFIG", "SET", "bind", "127.0.0.2", "port", "1", "tls-port", "1")
        assert "CONFIG SET failed" in str(client.read())
        assert is_listening(port) and is_listening(port, "127.0.0.2")


def test_tls_needs_a_certificate_also_when_its_port_is_set_later() -> None:
    with Server() as server, RawClient(server.port) as client:
        assert "tls-port needs tls-cert-file" in client.ask(f"CONFIG SET tls-port {free_port()}")
        assert is_listening(server.port)


def test_addresses_of_clients_are_shown_as_redis_shows_them() -> None:
    with Server(bind="::1") as server, socket.create_connection(("::1", server.port)) as client:
        client.sendall(b"CLIENT INFO\r\n")
        shown = client.recv(4000)
        assert f" addr=[::1]:{client.getsockname()[1]} laddr=[::1]:{server.port} ".encode() in shown


# -- accepting ------------------------------------------------------------------------------------------------


def test_a_burst_of_clients_is_accepted_in_one_turn_and_served_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "MADE_IN_A_TURN", 3)
    with Server() as server:

        def connect(app: App) -> list[socket.socket]:
            """In the loop's thread, so that none of them is accepted before all have come."""
            return [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]

        clients = server.call(connect)
        try:
            for number, client in enumerate(clients):
                client.sendall(b"ECHO %02d\r\n" % number)
            for number, client in enumerate(clients):
                assert client.recv(100) == b"$2\r\n%02d\r\n" % number
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize("begun", [False, True])
def test_clients_that_have_no_connection_yet_are_closed_when_the_server_stops(begun: bool) -> None:
    """Whether or not the loop has begun to make their connections."""
    with Server() as server:
        clients: list[socket.socket] = []

        def stop_in_the_middle(app: App) -> list[socket.socket]:
            clients.extend(socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(3))
            (listener,) = app.listeners.all
            if begun:
                app.acceptor._accept_all(listener)
                arriving = [connection.socket for connection in app.acceptor.arriving]
            else:
                accepted = [app.acceptor.accept(listener) for _ in clients]
                arriving = [connection.socket for connection in accepted if connection is not None]
                app.acceptor._accepted.extend(connection for connection in accepted if connection)
            app.halt()
            return arriving

        arriving = server.call(stop_in_the_middle)
        assert len(arriving) == 3
        for client in clients:
            with client:
                assert client.recv(100) == b""
    assert [each.fileno() for each in arriving] == [-1, -1, -1]


def test_clients_that_come_together_are_no_more_than_maxclients() -> None:
    with Server(maxclients=20) as server:
        clients = server.call(lambda app: [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)])
        for client in clients[:20]:
            client.sendall(b"PING\r\n")
        for client in clients[20:]:
            assert client.recv(100) == b"-ERR max number of clients reached\r\n"
        for client in clients[:20]:
            assert client.recv(100) == b"+PONG\r\n"
        for client in clients:
            client.close()


def test_a_server_without_descriptors_accepts_when_it_has_some_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "REST", 0.01)
    with Server() as server:
        accept = acceptor.Acceptor.accept
        failures = iter([OSError(24, "Too many open files")] * 3)

        def failing(self: acceptor.Acceptor, listener: object) -> object:
            for error in failures:
                raise error
            return accept(self, listener)  # type: ignore[arg-type]

        monkeypatch.setattr(acceptor.Acceptor, "accept", failing)
        with RawClient(server.port) as client:
            assert client.ask("PING") == b"PONG"
        assert caplog.text.count("cannot accept a client: Too many open files") == 3
