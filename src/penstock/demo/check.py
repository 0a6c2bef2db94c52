"""Whether every click came out once: compares the tables and the stream of alerts with the tally of the producers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.demo.clicks import ALERTS, Tally


def differences(spark: Any, client: Any, sent: Tally) -> Iterator[str]:
    """The differences, one sentence each; none if every click is accounted for exactly once."""
    table = spark.table("clicks").select("id").toArrow().column("id").to_pylist()
    yield from _compare("the table clicks", table, sent.ids)
    alerts = [json.loads(message[2])["id"] for message in client.execute_command("TREAD", ALERTS, 1, len(sent.ids) + 1)]
    yield from _compare("the stream alerts", alerts, sent.alerts)
    counted = counts(spark)
    for key in sorted(counted | sent.minutes):
        if counted[key] != sent.minutes[key]:
            yield f"minute {key[0]}, page {key[1]}: {sent.minutes[key]} clicks were sent, {counted[key]} are counted"


def counts(spark: Any) -> Counter[tuple[str, str]]:
    """The table of minutes, as the producers count. A minute that occurs twice has the sum of both."""
    found: Counter[tuple[str, str]] = Counter()
    rows = spark.table("minutes").selectExpr("date_format(minute, \"yyyy-MM-dd'T'HH:mm\")", "page", "clicks")
    for minute, page, clicks in rows.collect():
        found[minute, page] += clicks
    return found


def _compare(where: str, found: Iterable[str], sent: set[str]) -> Iterator[str]:
    there_is = Counter(found)
    missing, strange = sent - set(there_is), set(there_is) - sent
    twice = {name for name, times in there_is.items() if times > 1}
    for what, names in (("missing from", missing), ("more than once in", twice), ("not sent, but in", strange)):
        if names:
            yield f"{len(names):,} clicks are {what} {where}, such as {min(names)}"
