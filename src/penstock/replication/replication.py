"""Replication of one server: the replicas that follow it, and the leader that it follows. What commands ask for.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import re

from penstock.engine.arguments import to_integer
from penstock.engine.declarations import Argv, Reply
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import NoMasterLink, ReplyError
from penstock.replication.copying import show_lineage
from penstock.replication.description import describe_feed, describe_leader, describe_replicas, describe_role
from penstock.replication.follower import State
from penstock.replication.full_copies import FullCopies
from penstock.replication.link import CAPABILITY, Link
from penstock.replication.published_messages import PublishedMessages
from penstock.replication.replicas import Replicas
from penstock.replication.roles import Roles
from penstock.replication.shard import MANAGED, Shard
from penstock.replication.unconfirmed_changes import UnconfirmedChanges
from penstock.replication.waits import Waits
from penstock.storage.persistence import Persistence

NO_REDIS = (
    "This is a Penstock server, and a Redis server cannot be its replica: say REPLICAOF NO ONE there. Only Penstock "
    "servers can follow it; they say REPLCONF capa penstock before PSYNC."
)
"""A server of Redis logs this once a second. After an error of another kind (ERR) it would connect again at once, many
hundred times a second.
"""

NOT_BESIDE = (
    "REPLCONF capa penstock: a replica uses a connection that is not subscribed to anything, and not in MONITOR"
)

_is_name = re.compile(rb"[0-9A-Za-z._-]{1,255}").fullmatch
_is_host = re.compile(rb"[0-9A-Za-z._:%\[\]-]{0,255}").fullmatch


class Replication:
    """engine.interfaces.Replication; see the top of this file."""

    def __init__(self, engine: Engine, persistence: Persistence, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._config = engine.config
        self._aof = persistence.aof
        self._loop = loop
        self._replicas = Replicas(engine, persistence)
        self._unconfirmed = UnconfirmedChanges(engine, self._replicas)
        self._waits = Waits(engine, self._replicas)
        self._copies = FullCopies(persistence, self._replicas)
        self._published = PublishedMessages(engine, self._replicas)
        self._roles = Roles(engine, persistence, self._replicas, self._published, loop)
        self._roles.on_lead = self._begins_to_lead
        self._roles.before_following = self._stops_leading
        self._replicas.on_progress = self._progress
        self.shard = Shard(engine, persistence, self._replicas, self._roles, loop) if self._config.etcd else None
        persistence.on_another_log = self._replicas.replaced
        persistence.on_trouble = self._unconfirmed.disk_refuses
        engine.replication = self
        self._config.on_change("appendonly", self._log_switches)
        for name in ("replica-acks", "min-replicas-to-write", "min-replicas-max-lag", "replica-serve-stale-data"):
            self._config.on_change(name, self._setting_changes)
        self._config.on_change("replica-acks", self._replicas.acks_were_set)

    # -- start and end ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Everything is loaded and the log is open."""
        self._replicas.opened()
        self._roles.start()
        if self.shard is not None:
            self.shard.start()
        elif self._engine.following:
            self._unconfirmed.started_as_replica()
        else:  # the log may end with what no replica has
            self._replicas.wait_for_all()
        self._count_replicas()

    def stop(self) -> None:
        if self.shard is not None:
            self.shard.stop()
        self._roles.end_following()
        self._replicas.close_all()

    def tick(self) -> None:
        """Many times a second."""
        self._replicas.tick()
        if self.shard is not None:
            self.shard.tick()
        self._progress()
        self._count_replicas()

    def _progress(self) -> None:
        self._waits.look()
        self._roles.failover.tick()

    def _setting_changes(self, _: object) -> None:
        """The new value holds from the next turn of the loop on. If it is that of `replica-acks`, writes that come
        behind CONFIG SET in this turn wait for replicas too (`acks_were_set`).
        """
        for duty in (
            self._replicas.acks_change, self._count_replicas,
            self._unconfirmed.settings_change, self._roles.link_changed,
        ):  # fmt: skip
            self._loop.call_soon(duty)

    def _begins_to_lead(self) -> None:
        if self.shard is None:  # a server of a shard does not call itself the leader before its replicas are there
            self._unconfirmed.show_what_is_confirmed()
        self._count_replicas()

    def _stops_leading(self) -> None:
        if self.shard is None:  # a server of a shard goes on answering reads when its lease is over
            self._unconfirmed.give_up_waiting()

    def _log_switches(self, on: bool) -> None:
        if not on and self._engine.following:
            raise ValueError("a replica keeps a log; REPLICAOF NO ONE first")
        if not on and self.shard is not None:
            raise ValueError("a server of a shard keeps a log")
        if not on and self._config.replica_acks and self._aof.manifest.base:
            raise ValueError("replica-acks needs the log, which is what replicas get: CONFIG SET replica-acks 0 first")
        if on != (self._aof.writer is not None):
            self._loop.call_soon(self._replicas.replaced)

    def _count_replicas(self) -> None:
        """min-replicas-to-write: whether enough of them follow."""
        engine = self._engine
        good = self._replicas.good(self._config.min_replicas_max_lag)
        if self.shard is not None:
            too_few = self.shard.lacks_replicas
        else:
            too_few = not engine.following and good < self._config.replica_acks
        fewest = self._config.min_replicas_to_write if self._config.min_replicas_max_lag else 0  # as in Redis
        lacks = too_few or (not engine.following and good < fewest)
        if lacks != engine.lacks_replicas:
            engine.lacks_replicas = lacks
            engine.require_gates("too few replicas", lacks)
        engine.cannot_confirm = too_few
        engine.freeze_or_thaw()
        self._unconfirmed.replicas_are_too_few(too_few)
        if not lacks:
            engine.blocking.resume_writes()

    # -- what replicas ask for --------------------------------------------------------------------------------

    def configure(self, session: Session, settings: list[tuple[bytes, bytes]]) -> None:
        link = self._replicas.of(session)
        for name, value in settings:
            if name == b"listening-port":
                if not value.isdigit() or len(value) > 5 or int(value) > 65535:
                    raise ReplyError("REPLCONF listening-port takes a port")
                link.port = int(value)
            elif name == b"ip-address":
                if not _is_host(value):
                    raise ReplyError("REPLCONF ip-address takes an address, or the name of a host")
                link.host = value.decode()
            elif name in (b"node", b"log", b"run"):
                if not _is_name(value):
                    raise ReplyError(f"REPLCONF {name.decode()} takes a name of letters, digits, dots and dashes")
                setattr(link, name.decode(), value.decode())
                if name == b"run":
                    self._replicas.forget_older(link)
            elif name == b"capa" and value == CAPABILITY.encode():
                if session.subscribed or session.monitoring:
                    raise ReplyError(NOT_BESIDE)
                link.understands = True
            elif name == b"epoch":
                self._admit(link, to_integer(value))

    def _admit(self, link: Link, epoch: int) -> None:
        if self.shard is None:
            raise ReplyError("this server belongs to no shard")
        self.shard.admit(link, epoch)

    def acknowledged(self, session: Session, offset: int, synced: int, epoch: int | None) -> None:
        link = self._replicas.links.get(session.id)
        if link is not None and (self.shard is not None or epoch is not None) and (epoch or 0) != link.epoch:
            link.close()  # it speaks of another leader
            return
        self._replicas.acknowledged(session, offset, synced)

    def start_feed(self, session: Session, feed: str, offset: int, order: str) -> Reply:
        link = self._replicas.links.get(session.id)
        if link is None or not link.understands:
            raise NoMasterLink(NO_REDIS)
        if order and self.shard is not None:
            raise ReplyError(MANAGED)
        if order and self._engine.following:  # else it was asked before, and the answer was lost
            end = self._aof.feed.end
            if order != "FORCE" and not self._aof.lineage.common(feed, offset, end) == offset == end:
                raise ReplyError("FAILOVER: this replica does not have everything")
            if session.peer_has_left:  # it leads again (FAILOVER ABORT), and this server was stopped when it asked
                raise ReplyError("FAILOVER: the leader that asked has left")
            self._roles.take_over(session)
        follower = self._roles.follower
        if follower is not None and follower.state is not State.CONNECTED:  # perhaps the one that asks is its leader
            raise NoMasterLink
        if not self._replicas.start(session, feed, offset):
            return [b"COPY"]
        return [b"CONTINUE", show_lineage(self._aof.lineage).encode()]

    @staticmethod
    def _require_replica(session: Session) -> None:
        if not session.is_replica:
            raise ReplyError("REPLCONF FILES, SIZE and READ are for replicas, which say REPLCONF capa penstock before")

    def files(self, session: Session) -> Reply:
        self._require_replica(session)
        lineage, start, size, files = self._copies.files(session)
        return [show_lineage(lineage).encode(), start, size, *[[name.encode(), length] for name, length in files]]

    def file_size(self, session: Session, name: str) -> int | None:
        self._require_replica(session)
        return self._copies.size(name)

    def read_file(self, session: Session, name: str, start: int, count: int) -> Reply:
        self._require_replica(session)
        return session.aside(count, self._copies.reader(session, name, start, count), lock=False)

    def disconnected(self, session: Session) -> None:
        self._replicas.forget(session)

    # -- what clients ask for ---------------------------------------------------------------------------------

    def follow(self, host: str, port: int) -> bool:
        if self.shard is not None:
            raise ReplyError(MANAGED)
        self._roles.failover.refuse_orders()
        self._engine.require_nothing_written()
        return self._roles.follow(host, port)

    def lead(self) -> None:
        if self.shard is not None:
            raise ReplyError(MANAGED)
        if not self._engine.following:  # else it takes the lead back from a replica that does not answer
            self._roles.failover.refuse_orders()
        self._roles.lead()

    def wait(self, session: Session, local: bool, replicas: int, timeout: int, synced: bool) -> Reply:
        return self._waits.wait(session, local, replicas, timeout, synced)

    def fail_over(self, target: tuple[str, int] | None, timeout: int, force: bool) -> None:
        self._engine.require_nothing_written()
        self._roles.failover.start(target, timeout, force)

    def abort_failover(self) -> None:
        self._roles.failover.abort()

    def publish(self, words: Argv) -> None:
        if not self._engine.following:  # a replica passes on what its leader sends, so that all replicas hear the same
            self._published.publish(words)

    def role(self) -> list[Reply]:
        return describe_role(self._replicas, self._roles.follower, self.leads)

    @property
    def leads(self) -> bool:
        return self.shard.leads if self.shard is not None else not self._engine.following

    def synchronisations(self) -> tuple[int, int, int]:
        return self._copies.count, self._replicas.continued, self._replicas.refused

    def info(self) -> dict[str, int | str]:
        follower = self._roles.follower
        leader = describe_leader(follower, self._replicas.end, self._config) if follower is not None else {}
        return {
            "role": "master" if self.leads else "slave",
            **(self.shard.info() if self.shard is not None else {}),
            **leader,
            **describe_replicas(self._replicas, self._config),
            "master_failover_state": self._roles.failover.step.value,
            **describe_feed(self._replicas, self._config, self._engine.stats.run_id),
        }
