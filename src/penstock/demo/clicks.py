"""Clicks, the producers that send them, and the tally of what was sent.

The clock of the clicks runs ten times as fast as real time, so that minutes pass during the demo. Each producer is a
process of its own; what it sends depends only on its number, except for the times. Batches are numbered (TWRITE ...
PRODUCER), so a batch that is sent again after a lost connection is written once.

    python -m penstock.demo.clicks URL NUMBER RATE SECONDS START

prints the tally as JSON when it is done.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import redis

STREAM, ALERTS = "clicks", "alerts"
PAGES = {"/": 40, "/search": 25, "/product": 20, "/cart": 10, "/checkout": 5}
SPEED = 10
LATE = 60.0
"""Some clicks are so many seconds late, by their own clock; the pipeline waits for two minutes."""
SLOW = 3000
PAUSE = 0.05


@dataclass
class Tally:
    """What was sent."""

    ids: set[str] = field(default_factory=set)
    alerts: set[str] = field(default_factory=set)
    minutes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Clicks by minute and page."""

    def add(self, click: dict[str, Any], counted: bool = True) -> None:
        self.ids.add(click["id"])
        if click["ms"] >= SLOW:
            self.alerts.add(click["id"])
        if counted:
            self.minutes[click["at"][:16], click["page"]] += 1

    def dump(self) -> str:
        minutes = [[minute, page, count] for (minute, page), count in self.minutes.items()]
        return json.dumps({"ids": sorted(self.ids), "alerts": sorted(self.alerts), "minutes": minutes})

    def load(self, text: str) -> None:
        """Add what another process sent."""
        other = json.loads(text)
        self.ids |= set(other["ids"])
        self.alerts |= set(other["alerts"])
        for minute, page, count in other["minutes"]:
            self.minutes[minute, page] += count


def click(name: str, at: float, page: str, ms: int) -> dict[str, Any]:
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return {"id": name, "at": moment, "page": page, "ms": ms}


def send(client: Any, producer: str, batch: int, clicks: Iterable[dict[str, Any]]) -> None:
    """Append clicks once, however often this is called for a batch."""
    words = [word for each in clicks for word in (each["page"], json.dumps(each))]
    client.execute_command("TWRITE", STREAM, "PRODUCER", producer, batch, "ENTRIES", *words)


def produce(url: str, number: int, rate: float, seconds: float, start: float) -> Tally:
    """Send clicks at a steady rate."""
    chance = random.Random(number)
    tally = Tally()
    pages, weights = list(PAGES), list(PAGES.values())
    began = time.monotonic()
    sent = batch = 0
    with redis.Redis.from_url(url) as client:
        while (passed := min(time.monotonic() - began, seconds)) < seconds or sent < int(rate * seconds):
            due = int(rate * passed) - sent
            clicks = []
            for _ in range(due):
                late = chance.uniform(0, LATE) if chance.random() < 0.1 else 0.0
                sent += 1
                at = start + passed * SPEED - late
                (page,) = chance.choices(pages, weights)
                clicks.append(click(f"{number}-{sent}", at, page, int(chance.expovariate(1 / 500))))
            if clicks:
                batch += 1
                send(client, f"demo-{number}", batch, clicks)
                for each in clicks:
                    tally.add(each)
            time.sleep(PAUSE)
    return tally


def send_first(client: Any, start: float, tally: Tally) -> None:
    """A slow click, before the producers begin: when all flows have read it, Spark and its workers have started."""
    first = click("first-1", start, "/", SLOW)
    send(client, "demo-first", 1, [first])
    tally.add(first)


def send_hopelessly_late(client: Any, start: float, tally: Tally) -> int:
    """A few clicks of yesterday: the table of clicks takes them, the counts do not."""
    late = [click(f"late-{number}", start - 86_400, "/", 100) for number in range(25)]
    send(client, "demo-late", 1, late)
    for each in late:
        tally.add(each, counted=False)
    return len(late)


def send_end(client: Any, start: float, tally: Tally) -> None:
    """One click of tomorrow, which closes every minute before it."""
    last = click("end-1", start + 86_400, "/", 100)
    send(client, "demo-end", 1, [last])
    tally.add(last, counted=False)


if __name__ == "__main__":
    where, which, how_fast, how_long, when = sys.argv[1:]
    sys.stdout.write(produce(where, int(which), float(how_fast), float(how_long), float(when)).dump())
