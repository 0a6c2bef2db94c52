"""TLS, with certificates made by the test."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import redis
from tests.support.raw_client import RawClient
from tests.support.tls import Authority, tls_client, tls_server

from penstock import Server
from penstock.engine.config import Config, ConfigError
from penstock.server.listeners import tls_context
from penstock.testing.redis import free_port

PASS_PHRASE = b"hush"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


def test_plain_and_tls_are_served_side_by_side(authority: Authority) -> None:
    with tls_server(authority, tls_auth_clients="no") as server:
        big = b"x" * 3_000_000
        with tls_client(server.app.tls_port, authority) as client:
            assert client.set("a", big)
            with client.pipeline(transaction=False) as pipe:
                for _ in range(1000):
                    pipe.incr("n")
                assert pipe.execute()[-1] == 1000
        with redis.Redis.from_url(server.url) as client:
            assert client.get("a") == big
            assert server.port != server.app.tls_port


def test_a_reply_in_pieces_comes_whole(authority: Authority) -> None:
    with (
        tls_server(authority, tls_auth_clients="no") as server,
        tls_client(server.app.tls_port, authority) as client,
    ):
        messages = [[n, b"tag", b"entry %d" % n] for n in range(1, 20_001)]
        client.execute_command("TWRITE", "k", "ENTRIES", *(word for message in messages for word in message[1:]))
        assert client.execute_command("TREAD", "k", 1, 20_000) == messages
        table = pa.ipc.open_stream(client.execute_command("TREAD", "k", 1, 20_000, "FORMAT", "ARROW")).read_all()
        assert table.column("entry").to_pylist() == [entry for _, _, entry in messages]


def test_a_client_must_show_a_certificate_of_the_authority(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger").issue("mallory")
    with tls_server(authority) as server:
        with tls_client(server.app.tls_port, authority, authority.issue("alice")) as client:
            assert client.ping()
        for identity in (None, stranger):
            with tls_client(server.app.tls_port, authority, identity) as client, pytest.raises(redis.ConnectionError):
                client.ping()
        with RawClient(server.port) as client:
            assert client.ask("PING") == b"PONG"


def test_optional_certificates_are_checked_if_shown(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger").issue("mallory")
    with tls_server(authority, tls_auth_clients="optional") as server:
        with tls_client(server.app.tls_port, authority) as client:
            assert client.ping()
        with tls_client(server.app.tls_port, authority, stranger) as client, pytest.raises(redis.ConnectionError):
            client.ping()


def test_port_0_leaves_tls_alone(authority: Authority) -> None:
    with tls_server(authority, tls_auth_clients="no", port=0) as server:
        assert server.port == 0
        with tls_client(server.app.tls_port, authority) as client:
            assert client.ping()


def test_a_key_may_have_a_pass_phrase(authority: Authority) -> None:
    certificate, key = authority.issue("locked", PASS_PHRASE)
    directives = {"tls_cert_file": certificate, "tls_key_file": key, "tls_auth_clients": "no"}
    locked = tls_server(authority, **directives, tls_key_file_pass=PASS_PHRASE.decode())
    with locked as server, tls_client(server.app.tls_port, authority) as client:
        assert client.ping()


def test_plain_bytes_on_the_tls_port_end_that_connection_alone(authority: Authority) -> None:
    with tls_server(authority, tls_auth_clients="no") as server:
        with RawClient(server.app.tls_port) as client:
            client.send(b"PING\r\n")
            received = b""
            try:
                while data := client.socket.recv(100):
                    received += data
            except ConnectionResetError:
                pass
            assert b"PONG" not in received  # at most a TLS alert
        with tls_client(server.app.tls_port, authority) as other:
            assert other.ping()


def test_old_versions_of_tls_are_refused(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    config = Config()
    for name, value in (("tls-cert-file", certificate), ("tls-key-file", key), ("tls-auth-clients", "no")):
        config.load(name, [value])
    assert tls_context(config).minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("directives", "error"),
    [
        ({"tls_cert_file": "", "tls_key_file": ""}, "tls-port needs tls-cert-file and tls-key-file"),
        ({"tls_key_file": "/nowhere.key"}, "tls-cert-file and tls-key-file cannot be used"),
        ({"tls_ca_cert_file": ""}, "tls-auth-clients yes needs tls-ca-cert-file"),
        ({"tls_ca_cert_file": "/nowhere.pem"}, "tls-ca-cert-file cannot be used"),
    ],
)
def test_a_wrong_file_is_named_at_start(authority: Authority, directives: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        tls_server(authority, **directives).start()


# -- new certificates while the server runs -------------------------------------------------------------------


def shown_name(port: int, authority: Authority, identity: tuple[str, str]) -> str:
    """The name in the certificate that the server shows to a new client."""
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(*identity)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        encrypted.sendall(b"PING\r\n")
        assert encrypted.recv(100) == b"+PONG\r\n"
        certificate = encrypted.getpeercert()
    assert certificate is not None
    return dict(pair for (pair,) in certificate["subject"])["commonName"]  # type: ignore[misc]


def test_certificates_are_replaced_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    me = authority.issue("me")
    with tls_server(authority) as server, redis.Redis.from_url(server.url) as admin:
        port = server.app.config.tls_port
        assert shown_name(port, authority, me) == "server"
        with tls_client(port, authority, me) as connected:
            connected.set("a", 1)
            certificate, key = authority.issue("renewed")
            assert admin.execute_command("CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key) == b"OK"
            assert shown_name(port, authority, me) == "renewed"
            assert connected.get("a") == b"1", "it is served on as it was"
        again = authority.issue("again")
        Path(certificate).write_bytes(Path(again[0]).read_bytes())
        Path(key).write_bytes(Path(again[1]).read_bytes())
        assert shown_name(port, authority, me) == "renewed", "files are read when the server is told to"
        admin.config_set("tls-cert-file", certificate)
        assert shown_name(port, authority, me) == "again", "the same names, read again"
        admin.config_set("tls-auth-clients", "no")
        with tls_client(port, authority) as stranger:
            assert stranger.ping()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("tls-cert-file", "/nowhere.crt", "tls-cert-file and tls-key-file cannot be used: .*No such file"),
        ("tls-key-file", "{other}", "tls-cert-file and tls-key-file cannot be used: .*KEY_VALUES_MISMATCH"),
        ("tls-key-file", "{locked}", "tls-cert-file and tls-key-file cannot be used"),
        ("tls-cert-file", "{junk}", "tls-cert-file and tls-key-file cannot be used"),
        ("tls-ca-cert-file", "{junk}", "tls-ca-cert-file cannot be used"),
        ("tls-cert-file", "", "tls-port needs tls-cert-file"),
    ],
)
def test_bad_files_are_refused_and_the_old_certificates_stay(
    authority: Authority, tmp_path: Path, name: str, value: str, problem: str
) -> None:
    me = authority.issue("me")
    (tmp_path / "junk").write_text("no certificate")
    files = {"other": me[1], "locked": authority.issue("locked", PASS_PHRASE)[1], "junk": str(tmp_path / "junk")}
    with tls_server(authority) as server, redis.Redis.from_url(server.url) as admin:
        before = admin.config_get("tls-*")
        with pytest.raises(redis.ResponseError, match=problem):
            admin.config_set(name, value.format(**files))
        assert admin.config_get("tls-*") == before
        assert shown_name(server.app.config.tls_port, authority, me) == "server"
        for file in (before["tls-cert-file"], before["tls-key-file"]):
            Path(file).unlink()
        with pytest.raises(redis.ResponseError, match="No such file"):
            admin.config_set("tls-cert-file", before["tls-cert-file"])
        assert shown_name(server.app.config.tls_port, authority, me) == "server"


def test_certificates_are_inside_dir(authority: Authority, tmp_path: Path) -> None:
    authority.issue("server")
    directives = {"tls_cert_file": "server.crt", "tls_key_file": "server.key", "tls_ca_cert_file": "authority.pem"}
    me = authority.issue("me")
    with Server(dir=tmp_path, tls_port=free_port(), **directives) as server:
        assert shown_name(server.app.config.tls_port, authority, me) == "server"


def test_certificates_may_come_before_the_port(authority: Authority) -> None:
    me, (certificate, key), port = authority.issue("me"), authority.issue("server"), free_port()
    with Server() as server, redis.Redis.from_url(server.url) as admin:
        for name, value in (
            ("cert-file", certificate),
            ("key-file", key),
            ("ca-cert-file", authority.file),
            ("port", port),
        ):
            admin.config_set(f"tls-{name}", str(value))
        assert shown_name(port, authority, me) == "server"


def test_sighup_reads_certificates_again(authority: Authority, tmp_path: Path) -> None:
    me, (certificate, key), port = authority.issue("me"), authority.issue("server"), free_port()
    words = ["--port", "0", "--tls-port", str(port), "--tls-cert-file", certificate, "--tls-key-file", key]
    words += ["--tls-ca-cert-file", str(authority.file), "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None

    def logged(words: str) -> None:
        assert process.stdout is not None
        assert any(words in line for line in process.stdout), "the server ended"

    try:
        logged("Ready to accept")
        Path(certificate).rename(tmp_path / "old.crt")
        process.send_signal(signal.SIGHUP)
        logged("the old certificates stay in use: tls-cert-file and tls-key-file cannot be used")
        assert shown_name(port, authority, me) == "server"
        renewed = authority.issue("renewed")
        Path(renewed[0]).rename(certificate)
        Path(renewed[1]).rename(key)
        process.send_signal(signal.SIGHUP)
        logged("Read the certificates for TLS again")
        assert shown_name(port, authority, me) == "renewed"
    finally:
        process.terminate()
        process.communicate(timeout=60)
