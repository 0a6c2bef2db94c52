"""The list of streams, and the frame around all pages."""

from __future__ import annotations

import pytest
import redis
from selenium.webdriver.common.keys import Keys
from tests.support.console.browser import PHONE, Browser
from tests.support.console.console_process import ConsoleProcess
from tests.support.waiting import wait_until

MANY = 10_000


@pytest.fixture(scope="module", autouse=True)
def _streams(client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipe:
        for number in range(MANY - 3):
            pipe.execute_command("TWRITE", f"sensor:{number:05}", "t", "1")
        for name, count in (("clicks", 300), ("orders", 120), ("alerts", 7)):
            for number in range(count):
                pipe.execute_command("TWRITE", name, f"user{number % 5}", f'{{"n": {number}}}')
        pipe.execute_command("TGROUP", "SET", "orders", "billing", 21)
        pipe.execute_command("TGROUP", "SET", "clicks", "audit", "$")
        pipe.execute()


@pytest.fixture(scope="module", autouse=True)
def _read(_streams: None, console: ConsoleProcess) -> None:
    """The console, which began after the streams were made, has seen all of them once."""
    wait_until(lambda: console.view("streams?only=busy")["complete"])
    assert console.view("streams")["count"] == MANY


def test_ten_thousand_streams_are_sorted_filtered_and_paged(console: ConsoleProcess, browser: Browser) -> None:
    browser.open(f"{console.address}/streams")
    browser.sees("10,000 streams")
    assert browser.texts("td.name")[:2] == ["alerts", "clicks"]
    assert len(browser.find_all("tbody tr")) == 50
    browser.click("button[data-sort=lag]")
    browser.until(lambda: browser.texts("td.name")[:1] == ["orders"])
    assert browser.texts("tbody tr:first-child td")[4] == "100"
    assert browser.texts("tbody tr:first-child td")[5].rpartition(" ")[2] in ("ms", "s", "min")  # behind by
    assert "sort=lag&order=down" in browser.driver.current_url
    browser.fill("input[type=search]", "sensor:098")
    browser.sees("100 of 10,000 streams")
    browser.click("nav button", "Next")
    browser.sees("Page 2 of 2")
    browser.fill("input[type=search]", "BILLING")
    browser.until(lambda: browser.texts("td.name") == ["orders"])  # the name of a group
    browser.fill("input[type=search]", "nothing like it")
    browser.sees("No stream matches.")


def test_streams_are_filtered_by_their_figures(console: ConsoleProcess, browser: Browser) -> None:
    browser.open(f"{console.address}/streams?filter=lag%3E0")
    browser.sees("1 of 10,000 streams")
    assert browser.texts("td.name") == ["orders"]
    assert console.view("streams?filter=lag%3C%3D0")["found"] == 9_999
    assert console.view("streams?filter=size%3E100mb")["found"] == 0
    assert console.view("streams?filter=sensor:0000%20length%3E0%20size%3C1mb")["found"] == 10


def test_the_list_is_light(console: ConsoleProcess, browser: Browser) -> None:
    browser.open(f"{console.address}/streams?sort=size&order=down")
    browser.sees("10,000 streams")
    weight = browser.script(
        "return performance.getEntries().filter((e) => !e.name.includes('/api/live/'))"
        ".reduce((sum, e) => sum + (e.transferSize || 0), 0)"
    )
    _, _, rows = console.ask("/api/view/streams?sort=size&order=down")
    assert len(rows["rows"]) == 50
    assert 10_000 < weight + len(str(rows)) < 200_000


def test_every_key_of_the_list_of_keys_works(console: ConsoleProcess, browser: Browser) -> None:
    browser.open(f"{console.address}/")
    browser.sees("Nothing needs attention.")
    browser.press("gs")
    browser.sees("10,000 streams")
    browser.press("/")
    browser.press("audit")
    browser.until(lambda: browser.texts("td.name") == ["clicks"])
    browser.press(Keys.ESCAPE)
    browser.press("go")
    browser.sees("Furthest behind")
    browser.press("?")
    browser.sees("Light or dark", "dialog")
    browser.press(Keys.ESCAPE)
    browser.press("t")
    browser.until(lambda: browser.script("return document.documentElement.dataset.theme") == "dark")
    browser.open(f"{console.address}/")
    assert browser.script("return document.documentElement.dataset.theme") == "dark"  # it is remembered


def test_a_phone_shows_the_list_without_scrolling_sideways(console: ConsoleProcess, browser: Browser) -> None:
    browser.resize(*PHONE)
    for page in ("/", "/streams"):
        browser.open(console.address + page)
        browser.sees("alerts" if page == "/streams" else "Furthest behind")
        assert browser.script("return document.documentElement.scrollWidth") <= PHONE[0]
        wider = "return [...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth)"
        assert browser.script(wider) == [], "a column is cut"


def test_a_page_goes_on_where_it_was_when_its_address_is_opened_again(
    console: ConsoleProcess, browser: Browser
) -> None:
    browser.open(f"{console.address}/streams?filter=sensor:0000&sort=name&order=down")
    browser.sees("10 of 10,000 streams")
    assert browser.texts("td.name")[0] == "sensor:00009"


def test_new_figures_come_by_themselves(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    browser.open(f"{console.address}/streams?filter=alerts")
    browser.until(lambda: browser.texts("tbody td")[1:2] == ["7"])
    client.execute_command("TWRITE", "alerts", "t", "x")
    browser.until(lambda: browser.texts("tbody td")[1:2] == ["8"])
