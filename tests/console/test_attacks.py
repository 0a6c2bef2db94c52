"""The console under attack: scripts in every name and payload, other sites, and users who may only read."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from tests.support.console.browser import Browser
from tests.support.console.console_process import ConsoleProcess
from tests.support.waiting import wait_until

from penstock import Server
from penstock.console import browser_sessions
from penstock.console.action_log import LONGEST, ActionLog
from penstock.console.errors import NotLoggedIn
from penstock.console.login import Login
from penstock.console.masking import Mask
from penstock.console.views.messages import READ_BYTES, _backward
from penstock.protocol.dead_letters import Letter
from penstock.protocol.pipelines import KEY, PipelineReport

SCRIPT = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>'\"</td>"
LINK = "javascript:document.title='owned'"


@pytest.fixture(scope="module", autouse=True)
def _hostile(client: redis.Redis, server: Server) -> Iterator[None]:
    for name in (SCRIPT, LINK, "\u202egnp.exe", "a\x00b", "../../etc/passwd", "x" * 2000):
        client.execute_command("TWRITE", name, name, json.dumps({name: name}))
        client.execute_command("TGROUP", "SET", name, name, 1)
        client.set(f"key {name}", name)
        client.hset("fields", name, name)
    client.execute_command("TWRITE", "deep", "t", "[" * 5000 + "]" * 5000)
    client.execute_command(
        "TWRITE", "dead", "t", Letter(SCRIPT.encode(), SCRIPT.encode(), SCRIPT, 1, SCRIPT, 2).encode()
    )
    reading = ("GROUP", SCRIPT, "RETRY", 3_600_000, 0, "CONSUMER", SCRIPT, "DEADLETTER", f"dead {SCRIPT}")
    client.execute_command("TREAD", SCRIPT, 0, 1, *reading)
    client.execute_command("TSCHEMA", "SET", LINK, f"`{SCRIPT}` string")
    client.execute_command("ACL", "SETUSER", SCRIPT.replace(" ", "_"), "on")
    client.hset(KEY, SCRIPT, PipelineReport(SCRIPT, SCRIPT, 1, 1, "failed", SCRIPT, [{"name": SCRIPT}]).encode())
    client.execute_command(
        "ACL", "SETUSER", "reader", "on", ">look", "%R~*", "+@read", "+tread", "+info", "+acl|whoami"
    )
    with redis.Redis.from_url(server.url, client_name="<script>alert(1)</script>") as named:
        named.ping()
        yield


def _quoted(name: str) -> str:
    return quote(name, safe="")


@pytest.mark.parametrize(
    "page",
    [
        "/",
        "/streams",
        f"/stream?key={_quoted(SCRIPT)}&tab=graph",
        f"/stream?key={_quoted(SCRIPT)}&tab=messages",
        f"/stream?key={_quoted(SCRIPT)}&tab=groups",
        f"/stream?key={_quoted(LINK)}&tab=messages&from=1",
        f"/stream?key={_quoted(LINK)}&tab=settings",
        "/stream?key=dead&tab=letters",
        "/stream?key=deep&tab=messages",
        "/clients",
        "/keys",
        "/key?key=fields",
        "/pipelines",
        f"/stream?key={_quoted('<script>')}",
        f"/keys?pattern={_quoted(SCRIPT)}",
    ],
)
def test_a_script_in_a_name_or_payload_stays_text(console: ConsoleProcess, browser: Browser, page: str) -> None:
    browser.open(console.address + page)
    browser.until(lambda: browser.find_all("main h1") and "Reading" not in browser.text("main"))
    for toggle in browser.find_all("button[aria-expanded=false]")[:2]:
        toggle.click()
    assert browser.script("return document.title") != "owned"
    assert not browser.find_all("main script, main img[src=x]")
    assert not browser.find_all("a[href^='javascript']")


def test_the_policy_stops_a_script_that_gets_into_the_page(console: ConsoleProcess, browser: Browser) -> None:
    browser.open(console.address)
    browser.sees("Overview")
    said = browser.script(
        "try { document.body.innerHTML = '<b>x</b>'; return 'written'; } catch (error) { return error.name; }"
    )
    assert said == "TypeError"
    assert [text for text in browser.complaints() if "TrustedHTML" not in text] == []


def test_another_site_can_neither_read_nor_act(console: ConsoleProcess, client: redis.Redis) -> None:
    body = {"key": "target", "tag": "t", "entry": "x"}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"X_Penstock_Token": "guessed"},
    ):
        status, _, _ = console.ask("/api/do/write", body, **headers)
        assert status == 403
    assert console.ask("/api/do/write", body, Cookie="")[0] == 401
    assert console.ask("/api/do/write", body, "GET")[0] == 405
    assert not client.exists("target")
    assert console.ask("/api/do/write", body)[0] == 200
    assert client.exists("target")


def test_a_user_who_may_only_read_is_told_so(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    browser.open(f"{console.address}/")
    browser.click("button", "Log out")
    browser.fill("input[name=user]", "reader")
    browser.fill("input[name=password]", "look")
    browser.click("form button")
    browser.sees("User reader")
    browser.open(f"{console.address}/stream?key=deep&tab=messages")
    browser.click("button", "Write a message")
    browser.fill("dialog textarea", "x")
    browser.click("dialog [data-confirm]")
    browser.sees("Your user may not do this", "dialog .wrong")
    browser.click("dialog button", "Cancel")
    assert client.execute_command("TINFO", "deep")[b"length"] == 1
    browser.open(f"{console.address}/key?key=fields")
    browser.click("button", "Delete")
    browser.click("dialog [data-confirm]")
    browser.sees("Your user may not do this", "dialog .wrong")
    assert client.exists("fields")
    browser.open(f"{console.address}/clients")
    browser.sees("Your user may not run CLIENT LIST.")


def test_every_action_is_logged(server: Server, tmp_path: Path) -> None:
    with ConsoleProcess(server.url, tmp_path) as console:
        console.log_in("reader", "look")
        console.ask("/api/do/write", {"key": "log%20me", "tag": "t", "entry": "a secret"})
        console.log_in()
        console.ask("/api/do/write", {"key": "log%20me", "tag": "t", "entry": "a secret"})
        console.ask("/api/do/delete-key", {"key": "log%20me"})
        shown = console.view("overview")["actions"]
    rows = [json.loads(line) for line in (tmp_path / "actions.jsonl").read_text().splitlines()]
    assert [(row["user"], row["action"], row["target"]) for row in rows] == [
        ("reader", "log in", ""),
        ("reader", "write a message", "log me"),
        ("default", "write a message", "log me"),
        ("default", "delete a key", "log me"),
    ]
    assert "may not" in rows[1]["outcome"]
    assert rows[2]["outcome"] == "done"
    assert all(row["address"] == "127.0.0.1" and row["time"] > 0 for row in rows)
    assert "secret" not in (tmp_path / "actions.jsonl").read_text()
    assert [row["action"] for row in shown] == [row["action"] for row in reversed(rows)]
    assert (tmp_path / "actions.jsonl").stat().st_mode & 0o077 == 0


def test_actions_of_others_are_for_those_who_may_read_the_log_of_the_acl(server: Server, tmp_path: Path) -> None:
    with ConsoleProcess(server.url, tmp_path) as console:
        console.log_in()
        console.ask("/api/do/write", {"key": "not%20for%20readers", "tag": "t", "entry": "x"})
        assert [row["target"] for row in console.view("overview")["actions"]] == ["not for readers"]
        console.log_in("reader", "look")
        assert [row["user"] for row in console.view("overview")["actions"]] == ["reader"]


def test_users_whose_name_cannot_be_asked_share_no_list(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """The console's own user may not run ACL WHOAMI, and is not the default user for that."""
    client.execute_command("ACL", "SETUSER", "recorder", "on", ">graphs", "~recorded:*", "+@all", "-acl")
    client.execute_command("TWRITE", "recorded:1", "t", "e")
    with ConsoleProcess(f"redis://recorder:graphs@127.0.0.1:{server.port}", tmp_path) as console:
        console.log_in()
        wait_until(lambda: console.ask("/api/session")[2]["recording"])
        wait_until(lambda: console.view("streams")["complete"])
        assert console.view("streams?filter=recorded")["found"] == 1
        assert console.view("streams?filter=deep")["found"] == 1


