"""The pictures of the console in the documentation: a shop, some minutes of traffic, and a real Chromium.

    .venv/bin/python -m tests.support.console.pictures docs/pictures --seconds 900

A test makes the same pictures with less traffic. Pictures differ in their figures each time they are made.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from tests.support.console.browser import PHONE, WIDE, Browser
from tests.support.console.console_process import ConsoleProcess

from penstock import Server
from penstock.protocol.pipelines import KEY, PipelineReport

USERS = ("ada", "bob", "eve", "kim", "lou")
PAGES = ("/", "/tea", "/cake", "/cart", "/pay")


def make(folder: Path, browser: Browser, seconds: float = 0) -> list[Path]:
    """Make all pictures; their files."""
    made: list[Path] = []

    def take(name: str) -> None:
        time.sleep(0.3)  # what the pointer has left fades
        made.append(folder / f"console-{name}.png")
        browser.picture(made[-1])

    with (
        tempfile.TemporaryDirectory() as temporary,
        Server() as server,
        _shop(server),
        ConsoleProcess(server.url, Path(temporary), "--mask", "card") as console,
    ):
        until = time.monotonic() + seconds
        browser.forget()
        browser.open(console.address)
        while time.monotonic() < until:
            time.sleep(1)
        span = 900 if seconds > 60 else 3600
        browser.open(f"{console.address}/")
        browser.sees("clicks")
        take("overview")
        browser.open(f"{console.address}/streams?sort=lag&order=down")
        browser.sees("audit")
        take("streams")
        browser.open(f"{console.address}/stream?key=clicks&tab=messages")
        browser.click("tbody tr:nth-child(2) button")
        browser.sees("page", ".tree")
        take("messages")
        browser.open(f"{console.address}/stream?key=orders&tab=messages")
        browser.sees("cake", "tbody")
        take("table")
        browser.open(f"{console.address}/stream?key=clicks&tab=groups")
        browser.click("td button", "Move")
        browser.fill("dialog input[name=offset]", "1000")
        browser.sees("delivered again", "#preview")
        take("move")
        browser.open(f"{console.address}/stream?key=orders%3Adead&tab=letters")
        browser.sees("Put all back")
        take("letters")
        browser.open(f"{console.address}/pipelines")
        browser.sees("clicks_per_minute")
        take("pipelines")
        browser.theme("dark")
        browser.resize(WIDE[0], 1000)
        browser.open(f"{console.address}/stream?key=clicks&tab=graph&seconds={span}")
        browser.sees("Lag")
        if seconds:
            browser.sees("read by billing")
        take("stream-dark")
        browser.theme("light")
        browser.resize(*PHONE)
        browser.open(f"{console.address}/streams?sort=lag&order=down")
        browser.sees("clicks")
        take("phone")
        browser.resize(*WIDE)
    return made


@contextmanager
def _shop(server: Server) -> Iterator[None]:
    """Streams of a small shop, with groups that read them; traffic goes on while the block runs."""
    chance = random.Random(7)
    with redis.Redis.from_url(server.url, protocol=3) as client:
        for number in range(3000):
            client.execute_command("TWRITE", "clicks", chance.choice(USERS), _click(chance, number))
        client.execute_command("TGROUP", "SET", "clicks", "billing", 2400)
        client.execute_command("TGROUP", "SET", "clicks", "audit", 3000)
        for number in range(40):
            order = json.dumps({"item": chance.choice(("tea", "cake")), "card": "4111 1111", "n": number})
            client.execute_command("TWRITE", "orders", chance.choice(USERS), order)
        reading = "GROUP kitchen RETRY 600000 0 CONSUMER cook-1 DEADLETTER orders:dead"
        client.execute_command("TREAD", "orders", 0, 12, *reading.split())
        client.execute_command("TGIVEUP", "orders", "kitchen", "REASON", "no such item: 'cake'", "1-7")
        for name in ("payments", "shipments", "returns", "emails"):
            client.execute_command("TWRITE", name, "ENTRIES", *("t", "{}") * chance.randint(50, 900))
            client.execute_command("TGROUP", "SET", name, "mailer", "$")
        began = int(time.time() * 1000) - 3_600_000
        flows = [
            {"name": "clicks", "state": "RUNNING", "rows": 184_220, "rate": 2210.5, "lag": 12},
            {"name": "clicks_per_minute", "state": "RUNNING", "rows": 184_220, "rate": 1980.0, "lag": 0},
        ]
        client.execute_command("TSCHEMA", "SET", "orders", "item string, n int, card string")
    over = threading.Event()

    def run() -> None:
        with redis.Redis.from_url(server.url, protocol=3) as client:
            number = 0
            while not over.wait(0.5):
                number += 1
                report = PipelineReport("shop", "worker-1:/srv/shop", began, int(time.time() * 1000), flows=flows)
                client.hset(KEY, "shop", report.encode())
                busy = 12 + 10 * (number % 120 > 60) + chance.randint(0, 6)
                words = [word for _ in range(busy) for word in (chance.choice(USERS), _click(chance, number))]
                client.execute_command("TWRITE", "clicks", "ENTRIES", *words)
                client.execute_command("TREAD", "clicks", 0, 19 + (number % 240 > 180) * 8, "GROUP", "billing")
                client.execute_command("TREAD", "clicks", 0, 60 if number % 160 > 40 else 1, "GROUP", "audit")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _click(chance: random.Random, number: int) -> str:
    user = {"id": number % 97, "plan": chance.choice(("free", "team"))}
    return json.dumps({"page": chance.choice(PAGES), "ms": chance.randint(20, 900), "user": user})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=0)
    words = parser.parse_args()
    browser = Browser()
    try:
        make(words.folder, browser, words.seconds)
    finally:
        browser.close()


if __name__ == "__main__":
    main()
