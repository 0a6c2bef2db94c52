"""The browser that the tests of a process share, and a server and a console for each file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.console.browser import Browser
from tests.support.console.console_process import ConsoleProcess

from penstock import Server


@pytest.fixture(scope="session")
def shared_browser() -> Iterator[Browser]:
    browser = Browser()
    assert list(browser.folder.iterdir()), "the browser has its temporary files elsewhere, and they stay there"
    yield browser
    browser.close()


@pytest.fixture
def browser(shared_browser: Browser) -> Iterator[Browser]:
    """A browser without cookies. What a page throws fails the test."""
    shared_browser.forget()
    yield shared_browser
    assert shared_browser.complaints() == []


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=3) as client:
        yield client


@pytest.fixture(scope="module")
def console(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    folder: Path = tmp_path_factory.mktemp("console")
    with ConsoleProcess(server.url, folder) as console:
        console.log_in()
        yield console
