"""One stream in the browser: its graph, messages, groups, dead letters and retention, and every action on it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import redis
from selenium.webdriver.support.ui import Select
from tests.support.console.browser import Browser
from tests.support.console.console_process import ConsoleProcess

from penstock.client import dead_letters
from penstock.protocol.dead_letters import Letter

MANY = 100_000
LARGE = 12_000_000


@pytest.fixture(scope="module", autouse=True)
def _data(client: redis.Redis) -> None:
    for start in range(0, MANY, 5000):
        words = [word for n in range(start, start + 5000) for word in (f"user{n % 100}", json.dumps({"n": n}))]
        client.execute_command("TWRITE", "clicks", "ENTRIES", *words)
    for start, name in ((101, "billing"), ("$", "audit")):
        client.execute_command("TGROUP", "SET", "clicks", name, start)
    client.execute_command("TREAD", "clicks", 0, 3, "GROUP", "billing", "RETRY", 3_600_000, 0, "CONSUMER", "worker-1")


def _open(browser: Browser, console: ConsoleProcess, key: str, tab: str, more: str = "") -> None:
    browser.open(f"{console.address}/stream?key={key}&tab={tab}{more}")


def _entries(client: redis.Redis, key: str) -> list[bytes]:
    return [message[2] for message in client.execute_command("TREAD", key, 1, 1000)]


def test_a_hundred_thousand_messages_are_read_by_offset_time_and_tag(
    console: ConsoleProcess, browser: Browser, client: redis.Redis
) -> None:
    _open(browser, console, "clicks", "messages")
    browser.sees("100,000", "tbody")
    assert len(browser.find_all("tbody tr")) == 50
    browser.click("button", "Older")
    browser.sees("99,950", "tbody")
    browser.fill("input[name=from]", "41")
    browser.click("form button", "Look up")
    browser.until(lambda: browser.texts("tbody tr:last-child td")[:1] == ["41"])
    browser.fill("input[name=tag]", "user7")
    browser.click("form button", "Look up")
    browser.until(lambda: set(browser.texts("td.name")) == {"user7"})
    assert browser.texts("tbody tr:last-child td")[0] == "108"
    (_, _, _, when, *_), *_ = client.execute_command("TREAD", "clicks", 60_000, 1, "WITHTIME")
    first = client.execute_command("TSEEK", "clicks", "TIME", when)
    said = console.view(f"messages?key=clicks&time={when}")
    assert said["rows"][-1]["offset"] == first
    assert said["rows"][-1]["time"] >= when


def test_json_opens_as_a_tree(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "trees", "t", json.dumps({"user": {"name": "ada", "ids": [1, 2]}, "ok": True}))
    _open(browser, console, "trees", "messages")
    browser.click("button[aria-label='Message 1']")
    browser.sees('"ada"', ".tree")
    assert browser.texts(".tree .key")[:2] == ["user", "name"]
    assert browser.texts(".tree .word") == ["true"]
    browser.click("button[aria-label='Message 1']")
    browser.until(lambda: not browser.find_all(".tree"))


def test_a_schema_makes_columns_of_its_fields(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    client.execute_command("TSCHEMA", "SET", "columns", "id int, `<b>` string, more struct<a int>")
    for entry in ('{"id": 7, "<b>": "tea", "more": {"a": 1}}', '{"id": 8}', "no JSON"):
        client.execute_command("TWRITE", "columns", "t", entry)
    _open(browser, console, "columns", "messages")
    browser.sees("no JSON", "tbody")
    assert browser.texts("th")[3:-1] == ["id", "<b>", "more"]
    assert browser.texts("td.field") == ["8", "\u2013", "\u2013", "7", "tea", '{"a":1}']
    browser.click("button[aria-label='Message 1']")
    browser.sees('"tea"', ".tree")
    Select(browser.find("select[aria-label='Show entries as']")).select_by_visible_text("JSON")
    browser.until(lambda: browser.texts("th")[3:-1] == ["Entry"])
    browser.driver.refresh()
    browser.sees("no JSON", "tbody")
    assert browser.texts("th")[3:-1] == ["Entry"], "the choice is remembered"


def test_the_graph_shows_the_lag_of_groups_in_messages_and_in_time(console: ConsoleProcess, browser: Browser) -> None:
    _open(browser, console, "clicks", "graph")
    browser.until(
        lambda: [text.split("\n")[0] for text in browser.texts("h2")] == ["Messages a second", "Lag", "Behind by"]
    )
    group = next(each for each in console.view("graph?key=clicks")["groups"] if each["name"] == "billing")
    assert len(group["lag"]) == len(group["behind"])


def test_a_message_of_12_megabytes_is_shown_in_part_and_can_be_downloaded(
    console: ConsoleProcess, browser: Browser, client: redis.Redis
) -> None:
    client.execute_command("TWRITE", "large", "t", "x" * LARGE)
    client.execute_command("TWRITE", "large", "t", "small")
    _open(browser, console, "large", "messages")
    browser.sees("11.4 MB", "tbody")
    browser.click("button[aria-label='Message 1']")
    browser.sees("The beginning of 11.4 MB")
    browser.until(lambda: [len(text) for text in browser.texts(".payload.whole")] == [256 << 10])
    assert len(json.dumps(console.view("messages?key=large"))) < 10_000
    _, headers, raw = console.ask("/api/stream/raw?key=large&offset=1")
    assert len(raw) == LARGE
    assert "attachment" in headers["content-disposition"]


def test_new_messages_are_followed(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "followed", "t", "before")
    _open(browser, console, "followed", "messages")
    browser.sees("before", "tbody")
    browser.click("button", "Follow")
    browser.sees("Waiting for messages")
    client.execute_command("TWRITE", "followed", "ada", "<b>hello</b>")
    browser.sees("<b>hello</b>", "tbody")
    client.execute_command("TWRITE", "followed", "ENTRIES", *(word for n in range(3000) for word in ("t", n)))
    browser.sees("came too fast to be shown")
    browser.until(lambda: browser.texts("tbody td")[:1] == ["3,002"])
    browser.click("button", "Stop following")
    browser.sees("3,001", "tbody")


def test_a_message_is_written_by_a_form(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "written", "t", "first")
    _open(browser, console, "written", "messages")
    browser.click("button", "Write a message")
    browser.fill("dialog input[name=tag]", "ada")
    browser.fill("dialog textarea", '{"page": "/tea"}')
    browser.sees("JSON.", "dialog")
    browser.click("dialog [data-confirm]")
    browser.sees("Written at offset 2.", "#toasts")
    browser.sees("/tea", "tbody")
    assert client.execute_command("TREAD", "written", 2, 1) == [[2, b"ada", b'{"page": "/tea"}']]


def test_a_schema_refuses_and_the_form_says_why(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    client.execute_command("TSCHEMA", "SET", "typed", "n INT NOT NULL", "CHECK", "refuse")
    _open(browser, console, "typed", "messages")
    browser.click("button", "Write a message")
    browser.fill("dialog textarea", '{"n": "no number"}')
    browser.click("dialog [data-confirm]")
    browser.sees("The server refuses TWRITE", "dialog .wrong")
    browser.click("dialog button", "Cancel")
    assert client.execute_command("TINFO", "typed")[b"length"] == 0


def test_groups_show_position_lag_pending_and_members(console: ConsoleProcess, browser: Browser) -> None:
    _open(browser, console, "clicks", "groups")
    browser.until(lambda: browser.texts("tbody tr:first-child td")[:3] == ["billing", "104", "99,897"])
    row = browser.texts("tbody tr:first-child td")
    assert row[5] == "3"
    assert row[6] == "up to 1"
    browser.sees("worker-1")
    assert browser.find("tbody time[title]").get_attribute("title").startswith("20")


def test_a_group_is_moved_after_a_look_at_what_that_means(
    console: ConsoleProcess, browser: Browser, client: redis.Redis
) -> None:
    client.execute_command("TWRITE", "moved", "ENTRIES", *(word for n in range(100) for word in ("t", n)))
    client.execute_command("TGROUP", "SET", "moved", "g", 61)
    _open(browser, console, "moved", "groups")
    browser.click("td button", "Move")
    browser.fill("dialog input[name=offset]", "41")
    browser.sees("20 messages from offset 41 on are delivered again. The lag is 60 then; it is 40 now.", "#preview")
    Select(browser.find("dialog select[name=to]")).select_by_value("end")
    browser.sees("40 messages are passed over and never delivered to this group.", "#preview")
    Select(browser.find("dialog select[name=to]")).select_by_value("first")
    browser.sees("60 messages from offset 1 on are delivered again.", "#preview")
    assert client.execute_command("TGROUP", "LIST", "moved")[0][b"position"] == 61, (
        "nothing is done before it is confirmed"
    )
    browser.click("dialog [data-confirm]")  # nothing is done before
    browser.sees("The group g goes on at offset 1.", "#toasts")
    assert client.execute_command("TGROUP", "LIST", "moved")[0][b"position"] == 1
    browser.click("button", "New group")
    browser.fill("dialog input[name=name]", "späte")
    browser.fill("dialog input[name=offset]", "101")
    browser.sees("The new group begins at offset 101.", "#preview")
    browser.click("dialog [data-confirm]")
    browser.sees("späte", "tbody")
    browser.until(lambda: not browser.find_all("dialog"))
    browser.click("tbody tr:last-child button", "Delete")
    browser.click("dialog [data-confirm]")
    browser.sees("is deleted", "#toasts")
    browser.until(lambda: len(browser.find_all("tbody tr")) == 1)


def test_letters_are_put_back_one_and_all(console: ConsoleProcess, browser: Browser, client: redis.Redis) -> None:
    for number in range(4):
        letter = Letter(b"kitchen", b"order %d" % number, "no such item", number + 1, "cooks", 5)
        client.execute_command("TWRITE", "kitchen:dead", "t", letter.encode())
    client.execute_command("TWRITE", "kitchen", "t", "order 9")
    reading = "TREAD kitchen 0 1 GROUP cooks RETRY 3600000 0 DEADLETTER kitchen:dead"
    client.execute_command(*reading.split())
    _open(browser, console, "kitchen", "messages")
    browser.click("a", "Dead letters in kitchen:dead")
    browser.sees("4 letters not put back yet.")
    browser.sees("cooks, 5 attempts")
    browser.click("tbody tr:nth-child(3) button", "Put back")
    browser.click("dialog [data-confirm]")
    browser.sees("The message of letter 3 is put back.", "#toasts")
    browser.until(lambda: "put back" in browser.texts("tbody tr:nth-child(3) td")[-1])
    assert _entries(client, "kitchen") == [b"order 9", b"order 2"]
    status, _, said = console.ask("/api/do/put-back", {"key": "kitchen%3Adead", "offset": 3})
    assert (status, said["error"]) == (400, "The letter at offset 3 cannot be put back: it was put back on its own.")
    browser.click("button", "Put all back")
    browser.click("dialog [data-confirm]")
    browser.sees("3 messages are put back. 1 were passed over.", "#toasts")
    browser.sees("All letters were put back.")
    assert _entries(client, "kitchen") == [b"order 9", b"order 2", b"order 0", b"order 1", b"order 3"]
    groups = client.execute_command("TGROUP", "LIST", "kitchen:dead")
    assert [(group[b"name"], group[b"lag"]) for group in groups] == [(dead_letters.GROUP.encode(), 0)]


def test_retention_is_changed_after_a_look_at_what_it_removes(
    console: ConsoleProcess, browser: Browser, client: redis.Redis
) -> None:
    client.execute_command("TWRITE", "kept", "ENTRIES", *(word for n in range(3000) for word in ("t", n)))
    client.execute_command("TGROUP", "SET", "kept", "slow", 1)
    _open(browser, console, "kept", "settings")
    browser.sees("The stream keeps everything.")
    browser.click("button", "Change")
    browser.fill("dialog input[name=count]", "1000")
    browser.sees("2,000 messages of 3,000 would be removed now, some before slow has read them.", "#preview")
    browser.click("dialog [data-confirm]")
    browser.sees("The stream keeps the newest 1,000 messages.")
    assert client.execute_command("TINFO", "kept")[b"retention"][b"count"] == 1000


def test_messages_are_downloaded_as_csv_and_as_parquet(console: ConsoleProcess, tmp_path: Path) -> None:
    _, headers, raw = console.ask("/api/stream/download?key=clicks&from=99&to=5098&format=csv")
    assert headers["content-disposition"] == 'attachment; filename="clicks-99-5098.csv"'
    rows = list(csv.DictReader(io.StringIO(raw.decode())))
    assert len(rows) == 5000
    assert (rows[0]["offset"], rows[0]["tag"], rows[0]["entry"]) == ("99", "user98", '{"n": 98}')
    _, _, raw = console.ask("/api/stream/download?key=clicks&from=1&to=100000&format=parquet")
    (tmp_path / "clicks.parquet").write_bytes(raw)
    table = pq.read_table(tmp_path / "clicks.parquet")
    assert table.column("offset").to_pylist() == list(range(1, MANY + 1))
    assert table.column("entry")[-1].as_py() == b'{"n": 99999}'


def test_a_cell_of_a_download_is_no_formula(console: ConsoleProcess, client: redis.Redis) -> None:
    client.execute_command("TWRITE", "formulas", "=1+1", '=HYPERLINK("http://evil.example")')
    _, _, raw = console.ask("/api/stream/download?key=formulas&format=csv")
    row = next(csv.DictReader(io.StringIO(raw.decode())))
    assert row["tag"] == "'=1+1"
    assert row["entry"].startswith("'=")


def test_a_stream_that_is_not_there_is_said_to_be_missing(console: ConsoleProcess, browser: Browser) -> None:
    _open(browser, console, "nowhere", "graph")
    browser.sees("There is no such stream.")
    browser.click("a", "All streams")
    browser.sees("Written/s")