def test_a_user_that_was_made_anew_sees_its_streams(console: ConsoleProcess, client: redis.Redis) -> None:
    rules = ("on", "~deep", "+@read", "+tread", "+tinfo", "+scan", "+acl|whoami")
    client.execute_command("ACL", "SETUSER", "anew", *rules, ">first")
    cookie, token = console.cookie, console.token
    try:
        console.cookie = ""
        console.log_in("anew", "first")
        wait_until(lambda: console.view("streams")["found"] == 1)
        client.execute_command("ACL", "DELUSER", "anew")
        client.execute_command("ACL", "SETUSER", "anew", *rules, ">second")
        wait_until(lambda: console.ask("/api/view/stream?key=deep")[0] == 401)
        console.cookie = ""  # another browser
        console.log_in("anew", "second")
        wait_until(lambda: console.ask("/api/view/streams")[0] == 200)
        wait_until(lambda: console.view("streams")["found"] == 1)
    finally:
        console.cookie, console.token = cookie, token


def test_a_report_or_a_letter_that_browsers_cannot_read_is_shown(console: ConsoleProcess, client: redis.Redis) -> None:
    half = '{"stream": "a", "entry": "b", "why": "half \\ud800", "offset": 1}'
    client.execute_command("TWRITE", "half:dead", "t", half)
    assert "half" in console.view("letters?key=half%3Adead")["rows"][0]["why"]
    report = PipelineReport("name", "place", 1, 1, "failed", "", [{"name": "flow", "rate": float("nan")}])
    client.hset(KEY, "nan", report.encode())
    (row,) = [row for row in console.view("pipelines")["rows"] if row["id"] == "nan"]
    assert row["flows"] == [{"name": "flow", "rate": None}]


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("end-client", '{"id": 1e400}'),
        ("write", '{"key": "\\ud800", "tag": "t", "entry": "e"}'),
        ("write", '{"key": "deep", "tag": "\\ud800", "entry": "e"}'),
    ],
)
def test_values_that_are_none_are_refused(console: ConsoleProcess, action: str, body: str) -> None:
    assert console.ask(f"/api/do/{action}", body)[0] == 400


