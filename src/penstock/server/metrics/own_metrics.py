"""The metrics of the server as a whole that Redis does not have. See server_metrics.py."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from penstock import __version__
from penstock.engine.declarations import wire_name
from penstock.engine.dispatch import Engine
from penstock.engine.observe.statistics import BUCKETS, CALLS, NANOSECONDS
from penstock.server.inner_loop import COMPILED
from penstock.server.metrics.exposition import Page, bucket_names, labelled

COMMAND_DURATION = "penstock_command_duration_seconds"
COMMANDS_IN_A_STEP = 20

_bucket_names: dict[str, list[str]] = {}
"""Names of the samples of a command's histogram; they are the same for every server."""


def steps(engine: Engine, page: Page) -> Iterator[None]:
    """Write all of these families; each step is short."""
    for write in (_build, _times, _locks, _lazy, _once, _history, _refusals):
        write(engine, page)
        yield
    yield from _commands(engine, page)


def _build(engine: Engine, page: Page) -> None:
    loop = "compiled" if COMPILED else "python"
    labels = labelled(version=__version__, python_version=platform.python_version(), inner_loop=loop)
    page.samples("penstock_build_info", "gauge", "What runs here; the value is 1.", [(labels, 1)])


def _times(engine: Engine, page: Page) -> None:
    stats = engine.stats
    page.histogram(
        "penstock_loop_delay_seconds",
        "How late the periodic work began, which is when a client would have had to wait too; up to a millisecond is "
        "the timer's own.",
        stats.loop_delays,
    )
    page.histogram("penstock_fsync_duration_seconds", "Time that a sync of the log took.", stats.syncs)
    page.histogram(
        "penstock_fork_duration_seconds", "Time that a fork took, in which no client is served.", stats.fork_times
    )
    page.histogram(
        "penstock_lock_wait_seconds", "Time that a command waited for locked keys.", engine.lock_gate.locks.waits
    )


def _locks(engine: Engine, page: Page) -> None:
    locks, workers = engine.lock_gate.locks, engine.workers
    running, queued = workers.load
    kinds = [(labelled(kind="read"), locks.read_locks), (labelled(kind="write"), locks.write_locks)]
    page.samples("penstock_locked_keys", "gauge", "Keys that threads have locked, by kind.", kinds)
    page.gauge("penstock_lock_waiting_clients", "Clients that wait for a locked key.", len(locks.waiting))
    states = [(labelled(state="running"), running), (labelled(state="queued"), queued)]
    page.samples("penstock_worker_jobs", "gauge", "Commands in threads or slices, by state.", states)
    page.counter("penstock_worker_jobs_done_total", "Commands that were done in threads or slices.", workers.done)


def _lazy(engine: Engine, page: Page) -> None:
    fields = {name: value for name, value in engine.lazy.status().items() if isinstance(value, int)}
    page.gauge("penstock_lazy_queued_commands", "Commands that LAZY has queued.", fields["queued"])
    page.gauge("penstock_lazy_queued_bytes", "Bytes of these commands.", fields["bytes"])
    page.gauge("penstock_lazy_oldest_seconds", "Age of the oldest one.", fields["oldest_age_ms"] / 1000)
    page.counter("penstock_lazy_enqueued_total", "Commands that LAZY was given.", fields["enqueued"])
    ran = [(labelled(when=when), fields[f"ran_{when}"]) for when in ("actively", "passively", "inline")]
    page.samples(
        "penstock_lazy_ran_total", "counter",
        "Commands that ran: because a client needed it, in an idle moment, or at once.", ran,
    )  # fmt: skip
    page.counter("penstock_lazy_failed_total", "Commands that ended with an error.", fields["failed"])


def _once(engine: Engine, page: Page) -> None:
    records = engine.keyspace.once_records
    page.gauge("penstock_once_clients", "Clients of ONCE that are remembered.", len(records.clients))
    page.gauge("penstock_once_replies", "Replies that are kept for them.", records.replies)
    page.gauge("penstock_once_bytes", "Bytes of these replies.", records.bytes)
    page.counter("penstock_once_repeated_total", "Commands that came again, and were not run again.",
                 engine.once.repeated)  # fmt: skip


def _history(engine: Engine, page: Page) -> None:
    found = engine.persistence.info() if engine.persistence is not None else {}
    fields = {name: value for name, value in found.items() if isinstance(value, int)}

    def of(field: str) -> int:
        return fields.get(field, 0)

    page.gauge("penstock_history_files", "Files with old messages of streams.", of("history_files"))
    page.gauge("penstock_history_bytes", "Bytes of these files.", of("history_bytes"))
    page.gauge("penstock_history_files_to_remove", "Files that nothing needs any more.", of("history_files_to_remove"))
    page.counter("penstock_history_segments_written_total", "Files that were written.", of("history_segments_written"))
    page.gauge("penstock_history_write_ok", "1 if the last file could be written.",
               int(found.get("history_last_write_status", "ok") == "ok"))  # fmt: skip
    page.gauge("penstock_stream_memory_bytes", "Memory of the sealed nodes of all streams.", of("stream_memory_held"))
    page.gauge(
        "penstock_stream_memory_limit_bytes", "What they may take (stream-memory); 0 without a limit.",
        of("stream_memory_limit"),
    )  # fmt: skip


def _refusals(engine: Engine, page: Page) -> None:
    config = engine.config
    reasons = {
        "disk": engine.write_error is not None, "history": engine.streams_full is not None,
        "memory": engine.over_memory, "replica": engine.following, "replicas": engine.lacks_replicas,
    }  # fmt: skip
    page.samples(
        "penstock_writes_refused", "gauge",
        "1 if writes are refused, by reason: disk (log or snapshot cannot be written), history (new messages only), "
        "memory (maxmemory), replica (this server is one), replicas (too few of them).",
        [(labelled(reason=reason), int(holds)) for reason, holds in reasons.items()],
    )  # fmt: skip
    page.gauge("penstock_stale", "1 if this is a replica out of step that answers no reads.", int(engine.stale))
    page.gauge("penstock_replica_acks", "Replicas that must have a change before it is acknowledged.",
               config.replica_acks)  # fmt: skip


def _commands(engine: Engine, page: Page) -> Iterator[None]:
    page.family(
        COMMAND_DURATION, "histogram",
        "Time of the calls of a command. One call in sixteen of the quick ones is timed, and stands for all of them.",
    )  # fmt: skip
    called = [(name, counters) for name, counters in engine.stats.calls.items() if counters[CALLS]]
    for number, (name, counters) in enumerate(called):
        names = _bucket_names.get(name)
        if names is None:
            names = _bucket_names[name] = bucket_names(COMMAND_DURATION, cmd=wire_name(name))
        page.buckets(names, counters[BUCKETS:], counters[NANOSECONDS])
        if not (number + 1) % COMMANDS_IN_A_STEP:
            yield
