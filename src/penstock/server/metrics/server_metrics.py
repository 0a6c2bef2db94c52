"""The metrics of the server as a whole that Redis has too, under the names that redis_exporter gives them.

So dashboards and alerts that were made for Redis work. A name is used only if it means the same here; what is not
measured here is left out. The others are in own_metrics.py.

To add one: a line here, or there, and `make docs`.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Mapping

from penstock import freeing
from penstock.commands.info import REDIS_VERSION, average_ttl
from penstock.engine.declarations import wire_name
from penstock.engine.dispatch import Engine
from penstock.engine.observe.statistics import CALLS, FAILED, NANOSECONDS, REJECTED
from penstock.server.metrics.exposition import Page, labelled, shown_name

Fields = Mapping[str, int | str]


def steps(engine: Engine, page: Page) -> Iterator[None]:
    """Write all of these families; each step is short."""
    replication: Fields = engine.replication.info() if engine.replication is not None else {"role": "master"}
    for write in (_server, _clients, _memory, _persistence, _counts, _keyspace, _commands):
        write(engine, page)
        yield
    _instance(engine, page, replication)
    _replicas(page, replication)
    _leader(page, replication)
    _shard(page, replication)
    yield


def _server(engine: Engine, page: Page) -> None:
    uptime = time.monotonic() - engine.stats.started
    page.gauge("redis_up", "1 if the server answers.", 1)
    page.gauge("redis_uptime_in_seconds", "Seconds since the server started.", int(uptime))
    page.gauge("redis_start_time_seconds", "When the server started, in seconds since 1970.", int(time.time() - uptime))
    page.gauge("redis_process_id", "Process id of the server.", os.getpid())
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    page.counter("redis_cpu_sys_seconds_total", "Processor time in the kernel.", own.ru_stime)
    page.counter("redis_cpu_user_seconds_total", "Processor time outside the kernel.", own.ru_utime)
    page.counter(
        "redis_cpu_sys_children_seconds_total", "The same, of children that wrote snapshots.", children.ru_stime
    )
    page.counter("redis_cpu_user_children_seconds_total", "The same, of these children.", children.ru_utime)


def _clients(engine: Engine, page: Page) -> None:
    stats = engine.stats
    blocked = sum([session.waiter is not None for session in engine.sessions.values()])
    page.gauge("redis_connected_clients", "Clients that are connected.", len(engine.sessions))
    page.gauge("redis_blocked_clients", "Clients that wait in a command.", blocked)
    page.gauge("redis_config_maxclients", "The most clients at once (maxclients).", engine.config.maxclients)
    page.counter("redis_connections_received_total", "Clients that ever connected.", stats.connections)
    page.counter("redis_rejected_connections_total", "Clients that were refused.", stats.rejected_connections)
    page.gauge("redis_pubsub_channels", "Channels with subscribers.", len(engine.publications.channels))
    page.gauge("redis_pubsub_patterns", "Patterns with subscribers.", len(engine.publications.patterns))


def _memory(engine: Engine, page: Page) -> None:
    memory = engine.memory
    used, rss = memory.used_memory, memory.used_memory_rss
    dataset = max(used - memory.used_memory_startup, 0)
    page.gauge("redis_memory_used_bytes", "Memory in use.", used)
    page.gauge("redis_memory_used_rss_bytes", "Memory of the process, as the system sees it.", rss)
    page.gauge("redis_memory_used_peak_bytes", "The most memory that was ever in use.", memory.used_memory_peak)
    page.gauge("redis_memory_used_startup_bytes", "Memory in use at the start.", memory.used_memory_startup)
    page.gauge("redis_memory_used_dataset_bytes", "Memory in use beyond that.", dataset)
    page.gauge("redis_memory_used_overhead_bytes", "Memory in use that is not data.", used - dataset)
    page.gauge("redis_memory_max_bytes", "Memory after which writes are refused (maxmemory); 0 for no limit.",
               engine.config.maxmemory)  # fmt: skip
    page.gauge("redis_config_maxmemory", "The same.", engine.config.maxmemory)
    page.gauge("redis_mem_fragmentation_ratio", "Memory of the process, in parts of the memory in use.",
               round(rss / max(used, 1), 4))  # fmt: skip
    page.gauge("redis_mem_fragmentation_bytes", "Memory of the process that is not in use.", rss - used)
    page.gauge("redis_lazyfree_pending_objects", "Large values that are being freed in small steps.", freeing.pending())


_PERSISTENCE = (
    ("redis_loading_dump_file", "loading", "1 while data is loaded."),
    ("redis_rdb_changes_since_last_save", "rdb_changes_since_last_save", "Changes since the last snapshot."),
    ("redis_rdb_bgsave_in_progress", "rdb_bgsave_in_progress", "1 while a child writes a snapshot."),
    ("redis_rdb_last_save_timestamp_seconds", "rdb_last_save_time", "When the last snapshot was written."),
    ("redis_rdb_last_bgsave_status", "rdb_last_bgsave_status", "1 if the last snapshot could be written."),
    ("redis_rdb_last_bgsave_duration_sec", "rdb_last_bgsave_time_sec", "Seconds that it took; -1 if there is none."),
    ("redis_rdb_current_bgsave_duration_sec", "rdb_current_bgsave_time_sec", "Seconds of the one under way, or -1."),
    ("redis_aof_enabled", "aof_enabled", "1 if there is a log (appendonly)."),
    ("redis_aof_rewrite_in_progress", "aof_rewrite_in_progress", "1 while a child writes a new base of the log."),
    ("redis_aof_rewrite_scheduled", "aof_rewrite_scheduled", "1 if that will begin soon."),
    ("redis_aof_last_rewrite_duration_sec", "aof_last_rewrite_time_sec", "Seconds that the last one took, or -1."),
    ("redis_aof_current_rewrite_duration_sec", "aof_current_rewrite_time_sec", "Seconds of the one under way, or -1."),
    ("redis_aof_last_bgrewrite_status", "aof_last_bgrewrite_status", "1 if the last new base could be written."),
    ("redis_aof_last_write_status", "aof_last_write_status", "1 if the log can be written."),
    ("redis_aof_current_size_bytes", "aof_current_size", "Size of the log; 0 without one."),
    ("redis_aof_base_size_bytes", "aof_base_size", "Size of the log after its last rewrite; 0 without one."),
    ("redis_aof_pending_rewrite", "aof_pending_rewrite", "1 if a rewrite was asked for and has not begun."),
    ("redis_aof_buffer_length", "aof_buffer_length", "Bytes that are not written to the log yet."),
    ("redis_aof_pending_bio_fsync", "aof_pending_bio_fsync", "1 while a thread syncs the log."),
    ("redis_aof_delayed_fsync", "aof_delayed_fsync", "Syncs that were under way when the next one was due."),
)


def _persistence(engine: Engine, page: Page) -> None:
    fields = engine.persistence.info() if engine.persistence is not None else {}
    for name, field, help in _PERSISTENCE:
        value = fields.get(field, 0)
        page.gauge(name, help, int(value == "ok") if isinstance(value, str) else value)


def _counts(engine: Engine, page: Page) -> None:
    stats = engine.stats
    page.counter("redis_commands_processed_total", "Commands that were answered.", stats.commands)
    page.counter("redis_net_input_bytes_total", "Bytes that clients sent.", stats.input_bytes)
    page.counter("redis_net_output_bytes_total", "Bytes that were sent to clients.", stats.output_bytes)
    page.counter("redis_keyspace_hits_total", "Keys that were read and there.", stats.hits)
    page.counter("redis_keyspace_misses_total", "Keys that were read and not there.", stats.misses)
    page.counter("redis_expired_keys_total", "Keys that expired.", engine.keyspace.expired_count)
    page.counter("redis_evicted_keys_total", "Always 0: keys are not evicted.", 0)
    page.gauge("redis_latest_fork_seconds", "Seconds that the last fork took.", stats.last_fork / 1e9)
    page.gauge("redis_slowlog_length", "Commands in the slow log.", len(engine.slow_log.rows))
    page.gauge("redis_slowlog_last_id", "Number of the last one; -1 if there was none.", engine.slow_log.last_id)
    page.samples(
        "redis_errors_total", "counter", "Error replies, by the first word of the error.",
        [
            (labelled(err=shown_name(code.encode("utf-8", "surrogateescape"))), count)  # scripts choose codes
            for code, count in sorted(stats.errors.items())
        ],
    )  # fmt: skip


def _keyspace(engine: Engine, page: Page) -> None:
    databases = [(labelled(db=f"db{each.index}"), each) for each in engine.keyspace.databases]
    page.samples("redis_db_keys", "gauge", "Keys of a database.", [(db, len(each)) for db, each in databases])
    page.samples(
        "redis_db_keys_expiring", "gauge", "Keys with an expiry time.",
        [(db, len(each.expires)) for db, each in databases],
    )  # fmt: skip
    page.samples(
        "redis_db_avg_ttl_seconds", "gauge", "Average time until they expire, estimated from a few.",
        [(db, average_ttl(each.expires.values(), engine) / 1000) for db, each in databases if each.expires],
    )  # fmt: skip


def _instance(engine: Engine, page: Page, replication: Fields) -> None:
    labels = labelled(
        role=str(replication["role"]), redis_version=REDIS_VERSION, redis_mode="standalone",
        maxmemory_policy=engine.config.maxmemory_policy, tcp_port=str(engine.config.port), run_id=engine.stats.run_id,
        process_id=str(os.getpid()),
    )  # fmt: skip
    page.samples("redis_instance_info", "gauge", "What kind of server this is; the value is 1.", [(labels, 1)])


_REPLICATION = (
    ("redis_connected_slaves", "connected_slaves", "Replicas that follow this server."),
    ("redis_master_repl_offset", "master_repl_offset", "End of the log, as replicas count it."),
    ("redis_second_repl_offset", "second_repl_offset", "Where the log of the leader before ended, or -1."),
    ("redis_repl_backlog_is_active", "repl_backlog_active", "1 if the log is kept for replicas."),
    ("redis_replication_backlog_bytes", "repl_backlog_size", "Bytes of the log that may be kept for them."),
    ("redis_repl_backlog_first_byte_offset", "repl_backlog_first_byte_offset", "The first offset that is kept."),
    ("redis_repl_backlog_history_bytes", "repl_backlog_histlen", "Bytes of the log that are kept."),
)


def _replicas(page: Page, replication: Fields) -> None:
    for name, field, help in _REPLICATION:
        page.gauge(name, help, int(replication.get(field, 0)))
    followers = [dict(pair.split("=", 1) for pair in str(value).split(",")) for field, value in replication.items()
                 if field.startswith("slave") and field[5:].isdigit()]  # fmt: skip
    rows = [
        (labelled(slave_ip=each["ip"], slave_port=each["port"], slave_state=each["state"]), each) for each in followers
    ]
    page.samples("redis_connected_slave_offset_bytes", "gauge", "The log of a replica ends here.",
                 [(labels, int(each["offset"])) for labels, each in rows])  # fmt: skip
    page.samples("redis_connected_slave_lag_seconds", "gauge", "Seconds since a replica's last sign of life.",
                 [(labels, int(each["lag"])) for labels, each in rows])  # fmt: skip
    page.samples(
        "penstock_replica_synced_offset_bytes", "gauge", "The log of a replica is safe from a power cut up to here.",
        [(labels, int(each["synced"])) for labels, each in rows],
    )  # fmt: skip


def _leader(page: Page, replication: Fields) -> None:
    """What a replica tells about the server that it follows."""
    leader = "master_host" in replication
    labels = labelled(master_host=str(replication.get("master_host")), master_port=str(replication.get("master_port")))
    up = int(replication.get("master_link_status") == "up")
    rows: tuple[tuple[str, str, int | str], ...] = (
        ("redis_master_link_up", "1 if a replica is connected with its leader.", up),
        ("redis_master_last_io_seconds_ago", "Seconds since its last sign of life; -1 without a connection.",
         replication.get("master_last_io_seconds_ago", -1)),
        ("redis_master_sync_in_progress", "1 while a replica copies everything.",
         replication.get("master_sync_in_progress", 0)),
        ("redis_slave_repl_offset", "The log of this replica ends here.", replication.get("slave_repl_offset", 0)),
    )  # fmt: skip
    for name, help, value in rows:
        page.samples(name, "gauge", help, [(labels, int(value))] if leader else [])


def _shard(page: Page, replication: Fields) -> None:
    """What a node of a shard knows of it."""
    belongs = "shard" in replication
    labels = labelled(shard=str(replication.get("shard")), node=str(replication.get("node")))
    members = [member for member in str(replication.get("in_sync", "")).split(",") if member]
    rows: tuple[tuple[str, str, float], ...] = (
        ("penstock_shard_epoch", "The latest epoch that a node of a shard has heard of.",
         int(replication.get("epoch", 0))),
        ("penstock_shard_lease_seconds", "Seconds for which a node may still take writes.",
         int(replication.get("lease_ms_left", 0)) / 1000),
        ("penstock_shard_in_sync_nodes", "Nodes that have all that was acknowledged, as the leader knows; 0 elsewhere.",
         len(members)),
    )  # fmt: skip
    for name, help, value in rows:
        page.samples(name, "gauge", help, [(labels, value)] if belongs else [])


def _commands(engine: Engine, page: Page) -> None:
    called = [
        (labelled(cmd=wire_name(name)), counters)
        for name, counters in engine.stats.calls.items()
        if counters[CALLS] or counters[REJECTED] or counters[FAILED]
    ]
    for name, help, place in (
        ("redis_commands_total", "Calls of a command.", CALLS),
        ("redis_commands_rejected_calls_total", "Calls that were refused before they ran.", REJECTED),
        ("redis_commands_failed_calls_total", "Calls that ended with an error.", FAILED),
    ):
        page.samples(name, "counter", help, [(labels, counters[place]) for labels, counters in called])
    page.samples(
        "redis_commands_duration_seconds_total", "counter",
        "Time in a command. One call in sixteen of the quick ones is timed, and stands for all of them.",
        [(labels, counters[NANOSECONDS] / 1e9) for labels, counters in called],
    )  # fmt: skip
