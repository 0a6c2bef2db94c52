"""INFO, TIME and ROLE: what the server reports about itself.

Field names are Redis's, so that monitors written for Redis read them; a value that is not measured here is left out. To
add a section: a function in SECTIONS.
"""

from __future__ import annotations

import itertools
import os
import platform
import resource
import selectors
import struct
import sys
import time
from collections.abc import Callable, Iterable

from penstock import __version__, freeing
from penstock.engine.declarations import Argv, Flag, Reply, command, wire_name
from penstock.engine.dispatch import Engine
from penstock.engine.observe.statistics import COMMANDS, INPUT_BYTES, OUTPUT_BYTES
from penstock.engine.session import Session
from penstock.protocol.resp import Verbatim

REDIS_VERSION = "7.0.15"
"""The Redis version whose commands and replies these are; clients choose what they send by it."""

Value = int | str
Fields = dict[str, Value]
TTL_SAMPLE = 100


def _human(size: int) -> str:
    """A size for people, in Redis's form: 1.50M."""
    if size < 1024:
        return f"{size}B"
    power = min((size.bit_length() - 1) // 10, 5)
    return f"{size / 1024**power:.2f}{'KMGTP'[power - 1]}"


# -- sections -------------------------------------------------------------------------------------------------


def _server(session: Session) -> Fields:
    engine = session.engine
    uptime = int(time.monotonic() - engine.stats.started)
    return {
        "redis_version": REDIS_VERSION,
        "redis_git_sha1": "00000000",  # what a Redis that was built from its archive says
        "redis_git_dirty": 0,
        "penstock_version": __version__,
        "redis_mode": "standalone",
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "arch_bits": struct.calcsize("P") * 8,
        "monotonic_clock": time.get_clock_info("monotonic").implementation,
        "multiplexing_api": selectors.DefaultSelector.__name__.removesuffix("Selector").lower(),
        "process_supervised": "no",
        "python_version": platform.python_version(),
        "process_id": os.getpid(),
        "run_id": engine.stats.run_id,
        "tcp_port": _port(session),
        "server_time_usec": engine.clock.microseconds(),
        "uptime_in_seconds": uptime,
        "uptime_in_days": uptime // 86400,
        "io_threads_active": 0,
        "hz": engine.config.hz,
        "configured_hz": engine.config.hz,
        "executable": sys.executable,
        "config_file": engine.config.file or "",
    }


def _port(session: Session) -> int:
    """The configured port; if the system chose one, the port of this connection."""
    chosen = session.local.rpartition(":")[2]
    return session.engine.config.port or int(chosen or 0)


def _clients(session: Session) -> Fields:
    sessions = session.engine.sessions.values()
    waiters = [each.waiter for each in sessions if each.waiter is not None]
    return {
        "connected_clients": len(sessions),
        "cluster_connections": 0,
        "maxclients": session.engine.config.maxclients,
        "blocked_clients": len(waiters),
        "tracking_clients": 0,
        "clients_in_timeout_table": sum(waiter.deadline > 0 for waiter in waiters),
    }


def _memory(session: Session) -> Fields:
    memory, config = session.engine.memory, session.engine.config
    memory.measure()
    used, peak, data = memory.used_memory, memory.used_memory_peak, memory.used_memory - memory.used_memory_startup
    idle = memory.idle
    system = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "used_memory": used,
        "used_memory_human": _human(used),
        "used_memory_rss": memory.used_memory_rss,
        "used_memory_rss_human": _human(memory.used_memory_rss),
        "used_memory_peak": peak,
        "used_memory_peak_human": _human(peak),
        "used_memory_peak_perc": f"{100 * used / max(peak, 1):.2f}%",
        "used_memory_startup": memory.used_memory_startup,
        "used_memory_overhead": used - max(data, 0),
        "used_memory_dataset": max(data, 0),
        "used_memory_dataset_perc": f"{100 * max(data, 0) / max(used, 1):.2f}%",
        "total_system_memory": system,
        "total_system_memory_human": _human(system),
        "number_of_cached_scripts": len(session.engine.scripting.scripts),
        "maxmemory": config.maxmemory,
        "maxmemory_human": _human(config.maxmemory),
        "maxmemory_policy": config.maxmemory_policy,
        "mem_fragmentation_ratio": f"{memory.used_memory_rss / max(used, 1):.2f}",
        "mem_fragmentation_bytes": memory.used_memory_rss - used,
        "allocator_allocated": used,
        "allocator_active": used + idle,
        "allocator_resident": memory.used_memory_rss,
        "allocator_frag_ratio": f"{(used + idle) / max(used, 1):.2f}",
        "allocator_frag_bytes": idle,
        "allocator_rss_ratio": f"{memory.used_memory_rss / max(used + idle, 1):.2f}",
        "allocator_rss_bytes": memory.used_memory_rss - used - idle,
        "mem_clients_normal": sum(sum(each.output.buffered()) for each in session.engine.sessions.values()),
        "mem_allocator": "pymalloc",
        "active_defrag_running": 0,
        "lazyfree_pending_objects": freeing.pending(),
    }


