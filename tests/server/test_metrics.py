"""/metrics: real scrapes of a real server, read by Prometheus's own parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.servers import caught_up, servers
from tests.support.scraping import Scrape, scrape
from tests.support.storage.history import fill, numbered_entries
from tests.support.waiting import wait_until

from penstock import Server
from penstock.engine.dispatch import Engine
from penstock.engine.observe.histograms import BOUNDS
from penstock.server.metrics import server_metrics, stream_survey
from penstock.server.metrics.exposition import Page, shown_name
from penstock.server.metrics.stream_metrics import StreamMetrics
from penstock.testing.redis import free_port

DOCS = Path(__file__).parents[2] / "docs"
HOSTILE = [
    b'quote"brace}', b"back\\slash", b"\\xff", b"\xff", b"line\nfeed\rreturn", b"", b"\x00", "käse\u2028".encode(),
    b"rest", b"a" * 200, b"a" * 201, b'x",tier="files"} 1e9\n# HELP redis_up no',
]  # fmt: skip


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[redis.Redis]:
    with Server(metrics_port=port) as server, redis.Redis.from_url(server.url) as connected:
        yield connected


@pytest.fixture(autouse=True)
def _each_scrape_has_a_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_survey, "SHARE", 0)


@pytest.fixture(autouse=True)
def _empty(client: redis.Redis) -> None:
    client.flushall()
    client.config_set("metrics-streams", 100)


def test_both_formats_have_the_same_families(client: redis.Redis, port: int) -> None:
    client.execute_command("TWRITE", "s", "t", "e")
    client.execute_command("TREAD", "s", 0, 1, "GROUP", "g")
    plain, opened = scrape(port), scrape(port, open_metrics=True)
    assert {name: family.type for name, family in plain.families.items()} == {
        name: family.type for name, family in opened.families.items()
    }
    assert all(family.documentation.endswith(".") for family in plain.families.values())
    assert opened.text.endswith("# EOF\n")


def test_counts_of_commands_are_those_of_info(client: redis.Redis, port: int) -> None:
    client.config_resetstat()
    for number in range(40):
        client.set(f"key {number}", "x", ex=1000)
    client.get("key 1")
    client.get("none")
    with pytest.raises(redis.ResponseError):
        client.execute_command("INCR", "key 1")
    found = scrape(port)
    assert found.value("redis_commands_total", cmd="set") == 40
    assert found.value("redis_commands_failed_calls_total", cmd="incr") == 1
    assert found.value("redis_errors_total", err="ERR") == 1
    assert found.value("redis_keyspace_hits_total") == client.info("stats")["keyspace_hits"]
    assert found.value("redis_keyspace_misses_total") == 1
    assert found.value("redis_db_keys", db="db0") == found.value("redis_db_keys_expiring", db="db0") == 40
    assert 0 < found.value("redis_db_avg_ttl_seconds", db="db0") <= 1000
    assert found.value("redis_connected_clients") == client.info("clients")["connected_clients"]


def test_the_histogram_of_a_command_counts_its_calls(client: redis.Redis, port: int) -> None:
    client.config_resetstat()
    for _ in range(16):
        client.get("key")
    for _ in range(10):
        client.execute_command("CLIENT", "ID")  # on the whole way, where each call is timed
    found = scrape(port)
    for cmd, calls in (("get", 16), ("client|id", 10)):
        assert found.value("penstock_command_duration_seconds_count", cmd=cmd) == calls
        assert found.value("penstock_command_duration_seconds_bucket", cmd=cmd, le="+Inf") == calls
        spent = found.value("redis_commands_duration_seconds_total", cmd=cmd)
        assert found.value("penstock_command_duration_seconds_sum", cmd=cmd) == spent > 0
    client.execute_command("DEBUG", "SLEEP", "0.05")
    slow = scrape(port)
    below = f"{max(bound for bound in BOUNDS if bound < 0.05):.10g}"
    assert slow.value("penstock_command_duration_seconds_count", cmd="debug|sleep") == 1
    assert slow.value("penstock_command_duration_seconds_bucket", cmd="debug|sleep", le=below) == 0


def test_calls_that_are_not_timed_are_counted_with_the_next_that_is(client: redis.Redis, port: int) -> None:
    client.config_resetstat()
    pipe = client.pipeline(transaction=False)
    for _ in range(16 + 16 * 5):
        pipe.get("key")
    pipe.execute()
    assert scrape(port).value("penstock_command_duration_seconds_count", cmd="get") == 96


def test_a_stream_and_its_group_are_described(client: redis.Redis, port: int) -> None:
    for number in range(5):
        client.execute_command("TWRITE", "s", "tag", f"entry {number}")
    client.execute_command("TREAD", "s", 0, 2, "GROUP", "g", "RETRY", 1, 0, "DEADLETTER", "dead", "MAXATTEMPTS", 2)
    in_db = {"db": "db0", "stream": "s"}

    def of_group(found: Scrape, name: str) -> float:
        return found.value(name, group="g", **in_db)

    found = scrape(port)
    assert found.value("penstock_streams") == 1
    assert found.value("redis_stream_length", **in_db) == found.value("penstock_stream_written_total", **in_db) == 5
    assert found.value("redis_stream_groups", **in_db) == 1
    assert found.value("penstock_stream_bytes", tier="memory", **in_db) == 5 * (3 + 7 + 16)
    assert found.value("penstock_stream_bytes", tier="files", **in_db) == 0
    assert of_group(found, "redis_stream_group_lag") == 3
    assert of_group(found, "penstock_stream_group_lag_seconds") >= 0
    assert of_group(found, "redis_stream_group_messages_pending") == 2
    assert of_group(found, "penstock_stream_group_retries_total") == 0

    def until_given_up() -> bool:
        client.execute_command("TREAD", "s", 0, 2, "GROUP", "g", "RETRY", 1, 0, "MAXATTEMPTS", 2)
        return of_group(scrape(port), "penstock_stream_group_dead_letters_total") == 2

    wait_until(until_given_up)
    found = scrape(port)
    assert of_group(found, "penstock_stream_group_retries_total") >= 2
    assert found.value("redis_stream_length", db="db0", stream="dead") == 2
    client.execute_command("TREAD", "s", 0, 5, "GROUP", "done")
    client.execute_command("TGROUP", "SET", "s", "late", 1)
    client.execute_command("TEVICT", "s", 5)
    client.execute_command("TWRITE", "s", "tag", "last")
    client.execute_command("TREAD", "s", 0, 1, "GROUP", "late")
    found = scrape(port)
    assert found.value("penstock_stream_group_acknowledged_total", group="done", **in_db) == 5
    assert found.value("penstock_stream_group_lost_total", group="late", **in_db) == 5


def test_only_the_largest_have_series_of_their_own(client: redis.Redis, port: int) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(12):
        for _ in range(number + 1):
            pipe.execute_command("TWRITE", f"s{number}", "t", "e")
        pipe.execute_command("TGROUP", "SET", f"s{number}", "g", 1)
    pipe.execute()
    client.config_set("metrics-streams", 3)

    found = scrape(port)
    assert found.labels("redis_stream_length", "stream") == ["s11", "s10", "s9", "rest"]
    rest = {"db": "rest", "stream": "rest"}
    assert found.value("penstock_streams") == 12
    assert found.value("redis_stream_length", **rest) == sum(range(1, 10))
    assert found.labels("redis_stream_group_lag", "stream") == ["s11", "s10", "s9", "rest"]
    assert found.value("redis_stream_group_lag", group="rest", **rest) == sum(range(1, 10))
    assert found.value("redis_stream_groups", **rest) == 9
    written = found.value("penstock_stream_written_total", **rest)
    client.execute_command("TWRITE", "s0", "t", "e")
    client.delete("s8")
    found = scrape(port)
    assert found.value("redis_stream_length", **rest) == sum(range(1, 9)) + 1
    assert found.value("penstock_stream_written_total", **rest) == written + 1  # what was deleted was written
    client.config_set("metrics-streams", 0)
    assert scrape(port).labels("redis_stream_length", "stream") == ["rest"]


def test_any_bytes_may_be_the_name_of_a_stream(client: redis.Redis, port: int) -> None:
    for name in HOSTILE:
        client.execute_command("TWRITE", name, "t", "e")
        client.execute_command("TGROUP", "SET", name, name, 1)
    for found in (scrape(port), scrape(port, open_metrics=True)):
        names = found.labels("redis_stream_length", "stream")
        assert len(set(names)) == len(HOSTILE)
        assert set(names) == set(map(shown_name, HOSTILE))
        assert set(found.labels("redis_stream_group_lag", "group")) == set(names)
        assert all(name.isprintable() and len(name) < 150 for name in names)
        assert found.value("redis_up") == 1


def test_no_name_looks_like_a_longer_one_that_was_cut() -> None:
    cut = shown_name(b"a" * 200)
    assert shown_name(cut.encode()) != cut


def test_any_bytes_may_be_the_code_of_a_script_s_error(client: redis.Redis, port: int) -> None:
    for code in (b"\\255X", b"A" * 5000, b'"B'):
        with pytest.raises(redis.ResponseError):
            client.eval(b"return redis.error_reply('" + code + b" text')", 0)
    shown = set(scrape(port).labels("redis_errors_total", "err"))
    assert {"\\xffX", '"B'} <= shown
    assert max(map(len, shown)) < 200


def test_a_renamed_stream_is_found_under_its_new_name(client: redis.Redis, port: int) -> None:
    client.execute_command("TWRITE", "s", "t", "e")
    client.rename("s", "renamed")
    client.copy("renamed", "copied", destination_db=3)
    client.swapdb(3, 4)
    found = scrape(port)
    assert found.value("redis_stream_length", db="db0", stream="renamed") == 1
    assert found.value("redis_stream_length", db="db4", stream="copied") == 1


def test_many_streams_are_surveyed_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_survey, "SHARE", 10**6)
    engine = Engine()
    for number in range(3000):
        stream = engine.keyspace[0].obtain_stream(b"%d" % number)
        stream.messages.append(0, b"t", b"e")
        for name in range(number % 3):
            stream.group(b"%d" % name, 1)
    metrics = StreamMetrics(engine)
    steps = len([*metrics.survey.steps()])
    assert steps >= (3000 + 3000) / stream_survey.VISITED
    assert (len(metrics.survey.streams), metrics.survey.others.streams) == (100, 2900)
    assert (len(metrics.survey.groups), metrics.survey.others.groups) == (100, 2900)
    assert [*metrics.survey.steps()] == []  # it is not time for the next one


def test_a_freed_stream_leaves_the_line() -> None:
    engine = Engine()
    everything = engine.keyspace.stream_storage.streams
    for number in range(20):
        engine.keyspace[0].obtain_stream(b"%d" % number)
    for number in range(15):
        del engine.keyspace[0].data[b"%d" % number]
    assert len(everything) == 5 == len(set(everything.visit(9)))
    assert [stream.messages.key for _ in range(6) for stream in everything.visit(1)] == [
        b"15", b"16", b"17", b"18", b"19", b"15",
    ]  # fmt: skip


def test_history_replicas_and_syncs_are_described(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    settings = {
        "appendfsync": "always", "stream_memory": 200_000, "stream_hot_nodes": 1, "stream_compression_rest": 0
    }  # fmt: skip
    with servers(tmp_path) as started:
        leader = started.start("leader", metrics_port=port, **settings)
        replica = started.start("replica", leader, metrics_port=other)
        fill(leader.client, numbered_entries())
        caught_up(leader, replica)
        found, follower = scrape(port), scrape(other)
        in_files = {"db": "db0", "stream": "s", "tier": "files"}
        assert found.value("penstock_history_files") > 0 < found.value("penstock_history_bytes")
        assert found.value("penstock_stream_bytes", **in_files) > 0
        assert found.value("penstock_stream_memory_limit_bytes") == 50 << 20
        assert found.value("penstock_fsync_duration_seconds_count") > 0
        assert found.value("redis_connected_slaves") == 1
        assert found.labels("redis_connected_slave_lag_seconds", "slave_state") == ["online"]
        leader.client.bgrewriteaof()
        wait_until(lambda: scrape(port).value("penstock_fork_duration_seconds_count") == 1)
        assert follower.value("redis_master_link_up") == 1
        assert follower.value("penstock_writes_refused", reason="replica") == 1
        assert follower.value("redis_slave_repl_offset") > 0
        leader.client.execute_command("TGROUP", "SET", "s", "g", 0)
        assert 0 <= scrape(port).value("penstock_stream_group_lag_seconds", group="g") < 3600


def test_every_metric_of_a_real_scrape_is_documented(client: redis.Redis, port: int) -> None:
    kinds = re.findall("^# TYPE (\\S+) (\\S+)$", scrape(port).text, re.MULTILINE)
    listed = re.findall("^\\| `(\\S+)` \\| (\\S+) \\| ", (DOCS / "metrics-list.md").read_text(), re.MULTILINE)
    assert listed == kinds
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds)
    labels = {label for found in scrape(port).families.values() for sample in found.samples for label in sample.labels}
    guide = (DOCS / "metrics.md").read_text()
    assert {label for label in labels if f"`{label}`" not in guide} == set()


def test_the_loop_is_watched(client: redis.Redis, port: int) -> None:
    before = scrape(port).value("penstock_loop_delay_seconds_count")
    client.execute_command("DEBUG", "SLEEP", "0.3")
    wait_until(lambda: scrape(port).value("penstock_loop_delay_seconds_count") > before + 1)
    found = scrape(port)
    late = found.value("penstock_loop_delay_seconds_count") - found.value(
        "penstock_loop_delay_seconds_bucket", le="0.067108864"
    )
    assert late > 0


def test_a_page_shows_every_family_also_those_without_samples(client: redis.Redis, port: int) -> None:
    empty = scrape(port)
    assert empty.families["redis_stream_length"].samples == []
    client.execute_command("TWRITE", "s", "t", "e")
    assert list(scrape(port).families) == list(empty.families)


def test_a_node_of_a_shard_shows_its_epoch() -> None:
    page = Page()
    server_metrics._shard(page, {"shard": "a", "node": "n1", "epoch": 7, "lease_ms_left": 1500, "in_sync": "n1,n2"})
    text = page.text().decode()
    assert 'penstock_shard_epoch{shard="a",node="n1"} 7\n' in text
    assert 'penstock_shard_lease_seconds{shard="a",node="n1"} 1.5\n' in text
    assert 'penstock_shard_in_sync_nodes{shard="a",node="n1"} 2\n' in text


def test_a_new_stream_is_not_taken_for_one_that_was_deleted(client: redis.Redis, port: int) -> None:
    client.config_set("metrics-streams", 1)
    for _ in range(10):  # memory of a deleted one is used again
        client.flushall()
        for name, size in (("a", 100), ("b", 101)):
            client.execute_command("TWRITE", name, "ENTRIES", *["tag", "entry"] * size)
        assert scrape(port).labels("redis_stream_length", "stream") == ["b", "rest"]
