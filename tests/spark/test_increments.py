"""mode=increment: counters that a batch changes once. The commit is tested on our server and on a real Redis."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from tests.support.spark.world import World

from penstock.spark import increments
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.increments import IncrementStreamWriter, Sums, add, sum_rows
from penstock.spark.options import OptionError, Options, parse
from penstock.spark.stream_connection import GUARD, Fenced
from penstock.testing.cluster import RedisCluster
from penstock.testing.proxy import FaultProxy


def of_hashes(url: str, **options: str) -> Options:
    return parse({"url": url, "type": "hash", "mode": "increment"} | options)


def sums(options: Options, **columns: Any) -> Sums:
    """What a task of the query q sends that has these rows."""
    return sum_rows(options, "q", iter([pa.record_batch(columns)]))


def save(world: World, frame: Any, mode: str = "append", **options: Any) -> None:
    writer = frame.write.format("penstock").option("url", world.url).option("mode", "increment").options(**options)
    writer.mode(mode).save()


def test_a_stream_of_rows_is_counted_and_goes_on_counting(world: World) -> None:
    world.write("s", '{"page": "a", "n": 1, "x": 0.5}', '{"page": "b", "n": 2, "x": 1}', '{"page": "a", "n": 3}')
    frame = world.follow("page string, n int, x double", stream="s", minPartitions=2).selectExpr(
        "concat('page:', page) AS key", "n", "x"
    )
    world.run(frame, type="hash", mode="increment")
    world.write("s", '{"page": "a", "n": -5, "x": 0.25}')
    world.run(frame, type="hash", mode="increment", ttl=600_000)
    assert world.client.hgetall("page:a") == {b"n": b"-1", b"x": b"0.75"}
    assert world.client.hgetall("page:b") == {b"n": b"2", b"x": b"1"}
    assert 0 < world.client.pttl("page:a") <= 600_000
    assert world.client.pttl("page:b") == -1


def test_a_write_with_a_name_and_a_number_counts_once(world: World) -> None:
    frame = world.spark.range(10, numPartitions=2).selectExpr("'n' AS key", "id AS value")
    for _ in range(2):
        save(world, frame, type="string", txnAppId="app", txnVersion=3)
    assert world.client.get("n") == b"45"
    save(world, frame, type="string")
    assert world.client.get("n") == b"90", "without a name, each write counts"
    (guard,) = world.client.keys(GUARD + "batch/*")
    assert world.client.pttl(guard) > 0


def test_a_commit_that_is_repeated_adds_nothing(peer: str, r: redis.Redis) -> None:
    options = of_hashes(peer)
    writer = IncrementStreamWriter(options, StructType().add("key", "string").add("n", "long"))
    messages = [sums(options, key=["a", "b", "a"], n=[1, 10, 2]), None, sums(options, key=["a"], n=[3])]
    for number, expected in ((0, b"6"), (0, b"6"), (1, b"12"), (1, b"12")):
        writer.commit(messages, number)
        assert r.hget("a", "n") == expected
    with pytest.raises(Fenced, match=r"batch 0 is older than batch 1, which the server has of this query"):
        writer.commit(messages, 0)
    assert r.hgetall("b") == {b"n": b"20"}


@pytest.mark.parametrize("command", [b"WATCH", b"GET", b"HGET", b"MULTI", b"EXEC"])
def test_a_commit_whose_connection_breaks_counts_once(peer: str, r: redis.Redis, command: bytes) -> None:
    port = r.connection_pool.connection_kwargs["port"]
    with FaultProxy(("127.0.0.1", port)) as proxy:
        options = of_hashes(proxy.url)
        for number, cut in enumerate((proxy.cut_before_forwarding, proxy.cut_after_execution)):
            fault = cut(command)
            assert add(options, [sums(options, key=["a", "b"], n=[1, 10])], "q", number) == number
            assert fault.has_fired
    assert (r.hgetall("a"), r.hgetall("b")) == ({b"n": b"2"}, {b"n": b"20"})


def test_whole_numbers_fractions_and_nothing_are_added_as_they_are(peer: str, r: redis.Redis) -> None:
    options = of_hashes(peer)
    large = 2**62
    columns = {
        "n": pa.array([large, None, large - 1], pa.int64()),
        "small": pa.array([1, 2, 3], pa.int8()),
        "price": pa.array([Decimal("0.10"), None, Decimal("0.20")], pa.decimal128(10, 2)),
        "nothing": pa.array([None, None, None], pa.float32()),
    }
    add(options, [sums(options, key=["a", "b", "a"], **columns)], "q", 0)
    assert r.hgetall("a") == {b"n": b"%d" % (2 * large - 1), b"small": b"4", b"price": b"0.3"}
    assert r.hgetall("b") == {b"small": b"2"}
    assert [each.amount for each in increments._increments([sums(options, key=["a"], n=[0])], options)] == ["0"]


@pytest.mark.parametrize(
    ("there", "amount", "problem"),
    [
        (b"many", 1, "holds 'many', to which 1 cannot be added"),
        (b"9223372036854775807", 1, "holds '9223372036854775807', to which 1 cannot be added"),
        (b"1.5", 1, "holds '1.5', to which 1 cannot be added"),
        (b"1", float("nan"), "holds '1', to which nan cannot be added"),
        (b"1e308", 1e308, "holds '1e308', to which 1e+308 cannot be added"),
    ],
)
def test_nothing_of_a_batch_is_counted_if_one_counter_is_none(
    peer: str, r: redis.Redis, there: bytes, amount: Any, problem: str
) -> None:
    options = of_hashes(peer)
    r.hset("b", "n", there)
    with pytest.raises(ValueError, match=r"^key 'b', field 'n' holds ") as caught:
        add(options, [sums(options, key=["a", "b"], n=[type(amount)(1), amount])], "q", 0)
    assert problem in str(caught.value)
    assert r.keys() == [b"b"]
    r.delete("b")
    r.set("b", "of another type")
    with pytest.raises(ValueError, match=r"^key 'b', field 'n' cannot be added to: WRONGTYPE|^key 'b'.*wrong kind"):
        add(options, [sums(options, key=["a", "b"], n=[1, 1])], "q", 0)
    assert r.keys() == [b"b"]


def test_sums_of_many_rows_are_made_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "ROWS_TO_SUM", 3)
    options = of_hashes("redis://nowhere")
    batches = [pa.record_batch({"key": [f"k{n % 2}", "k1"], "n": [n, 1]}) for n in range(5)]
    found = increments._increments([sum_rows(options, "q", iter(batches)), sum_rows(options, "q", iter([]))], options)
    assert sorted((each.key, each.amount) for each in found) == [(b"k0", "6"), (b"k1", "9")]


def test_the_whole_result_of_every_batch_is_not_added() -> None:
    schema = StructType().add("key", "string").add("n", "long")
    source = PenstockDataSource({"type": "hash", "mode": "increment"})
    assert isinstance(source.streamWriter(schema, overwrite=False), IncrementStreamWriter)
    with pytest.raises(OptionError, match=r"outputMode\('complete'\) add the same again"):
        source.streamWriter(schema, overwrite=True)


def test_a_cluster_is_refused(cluster: RedisCluster) -> None:
    options = of_hashes(f"redis://127.0.0.1:{cluster.masters[0].port}")
    with pytest.raises(OptionError, match="which a cluster cannot do; use one server"):
        add(options, [sums(options, key=["a"], n=[1])], "q", 0)


@pytest.mark.parametrize(
    ("columns", "mode", "options", "problem"),
    [
        ("key string, n string", "append", {"type": "hash"}, "column n is string; mode=increment adds numbers"),
        ("key string, n int", "overwrite", {"type": "hash"}, "mode('overwrite') would replace it"),
        ("key string, n int", "append", {"type": "string"}, "strings need the columns key and value"),
        ("key string, n int", "append", {"type": "hash", "delivery": "exactly-once"},
         "option delivery is for mode=set"),
        ("entry string", "append", {"stream": "s"}, "option mode is about keys as a table"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused(
    world: World, columns: str, mode: str, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        save(world, world.spark.createDataFrame([], columns), mode, **options)
    assert problem in str(caught.value)
