"""The dashboard for Grafana that `penstock metrics dashboard` prints: a table of panels, made into Grafana's JSON.

It works with any instance and data source: both are variables that Grafana asks for. Rejected: the file as Grafana
exports it, 3,000 lines in which a change cannot be reviewed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

WIDTH, HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_ON = 'instance=~"$instance"'
_OF = f'{_ON}, stream=~"$stream"'


class Panel(NamedTuple):
    """A graph: its title, the unit of its values, and expressions with their legends. Three are in a row."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    help: str = ""
    kind: str = "timeseries"


def _quantile(share: float, metric: str, by: str = "") -> str:
    return f"histogram_quantile({share}, sum by ({by}le) (rate({metric}_bucket{{{_ON}}}[$__rate_interval])))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Server": (
        Panel("Commands a second", "ops", (
            (f"sum by (cmd) (rate(redis_commands_total{{{_ON}}}[$__rate_interval])) > 0", "{{cmd}}"),
        )),
        Panel("Slowest hundredth of calls", "s", (
            (_quantile(0.99, "penstock_command_duration_seconds", "cmd, "), "{{cmd}}"),
        ), "99 of 100 calls take at most so long."),
        Panel("Delay of the loop", "s", (
            (_quantile(0.5, "penstock_loop_delay_seconds"), "half of the time"),
            (_quantile(0.99, "penstock_loop_delay_seconds"), "99 %"),
        ), "How long a client waits before the server looks at its command."),
        Panel("Clients", "short", (
            (f"redis_connected_clients{{{_ON}}}", "connected {{instance}}"),
            (f"redis_blocked_clients{{{_ON}}}", "blocked {{instance}}"),
            (f"penstock_lock_waiting_clients{{{_ON}}}", "waiting for a lock {{instance}}"),
        )),
        Panel("Memory", "bytes", (
            (f"redis_memory_used_bytes{{{_ON}}}", "used {{instance}}"),
            (f"redis_memory_used_rss_bytes{{{_ON}}}", "resident {{instance}}"),
            (f"redis_memory_max_bytes{{{_ON}}} > 0", "limit {{instance}}"),
        )),
        Panel("Processor", "percentunit", (
            (f"rate(redis_cpu_user_seconds_total{{{_ON}}}[$__rate_interval])", "user {{instance}}"),
            (f"rate(redis_cpu_sys_seconds_total{{{_ON}}}[$__rate_interval])", "system {{instance}}"),
        )),
        Panel("Errors a second", "ops", (
            (f"sum by (err) (rate(redis_errors_total{{{_ON}}}[$__rate_interval]))", "{{err}}"),
        )),
        Panel("Network", "Bps", (
            (f"rate(redis_net_input_bytes_total{{{_ON}}}[$__rate_interval])", "in {{instance}}"),
            (f"rate(redis_net_output_bytes_total{{{_ON}}}[$__rate_interval])", "out {{instance}}"),
        )),
        Panel("Writes are refused", "short", (
            (f"penstock_writes_refused{{{_ON}}} == 1", "{{reason}} {{instance}}"),
        ), "1 if they are; on a replica they always are."),
    ),
    "Streams": (
        Panel("Written a second", "ops", (
            (f"rate(penstock_stream_written_total{{{_OF}}}[$__rate_interval])", "{{stream}}"),
        )),
        Panel("Length", "short", ((f"redis_stream_length{{{_OF}}}", "{{stream}}"),)),
        Panel("Bytes before compression", "bytes", ((f"penstock_stream_bytes{{{_OF}}}", "{{stream}} {{tier}}"),)),
        Panel("Lag, messages", "short", ((f"redis_stream_group_lag{{{_OF}}}", "{{stream}} {{group}}"),)),
        Panel("Lag, seconds", "s", ((f"penstock_stream_group_lag_seconds{{{_OF}}}", "{{stream}} {{group}}"),)),
        Panel("Pending", "short", (
            (f"redis_stream_group_messages_pending{{{_OF}}}", "{{stream}} {{group}}"),
            (f"penstock_stream_group_delayed{{{_OF}}} > 0", "delayed {{stream}} {{group}}"),
        )),
        Panel("Acknowledged a second", "ops", (
            (f"rate(penstock_stream_group_acknowledged_total{{{_OF}}}[$__rate_interval])", "{{stream}} {{group}}"),
        )),
        Panel("Retries and dead letters a second", "ops", (
            (f"rate(penstock_stream_group_retries_total{{{_OF}}}[$__rate_interval])", "retries {{stream}} {{group}}"),
            (f"rate(penstock_stream_group_dead_letters_total{{{_OF}}}[$__rate_interval])",
             "dead letters {{stream}} {{group}}"),
        )),
        Panel("Lost a second", "ops", (
            (f"rate(penstock_stream_group_lost_total{{{_OF}}}[$__rate_interval])", "{{stream}} {{group}}"),
        ), "Messages that were evicted before a group had done them."),
    ),
    "Disk and replicas": (
        Panel("Sync of the log", "s", (
            (_quantile(0.5, "penstock_fsync_duration_seconds"), "half of the syncs"),
            (_quantile(0.99, "penstock_fsync_duration_seconds"), "99 %"),
        )),
        Panel("Sizes", "bytes", (
            (f"redis_aof_current_size_bytes{{{_ON}}}", "log {{instance}}"),
            (f"penstock_history_bytes{{{_ON}}}", "history {{instance}}"),
            (f"penstock_stream_memory_bytes{{{_ON}}}", "streams in memory {{instance}}"),
        )),
        Panel("Forks", "s", ((_quantile(1, "penstock_fork_duration_seconds"), "longest"),)),
        Panel("Replicas are behind", "bytes", (
            (f"redis_master_repl_offset{{{_ON}}} - on (instance) group_right "
             f"redis_connected_slave_offset_bytes{{{_ON}}}", "{{slave_ip}}:{{slave_port}}"),
        ), "Bytes of the log that a replica has not acknowledged."),
        Panel("Silence of replicas", "s", (
            (f"redis_connected_slave_lag_seconds{{{_ON}}}", "{{slave_ip}}:{{slave_port}}"),
            (f"redis_master_last_io_seconds_ago{{{_ON}}} >= 0", "leader of {{instance}}"),
        )),
        Panel("LAZY", "short", (
            (f"penstock_lazy_queued_commands{{{_ON}}}", "queued {{instance}}"),
            (f"penstock_lazy_oldest_seconds{{{_ON}}}", "age of the oldest, seconds {{instance}}"),
        )),
        Panel("Waits for locks", "s", ((_quantile(0.99, "penstock_lock_wait_seconds"), "99 %"),)),
        Panel("Keys", "short", ((f"sum by (db) (redis_db_keys{{{_ON}}}) > 0", "{{db}}"),)),
        Panel("Share of hits", "percentunit", (
            (f"rate(redis_keyspace_hits_total{{{_ON}}}[$__rate_interval]) / (rate(redis_keyspace_hits_total{{{_ON}}}"
             f"[$__rate_interval]) + rate(redis_keyspace_misses_total{{{_ON}}}[$__rate_interval]))", "{{instance}}"),
        )),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({
            "id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
        })  # fmt: skip
        top += 1
        for number, panel in enumerate(row):
            at = {"x": number % 3 * HEIGHT, "y": top + number // 3 * HEIGHT, "w": WIDTH // 3, "h": HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": at, **_panel(panel)})
        top += (len(row) + 2) // 3 * HEIGHT
    return {
        "title": "Penstock", "uid": "penstock", "tags": ["penstock"], "schemaVersion": 39, "version": 1,
        "editable": True, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "annotations": {"list": []}, "links": [], "panels": panels,
        "templating": {"list": [_source_variable(), _variable("instance", "redis_up"),
                                _variable("stream", f"redis_stream_length{{{_ON}}}")]},
    }  # fmt: skip


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind, "title": panel.title, "description": panel.help, "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + number), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(panel.lines)
        ],
    }  # fmt: skip


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(name: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name, "label": name.capitalize(), "type": "query", "datasource": _SOURCE, "definition": query,
        "query": {"query": query, "refId": "variable"}, "refresh": 2, "multi": True, "includeAll": True,
        "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "sort": 1, "hide": 0,
    }  # fmt: skip
