"""Clients and locks, keys, nodes, and pipelines."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from tests.support.console.browser import PHONE, Browser
from tests.support.console.console_process import ConsoleProcess

from penstock import Server
from penstock.console.views.nodes import nodes
from penstock.protocol.pipelines import KEY, PipelineReport

LARGE = 12_000_000


@pytest.fixture(scope="module", autouse=True)
def _data(client: redis.Redis) -> None:
    client.set("cart:17", "x" * LARGE)
    client.set("config", '{"theme": "dark"}', ex=3600)
    client.hset("user:1", mapping={"name": "ada", "email": "ada@example.org"})
    client.rpush("queue", *range(120))
    client.rpush("blobs", *("y" * 3_000_000 for _ in range(4)))
    client.sadd("tags", "a", "b")
    client.zadd("scores", {"ada": 2.5, "bob": 1})
    client.execute_command("TWRITE", "clicks", "t", "x")
    client.set(b"bin\xff\x00ary", b"\xfe\xff")


def test_clients_and_who_waits_for_a_lock(console: ConsoleProcess, browser: Browser, server: Server) -> None:
    with (
        redis.Redis.from_url(server.url, client_name="holder", socket_timeout=120) as holder,
        redis.Redis.from_url(server.url, client_name="waiter", socket_timeout=120) as waiter,
    ):
        held = ("DEBUG", "LOCK", 20_000, "WRITE", "cart:17")
        holding = threading.Thread(target=holder.execute_command, args=held)
        holding.start()
        browser.open(f"{console.address}/clients")
        browser.sees("write", "tbody")
        waiting = threading.Thread(target=waiter.get, args=("cart:17",))
        waiting.start()
        browser.until(lambda: "waiter GET" in browser.texts("tbody tr:first-child td:last-child")[0])
        assert "holder DEBUG" in browser.texts("tbody tr:first-child td")[3]
        browser.fill("input[type=search]", "waiter")
        browser.sees("waits")
        waiting.join()
        holding.join()


def test_a_connection_is_ended_after_confirmation(console: ConsoleProcess, browser: Browser, server: Server) -> None:
    with redis.Redis.from_url(server.url, client_name="victim") as victim:
        number = victim.client_id()
        browser.open(f"{console.address}/clients?filter=victim")
        browser.click("td button", "End")
        browser.sees("victim", "dialog")
        browser.click("dialog [data-confirm]")
        browser.sees("is ended", "#toasts")
        assert victim.client_id() != number


def test_slow_commands_are_listed_and_the_log_is_emptied(
    console: ConsoleProcess, browser: Browser, client: redis.Redis
) -> None:
    client.config_set("slowlog-log-slower-than", 0)
    client.get("config")
    client.config_set("slowlog-log-slower-than", 10_000_000)
    browser.open(f"{console.address}/clients")
    browser.sees("GET config")
    browser.click("button", "Empty the log")
    browser.click("dialog [data-confirm]")
    browser.sees("No command was slow.")
    assert client.slowlog_len() == 0


def test_keys_are_found_by_pattern_and_type(console: ConsoleProcess, browser: Browser) -> None:
    browser.open(f"{console.address}/keys")
    browser.sees("cart:17")
    row = browser.script(
        "return [...document.querySelectorAll('tbody tr')].map((r) => [...r.children].map((c) => c.innerText))"
    )
    found = {name: (kind, size, expires) for name, kind, size, expires in row}
    assert found["cart:17"] == ("string", "11.4 MB", "never")
    assert found["config"][2].startswith("in 59 min")
    browser.fill("input[type=search]", "user")
    browser.until(lambda: browser.texts("td.name") == ["user:1"])
    browser.click("td a", "user:1")
    browser.sees("ada@example.org")
    browser.open(f"{console.address}/keys?type=zset")
    browser.until(lambda: browser.texts("td.name") == ["scores"])


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("cart%3A17", "The beginning of 11.4 MB"),
        ("config", '"dark"'),
        ("queue", "50 elements shown"),
        ("blobs", "4 elements shown"),
        ("tags", "2 elements shown"),
        ("scores", "2.5"),
        ("bin%FF%00ary", "Not UTF-8"),
        ("clicks", "This is a stream."),
        ("nothing", "There is no such key."),
    ],
)
def test_a_bounded_part_of_every_type_is_shown(console: ConsoleProcess, browser: Browser, key: str, words: str) -> None:
    browser.open(f"{console.address}/key?key={key}")
    browser.sees(words)


def test_the_rest_of_a_long_list_comes_on_demand(console: ConsoleProcess, browser: Browser) -> None:
    browser.open(f"{console.address}/key?key=queue")
    browser.click("button", "More")
    browser.sees("100 elements shown")
    browser.click("button", "More")
    browser.sees("120 elements shown")


def test_a_long_element_opens(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    client.hset("folded", mapping={"profile": '{"city": {"name": "' + "x" * 500 + '"}}'})
    browser.open(f"{console.address}/key?key=folded")
    browser.click(".fold > summary")
    browser.sees("city", ".tree")


def test_an_address_that_leads_nowhere_says_so(console: ConsoleProcess, browser: Browser) -> None:
    assert [console.ask(path)[0] for path in ("/nosuch", "/api/nosuch", "/static/nosuch")] == [404] * 3
    browser.open(f"{console.address}/nosuch")
    browser.sees("There is no such page")
    browser.click("nav a", "Keys")
    browser.sees("cart:17")


def test_a_key_gets_an_expiry_and_is_deleted(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    client.set(b"gone\xff", "x")
    browser.open(f"{console.address}/key?key=gone%FF")
    browser.click("button", "Set expiry")
    browser.fill("dialog input", "500")
    browser.click("dialog [data-confirm]")
    browser.sees("in 8 min")
    assert 0 < client.ttl(b"gone\xff") <= 500
    browser.click("button", "Delete")
    browser.click("dialog [data-confirm]")
    browser.sees("is deleted", "#toasts")
    assert not client.exists(b"gone\xff")


def test_a_replica_is_shown_with_how_far_it_is_behind(browser: Browser, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("leader", "replica", "console")]
    for folder in folders:
        folder.mkdir()
    with (
        Server(dir=folders[0], appendonly=True) as leader,
        ConsoleProcess(leader.url, folders[2]) as console,
    ):
        browser.open(f"{console.address}/nodes")
        browser.sees("No replica follows this server.")
        with Server(dir=folders[1], replicaof=f"127.0.0.1 {leader.port}", appendonly=True):
            browser.sees("online", "tbody")
            assert browser.texts("tbody td")[2].endswith("B")
        browser.sees("No replica follows this server.")


def test_a_node_of_a_shard_shows_its_epoch_and_lease() -> None:
    info = b"role:master\r\nshard:shop\r\nnode:a\r\nepoch:7\r\nlease_ms_left:2500\r\nin_sync:a,b\r\n"

    async def find_all(commands: list[tuple[str, ...]]) -> list[bytes]:
        return [info for _ in commands]

    console = SimpleNamespace(options=SimpleNamespace(place="a:6379"))
    context = SimpleNamespace(login=SimpleNamespace(find_all=find_all), console=console)
    found = asyncio.run(nodes(context))  # type: ignore[arg-type]
    assert found["shard"] == {"name": "shop", "node": "a", "epoch": 7, "lease": 2.5, "in_sync": ["a", "b"]}


def test_pipelines_show_flows_lag_and_the_last_error(
    console: ConsoleProcess, browser: Browser, client: redis.Redis
) -> None:
    browser.open(f"{console.address}/pipelines")
    browser.sees("No pipeline has run")
    now = int(time.time() * 1000)
    flow = {"name": "clicks", "state": "RUNNING", "rows": 12_345, "rate": 99.5, "lag": 7}
    client.hset(KEY, "a", PipelineReport("shop", "host:/shop", now, now + 600_000, flows=[flow]).encode())
    client.hset(KEY, "b", PipelineReport("old", "host:/old", now - 90_000_000, now - 80_000_000).encode())
    failed = PipelineReport("bad", "host:/bad", now - 5000, now, "failed", "no such column: prize")
    client.hset(KEY, "c", failed.encode())
    client.hset(KEY, "d", "no report")
    browser.sees("no such column: prize")
    assert browser.texts("h2") == ["shop", "bad", "old"]
    assert browser.texts("tbody td") == ["clicks", "running", "12,345", "99.5", "7"]
    browser.sees("This run says nothing any more")


def test_no_page_scrolls_sideways_on_a_phone(console: ConsoleProcess, browser: Browser) -> None:
    browser.resize(*PHONE)
    for page in ("clients", "keys", "key?key=queue", "nodes", "pipelines", "stream?key=clicks&tab=messages"):
        browser.open(f"{console.address}/{page}")
        browser.until(lambda: browser.find_all("main h1") and "Reading" not in browser.text("main"))
        assert browser.script("return document.documentElement.scrollWidth") <= PHONE[0], page
