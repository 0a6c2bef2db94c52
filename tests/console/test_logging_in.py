"""Users, sessions, and requests that do not come from the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.console.browser import Browser
from tests.support.console.console_process import ConsoleProcess
from tests.support.waiting import wait_until

from penstock import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(requirepass="secret") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=3, password="secret") as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def _users(client: redis.Redis) -> None:
    client.execute_command("ACL", "SETUSER", "reader", "on", ">look", "%R~shop:*", "+@read", "+tread", "+acl|whoami")
    for name in ("shop:orders", "private"):
        client.execute_command("TWRITE", name, "t", "x")


@pytest.fixture(scope="module")
def console(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    folder: Path = tmp_path_factory.mktemp("console")
    with ConsoleProcess(f"redis://127.0.0.1:{server.port}", folder) as console:
        yield console


def _log_in(browser: Browser, user: str, password: str) -> None:
    browser.fill("input[name=user]", user)
    browser.fill("input[name=password]", password)
    browser.click("form button")


def test_a_user_of_the_server_logs_in_and_out(console: ConsoleProcess, browser: Browser) -> None:
    browser.open(f"{console.address}/streams")
    browser.sees("Log in with a user of the server.")
    _log_in(browser, "default", "wrong")
    browser.sees("The user name or the password is wrong.")
    _log_in(browser, "default", "secret")
    browser.sees("2 streams")
    assert browser.texts("td.name") == ["private", "shop:orders"]
    assert browser.script("return document.cookie") == ""  # no script can read it
    browser.click("button", "Log out")
    browser.sees("Log in with a user of the server.")
    assert console.ask("/api/view/streams")[0] == 401


def test_a_user_sees_only_the_streams_that_it_may_read(console: ConsoleProcess, browser: Browser) -> None:
    browser.open(console.address)
    _log_in(browser, "reader", "look")
    browser.sees("The user reader may not run INFO")
    browser.click("nav a", "Streams")
    browser.sees("1 stream")
    assert browser.texts("td.name") == ["shop:orders"]
    browser.click("nav a", "Keys")
    browser.sees("stream", "tbody")
    assert browser.texts("td.name") == ["shop:orders"], "SCAN names the keys of others too"


def test_a_name_and_a_password_may_be_any_bytes(console: ConsoleProcess, client: redis.Redis) -> None:
    client.execute_command("ACL", "SETUSER", b"b\xff", "on", b">p\xfe", "~*", "+@all")
    status, _, said = console.ask("/api/login", r'{"user": "b\udcff", "password": "p\udcfe"}')
    assert (status, said.get("user")) == (200, r"b\xff"), said
    assert console.ask("/api/login", r'{"user": "b\udcff", "password": "p\udcfd"}')[0] == 401
    assert console.ask("/api/login", r'{"user": "b\ud800", "password": "p"}')[0] == 400


def test_an_open_page_does_not_fill_the_log_of_refusals(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with ConsoleProcess(f"redis://127.0.0.1:{server.port}", tmp_path) as console:
        client.execute_command("ACL", "LOG", "RESET")
        console.log_in("reader", "look")
        for _ in range(3):  # as an open page does
            console.view("overview")
            console.view("clients")
            wait_until(lambda: console.view("streams")["complete"])
        rows = [row for row in client.acl_log() if row["username"] == "reader" and row["object"] != "client|setinfo"]
        assert {"acl|log", "client|list", "info"} <= {row["object"] for row in rows}
        assert [row["object"] for row in rows if int(row["count"]) > 1] == []
        console.ask("/api/do/end-client", {"id": 1})  # the user hears what the server says now
        console.view("overview")
        assert [int(row["count"]) for row in client.acl_log() if row["object"] == "acl|log"] == [2]


def test_a_session_is_a_cookie_that_no_script_and_no_other_site_gets(console: ConsoleProcess) -> None:
    _, headers, said = console.ask("/api/login", {"user": "reader", "password": "look"})
    cookie = headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert len(said["token"]) > 20
    status, *_ = console.ask("/api/view/streams", Cookie=headers["set-cookie"].partition(";")[0])
    assert status == 200
    assert console.ask("/api/view/streams", Cookie="penstock_console=guessed")[0] == 401


def test_a_page_that_is_opened_again_keeps_the_session_for_longer(console: ConsoleProcess) -> None:
    body = {"user": "reader", "password": "look"}
    _, headers, _ = console.ask("/api/login", body, Origin=f"https://127.0.0.1:{console.port}")
    _, again, _ = console.ask("/api/session", Cookie=headers["set-cookie"].partition(";")[0])
    assert again["set-cookie"] == headers["set-cookie"]


def test_wrong_passwords_have_to_wait(server: Server, tmp_path: Path) -> None:
    with ConsoleProcess(f"redis://127.0.0.1:{server.port}", tmp_path) as console:
        tried = [console.ask("/api/login", {"user": "reader", "password": f"guess {n}"})[0] for n in range(6)]
        assert tried[0] == 401
        assert tried[-1] == 429
        status, _, said = console.ask("/api/login", {"user": "reader", "password": "look"})
        assert status == 429  # also the right one
        assert "Try again in" in said["error"]


def test_a_right_password_of_one_user_does_not_forgive_guesses_for_another(server: Server, tmp_path: Path) -> None:
    with ConsoleProcess(f"redis://127.0.0.1:{server.port}", tmp_path) as console:
        tried = []
        for number in range(6):
            tried.append(console.ask("/api/login", {"user": "default", "password": f"guess {number}"})[0])
            console.ask("/api/login", {"user": "reader", "password": "look"})
        assert tried[0] == 401
        assert tried[-1] == 429


def test_the_cookie_is_of_one_console_and_for_tls_if_a_proxy_speaks_it(console: ConsoleProcess) -> None:
    body = {"user": "reader", "password": "look"}
    _, headers, _ = console.ask("/api/login", body, Origin=f"https://127.0.0.1:{console.port}")
    assert headers["set-cookie"].startswith(f"penstock_console_{console.port}=")
    assert "secure" in headers["set-cookie"].lower()
    _, headers, _ = console.ask("/api/login", body, Origin=f"http://127.0.0.1:{console.port}")
    assert "secure" not in headers["set-cookie"].lower()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8379", "127.0.0.1.evil.example", ""])
def test_a_name_that_was_pointed_at_the_console_is_refused(console: ConsoleProcess, host: str) -> None:
    for path in ("/", "/api/session", "/static/main.js"):
        status, _, said = console.ask(path, Host=host)
        assert status == 403
        assert "does not answer to the name" in said["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"},
    ],
)
def test_a_request_of_another_site_changes_nothing(console: ConsoleProcess, headers: dict[str, str]) -> None:
    body = {"user": "default", "password": "secret"}
    assert console.ask("/api/login", body)[0] == 200
    status, answered, _ = console.ask("/api/login", body, **headers)
    assert status == 403
    assert "set-cookie" not in answered


def test_every_answer_forbids_foreign_scripts_and_frames(console: ConsoleProcess) -> None:
    for path in ("/", "/api/session", "/static/main.js", "/nowhere"):
        _, headers, _ = console.ask(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("body", "words"), [("{", "no JSON"), ("[]", "no JSON object"), ('{"user": 1}', "must be a text")]
)
def test_a_login_that_is_none_gets_a_clear_answer(console: ConsoleProcess, body: str, words: str) -> None:
    status, _, said = console.ask("/api/login", body)
    assert status == 400
    assert words in said["error"]