def _persistence(session: Session) -> Fields:
    storage = session.engine.persistence
    return dict(storage.info()) if storage is not None else {"loading": int(session.engine.loading)}


def _stats(session: Session) -> Fields:
    engine = session.engine
    stats, publications = engine.stats, engine.publications
    return {
        "total_connections_received": stats.connections,
        "total_commands_processed": stats.commands,
        "instantaneous_ops_per_sec": round(stats.rate(COMMANDS)),
        "total_net_input_bytes": stats.input_bytes,
        "total_net_output_bytes": stats.output_bytes,
        "instantaneous_input_kbps": f"{stats.rate(INPUT_BYTES) / 1024:.2f}",
        "instantaneous_output_kbps": f"{stats.rate(OUTPUT_BYTES) / 1024:.2f}",
        "rejected_connections": stats.rejected_connections,
        **_synchronisations(session),
        "expired_keys": engine.keyspace.expired_count,
        "evicted_keys": 0,
        "evicted_clients": stats.evicted_clients,
        "keyspace_hits": stats.hits,
        "keyspace_misses": stats.misses,
        "pubsub_channels": len(publications.channels),
        "pubsub_patterns": len(publications.patterns),
        "pubsubshard_channels": len(publications.shard_channels),
        "latest_fork_usec": stats.last_fork // 1000,
        "migrate_cached_sockets": 0,
        "total_forks": stats.forks,
        "total_error_replies": stats.errors.total(),
    }


def _locks(session: Session) -> Fields:
    locks, workers = session.engine.lock_gate.locks, session.engine.workers
    running, queued = workers.load
    return {
        "locked_keys_read": locks.read_locks,
        "locked_keys_write": locks.write_locks,
        "lock_waiting_clients": len(locks.waiting),
        "write_locks_denied": int(locks.writes_denied),
        "worker_threads": session.engine.config.worker_threads,
        "worker_jobs_running": running,
        "worker_jobs_queued": queued,
        "worker_jobs_done": workers.done,
    }


def _lazy(session: Session) -> Fields:
    return {f"lazy_{name}": value for name, value in session.engine.lazy.status().items()}


def _synchronisations(session: Session) -> Fields:
    replication = session.engine.replication
    full, continued, refused = replication.synchronisations() if replication is not None else (0, 0, 0)
    return {"sync_full": full, "sync_partial_ok": continued, "sync_partial_err": refused}


def _replication(session: Session) -> Fields:
    replication = session.engine.replication
    return dict(replication.info()) if replication is not None else {"role": "master"}


def _cpu(session: Session) -> Fields:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    fields: Fields = {
        "used_cpu_sys": f"{own.ru_stime:.6f}",
        "used_cpu_user": f"{own.ru_utime:.6f}",
        "used_cpu_sys_children": f"{children.ru_stime:.6f}",
        "used_cpu_user_children": f"{children.ru_utime:.6f}",
    }
    if hasattr(resource, "RUSAGE_THREAD"):  # Linux; this is the main thread, as the loop is
        main = resource.getrusage(resource.RUSAGE_THREAD)
        fields["used_cpu_sys_main_thread"] = f"{main.ru_stime:.6f}"
        fields["used_cpu_user_main_thread"] = f"{main.ru_utime:.6f}"
    return fields