def test_another_port_of_this_host_cannot_ask_with_our_cookie(console: ConsoleProcess) -> None:
    path = "/api/stream/download?key=deep"
    assert console.ask(path)[0] == 200
    for site in ("same-site", "cross-site"):
        assert console.ask(path, Sec_Fetch_Site=site)[0] == 403
    assert console.ask("/stream?key=deep", Sec_Fetch_Site="cross-site")[0] == 200  # a link leads to a page
    assert console.ask("/api/do/write", {"key": "deep"}, Origin="http://[")[0] == 403


@pytest.mark.parametrize(
    "entry", [b"no JSON: ada@example.org", b"\xffada@example.org", b' {"email": "ada@example.org"}']
)
def test_the_entry_of_a_dead_letter_is_masked_as_the_message_was(entry: bytes) -> None:
    raw = Letter(b"masked", entry, "why", 1).encode()
    shown = json.loads(Mask.of(["email"]).apply(raw))
    assert "example" not in str(shown)
    assert base64.b64encode(entry).decode() not in str(shown)
    assert shown["why"] == "why"


def test_the_log_of_actions_survives_a_full_disk_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "actions.jsonl").write_bytes(b'\xff\n{"user": "ada"}\n')
    log = ActionLog(tmp_path)
    assert log.latest(5, "ada") == [{"user": "ada"}]
    (tmp_path / "actions.jsonl").unlink()
    (tmp_path / "actions.jsonl").symlink_to("/dev/full")
    log.add("ada", "127.0.0.1", "write a message", "k" * 10_000, {"group": "g" * 10_000}, "done")
    newest = log.latest(1, None)[0]
    assert len(newest["target"]) == len(newest["detail"]["group"]) == LONGEST


def test_a_request_that_does_not_end_is_closed(console: ConsoleProcess) -> None:
    whole = f"GET /api/session HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", console.port), timeout=60)) for _ in range(3)
        ]
        connections[0].sendall(whole)
        assert connections[0].recv(1 << 16).startswith(b"HTTP/1.1 401")
        for connection in connections[:2]:
            connection.sendall(whole[:20])
        for connection in connections:
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(1 << 16):
                    pass
    assert console.ask("/api/session")[0] == 200


