"""A server, or the console itself, that goes away and comes back under an open page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import redis
from tests.support.console.browser import Browser
from tests.support.console.console_process import ConsoleProcess
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock import Server
from penstock.testing.redis import RedisServer, free_port


def test_a_page_says_that_the_server_is_away_and_recovers(browser: Browser, tmp_path: Path) -> None:
    data, folder, port = tmp_path / "data", tmp_path / "console", free_port()
    data.mkdir()
    process = Process(data, port)
    try:
        with redis.Redis(port=port) as client:
            client.execute_command("TWRITE", "clicks", "t", "x")
        with ConsoleProcess(f"redis://127.0.0.1:{port}", folder) as console:
            browser.open(f"{console.address}/streams")
            browser.sees("1 stream")
            process.kill()
            browser.sees("The server does not answer: connection refused. Trying again. What you see is from", ".away")
            assert "clicks" in browser.text("tbody"), "what was known stays on the page"
            console.cookie = "; ".join(f"{each['name']}={each['value']}" for each in browser.driver.get_cookies())
            console.token = browser.script("return import('/static/api.js').then(({ session }) => session.token)")
            status, _, said = console.ask("/api/do/write", {"key": "clicks", "tag": "t", "entry": "x"})
            assert (status, said["error"].partition("refused. ")[2]) == (503, "The command was not sent.")
            browser.press("gk")  # a page that is read once
            browser.sees("Keys", "h1")
            browser.sees("Reading …", ".card")
            process = Process(data, port)
            with redis.Redis(port=port) as client:
                client.execute_command("TWRITE", "orders", "t", "x")
            browser.sees("clicks", "tbody")
            assert not browser.find(".away").is_displayed()
            browser.press("gs")
            browser.sees("2 streams")
            where = console.port
        browser.sees("The console does not answer", ".away")
        with ConsoleProcess(f"redis://127.0.0.1:{port}", folder, port=where):
            browser.until(lambda: browser.texts(".away[hidden]") == [""] and "2 streams" in browser.text())
    finally:
        process.kill()


def test_a_console_that_starts_before_its_server_waits_for_it(browser: Browser, tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    data.mkdir()
    with ConsoleProcess(f"redis://127.0.0.1:{port}", tmp_path / "console") as console:
        browser.open(console.address)
        browser.sees("The server does not answer")
        process = Process(data, port)
        try:
            browser.sees("Nothing needs attention.")  # by itself
        finally:
            process.kill()


def test_a_server_that_comes_back_with_another_password_asks_for_it(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    with ConsoleProcess(f"redis://127.0.0.1:{port}", tmp_path) as console:
        with Server(port=port):
            browser.open(f"{console.address}/streams")
            browser.sees("There are no streams yet.")
            wait_until(lambda: console.log_in() or console.ask("/api/session")[2]["recording"])
        with Server(port=port, requirepass="secret"), redis.Redis(port=port, password="secret") as client:
            client.execute_command("ACL", "SETUSER", "ada", "on", ">look", "~*", "+@all")
            browser.sees("Log in with a user of the server.")  # and the page is not loaded again and again
            browser.fill("input[name=user]", "ada")
            browser.fill("input[name=password]", "look")
            browser.click("form button")
            browser.sees("There are no streams yet.")
            browser.press("go")
            browser.sees("the console has no login of its own")


def test_the_terminal_says_that_no_server_answers_or_that_it_refuses(tmp_path: Path) -> None:
    port = free_port()
    assert f"no server answers at 127.0.0.1:{port} (" in _first_complaint(f"redis://127.0.0.1:{port}", tmp_path)
    with Server(requirepass="secret") as server:
        said = _first_complaint(f"redis://:other@127.0.0.1:{server.port}", tmp_path)
    assert said.startswith(f"penstock console: 127.0.0.1:{server.port} refuses: invalid username-password pair")
    assert "other" not in said


def _first_complaint(url: str, folder: Path) -> str:
    """The first line that a console says on its standard error."""
    words = [sys.executable, "-m", "penstock", "console", "--url", url, "--port", "0", "--dir", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            return process.stderr.readline()
        finally:
            process.terminate()


def test_a_console_of_a_redis_says_so(tmp_path: Path) -> None:
    with RedisServer() as other, ConsoleProcess(other.url, tmp_path) as console:
        console.log_in()
        assert "This server is Redis" in console.view("overview")["alerts"][0]["text"]
        assert console.view("streams")["rows"] == []
        status, _, said = console.ask("/api/view/stream?key=x")
        assert (status, "TINFO" in said["error"]) == (400, True)


def test_a_graph_goes_on_after_a_restart_of_the_console_and_of_the_server(tmp_path: Path) -> None:
    data, folder, port = tmp_path / "data", tmp_path / "console", free_port()
    data.mkdir()
    process = Process(data, port)
    try:
        with ConsoleProcess(f"redis://127.0.0.1:{port}", folder) as console:
            console.log_in()
            seen = _until_the_graph_grows(console, port, [])
            process.kill()
            process = Process(data, port)
        with ConsoleProcess(f"redis://127.0.0.1:{port}", folder) as console:
            console.log_in()
            grown = _until_the_graph_grows(console, port, seen)
            assert set(seen) <= set(grown), "what was seen before is gone"
    finally:
        process.kill()


def _until_the_graph_grows(console: ConsoleProcess, port: int, seen: list[int]) -> list[int]:
    """Write until there is one more point than those; the times of all but the last, which still changes."""
    found: list[int] = []

    def look() -> bool:
        with redis.Redis(port=port) as client:
            client.execute_command("TWRITE", "graphed", "t", "1")
        status, _, said = console.ask("/api/view/graph?key=graphed&seconds=3600")
        if status == 200:  # else the console has yet to find its server again
            found[:] = said["times"][:-1]
        return len(found) > len(seen)

    wait_until(look)
    return found
