"""The demo says that every click is accounted for only if every click is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.demo.check import differences
from penstock.demo.clicks import PAGES, Tally, click, produce
from penstock.demo.picture import draw


@pytest.mark.timeout(900)
def test_the_demo_accounts_for_every_click(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    words = [sys.executable, "-m", "penstock", "demo", "--seconds", "3", "--rate", "200", "--picture", str(picture)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # 600 of the producers, 25 that are too late, the first one and the one that ends it
    assert "All 627 clicks are accounted for, each exactly once" in ran.stdout
    assert re.search(r"The first click is in the table, [\d.]+ s after the demo began", ran.stdout)
    assert "WRONG" not in ran.stdout
    assert "The console of 127.0.0.1:" in ran.stdout
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_a_picture_that_cannot_be_written_is_told_before_the_demo_begins(tmp_path: Path) -> None:
    for picture in (tmp_path, tmp_path / "nowhere" / "demo.svg"):
        ran = CliRunner().invoke(app, ["demo", "--picture", str(picture)])
        assert ran.exit_code == 2
        assert "name a file in a folder that is there" in " ".join(ran.stdout.split())


def tally(*clicks: dict[str, Any]) -> Tally:
    sent = Tally()
    for each in clicks:
        sent.add(each)
    return sent


def test_what_is_missing_there_twice_or_counted_wrong_is_told(world: Any, request: pytest.FixtureRequest) -> None:
    clicks = [click(f"a-{number}", 0.0, "/", 5000 if number < 2 else 1) for number in range(4)]
    sent = tally(*clicks)
    spark = world.spark

    def told(ids: list[str], count: int, alerts: list[str]) -> list[str]:
        spark.createDataFrame([(name,) for name in ids], "id STRING").createOrReplaceTempView("clicks")
        minutes = spark.sql(f"SELECT TIMESTAMP_SECONDS(0) AS minute, '/' AS page, {count}L AS clicks")
        minutes.createOrReplaceTempView("minutes")
        world.client.delete("alerts")
        world.write("alerts", *(json.dumps({"id": name}) for name in alerts))
        return list(differences(spark, world.client, sent))

    request.addfinalizer(lambda: spark.conf.unset("spark.sql.session.timeZone"))
    request.addfinalizer(lambda: [spark.catalog.dropTempView(name) for name in ("clicks", "minutes")])
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    everything = [each["id"] for each in clicks]
    assert told(everything, 4, ["a-0", "a-1"]) == []
    assert told(everything[1:], 4, ["a-0", "a-1"]) == ["1 clicks are missing from the table clicks, such as a-0"]
    assert told([*everything, "a-3"], 4, ["a-0", "a-1"]) == [
        "1 clicks are more than once in the table clicks, such as a-3"
    ]
    assert told([*everything, "b"], 4, ["a-0", "a-1"]) == ["1 clicks are not sent, but in the table clicks, such as b"]
    assert told(everything, 4, ["a-0", "a-0"]) == [
        "1 clicks are missing from the stream alerts, such as a-1",
        "1 clicks are more than once in the stream alerts, such as a-0",
    ]  # fmt: skip
    assert told(everything, 3, ["a-0", "a-1"]) == ["minute 1970-01-01T00:00, page /: 4 clicks were sent, 3 are counted"]


def test_a_tally_travels_between_processes_and_says_what_is_in_the_stream(world: Any) -> None:
    sent = produce(world.url, number=1, rate=100, seconds=0.5, start=0.0)
    twice = Tally()
    twice.load(sent.dump())
    assert (twice.ids, twice.alerts, twice.minutes) == (sent.ids, sent.alerts, sent.minutes)
    clicks = [json.loads(entry) for entry in world.entries("clicks")]
    assert sorted(each["id"] for each in clicks) == sorted(sent.ids)
    assert len(clicks) == 50
    assert Counter((each["at"][:16], each["page"]) for each in clicks) == sent.minutes


def test_the_picture_has_a_line_for_each_page_and_one_for_the_lag() -> None:
    minutes = {(f"2026-01-01T00:0{minute}", page): minute * 10 for minute in range(3) for page in PAGES}
    root = ElementTree.fromstring(draw(minutes, [(0.0, 0.0), (1.0, 500.0), (2.0, 0.0)]))
    assert len(root.findall("{*}polyline")) == len(PAGES) + 1
    assert ElementTree.fromstring(draw({}, [])) is not None
