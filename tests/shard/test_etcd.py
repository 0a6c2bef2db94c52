"""The client of etcd, with real members of etcd."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.tls import Authority
from tests.support.waiting import wait_until

from penstock.shard.etcd import Delete, Etcd, EtcdAddress, EtcdError, EtcdUnavailable, Put
from penstock.testing.etcd import EtcdServer
from penstock.testing.redis import free_port
from penstock.testing.relay import Relay


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def etcd(server: EtcdServer) -> Iterator[Etcd]:
    etcd = Etcd(EtcdAddress((server.urls,)), 10)
    yield etcd
    etcd.close()


def values(etcd: Etcd, prefix: str) -> dict[str, str]:
    return {each.key.removeprefix(prefix): each.value for each in etcd.read(prefix)[1]}


def test_a_change_is_made_only_if_nothing_has_changed_since_it_was_read(etcd: Etcd) -> None:
    assert etcd.change({"/a/x": 0}, Put("/a/x", "1"), Put("/a/y", "é"))
    assert not etcd.change({"/a/x": 0}, Put("/a/x", "2"))
    assert values(etcd, "/a/") == {"x": "1", "y": "é"}
    revisions = {each.key: each.revision for each in etcd.read("/a/")[1]}
    etcd.put("/a/y", "changed")
    assert not etcd.change(revisions, Delete("/a/x"))
    assert etcd.change({"/a/x": revisions["/a/x"]}, Delete("/a/x"), Put("/a/y", ""))
    assert values(etcd, "/a/") == {"y": ""}


def test_keys_of_another_prefix_are_not_read(etcd: Etcd) -> None:
    for key in ("/b/shard/x", "/b/shard2/x", "/b/shard0"):
        etcd.put(key, "")
    assert [each.key for each in etcd.read("/b/shard/")[1]] == ["/b/shard/x"]


def test_keys_end_with_their_lease(etcd: Etcd) -> None:
    lease, seconds = etcd.grant(60)
    assert seconds >= 60
    etcd.put("/c/x", "1", lease)
    assert etcd.read("/c/")[1][0].lease == lease
    assert etcd.keep_alive(lease) >= 60
    etcd.revoke(lease)
    assert values(etcd, "/c/") == {}
    assert etcd.keep_alive(lease) == 0
    etcd.revoke(lease)
    with pytest.raises(EtcdError, match="lease not found"):
        etcd.put("/c/x", "1", lease)


def test_a_lease_that_is_not_kept_runs_out(etcd: Etcd) -> None:
    lease, _ = etcd.grant(1)
    etcd.put("/d/x", "1", lease)
    wait_until(lambda: not values(etcd, "/d/"))


def test_a_watch_tells_of_changes_since_a_revision(etcd: Etcd, server: EtcdServer) -> None:
    revision, _ = etcd.read("/e/")
    etcd.put("/e/before", "")
    told = threading.Semaphore(0)

    def watch() -> None:
        watching = Etcd(EtcdAddress((server.urls,)), 10)
        for count, _ in enumerate(watching.watch("/e/", revision + 1)):
            told.release()
            if count == 2:
                break

    thread = threading.Thread(target=watch)
    thread.start()
    assert told.acquire(timeout=60) and told.acquire(timeout=60), "the watch is there, and tells of what came before"
    etcd.put("/f/other", "")
    etcd.put("/e/x", "")
    assert told.acquire(timeout=60)
    thread.join(60)


def test_the_next_endpoint_is_asked_if_one_does_not_answer(server: EtcdServer) -> None:
    etcd = Etcd(EtcdAddress((f"http://127.0.0.1:{free_port()}", server.urls)), 10)
    etcd.put("/g/x", "1")
    assert values(etcd, "/g/") == {"x": "1"}
    etcd.close()


def test_an_etcd_that_is_away_is_unavailable_and_comes_back(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        etcd = Etcd(EtcdAddress((server.urls,)), 2)
        etcd.put("/h/x", "1")
        server.members[0].kill()
        with pytest.raises(EtcdUnavailable, match="does not answer"):
            etcd.read("/h/")
        server.start()
        assert values(etcd, "/h/") == {"x": "1"}
        etcd.close()


def post(url: str, path: str, context: ssl.SSLContext | None = None, **body: object) -> None:
    """Ask etcd for a change of its users."""
    request = urllib.request.Request(f"{url}/v3/auth/{path}", json.dumps(body).encode())
    urllib.request.urlopen(request, timeout=60, context=context).close()


def test_log_in_with_a_user_and_a_password(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        everything = base64.b64encode(b"\0").decode()
        permission = {"permType": "READWRITE", "key": everything, "range_end": everything}
        post(server.urls, "user/add", name="root", password="secret")
        post(server.urls, "user/grant", user="root", role="root")
        post(server.urls, "user/add", name="penstock", password="pass")
        post(server.urls, "role/add", name="all")
        post(server.urls, "role/grant", name="all", perm=permission)
        post(server.urls, "user/grant", user="penstock", role="all")
        post(server.urls, "enable")
        etcd = Etcd(EtcdAddress((server.urls,), "penstock", "pass"), 10)
        lease, _ = etcd.grant(60)
        etcd.put("/i/x", "1", lease)
        assert values(etcd, "/i/") == {"x": "1"}
        server.members[0].kill()  # simple tokens are gone with it
        server.start()
        assert etcd.keep_alive(lease) >= 60
        etcd.close()
        with Relay(server.members[0].port) as relay:
            etcd = Etcd(EtcdAddress((f"http://127.0.0.1:{relay.port}", server.urls), "penstock", "pass"), 10)
            assert values(etcd, "/i/") == {"x": "1"}
            token = etcd._token
        assert values(etcd, "/i/") == {"x": "1"} and etcd._token == token, "it need not log in again"
        etcd.close()
        for wrong in (EtcdAddress((server.urls,)), EtcdAddress((server.urls,), "penstock", "wrong")):
            with (
                contextlib.closing(Etcd(wrong, 10)) as refused,
                pytest.raises(EtcdError, match=r"user name is empty|authentication failed"),
            ):
                refused.read("/i/")


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    cert, key = authority.issue("localhost")
    options = ["--cert-file", str(cert), "--key-file", str(key), "--client-cert-auth"]
    options += ["--trusted-ca-file", str(authority.file)]
    with EtcdServer(tmp_path, options=options, scheme="https") as server:
        url = f"https://localhost:{server.members[0].port}"
        files = {"ca_file": str(authority.file), "cert_file": str(cert), "key_file": str(key)}
        etcd = Etcd(EtcdAddress((url,), **files), 10)

        def answers() -> bool:
            try:
                etcd.put("/j/x", "1")
            except EtcdUnavailable:
                return False
            return True

        wait_until(answers)
        assert values(etcd, "/j/") == {"x": "1"}
        etcd.close()
        stranger = Etcd(EtcdAddress((url,), **{**files, "ca_file": str(other.file)}), 10)
        with contextlib.closing(stranger), pytest.raises(EtcdUnavailable, match="certificate"):
            stranger.read("/j/")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    address = EtcdAddress(("https://127.0.0.1:1",), ca_file=str(tmp_path / "missing.pem"))
    with contextlib.closing(Etcd(address, 10)) as etcd, pytest.raises(EtcdError, match=r"missing\.pem, for TLS"):
        etcd.read("/k/")


def test_etcd_says_that_it_takes_no_common_name_beside_a_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    cert, key = map(str, authority.issue("localhost"))
    options = ["--cert-file", cert, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", str(authority.file)]
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(cert, key)
    with EtcdServer(tmp_path, options=options, scheme="https") as server:
        url = f"https://localhost:{server.members[0].port}"

        def answers() -> bool:
            with contextlib.suppress(OSError):
                post(url, "user/add", context, name="root", password="secret")
                return True
            return False

        wait_until(answers)
        post(url, "user/grant", context, user="root", role="root")
        post(url, "enable", context)
        address = EtcdAddress((url,), "root", "secret", str(authority.file), cert, key)
        with contextlib.closing(Etcd(address, 10)) as etcd, pytest.raises(EtcdError, match="CommonName of client"):
            etcd.read("/k/")


def test_an_address_that_is_no_url_is_refused() -> None:
    for wrong in ("10.0.0.1:2379", "ftp://host", "http://", "http://host:2379/v3"):
        with pytest.raises(ValueError, match="not a URL of etcd"):
            EtcdAddress((wrong,))