@pytest.mark.filterwarnings("ignore:.*lib_name:DeprecationWarning")  # of newer versions of redis-py
def test_logins_of_one_user_do_not_end_the_sessions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_sessions, "MOST_OF_USER", 2)

    async def begin_many() -> list[bool]:
        kept = browser_sessions.BrowserSessions()
        names = [
            await kept.begin(browser_sessions.BrowserSession(Login("redis://127.0.0.1:1"), user, "127.0.0.1"))
            for user in ("admin", "guest", "guest", "guest")
        ]
        found = []
        for name in names:
            try:
                found.append(kept.find(name) is not None)
            except NotLoggedIn:
                found.append(False)
        await kept.close()
        return found

    assert asyncio.run(begin_many()) == [True, False, True, True]


def test_large_messages_after_many_small_ones_are_read_a_few_at_a_time() -> None:
    sizes = [10] * 1000 + [1 << 20] * 60

    async def read(start: int, count: int) -> list[Any]:
        return [[offset, b"t", bytes(sizes[offset - 1]), 0] for offset in range(start, start + min(count, 1))]

    found, reached = asyncio.run(_backward(read, 1, len(sizes) + 1, 50, None))
    assert [message[0] for message in found] == list(range(len(sizes), reached - 1, -1))
    assert sum(len(message[2]) for message in found) <= 2 * READ_BYTES


@pytest.mark.parametrize("mask", ["*", "email,n"])
def test_payloads_are_masked_everywhere(server: Server, client: redis.Redis, tmp_path: Path, mask: str) -> None:
    secret = '{"email": "ada@example.org", "page": "/tea"}'
    client.execute_command("TWRITE", "masked", "ada", secret)
    client.execute_command("TWRITE", "masked", "ada", "not JSON: ada@example.org")
    client.execute_command("TWRITE", "masked:dead", "t", Letter(b"masked", secret.encode(), "no /tea", 1).encode())
    report = PipelineReport("masked", "host", 1, 1, "failed", "no such page: /tea")
    client.hset(KEY, "masked", report.encode())
    client.set("masked:value", secret)
    client.hset("masked:hash", "email", "ada@example.org")
    with ConsoleProcess(server.url, tmp_path, "--mask", mask) as console:
        console.log_in()
        for path in (
            "/api/view/messages?key=masked",
            "/api/view/message?key=masked&offset=1",
            "/api/stream/raw?key=masked&offset=1",
            "/api/stream/download?key=masked&format=csv",
            "/api/view/letters?key=masked%3Adead",
            "/api/view/messages?key=masked%3Adead",
            "/api/view/key?key=masked%3Avalue",
            "/api/view/key?key=masked%3Ahash",
        ):
            status, _, said = console.ask(path)
            shown = said.decode() if isinstance(said, bytes) else json.dumps(said, ensure_ascii=False)
            assert status == 200
            assert "example.org" not in shown, path
            assert "•••" in shown, path
        for view in ("messages?key=masked", "letters?key=masked%3Adead", "pipelines"):
            assert ("/tea" in json.dumps(console.view(view))) == (mask != "*"), view


@pytest.mark.parametrize(
    "path",
    [
        "/api/view/nothing",
        "/api/view/messages",
        "/api/view/messages?key=deep&from=x",
        "/api/view/streams?sort=evil",
        "/api/view/streams?page=-1",
        "/api/view/move?key=deep&to=evil&group=g",
        "/api/stream/download?key=deep&format=exe",
        "/api/view/graph?key=deep&seconds=99999999999",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/api/view/key?key=",
        "/api/view/message?key=deep&offset=999",
        "/api/view/keys?cursor=" + "9" * 400,
    ],
)
def test_bad_input_gets_an_answer_and_no_trace_of_the_program(console: ConsoleProcess, path: str) -> None:
    status, _, said = console.ask(path)
    assert status in (400, 404)
    assert "Traceback" not in str(said)
    assert "import" not in str(said)
