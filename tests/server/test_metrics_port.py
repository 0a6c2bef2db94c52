"""The port for monitoring programs: what it answers, to which clients, and what hostile ones cannot do."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.servers import servers
from tests.support.scraping import scrape
from tests.support.tls import Authority
from tests.support.waiting import wait_until

from penstock import Server
from penstock.engine.config import ConfigError
from penstock.server.metrics import collector, endpoint, own_metrics
from penstock.server.metrics.http import LONGEST
from penstock.storage.loading import Loader
from penstock.testing.redis import free_port

EVERYWHERE = "0.0.0.0"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(port: int) -> Iterator[Server]:
    with Server(metrics_port=port) as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, retry=None) as connected:
        yield connected


def _get(
    port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None, host: str = "127.0.0.1"
) -> tuple[int, str, dict[str, str]]:
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())


def _raw(port: int, data: bytes) -> bytes:
    """What is answered to these bytes, until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(data)
        return _until_closed(connection)


def _until_closed(connection: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            answer += data
    return answer


def test_the_paths_and_methods(server: Server, port: int) -> None:
    assert _get(port, "/healthz")[:2] == (200, "ok\n")
    assert _get(port, "/readyz")[:2] == (200, "ready\n")
    assert _get(port, "/metrics?name=x")[0] == 200
    assert _get(port, "/")[0] == 404
    status, body, headers = _get(port, "/metrics", "HEAD")
    assert (status, body) == (200, "") and int(headers["Content-Length"]) > 10_000
    status, _, headers = _get(port, "/metrics", "POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_a_name_that_was_pointed_at_this_machine_is_refused(server: Server, port: int, client: redis.Redis) -> None:
    def ask(host: str, path: str = "/metrics") -> bytes:
        return _raw(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())[9:12]

    assert [ask(host) for host in ("localhost", f"127.0.0.1:{port}", "[::1]:1")] == [b"200"] * 3
    assert [ask(host) for host in ("evil.example", "127.0.0.1.evil.example", "")] == [b"403"] * 3
    assert ask("evil.example", "/healthz") == b"200", "probes learn nothing"
    client.config_set("metrics-protected-mode", "no")
    assert ask("penstock.internal") == b"200"
    client.config_set("metrics-protected-mode", "yes")


def test_a_connection_serves_many_requests(server: Server, port: int) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for path in ("/metrics", "/healthz", "/metrics"):
            connection.request("GET", path)
            assert len(connection.getresponse().read()) > 1
    two = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = _raw(port, two)
    assert answer.count(b"HTTP/1.1 200 OK") == 2 and answer.endswith(b"ready\n")
    assert _raw(port, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"*1\r\n$4\r\nPING\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/2.0\r\nHost: a\r\n\r\n", b"400"),
        (b"GET http://a/metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\nHost: a\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost : a\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\x00\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nA:" + b" " * 8000 + b"\x00\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", b"413"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"413"),
        (b"DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"405"),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * LONGEST, b"431"),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_ends(
    server: Server, port: int, data: bytes, status: bytes
) -> None:
    assert _raw(port, data).startswith(b"HTTP/1.1 " + status)


def test_silent_connections_make_room_for_new_ones(server: Server, port: int) -> None:
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(3 * endpoint.MOST_CONNECTIONS)
        ]
        for connection in silent[::2]:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /metr")
        assert _get(port, "/healthz")[0] == 200
        assert _until_closed(silent[0]) == b""
        assert scrape(port).value("penstock_metrics_connections") <= endpoint.MOST_CONNECTIONS


@pytest.mark.parametrize("begun", [b"", b"GET /metrics HT", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_a_connection_that_sends_nothing_more_ends(
    server: Server, port: int, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_SECONDS", 0.1)
    monkeypatch.setattr(endpoint, "IDLE_SECONDS", 0.1)
    answer = _raw(port, begun)
    assert answer == b"" or answer.endswith(b"ok\n")


def test_a_client_that_does_not_read_is_closed(server: Server, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(collector, "PAUSE", 0)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", port))
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for _ in range(300):  # more answers than the kernel holds
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: scrape(port).value("penstock_metrics_connections") == 1)


def test_scrapes_at_the_same_time_share_one_collection(
    server: Server, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = scrape(port).value("penstock_metrics_scrapes_total")
    monkeypatch.setattr(collector, "PAUSE", 3)  # seconds in which all of them come
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(10)]
        for connection in many:
            connection.sendall(request)
        answers = [_until_closed(connection) for connection in many]
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert all(b"penstock_metrics_scrapes_total %d\n" % (before + 1) in answer for answer in answers)


def test_metrics_are_off_by_default() -> None:
    with Server() as server:
        assert server.app.config.metrics_port == 0
        assert not server.app.metrics._sockets.all


def test_the_port_can_change_while_the_server_runs(client: redis.Redis, server: Server, port: int) -> None:
    other = free_port()
    client.config_set("metrics-port", other)
    assert _get(other, "/healthz")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        _get(port, "/healthz")
    client.config_set("metrics-port", 0)
    with pytest.raises(ConnectionRefusedError):
        _get(other, "/healthz")
    with pytest.raises(redis.ResponseError, match="cannot listen"):
        client.config_set("metrics-port", server.port)
    assert client.config_get("metrics-port") == {"metrics-port": "0"}
    client.config_set("metrics-port", port)
    assert _get(port, "/healthz")[0] == 200


def test_an_address_for_other_machines_needs_protection(client: redis.Redis, port: int) -> None:
    with pytest.raises(ConfigError, match="metrics-protected-mode no"), Server(metrics_port=1, metrics_bind="*"):
        pass
    with pytest.raises(redis.ResponseError, match="can be reached from other machines"):
        client.config_set("metrics-bind", EVERYWHERE)
    assert _get(port, "/healthz")[0] == 200  # where it was
    settings: list[dict[str, str]] = [{"metrics-password": "secret"}, {"metrics-protected-mode": "no"}]
    for setting in settings:
        client.execute_command(
            "CONFIG", "SET", "metrics-bind", EVERYWHERE, *[word for pair in setting.items() for word in pair]
        )
        assert _get(port, "/healthz", host=socket.gethostbyname(socket.gethostname()))[0] == 200
        with pytest.raises(redis.ResponseError, match="can be reached"):  # it would be open without this
            client.config_set(*(("metrics-password", "") if "metrics-password" in setting else (*setting, "yes")))
        client.execute_command(
            "CONFIG", "SET", "metrics-bind", "127.0.0.1", "metrics-password", "", "metrics-protected-mode", "yes"
        )


def test_a_password_is_asked_for(client: redis.Redis, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WRONG_PASSWORD_REST", 0)
    client.config_set("metrics-password", "pass:wörd")
    try:
        status, body, headers = _get(port, "/metrics")
        assert status == 401 and headers["WWW-Authenticate"].startswith("Basic ") and "redis_up" not in body
        right = base64.b64encode("metrics:pass:wörd".encode()).decode()
        for given in ("Basic", "Basic !", "Basic " + base64.b64encode(b"metrics:pass").decode(), f"Bearer {right}"):
            assert _get(port, "/metrics", headers={"Authorization": given})[0] == 401
        monkeypatch.setattr(endpoint, "WRONG_PASSWORD_REST", 600)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as guessing:
            guessing.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Basic x\r\n\r\n")
            guessing.settimeout(0.1)
            with pytest.raises(TimeoutError):
                guessing.recv(1)
        assert _get(port, "/metrics", headers={"Authorization": f"Basic {right}"})[0] == 200
        assert _get(port, "/healthz")[0] == _get(port, "/readyz")[0] == 200
        assert client.config_get("metrics-user") == {"metrics-user": "metrics"}
    finally:
        client.config_set("metrics-password", "")


def test_tls_uses_the_certificates_of_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    port = free_port()
    files = {"tls_cert_file": certificate, "tls_key_file": key, "tls_ca_cert_file": authority.file}
    with pytest.raises(ConfigError, match="metrics-tls needs tls-cert-file"), Server(metrics_port=1, metrics_tls=True):
        pass
    with Server(metrics_port=port, metrics_tls=True, metrics_bind="*", **files) as server:
        context = ssl.create_default_context(cafile=str(authority.file))

        def get(with_certificate: ssl.SSLContext) -> int:
            made = http.client.HTTPSConnection("localhost", port, timeout=60, context=with_certificate)
            with contextlib.closing(made) as connection:
                connection.request("GET", "/metrics")
                return connection.getresponse().status

        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(context)  # tls-auth-clients is yes
        context.load_cert_chain(*authority.issue("prometheus"))
        assert get(context) == 200
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            _get(port, "/metrics")
        with redis.Redis.from_url(server.url) as client:
            with pytest.raises(redis.ResponseError, match="can be reached"):
                client.config_set("tls-auth-clients", "no")
            assert client.config_get("tls-auth-clients") == {"tls-auth-clients": "yes"}
        assert get(context) == 200


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[int, ssl.SSLContext]]:
    """A metrics port with TLS, and what a client of it needs."""
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    port = free_port()
    files = {"tls_cert_file": certificate, "tls_key_file": key, "tls_auth_clients": "no"}
    with Server(metrics_port=port, metrics_tls=True, **files):
        yield port, ssl.create_default_context(cafile=str(authority.file))


def test_a_handshake_that_does_not_end_makes_room_for_others(
    encrypted: tuple[int, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_SECONDS", 600)
    port, context = encrypted
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(2 * endpoint.MOST_CONNECTIONS)
        ]
        assert _until_closed(silent[0]) == b""
        made = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
        with contextlib.closing(made) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200


def test_a_slow_request_ends_also_with_tls(
    encrypted: tuple[int, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then must not count as an answer that was taken, which begins the time anew."""
    port, context = encrypted
    monkeypatch.setattr(endpoint, "REQUEST_SECONDS", 600)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.settimeout(0.1)
        monkeypatch.setattr(endpoint, "REQUEST_SECONDS", 1)  # the handshake may take longer on a busy machine

        def ends() -> bool:
            try:
                connection.send(b"G")
                return connection.recv(100) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(ends)


def test_a_server_that_loads_is_alive_and_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    port, loaded = free_port(), threading.Event()
    load = Loader.load_in_slices

    async def load_later(self: Loader, unwanted: Callable[[], bool]) -> None:
        while not loaded.is_set():
            await asyncio.sleep(0.01)
        await load(self, unwanted)

    monkeypatch.setattr(Loader, "load_in_slices", load_later)
    server = Server(metrics_port=port)
    starting = threading.Thread(target=server.start)
    starting.start()

    def answers() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            return _get(port, "/healthz")[0] == 200
        return False

    try:
        wait_until(answers)
        assert _get(port, "/readyz")[:2] == (503, "loading its data\n")
        assert scrape(port).value("redis_loading_dump_file") == 1
        loaded.set()
        starting.join()
        assert _get(port, "/readyz")[0] == 200
    finally:
        loaded.set()
        starting.join()
        server.stop()


def test_a_replica_out_of_step_and_a_full_disk_are_not_ready(tmp_path: Path) -> None:
    with servers(tmp_path) as started:
        ports = free_port(), free_port()
        leader = started.start("leader", metrics_port=ports[0])
        replica = started.start("replica", leader, metrics_port=ports[1], replica_serve_stale_data=False)
        wait_until(lambda: _get(ports[1], "/readyz")[0] == 200)
        replica.client.config_set("masterauth", "wrong")
        leader.client.config_set("requirepass", "secret")
        leader.client.execute_command("AUTH", "secret")
        leader.client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        wait_until(lambda: _get(ports[1], "/readyz")[0] == 503)
        assert "replica-serve-stale-data" in _get(ports[1], "/readyz")[1]
        assert scrape(ports[1]).value("penstock_stale") == 1
        leader.server.call(lambda app: app.persistence._log_trouble("No space left on device"))
        status, why, _ = _get(ports[0], "/readyz")
        assert (status, "No space left on device" in why) == (503, True)
        assert scrape(ports[0]).value("penstock_writes_refused", reason="disk") == 1


def test_an_error_of_ours_is_answered_and_logged(
    server: Server, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(engine: object, page: object) -> Iterator[None]:
        yield
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(own_metrics, "steps", broken)
        assert _get(port, "/metrics")[0] == 500
    assert "ZeroDivisionError" in caplog.text
    assert _get(port, "/metrics")[0] == 200


def test_no_request_makes_an_error_in_the_server(server: Server, port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for data in (b"\x16\x03\x01\x02\x00", b"\xff" * 5000, b"GET /metrics HTTP/1.1\r\nHost: 1.1.1.1\r\n\r\n" * 100):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(data)
        assert _get(port, "/healthz")[0] == 200
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
