"""MEMORY, and what happens at maxmemory."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from penstock import Server
from penstock.bench.servers import Running, penstock_server
from penstock.engine.keyspace.memory import IDLE_PAUSE
from penstock.engine.session import Session
from penstock.server.app import App


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A process of its own: what the tests and their client use must not count."""
    with penstock_server() as running:
        yield running


@pytest.fixture
def m(server: Running) -> Iterator[redis.Redis]:
    with server.client() as client:
        client.flushall()
        yield client
        client.config_set("maxmemory", 0)


def used(client: redis.Redis) -> int:
    """Bytes in use, after released memory is freed."""
    while client.info("memory")["lazyfree_pending_objects"]:
        pass
    return int(client.memory_stats()["total.allocated"])


def limit(client: redis.Redis, extra: int) -> None:
    """Allow so many bytes more than are in use now."""
    client.config_set("maxmemory", used(client) + extra)


def fill(client: redis.Redis, prefix: str, value: bytes, batch: int = 200) -> int:
    """Write keys until the server refuses; how many it took."""
    written = 0
    while written < 1_000_000:
        pipe = client.pipeline(transaction=False)
        for number in range(written, written + batch):
            pipe.set(f"{prefix}{number}", value)
        replies = pipe.execute(raise_on_error=False)
        written += sum(reply is True for reply in replies)
        if any(isinstance(reply, redis.OutOfMemoryError) for reply in replies):
            return written
    raise AssertionError("the server took everything")


