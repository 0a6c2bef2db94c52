"""The replies of INFO replication and ROLE, with Redis's names."""

from __future__ import annotations

import time

from penstock.engine.config import Config
from penstock.engine.declarations import Reply
from penstock.engine.directives import DIRECTIVES
from penstock.replication.follower import Follower, State
from penstock.replication.replicas import Replicas

Fields = dict[str, int | str]


def describe_role(replicas: Replicas, follower: Follower | None, leads: bool) -> list[Reply]:
    """The answer of ROLE."""
    if follower is None and not leads:  # of a shard, whose leader is not known
        return [b"slave", b"", 0, State.CONNECT.value.encode(), -1]
    if follower is not None:
        host, port = follower.leader
        offset = replicas.end if follower.state is State.CONNECTED else -1
        return [b"slave", host.encode(), port, follower.state.value.encode(), offset]
    following = [link for link in replicas.links.values() if link.position is not None]
    rows = [[link.address[0].encode(), b"%d" % link.port, b"%d" % link.acknowledged] for link in following]
    return [b"master", replicas.end, rows]


def describe_replicas(replicas: Replicas, config: Config) -> Fields:
    """Describe the replicas of this server."""
    rows = [link for link in replicas.links.values() if link.position is not None or link.base is not None]
    fields: Fields = {"connected_slaves": len(rows)}
    if config.min_replicas_to_write:
        fields["min_slaves_good_slaves"] = replicas.good(config.min_replicas_max_lag)
    for number, link in enumerate(rows):
        host, port = link.address
        state = "send_bulk" if link.position is None else "online"
        lag = int(replicas.now() - link.heard)
        fields[f"slave{number}"] = (
            f"ip={host},port={port},state={state},offset={link.acknowledged},lag={lag},synced={link.synced}"
        )
    return fields


def describe_feed(replicas: Replicas, config: Config, run_id: str) -> Fields:
    """The log, as replicas see it."""
    feeds = replicas.aof.lineage.feeds
    return {
        "master_replid": replicas.aof.lineage.id or run_id,
        "master_replid2": feeds[-2][0] if len(feeds) > 1 else "0" * 40,
        "master_repl_offset": replicas.end,
        "second_repl_offset": feeds[-1][1] if len(feeds) > 1 else -1,
        "repl_backlog_active": int(bool(replicas.links) or bool(replicas.aof.manifest.kept)),
        "repl_backlog_size": config.repl_backlog_size,
        "repl_backlog_first_byte_offset": replicas.aof.feed.start,
        "repl_backlog_histlen": replicas.end - replicas.aof.feed.start if replicas.aof.writer is not None else 0,
    }


def describe_leader(follower: Follower, end: int, config: Config) -> Fields:
    """The server that this one follows."""
    up = follower.state is State.CONNECTED
    offset = 0 if follower.must_copy else end  # of another log: one chooses by it which replica leads next
    now = time.monotonic()
    host, port = follower.leader
    fields: Fields = {
        "master_host": host,
        "master_port": port,
        "master_link_status": "up" if up else "down",
        "master_last_io_seconds_ago": int(now - follower.heard) if up else -1,
        "master_sync_in_progress": int(follower.to_copy > 0),
        "slave_read_repl_offset": offset,
        "slave_repl_offset": offset,
    }
    if follower.to_copy:
        fields |= {
            "master_sync_total_bytes": follower.to_copy,
            "master_sync_read_bytes": follower.copied,
            "master_sync_left_bytes": follower.to_copy - follower.copied,
            "master_sync_last_io_seconds_ago": int(now - follower.heard),
        }
    if not up:
        fields["master_link_down_since_seconds"] = -1 if follower.lost_at is None else int(now - follower.lost_at)
    return fields | {
        "slave_priority": _priority(follower, config),
        "slave_read_only": 1,
        "replica_announced": int(config.replica_announced),
    }


def _priority(follower: Follower, config: Config) -> int:
    """What Sentinel chooses by, before it looks at offsets; it promotes no replica with 0.

    With `replica-acks` the furthest replica must lead next: another one may lack what was acknowledged. So one that has
    not caught up says 0, and all others say the same.
    """
    if not config.replica_acks:
        return config.replica_priority
    default: int = DIRECTIVES["replica-priority"].default
    return 0 if follower.is_behind or not config.replica_priority else default
