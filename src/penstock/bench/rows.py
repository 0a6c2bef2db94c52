"""The rows of the bench, each with its target.

Streams, history, replicas, metrics, the console, consumers, the clients, LAZY, slow commands and Spark have files of
their own. To add a row: an entry in ROWS. Targets are ratios of ours to the peer in the same run; docs/speed.md has the
results.
"""

from __future__ import annotations

from penstock.bench.client_rows import CLIENT_ROWS
from penstock.bench.cluster_rows import CLUSTER_ROWS
from penstock.bench.console_rows import CONSOLE_ROWS
from penstock.bench.consumer_rows import CONSUMER_ROWS
from penstock.bench.failover_rows import FAILOVER_ROWS
from penstock.bench.history_rows import HISTORY_ROWS
from penstock.bench.lazy_rows import LAZY_ROWS
from penstock.bench.load import WORKS
from penstock.bench.metrics_rows import METRICS_ROWS
from penstock.bench.replica_rows import REPLICA_ROWS
from penstock.bench.row import Row, throughput
from penstock.bench.servers import Running
from penstock.bench.spark_rows import SPARK_ROWS
from penstock.bench.stall_rows import STALL_ROWS
from penstock.bench.stream_rows import STREAM_ROWS


def _memory_of_strings(server: Running, scale: float) -> float:
    """Bytes a key for a million small strings, by the kernel's count of the process's memory."""
    count = int(1_000_000 * scale)
    with server.client() as client:
        client.flushall()
        while client.info("memory")["lazyfree_pending_objects"]:
            pass
        before = server.resident_memory()
        for start in range(0, count, 10_000):
            pipe = client.pipeline(transaction=False)
            for number in range(start, min(start + 10_000, count)):
                pipe.execute_command("SET", f"key:{number:012d}", f"value:{number}")
            pipe.execute()
        used = server.resident_memory() - before
        client.flushall()
    return used / count


def _rows() -> dict[str, Row]:
    rows: list[Row] = []
    for depth, target in ((1, 0.85), (50, 0.6)):
        for name, work in WORKS.items():
            what = f"{name.upper()}, 50 clients, depth {depth}"
            rows.append(Row(f"{name}.{depth}", what, "req/s", target, throughput(depth, work)))
    for depth in (1, 50):
        for name, work in WORKS.items():
            rows.append(
                Row(
                    f"{name}.{depth}.aof", f"{name.upper()}, depth {depth}, AOF everysec", "req/s", None,
                    throughput(depth, work), directives={"appendonly": "yes", "appendfsync": "everysec"},
                )
            )  # fmt: skip
    rows.append(
        Row("memory.strings", "memory of 1M small string keys", "bytes/key", 3.0, _memory_of_strings, True, rounds=1)
    )
    return {
        row.name: row
        for row in (
            *rows,
            *STREAM_ROWS,
            *CONSUMER_ROWS,
            *CLIENT_ROWS,
            *CLUSTER_ROWS,
            *HISTORY_ROWS,
            *REPLICA_ROWS,
            *FAILOVER_ROWS,
            *METRICS_ROWS,
            *CONSOLE_ROWS,
            *LAZY_ROWS,
            *STALL_ROWS,
            *SPARK_ROWS,
        )
    }


ROWS = _rows()
