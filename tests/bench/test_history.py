"""What the rows of history rest on: servers that are killed, reads of known size, goals, charts, and NATS."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from xml.etree import ElementTree

import pytest

from penstock.bench import nats_peer
from penstock.bench.bystanders import watch
from penstock.bench.history_length import Point, drawn
from penstock.bench.history_load import (
    READ,
    cold_places,
    forget,
    hot_places,
    length,
    messages,
    persistence,
    reads,
    seconds_each,
    server_with,
    started_again,
    wait_until_idle,
    write,
)
from penstock.bench.messages import KEY, reply_size
from penstock.bench.row import Row
from penstock.bench.run import Result, choose
from penstock.bench.servers import StoredServer

COUNT = messages(0)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def stored() -> Iterator[StoredServer]:
    with server_with(1 << 20) as stored:
        write(stored.running, COUNT)
        wait_until_idle(stored.running, COUNT)
        yield stored


def test_a_killed_server_has_its_messages_after_the_next_start(stored: StoredServer) -> None:
    files = persistence(stored.running)["history_files"]
    assert files > 0
    stored.kill()
    assert started_again(stored, COUNT) > 0
    assert length(stored.running) == COUNT
    assert persistence(stored.running)["history_files"] == files


def test_a_start_that_loses_messages_is_an_error(stored: StoredServer) -> None:
    stored.kill()
    with pytest.raises(AssertionError, match="after the start"):
        started_again(stored, COUNT + 1)


def test_a_server_that_ends_at_once_is_an_error() -> None:
    with StoredServer("penstock", appendonly="yes", appenddirname="log") as stored:
        stored.kill()
        shutil.rmtree(stored.folder / "log")
        (stored.folder / "log").write_text("not a folder")
        with pytest.raises(ChildProcessError, match="ended with status"):
            stored.start()


@pytest.mark.parametrize("places", [cold_places, hot_places])
def test_the_size_of_each_reply_is_known_before_it_is_read(
    stored: StoredServer, places: Callable[[int], Iterator[int]]
) -> None:
    work = reads(stored.running, places(COUNT), 10)
    assert [size for _, size in work] == [reply_size(stored.running, request) for request, _ in work]


def test_sizes_are_known_where_offsets_get_a_digit_more(stored: StoredServer) -> None:
    ((request, size),) = reads(stored.running, iter([10_000 - READ // 2]), 1)
    assert size == reply_size(stored.running, request)


def test_cold_places_are_in_history_and_none_is_near_another(stored: StoredServer) -> None:
    with stored.running.client() as client:
        words = client.execute_command("TINFO", KEY)
        tier = dict(zip(words[::2], words[1::2], strict=True))[b"history"]
        in_files = dict(zip(tier[::2], tier[1::2], strict=True))[b"length"]
    places = sorted(islice(cold_places(COUNT), 30))
    assert len(places) == 30 and places[-1] + READ <= in_files
    assert min(after - before for before, after in pairwise(places)) >= READ
    forget(stored.folder)
    assert len(seconds_each(stored.running, reads(stored.running, iter(places), 30))) == 30


def test_bystanders_watch_several_commands(stored: StoredServer) -> None:
    work = reads(stored.running, cold_places(COUNT), 5)
    notice = watch(stored.running, work)
    assert notice.command > 0 and notice.worst >= notice.nearly_worst


def test_a_slow_command_that_fails_is_not_measured(stored: StoredServer) -> None:
    with pytest.raises(ChildProcessError, match="slow command failed"):
        watch(stored.running, [(b"*1\r\n$4\r\nNONE\r\n", 10)])


def test_a_row_may_bound_what_ours_is() -> None:
    row = Row("name", "what", "s", 0.05, lambda server, scale: random.random(), True, most=3)
    assert row.goal == "<= 0.05x, <= 3 s"
    assert Result(row, [2.0], [60.0]).reached
    assert not Result(row, [4.0], [100.0]).reached
    assert not Result(row, [2.0], [20.0]).reached
    only = Row("name", "what", "ms", None, row.measure, True, most=5)
    assert only.goal == "<= 5 ms" and not Result(only, [6.0], [6.0]).reached


def test_the_six_promises_of_history_have_rows() -> None:
    assert {row.name for row in choose(["history"])} >= {
        "history.write", "history.hot", "history.restart", "history.memory", "history.cold", "history.stall",
        "history.replay", "history.length",
    }  # fmt: skip


def test_the_chart_shows_each_figure_at_each_length() -> None:
    points = [Point(1_000_000, 1.5, 160, 1.7), Point(10_000_000, 1.6, 162, 1.8), Point(50_000_000, 1.4, 163, 1.7)]
    charts = ElementTree.fromstring(drawn(points)).findall(f"{SVG}svg")
    assert len(charts) == 3
    assert len({chart.get("y") for chart in charts}) == 3
    for chart in charts:
        assert len(chart.findall(f"{SVG}circle")) == 3
        assert "50,000,000" in {text.text for text in chart.findall(f"{SVG}text")}


def test_nats_replays_what_it_stored() -> None:
    assert nats_peer.replay(None, 0.0001) > 0  # type: ignore[arg-type]