@pytest.mark.parametrize("length", [100, 400, 5000, 500_000])
def test_a_full_server_refuses_writes_until_data_is_deleted(server: Running, m: redis.Redis, length: int) -> None:
    room = 12 << 20
    limit(m, room)
    batch = max(1, min(200, 1_000_000 // length))
    written = fill(m, "k", b"x" * length, batch)
    stored = written * (length + 100)
    assert 0.4 * room < stored < 2 * room, f"{written} values of {length} bytes fitted into {room} bytes"
    with pytest.raises(redis.OutOfMemoryError, match="command not allowed when used memory > 'maxmemory'"):
        for _ in range(5000):  # what the refused batch took, here and in the client, is free again
            m.rpush("list", b"x" * 1000)
    assert m.get("k0") == b"x" * length
    with server.client() as other:
        assert other.ping()
        assert other.dbsize() - other.exists("list") == written
    m.delete("list")
    # Most of it, because the table of keys does not shrink, and may have doubled with the last write.
    for start in range(written // 10, written, 500):
        m.delete(*(f"k{number}" for number in range(start, min(start + 500, written))))
    assert m.set("again", "x" * length), "at once, without waiting for a periodic measurement"


def test_flushing_makes_room_for_as_much_again(m: redis.Redis) -> None:
    limit(m, 8 << 20)
    first = fill(m, "a", b"x" * 200)
    m.flushall()
    second = fill(m, "b", b"x" * 200)
    assert second > 0.6 * first


def test_a_giant_that_was_deleted_makes_room_at_once(m: redis.Redis) -> None:
    limit(m, 8 << 20)
    with pytest.raises(redis.OutOfMemoryError):
        for start in range(0, 1 << 20, 1000):
            m.sadd("giant", *(f"member:{number}" for number in range(start, start + 1000)))
    assert m.delete("giant") == 1
    assert m.set("key", "x" * 100_000), "at once, though the set is taken apart by and by"


def test_a_limit_set_below_what_is_used_holds_at_once(m: redis.Redis) -> None:
    m.set("k", "v")
    m.config_set("maxmemory", "1mb")
    with pytest.raises(redis.OutOfMemoryError):
        m.set("k", "w")
    assert m.get("k") == b"v"
    m.config_set("maxmemory", "0")
    assert m.set("k", "w")


def test_used_memory_follows_the_data(m: redis.Redis) -> None:
    before = used(m)
    m.rpush("list", *(b"%d" % number * 30 for number in range(50_000)))
    full = used(m)
    assert full - before > 5_000_000
    m.delete("list")
    assert used(m) - before < (full - before) / 2


def test_a_string_that_grew_and_went_leaves_nothing(m: redis.Redis) -> None:
    """A string that grows is copied, and leaves a hole as large as itself."""
    for _ in range(3):
        before = used(m)
        m.setrange("big", 8_388_607, "x")
        assert used(m) - before == pytest.approx(1 << 23, rel=0.02)
        m.delete("big")
        assert used(m) - before == pytest.approx(0, abs=200_000)


def test_ten_large_strings_in_a_pipeline_do_not_pass_the_limit(m: redis.Redis) -> None:
    limit(m, 40 << 20)
    before = used(m)
    pipe = m.pipeline(transaction=False)
    for number in range(10):
        pipe.setrange(f"k{number}", 268_435_455, "x")
    for number in range(10):
        pipe.setrange(f"k{number}", 16_777_215, "x")
    replies = pipe.execute(raise_on_error=False)
    assert [reply for reply in replies if not isinstance(reply, redis.OutOfMemoryError)] == [1 << 24, 1 << 24]
    assert used(m) - before < 40 << 20


@pytest.mark.parametrize("length", [300, 3000])
def test_used_memory_is_right_when_the_heap_is_full_of_holes(m: redis.Redis, length: int) -> None:
    count = 20_000
    m.hset("h", mapping={f"{number:05}": b"x" * length for number in range(count)})
    full = used(m)
    m.hdel("h", *(f"{number:05}" for number in range(0, count, 2)))  # a dict keeps its table
    going = count / 2 * (length + 33 + 5 + 33)
    assert full - used(m) == pytest.approx(going, rel=0.1), "malloc and pymalloc round up to 16 bytes"


def test_measuring_pauses_in_proportion_to_what_it_cost(ours: Server) -> None:
    def ticks(app: object) -> tuple[float, float]:
        memory = ours.app.engine.memory
        memory.measure()
        assert memory._next > began
        memory._next = first = memory._next + 60  # time enough to look at it
        memory.tick()
        return first, memory._next

    began = time.monotonic()
    first, second = ours.call(ticks)
    assert first == second, "the second measurement was too early"


def test_an_idle_server_measures_once_a_second_and_one_that_was_asked_at_its_next_tick(ours: Server) -> None:
    def measures(after_command: bool, after_a_second: bool) -> bool:
        """Whether a tick measures when the time for it has come."""

        def tick(app: App) -> bool:
            memory = app.engine.memory
            memory.measure()
            assert memory._next_if_idle >= began + IDLE_PAUSE
            memory._next, memory._next_if_idle = 0, 0 if after_a_second else time.monotonic() + 60
            if after_command:
                app.engine.execute(Session(app.engine), [b"PING"])
            memory.tick()
            return memory._next > 0

        return ours.call(tick)

    began = time.monotonic()
    assert not measures(after_command=False, after_a_second=False)
    assert measures(after_command=True, after_a_second=False)
    assert measures(after_command=False, after_a_second=True)


def test_usage_grows_with_the_value(r: redis.Redis) -> None:
    r.set("short", "x")
    r.set("long", "x" * 10_000)
    r.rpush("list", *("x" * 100 for _ in range(1000)))
    assert r.memory_usage("none") is None
    assert 0 < r.memory_usage("short") < 300
    assert 10_000 < r.memory_usage("long") < 13_000
    assert 100_000 < r.memory_usage("list", samples=0) < 200_000
    for tail in (["SAMPLES"], ["SAMPLES", "-1"], ["OTHER", "1"]):
        with pytest.raises(redis.ResponseError, match="syntax error"):
            r.execute_command("MEMORY", "USAGE", "short", *tail)
    with pytest.raises(redis.ResponseError, match="value is not an integer"):
        r.execute_command("MEMORY", "USAGE", "short", "SAMPLES", "x")


def test_stats_have_redis_names_and_add_up(r: redis.Redis) -> None:
    r.set("k", "v")
    stats = r.memory_stats()
    assert stats["keys.count"] == 1
    assert stats["peak.allocated"] >= stats["total.allocated"] > stats["dataset.bytes"] >= 0
    assert set(stats["db.0"]) >= {"overhead.hashtable.main", "overhead.hashtable.expires"}
    assert 0 < float(stats["peak.percentage"]) <= 100
    assert {"startup.allocated", "clients.normal", "overhead.total", "fragmentation", "allocator.resident"} <= set(
        stats
    )


def test_purge_and_doctor_answer(r: redis.Redis) -> None:
    assert r.memory_purge()
    assert len(r.execute_command("MEMORY", "DOCTOR")) > 20
    assert r.execute_command("MEMORY", "MALLOC-STATS")


def test_a_full_server_makes_no_new_groups_and_serves_those_there_are(m: redis.Redis) -> None:
    m.execute_command("TWRITE", "k", "ENTRIES", *["tag", "entry"] * 3)
    m.execute_command("TGROUP", "SET", "k", "known", 1)
    m.config_set("maxmemory", "1mb")
    made = (
        "TREAD k 0 1 GROUP new",
        "TREAD k 0 0 GROUP new",
        "TREAD nothing 0 1 GROUP new BLOCK 1",
        "TGROUP SET k new 1",
    )
    for words in made:
        with pytest.raises(redis.OutOfMemoryError):
            m.execute_command(*words.split())
    assert m.execute_command("TREAD", "k", 0, 1, "GROUP", "known", "RETRY", 1000, 0) == [[1, b"tag", b"entry"]]
    assert m.execute_command("TGROUP", "SET", "k", "known", 3) == b"OK"
    assert m.execute_command("TACK", "k", "known", 1) == 1
    assert [group[b"name"] for group in map(_fields, m.execute_command("TGROUP", "LIST", "k"))] == [b"known"]
    assert not m.exists("nothing")


def _fields(pairs: list[object]) -> dict[object, object]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


@pytest.mark.parametrize("kind", ["string", "hash", "set", "zset", "list"])
def test_usage_adds_up_to_what_is_used(m: redis.Redis, kind: str) -> None:
    count = 3000
    before = used(m)
    pipe = m.pipeline(transaction=False)
    for number in range(count):
        name, words = f"key:{number}", [f"element:{number}:{each}" for each in range(10)]
        match kind:
            case "string":
                pipe.set(name, " ".join(words))
            case "hash":
                pipe.hset(name, mapping=dict.fromkeys(words, "value"))
            case "set":
                pipe.sadd(name, *words)
            case "zset":
                pipe.zadd(name, {word: at for at, word in enumerate(words)})
            case "list":
                pipe.rpush(name, *words)
    pipe.execute()
    told = count * m.memory_usage("key:1234")
    assert told == pytest.approx(used(m) - before, rel=0.2)