def _modules(session: Session) -> Fields:
    return {
        f"module_{module.name}": f"ver={module.version},commands={len(module.commands)}"
        for module in session.engine.commands.modules
    }


def _command_stats(session: Session) -> Fields:
    """Calls and time of each command; the time of those that the inner loop runs is an estimate (statistics.py)."""
    fields: Fields = {}
    for name, (calls, nanoseconds, untimed, rejected, failed, *_) in session.engine.stats.calls.items():
        if calls or rejected or failed:
            fields[f"cmdstat_{wire_name(name)}"] = (
                f"calls={calls},usec={nanoseconds // 1000},"
                f"usec_per_call={nanoseconds / max(calls - untimed, 1) / 1000:.2f},"
                f"rejected_calls={rejected},failed_calls={failed}"
            )
    return fields


def _error_stats(session: Session) -> Fields:
    return {f"errorstat_{code}": f"count={count}" for code, count in sorted(session.engine.stats.errors.items())}


def _cluster(session: Session) -> Fields:
    return {"cluster_enabled": 0}


def _once(session: Session) -> Fields:
    return dict(session.engine.once.info())


def _keyspace(session: Session) -> Fields:
    return {
        f"db{database.index}": f"keys={len(database)},expires={len(database.expires)},"
        f"avg_ttl={average_ttl(database.expires.values(), session.engine)}"
        for database in session.engine.keyspace.databases
        if len(database)
    }


def average_ttl(deadlines: Iterable[int], engine: Engine) -> int:
    """The average remaining time of keys that expire, in milliseconds, estimated from a few of them."""
    left = [max(when - engine.clock.now, 0) for when in itertools.islice(deadlines, TTL_SAMPLE)]
    return sum(left) // max(len(left), 1)


SECTIONS: dict[str, Callable[[Session], Fields]] = {
    "Server": _server, "Clients": _clients, "Memory": _memory, "Persistence": _persistence, "Stats": _stats,
    "Lazy": _lazy, "Locks": _locks, "Once": _once, "Replication": _replication, "CPU": _cpu, "Modules": _modules,
    "Commandstats": _command_stats, "Errorstats": _error_stats, "Cluster": _cluster, "Keyspace": _keyspace,
}  # fmt: skip
"""Every section in the order in which INFO shows them."""

NOT_BY_DEFAULT = {"Commandstats"}


# -- commands -------------------------------------------------------------------------------------------------


def _chosen(words: list[str]) -> list[str]:
    """Titles of the sections that INFO's arguments ask for; unknown ones are ignored, as in Redis."""
    wanted: set[str] = set()
    for word in words or ["default"]:
        if word in ("all", "everything"):
            wanted.update(SECTIONS)
        elif word == "default":
            wanted.update(SECTIONS.keys() - NOT_BY_DEFAULT)
        else:
            wanted.update(title for title in SECTIONS if title.lower() == word)
    return [title for title in SECTIONS if title in wanted]


def render(session: Session, words: list[str]) -> str:
    """The text of INFO for these sections, in lower case."""
    parts = []
    for title in _chosen(words):
        lines = [f"# {title}", *(f"{name}:{value}" for name, value in SECTIONS[title](session).items())]
        parts.append("".join(f"{line}\r\n" for line in lines))
    return "\r\n".join(parts)


@command(
    "INFO",
    arity=-1,
    flags=Flag.LOADING | Flag.STALE,
    group="server",
    syntax="[section [section ...]]",
    categories=["dangerous"],
)
def info(session: Session, argv: Argv) -> Reply:
    """Answer facts about the server in sections: server, clients, memory, ... or default, all, everything."""
    return Verbatim(render(session, [word.decode("utf-8", "replace").lower() for word in argv[1:]]))


@command("TIME", arity=1, flags=Flag.LOADING | Flag.STALE | Flag.FAST, group="server")
def time_(session: Session, argv: Argv) -> Reply:
    """Answer the server's clock: seconds since 1970, and microseconds of the current second."""
    seconds, microseconds = divmod(session.engine.clock.microseconds(), 1_000_000)
    return [b"%d" % seconds, b"%d" % microseconds]
