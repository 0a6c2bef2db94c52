"""axe-core finds nothing serious on any page, light or dark; and the pictures of the documentation can be made."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.console import pictures
from tests.support.console.browser import Browser
from tests.support.console.console_process import ConsoleProcess

from penstock.protocol.dead_letters import Letter
from penstock.protocol.pipelines import KEY, PipelineReport

ROOT = Path(__file__).parents[2]
AXE = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
PAGES = (
    "/", "/streams", "/stream?key=clicks&tab=graph", "/stream?key=clicks&tab=messages", "/stream?key=clicks&tab=groups",
    "/stream?key=dead&tab=letters", "/stream?key=clicks&tab=settings", "/pipelines", "/clients", "/keys",
    "/key?key=config", "/key?key=user", "/nodes", "/stream?key=nowhere", "/nowhere",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _data(client: redis.Redis) -> None:
    for number in range(60):
        client.execute_command("TWRITE", "clicks", "ada", f'{{"n": {number}}}')
    client.execute_command("TREAD", "clicks", 0, 5, "GROUP", "billing", "RETRY", 3_600_000, 0, "CONSUMER", "one")
    client.execute_command("TWRITE", "dead", "t", Letter(b"clicks", b"{}", "why", 1).encode())
    client.set("config", '{"theme": "dark"}')
    client.hset("user", mapping={"name": "ada", "about": '{"city": "' + "x" * 300 + '"}'})
    client.execute_command("TSCHEMA", "SET", "clicks", "n int, page string")
    flows = [{"name": "clicks", "state": "FAILED", "rows": 1, "rate": 1.0, "lag": 1}]
    client.hset(KEY, "a", PipelineReport("shop", "here", 1, 1, "failed", "an error", flows).encode())


def _serious(browser: Browser) -> list[str]:
    browser.script(AXE)
    browser.driver.set_script_timeout(120)
    found: dict[str, Any] = browser.driver.execute_async_script(
        "const done = arguments[0]; axe.run(document).then(done, (error) => done({violations: [{impact: 'serious',"
        " id: String(error), nodes: []}]}))"
    )
    return [
        f"{rule['impact']} {rule['id']}: {[node['html'][:160] for node in rule['nodes'][:3]]}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical", "moderate")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(console: ConsoleProcess, browser: Browser, theme: str) -> None:
    browser.theme(theme)
    for page in PAGES:
        browser.open(console.address + page)
        browser.until(lambda: browser.find_all("main h1") and "Reading" not in browser.text("main"))
        assert _serious(browser) == [], page


def test_axe_finds_nothing_serious_in_dialogs_and_in_the_login(console: ConsoleProcess, browser: Browser) -> None:
    for page, button in (
        ("/stream?key=clicks&tab=messages", "Write a message"),
        ("/stream?key=clicks&tab=messages", "Download"),
        ("/stream?key=clicks&tab=groups", "Move"),
        ("/stream?key=clicks&tab=settings", "Change"),
        ("/key?key=config", "Delete"),
    ):
        browser.open(console.address + page)
        browser.click("main button", button)
        browser.until(lambda: browser.find_all("dialog[open]"))
        assert _serious(browser) == [], button
    browser.open(console.address)
    browser.click("button", "Log out")
    browser.sees("Log in with a user of the server.")
    assert _serious(browser) == []


def test_the_pictures_of_the_documentation_can_be_made(shared_browser: Browser, tmp_path: Path) -> None:
    made = pictures.make(tmp_path, shared_browser)
    shown = {path.name for path in (ROOT / "docs" / "pictures").glob("console-*.png")}
    assert {path.name for path in made} == shown, "the documentation has a picture that is made no more, or lacks one"
    text = (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
    for path in made:
        assert path.stat().st_size > 10_000
        assert f"pictures/{path.name}" in text
