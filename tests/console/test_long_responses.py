"""Answers that last hold connections: their number is bounded, and one that is not taken ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import uvicorn
from tests.support.console.browser import Browser
from tests.support.console.console_process import ConsoleProcess
from tests.support.waiting import wait_until
from uvicorn.server import ServerState

from penstock.console import connection_timeouts
from penstock.console.long_responses import MOST_OF_SESSION


@contextlib.contextmanager
def _stream(console: ConsoleProcess, path: str) -> Iterator[dict[str, Any]]:
    """A stream of events that goes on; its first event."""
    with socket.create_connection(("127.0.0.1", console.port), timeout=60) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\nCookie: {console.cookie}\r\n\r\n"
        connection.sendall(head.encode())
        with connection.makefile("rb") as lines:
            found: dict[str, Any] = {}
            for line in lines:
                name, _, value = line.rstrip().partition(b": ")
                if name == b"event":
                    found["event"] = value.decode()
                elif name == b"data":
                    found["data"] = json.loads(value)
                    break
            yield found


def test_a_page_cannot_hold_all_connections(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "held", "t", "e")
    cookie, token = console.cookie, console.token
    browser.open(f"{console.address}/nodes")
    browser.sees("is a leader")
    try:
        # The session of the browser, so that its page is told.
        console.cookie = "; ".join(f"{each['name']}={each['value']}" for each in browser.driver.get_cookies())
        with contextlib.ExitStack() as stack:
            paths = ["/api/live/nodes", "/api/stream/tail?key=held"]
            for number in range(MOST_OF_SESSION - 1):  # the page has one
                found = stack.enter_context(_stream(console, paths[number % 2]))
                assert found["event"] in ("news", "begin"), found
            for path in paths:
                with _stream(console, path) as refused:
                    assert (refused["event"], refused["data"]["status"]) == ("problem", 429)
            assert console.ask("/api/stream/download?key=held")[0] == 429
            assert console.ask("/api/view/nodes")[0] == 200
            browser.click("nav a", "Streams")
            browser.sees("held")  # the page that was left has given its place
            with _stream(console, paths[0]) as refused:
                assert refused["event"] == "problem"
            browser.script("window.open('/clients')")
            wait_until(lambda: len(browser.driver.window_handles) == 2)
            browser.driver.switch_to.window(browser.driver.window_handles[1])
            browser.sees(f"This browser has {MOST_OF_SESSION} open pages and downloads already. Close some of them.")
        browser.sees("Slow commands")  # by itself, now that there is room
    finally:
        console.cookie, console.token = cookie, token
        browser.close_other_windows()


def test_an_answer_that_is_not_taken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_timeouts, "ANSWER_SECONDS", 0.05)
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await _sent(send, receive))["type"] != "http.disconnect":
            pass
        ended.set()

    async def _sent(send: Any, receive: Any) -> Any:
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        try:
            return await asyncio.wait_for(receive(), 0.001)
        except TimeoutError:
            return {"type": "none"}

    async def serve() -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: connection_timeouts.TimeoutProtocol(config, state, {}), "127.0.0.1", 0
        )
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.wait_for(ended.wait(), 60)
            assert not state.connections
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            del reader

    asyncio.run(serve())
