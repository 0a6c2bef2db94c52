"""INFO, TIME, ROLE and SLOWLOG, on ours and on a real Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from tests.support.replies import error_of, raw

import penstock
from penstock import Server
from penstock.commands.info import SECTIONS, render
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.testing.clock import ManualClock


def text(r: redis.Redis, *sections: str) -> str:
    """INFO as it came."""
    return str(raw(r, "INFO", *sections).decode())


def titles(shown: str) -> list[str]:
    return [line[2:] for line in shown.split("\r\n") if line.startswith("# ")]


@pytest.mark.since("7.0")
def test_sections_come_in_one_order_whatever_was_asked_for_first(r: redis.Redis) -> None:
    r.set("a", 1)
    assert titles(text(r, "keyspace", "CPU", "nonsense", "server")) == ["Server", "CPU", "Keyspace"]
    assert text(r, "nonsense") == ""
    assert titles(text(r)) == titles(text(r, "default"))
    assert "Commandstats" not in titles(text(r))
    assert {"Commandstats", "Errorstats"} <= set(titles(text(r, "everything")))


def test_fields_are_those_redis_has(r: redis.Redis) -> None:
    r.set("a", 1)
    info = r.info("all")
    for field in (
        "redis_version", "redis_mode", "os", "arch_bits", "process_id", "run_id", "tcp_port", "uptime_in_seconds", "hz",
        "connected_clients", "blocked_clients", "maxclients", "used_memory", "used_memory_human", "used_memory_rss",
        "used_memory_peak", "maxmemory", "maxmemory_policy", "mem_fragmentation_ratio", "loading", "aof_enabled",
        "rdb_changes_since_last_save", "total_connections_received", "total_commands_processed",
        "instantaneous_ops_per_sec", "total_net_input_bytes", "total_net_output_bytes", "rejected_connections",
        "expired_keys", "evicted_keys", "pubsub_channels", "pubsub_patterns", "total_error_replies", "role",
        "connected_slaves", "used_cpu_sys", "used_cpu_user", "cluster_enabled", "db0", "keyspace_hits",
        "keyspace_misses", "instantaneous_input_kbps", "instantaneous_output_kbps", "latest_fork_usec", "sync_full",
        "used_memory_overhead", "used_memory_dataset", "used_memory_dataset_perc", "mem_clients_normal",
        "number_of_cached_scripts", "master_replid", "second_repl_offset", "repl_backlog_active", "multiplexing_api",
        "process_supervised", "allocator_allocated", "allocator_active", "allocator_resident", "allocator_frag_ratio",
        "allocator_frag_bytes", "allocator_rss_ratio", "allocator_rss_bytes", "redis_git_sha1", "redis_git_dirty",
        "migrate_cached_sockets",
    ):  # fmt: skip
        assert field in info, field


def test_counters_count(r: redis.Redis) -> None:
    r.config_resetstat()
    before = r.info("all")
    r.set("a", "x" * 1000)
    r.lrange("nothing", 0, -1)
    r.lrange("nothing", 0, -1)
    error_of(r, "NO-SUCH-COMMAND")
    error_of(r, "GETRANGE", "a", "x", "y")
    after = r.info("all")
    assert after["total_commands_processed"] - before["total_commands_processed"] >= 4
    assert after["total_net_input_bytes"] - before["total_net_input_bytes"] > 1000
    assert after["total_net_output_bytes"] > before["total_net_output_bytes"]
    assert after["cmdstat_lrange"]["calls"] == 2
    assert after["cmdstat_getrange"]["failed_calls"] == 1
    assert after["errorstat_ERR"]["count"] == after["total_error_replies"] == 2


def test_errors_of_the_inner_loop_are_counted(r: redis.Redis) -> None:
    r.rpush("list", "a")
    r.config_resetstat()
    error_of(r, "GET", "list")
    assert r.info("errorstats")["errorstat_WRONGTYPE"] == {"count": 1}


def test_keyspace_tells_keys_that_expire(r: redis.Redis) -> None:
    r.set("a", 1)
    r.set("b", 1, ex=1000)
    db0 = r.info("keyspace")["db0"]
    assert (db0["keys"], db0["expires"]) == (2, 1)


def test_blocked_clients_are_counted(r: redis.Redis, peer: str) -> None:
    with redis.Redis.from_url(peer, protocol=2) as other:
        waiting = other.connection_pool.get_connection()
        waiting.send_command("BLPOP", "nothing", 0)
        deadline = time.monotonic() + 60
        while r.info("clients")["blocked_clients"] != 1:
            assert time.monotonic() < deadline
        r.rpush("nothing", "x")
        assert waiting.read_response() == [b"nothing", b"x"]
        other.connection_pool.release(waiting)
    assert r.info("clients")["blocked_clients"] == 0


def test_info_is_verbatim_text_in_resp3(r3: redis.Redis) -> None:
    assert r3.info("server")["redis_mode"] == "standalone"


def test_versions_tell_both_what_it_is_and_what_it_speaks(ours: Server) -> None:
    with redis.Redis.from_url(ours.url, protocol=2) as client:
        info = client.info("server")
    assert (info["redis_version"], info["penstock_version"]) == ("7.0.15", penstock.__version__)
    assert info["tcp_port"] == ours.port


def test_every_section_works_before_there_is_a_server() -> None:
    session = Session(Engine(clock=ManualClock(5_000)))
    session.engine.execute(session, [b"SET", b"a", b"1", b"PX", b"500"])
    shown = render(session, ["everything"])
    assert titles(shown) == list(SECTIONS)
    assert "db0:keys=1,expires=1,avg_ttl=500\r\n" in shown
    assert "server_time_usec:5000000\r\n" in shown


def test_time_is_seconds_and_microseconds(r: redis.Redis) -> None:
    seconds, microseconds = r.time()
    assert abs(seconds + microseconds / 1e6 - time.time()) < 60
    assert 0 <= microseconds < 1_000_000


def test_role_is_that_of_a_primary_without_replicas(r: redis.Redis) -> None:
    assert r.execute_command("ROLE") == [b"master", 0, []]


# -- SLOWLOG ----------------------------------------------------------------------------------------------------


@pytest.fixture
def slow(r: redis.Redis) -> Iterator[redis.Redis]:
    """A client of a server that keeps every command in its slow log."""
    r.config_set("slowlog-log-slower-than", 0)
    r.slowlog_reset()
    yield r
    r.config_set("slowlog-max-len", 128)
    r.config_set("slowlog-log-slower-than", 10000)


def test_the_slow_log_keeps_the_latest_first(slow: redis.Redis) -> None:
    slow.client_setname("me")
    slow.set("a", 1)
    slow.get("a")
    latest, before = slow.slowlog_get(2)
    assert (latest["command"], before["command"]) == (b"GET a", b"SET a 1")
    assert latest["id"] == before["id"] + 1
    assert latest["duration"] >= 0
    assert latest["client_name"] == b"me"
    assert latest["client_address"].startswith(b"127.0.0.1:")
    assert abs(latest["start_time"] - time.time()) < 60


def test_the_slow_log_cuts_what_is_long(slow: redis.Redis) -> None:
    slow.execute_command("MGET", *range(50))
    assert slow.slowlog_get(1)[0]["command"].endswith(b" 29 ... (20 more arguments)")
    slow.set("a", "x" * 200)
    assert slow.slowlog_get(1)[0]["command"] == b"SET a " + b"x" * 128 + b"... (72 more bytes)"


@pytest.mark.since("7.0")
def test_the_slow_log_has_a_length(slow: redis.Redis) -> None:
    slow.config_set("slowlog-max-len", 3)
    for _ in range(5):
        slow.ping()
    assert slow.slowlog_len() == 3
    assert len(slow.slowlog_get(-1)) == 3
    assert error_of(slow, "SLOWLOG GET", "-2") == "count should be greater than or equal to -1"


def test_nothing_is_slow_when_the_slow_log_is_off(slow: redis.Redis) -> None:
    slow.config_set("slowlog-log-slower-than", -1)
    slow.slowlog_reset()
    slow.set("a", 1)
    assert slow.slowlog_len() == 0


def test_a_low_threshold_turns_the_fast_path_off_and_a_high_one_on_again() -> None:
    engine = Engine()
    assert b"GET" in engine.fast
    session = Session(engine)
    engine.execute(session, [b"CONFIG", b"SET", b"slowlog-log-slower-than", b"999"])
    assert engine.fast == {}
    engine.execute(session, [b"CONFIG", b"SET", b"slowlog-log-slower-than", b"1000"])
    assert b"GET" in engine.fast


# -- what the inner loop runs is counted too ----------------------------------------------------------------------


def test_every_command_is_counted_whichever_way_it_takes(r: redis.Redis) -> None:
    r.config_resetstat()
    with r.pipeline(transaction=False) as pipeline:
        for _ in range(100):
            pipeline.set("a", "x").get("a")
        pipeline.lrange("l", 0, -1)
        pipeline.execute()
    error_of(r, "INCR", "a")
    error_of(r, "GET")
    stats = r.info("commandstats")
    assert {name: stats[f"cmdstat_{name}"]["calls"] for name in ("set", "get", "lrange", "incr")} == {
        "set": 100, "get": 100, "lrange": 1, "incr": 1,
    }  # fmt: skip
    assert stats["cmdstat_incr"]["failed_calls"] == stats["cmdstat_get"]["rejected_calls"] == 1
    assert stats["cmdstat_get"]["usec_per_call"] > 0
    assert r.info("stats")["total_commands_processed"] == 100 + 100 + 1 + 1 + 1 + 1, "RESETSTAT and INFO too, not GET"


HITS_AND_MISSES = {
    "GET s": (1, 0), "GET none": (0, 1), "GET h": (1, 0), "SET s 1 GET": (1, 0), "SET none 1 GET": (0, 1),
    "SET s 2": (0, 0), "GETSET none 1": (0, 1), "GETDEL s": (1, 0), "GETDEL none": (0, 1), "GETEX s": (1, 0),
    "MGET s none h": (2, 1), "EXISTS s none": (1, 1), "TYPE none": (0, 1), "TTL s": (1, 0), "APPEND none x": (0, 0),
    "GETRANGE s 0 1": (1, 0), "HGET h none": (1, 0), "HGET none f": (0, 1), "HSET h a 1": (0, 0), "LLEN l": (1, 0),
    "LRANGE none 0 -1": (0, 1), "LPOP l": (0, 0), "LPOP none": (0, 0), "LMOVE l none LEFT LEFT": (0, 0),
    "SINTER t none": (1, 1), "SUNIONSTORE d t none": (1, 1), "SPOP t": (0, 0), "ZSCORE z a": (1, 0),
    "ZUNIONSTORE d 2 z none": (1, 1), "ZRANGE none 0 1": (0, 1), "SORT l": (1, 0), "COPY none d": (0, 1),
    "RENAME s d": (0, 0), "EXPIRE s 100": (0, 0), "DUMP none": (0, 1), "OBJECT ENCODING s": (1, 0),
    "MEMORY USAGE s": (0, 0), "TOUCH s none": (1, 1), "DEL s": (0, 0), "KEYS *": (0, 0), "HSCAN h 0": (1, 0),
    "BITCOUNT none": (0, 1), "BITOP AND d s none": (1, 1), "XLEN x": (1, 0), "XRANGE none - +": (0, 1),
    "XADD x * a 1": (0, 0), "LPOS l 1": (1, 0), "SMISMEMBER t 1": (1, 0), "SETRANGE s 0 a": (0, 0),
}  # fmt: skip


@pytest.mark.since("7.0")
@pytest.mark.parametrize("inside", ["alone", "in a transaction", "in a script"])
def test_hits_and_misses_are_counted_as_redis_counts_them(r: redis.Redis, inside: str) -> None:
    counted = {}
    for command in HITS_AND_MISSES:
        r.flushall()
        r.set("s", 5)
        r.hset("h", "f", 1)
        r.rpush("l", 1, 2)
        r.sadd("t", 1)
        r.zadd("z", {"a": 1})
        r.xadd("x", {"a": 1})
        r.config_resetstat()
        words = command.split()
        if inside == "alone":
            raw(r, *words) if command != "GET h" else error_of(r, *words)
        elif inside == "in a transaction":
            with r.pipeline() as pipeline:
                pipeline.execute_command(*words)
                pipeline.execute(raise_on_error=False)
        else:
            r.eval("return redis.pcall(unpack(ARGV)) and 1", 0, *words)
        stats = r.info("stats")
        counted[command] = stats["keyspace_hits"], stats["keyspace_misses"]
    assert counted == HITS_AND_MISSES


@pytest.mark.since("7.0")
def test_client_list_shows_what_each_client_did_last(r: redis.Redis, peer: str) -> None:
    with redis.Redis.from_url(peer, protocol=2, single_connection_client=True) as other:
        other.client_setname("other")
        for did, name in ((lambda: other.set("a", 1), "set"), (lambda: other.config_get("port"), "config|get"),
                          (lambda: other.get("a"), "get")):  # fmt: skip
            did()
            (shown,) = (each for each in r.client_list() if each["name"] == "other")
            assert shown["cmd"] == name
