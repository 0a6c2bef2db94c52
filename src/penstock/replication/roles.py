"""The role of a server, leader or replica, and the change from one to the other.

A replica changes nothing by itself: its clients may only read (`engine.following`), expired keys are hidden until the
leader deletes them (`keyspace.frozen`), and the periodic work for streams and ONCE is left to the leader.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from penstock.engine.config import ConfigError
from penstock.engine.directives import DIRECTIVES
from penstock.engine.dispatch import FOLLOWING, Engine
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, Unblocked
from penstock.replication.failover import Failover, Step
from penstock.replication.follower import Follower, Membership, State
from penstock.replication.published_messages import PublishedMessages
from penstock.replication.replicas import NO_LOG, Replicas
from penstock.storage.notice_logging import notice
from penstock.storage.persistence import Persistence

DEMOTED = "force unblock from blocking operation, instance state changed (master -> replica?)"


class Roles:
    """See the top of this file."""

    def __init__(
        self, engine: Engine, persistence: Persistence, replicas: Replicas, published: PublishedMessages,
        loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._config = engine.config
        self._persistence = persistence
        self._replicas = replicas
        self._published = published
        self._loop = loop
        self.failover = Failover(engine, replicas, self._start_following, self.lead)
        self.follower: Follower | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost_at: float | None = None  # when the link to the last leader was lost, if that was ever up
        persistence.is_catching_up = self._is_catching_up
        self.on_lead: Callable[[], None] = lambda: None  # told when this server was a replica and writes by itself now
        self.before_following: Callable[[], None] = lambda: None  # told when it will write by itself no more
        if self._config.etcd:  # it waits for what its agent says
            self._set_following(True)
        elif self._config.replicaof:
            if not self._config.appendonly:
                raise ConfigError("replicaof: a replica keeps a log. Set appendonly yes")
            self._leader_in_config()
            self._set_following(True)

    def start(self) -> None:
        """Everything is loaded and the log is open."""
        if self._config.replicaof:
            self._begin(*self._leader_in_config())

    def _leader_in_config(self) -> tuple[str, int]:
        words = self._config.replicaof
        if len(words) != 2 or not words[1].isdigit() or not 0 < int(words[1]) < 65536:
            raise ConfigError(f"replicaof takes a host and a port, not {' '.join(words)!r}")
        return words[0], int(words[1])

    def follow(self, host: str, port: int) -> bool:
        """Become a replica of a server; False if this one is it already."""
        if self._persistence.aof.writer is None or not self._persistence.aof.manifest.base:
            raise ReplyError(NO_LOG)
        if self.follower is not None:
            known, its_port = self.follower.leader
            if (known.lower(), its_port) == (host.lower(), port):
                return False
        self._start_following(host, port)
        return True

    def follow_as_member(self, host: str, port: int, membership: Membership) -> None:
        """Follow the leader of this server's shard."""
        self.stand_by()
        self._begin(host, port, membership=membership)

    def stand_by(self) -> None:
        """Follow no server for now, and change nothing."""
        if not self._engine.following:
            self._demote()
        else:
            self.end_following()
        self._replicas.close_all()
        self.link_changed()

    def _start_following(self, host: str, port: int, order: str = "") -> None:
        self.stand_by()
        self._config.change([(DIRECTIVES["replicaof"], f"{host} {port}")])
        self._begin(host, port, order)
        notice("this server is a replica of %s:%d now", host, port, of="replication")

    def _demote(self) -> None:
        """From now on nothing changes here but by the feed."""
        engine = self._engine
        engine.lazy.drain()
        engine.workers.abandon(Unblocked(DEMOTED))  # what threads would still write is not in the log
        self.before_following()
        try:
            self._persistence.change_role(following=True)
        except OSError as error:
            raise ReplyError(f"the log cannot be written to its end: {error}") from None
        self._set_following(True)
        engine.stream_members.stop()
        self._replicas.opened()  # whether replies wait for replicas depends on the role
        engine.blocking.unblock_all(DEMOTED)  # WAIT too: what it asks about may be nowhere when it could be answered

    def _set_following(self, on: bool) -> None:
        engine = self._engine
        engine.following = on
        engine.freeze_or_thaw()
        engine.require_gates(FOLLOWING, on)
        self.link_changed()

    def _begin(self, host: str, port: int, order: str = "", membership: Membership | None = None) -> None:
        self.follower = Follower(
            self._engine, self._persistence, (host, port), self._tls, self.link_changed, self._replicas.replaced, order,
            membership,
        )  # fmt: skip
        self.follower.lost_at = self._lost_at
        self._replicas.on_written = self.follower.written
        self.follower.on_published = self._published.publish
        self._task = self._loop.create_task(self.follower.run())
        self.link_changed()

    def _is_catching_up(self) -> bool:
        return self.follower is not None and self.follower.is_catching_up

    def end_following(self) -> None:
        follower, self.follower = self.follower, None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._replicas.on_written = lambda: None
        if follower is not None:
            follower.stop()
            self._lost_at = follower.lost_at

    def lead(self) -> None:
        if self._engine.following:
            self.take_over()
            self.failover.ended("this server was told to lead")

    def take_over(self, for_session: Session | None = None) -> None:
        """Write by itself from now on. `for_session` is that of a leader that hands over."""
        if self._persistence.aof.writer is None:
            raise ReplyError(NO_LOG)
        try:
            self._persistence.change_role(following=False)
        except OSError as error:
            raise ReplyError(f"the log cannot be written: {error}") from None
        self.end_following()
        self._lost_at = None
        if self._config.replicaof:
            self._config.change([(DIRECTIVES["replicaof"], "")])
        self._replicas.close_all(but=for_session)  # they learn the name of the new feed when they ask again
        self._set_following(False)
        self._replicas.opened()
        self._engine.clock.refresh()
        self._engine.once.took_over()
        self._engine.streams.started()
        self.on_lead()
        notice("this server leads now", of="replication")

    def link_changed(self) -> None:
        """The connection to the leader was made, or lost, or the log was replaced."""
        engine, follower = self._engine, self.follower
        down = engine.following and (follower is None or follower.state is not State.CONNECTED)
        engine.stale = down and not self._config.replica_serve_stale_data
        engine.require_gates("stale", engine.stale)
        if follower is None:
            return
        if follower.state is State.CONNECTED:  # what its leader lacked is put aside
            engine.hidden_changes.hide(False)
        if follower.state is State.CONNECTED and self.failover.step is Step.ASKED:
            self.failover.ended(None)
        elif self.failover.step is Step.ASKED and follower.refused:
            self.lead()
            self.failover.ended("the replica refused to lead")

    def _tls(self) -> ssl.SSLContext | None:
        config = self._config
        if not config.tls_replication:
            return None
        authorities = str(config.path("tls-ca-cert-file")) if config.tls_ca_cert_file else None  # else the system's
        context = ssl.create_default_context(cafile=authorities)
        context.check_hostname = False
        if config.tls_cert_file:
            context.load_cert_chain(
                config.path("tls-cert-file"), config.path("tls-key-file"), config.tls_key_file_pass or None
            )
        return context
