"""A server of a shard does what its agent says: lead, follow, or wait for the next leader. Only the agent asks etcd.

The agent (shard/agent.py) is the parent of this process. They talk in lines of JSON over a socket:

    agent     {"id": 7, "order": "follow", "epoch": 3, "host": ..., "port": ...}
              also "wait", "lead", "fail_over", "resign"
    server    {"re": 7, "problem": null, "end": 1234, "epoch": 3, "log": ..., "acks": 1}
    server    {"wish": {"n1": log, "n2": log}, "number": 1}     the in-sync set that etcd is to hold
    agent     {"in_sync": {...} | null, "number": 1}            what it holds for certain; null if that is not known
    agent     {"removed": ["n3"]}                               an operator has removed these
    server    {"lapsed": 3} | {"hand_over": "n2"} | {"log": log} | {"lacks": true} | {"ending": true}

The epoch counts leaders. A replica says in which epoch it follows, and in each acknowledgement; a server that does not
lead in that epoch refuses it. All connections of an epoch end with it, at both ends, so nothing that is sent in one
epoch is taken for part of another.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.engine.config import ConfigError
from penstock.engine.dispatch import Engine
from penstock.engine.leadership import AGENT, LEASED, Leadership, SharedClock, now
from penstock.protocol.errors import ReplyError
from penstock.replication.in_sync import InSync, Members
from penstock.replication.link import Link
from penstock.replication.log_identity import LogIdentity
from penstock.replication.replicas import Replicas
from penstock.replication.roles import Roles
from penstock.storage.fenced_writer import FencedWriter
from penstock.storage.notice_logging import notice
from penstock.storage.persistence import Persistence

logger = logging.getLogger("penstock.replication")

RETRY = 0.05
"""Seconds after which an order is looked at again that cannot be carried out while a copy is loaded."""
STAND_BY_AGAIN = 1_000_000_000
"""Nanoseconds after which it is tried again to end the log of a leader, if the disk refused that."""
HAND_OVER_TIME = 10_000
"""Milliseconds that a hand-over may wait for a replica to have everything."""
MANAGED = "this server belongs to a shard, and etcd decides which one leads: use FAILOVER, or `penstock shard failover`"


def _take_back() -> None:
    raise ReplyError("the lead was given up already: " + MANAGED)


class Shard:
    """See the top of this file."""

    def __init__(
        self,
        engine: Engine,
        persistence: Persistence,
        replicas: Replicas,
        roles: Roles,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        config = self._config = engine.config
        words = os.environ.pop(AGENT, "").split(",")
        if len(words) != 2:
            raise ConfigError("etcd: a server of a shard is started by `penstock serve`, which runs it under an agent")
        self._engine = engine
        self._aof = persistence.aof
        self._replicas = replicas
        self._roles = roles
        self._loop = loop
        self._socket = socket.socket(fileno=int(words[0]))
        self._socket.setblocking(False)
        loop.add_reader(self._socket, self._readable)  # the agent gives no orders yet, but it may end
        self.leadership = engine.leadership = Leadership(SharedClock(int(words[1])))
        self.leadership.on_lapse = self.lapse
        self.leadership.on_trouble = self._disk_refuses
        self._aof.own_writer = partial(FencedWriter, self.leadership)
        engine.require_gates(LEASED, True)
        self.identity = LogIdentity(persistence.aof.folder, config.shard, config.node)
        self.epoch = 0  # the latest that this server has heard of
        self.in_sync: InSync | None = None  # while it leads
        self._wishes = 0  # how often another in-sync set was asked for
        self._lacks = False  # what the agent was told about `lacks_replicas`
        self.on_agent_gone: Callable[[], None] = lambda: None
        self._stand_by_at = 0  # when it is tried again to end the log of a leader
        self._problem = ""  # the last one that was logged: why an order failed, or leading could not be ended
        self._unread = b""
        self._orders: deque[dict[str, Any]] = deque()
        replicas.always_told = True
        replicas.on_gone = self.look
        roles.failover.hand_over, roles.failover.take_back = self._hand_over, _take_back
        roles.failover.is_eligible = self._may_lead_next

    def start(self) -> None:
        """Everything is loaded and the log is open."""
        self.identity.open()
        self.leadership.clock.sign_of_life = now()
        self._tell(ready=True, **self._position())

    def stop(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            with contextlib.suppress(OSError):  # the agent may be what has ended
                self._socket.send(json.dumps({"ending": True}).encode() + b"\n")
            self._socket.close()

    def tick(self) -> None:
        """Many times a second."""
        self.leadership.clock.sign_of_life = now()
        if not self._engine.following and not self._holds:
            self.lapse()
        self.look()

    # -- the agent --------------------------------------------------------------------------------------------

    def _tell(self, **message: object) -> None:
        try:
            self._socket.send(json.dumps(message).encode() + b"\n")
        except OSError as error:
            logger.error("the agent cannot be reached: %s", error)
            self.on_agent_gone()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            logger.error("the agent of this server is gone: stopping")
            self._loop.remove_reader(self._socket)
            self.on_agent_gone()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._orders.extend(map(json.loads, lines))
        self._obey()

    def _obey(self) -> None:
        while self._orders:
            if self._engine.loading:  # a copy is being loaded: it cannot be interrupted
                self._loop.call_later(RETRY, self._obey)
                return
            order = self._orders.popleft()
            if "order" not in order:
                self._hear(order)
                continue
            problem = None
            try:
                self._carry_out(order)
            except (ReplyError, OSError) as error:
                problem = str(error)
                if self._is_new(problem):
                    logger.error("cannot %s: %s", order["order"], problem)
            self._tell(re=order["id"], problem=problem, **self._position())

    def _carry_out(self, order: dict[str, Any]) -> None:
        kind = order["order"]
        if kind == "fail_over":
            self._fail_over(order["to"])
            return
        if kind == "resign":
            self._give_up(order["to"])
            return
        self.epoch = order["epoch"]
        if kind == "lead":
            self._lead(order["in_sync"])
            return
        self._end_leading()
        if kind == "follow":
            self._roles.follow_as_member(order["host"], order["port"], self)
            self._roles.failover.ended(None)
        else:
            self._roles.stand_by()
            writer = self._aof.writer
            if writer is not None:
                writer.drain()  # from now on the log does not grow
            self.identity.write()  # a server whose disk refuses this could not lead

    def _position(self) -> dict[str, object]:
        return {
            "end": self._aof.feed.end,
            "epoch": self.identity.epoch,
            "log": self.identity.log,
            "acks": self._config.replica_acks,
        }

    # -- leading ----------------------------------------------------------------------------------------------

    def _lead(self, members: Members) -> None:
        leadership = self.leadership
        if leadership.leading and not self._engine.following:
            return
        self.identity.continues(self.epoch)
        leadership.leading, leadership.ready = True, False
        self._lacks = False
        self._wishes += 1  # answers to older ones are of no interest
        try:
            self._roles.take_over()
        except BaseException:
            leadership.leading = False
            raise
        self.in_sync = InSync(
            self._replicas,
            self._config.node,
            members,
            lambda: self._config.replica_acks,
            lambda: self._config.in_sync_max_lag / 1000,
            self._ask_for,
        )
        self._replicas.confirmed = self.in_sync.offset
        self._roles.failover.ended("no other node took over")
        notice("leading shard %s in epoch %d", self._config.shard, self.epoch, of="replication")
        self.look()

    def look(self) -> None:
        """A node may have come or gone."""
        in_sync, leadership = self.in_sync, self.leadership
        if in_sync is None or not leadership.leading:
            return
        in_sync.look()
        if not leadership.ready and (in_sync.connected >= self._config.replica_acks or in_sync.is_past_grace):
            leadership.ready = True
            self._replicas.wait_for_all()
            self._engine.hidden_changes.hide(False)
        if self._lacks != self.lacks_replicas:
            self._lacks = self.lacks_replicas
            self._tell(lacks=self._lacks)

    @property
    def lacks_replicas(self) -> bool:
        """Whether this server leads, and cannot acknowledge a write because too few in-sync nodes follow."""
        in_sync = self.in_sync
        return in_sync is not None and self.leadership.ready and in_sync.connected < self._config.replica_acks

    def _ask_for(self, wish: Members) -> None:
        self._wishes += 1
        self._tell(wish=wish, number=self._wishes)

    def _hear(self, answer: dict[str, Any]) -> None:
        """Note the in-sync set that etcd holds."""
        if self.in_sync is None:
            return
        if "removed" in answer:
            self.in_sync.removed(answer["removed"])
        elif answer["number"] == self._wishes:
            self.in_sync.answered(answer["in_sync"])
        self.look()
        self._replicas.confirm()

    def _end_leading(self) -> None:
        """No reply that is owed leaves from now on."""
        if self.leadership.leading:
            self.leadership.leading = False
            for session in list(self._engine.sessions.values()):
                if session.link is None:
                    session.output.lose()
        self.in_sync = None
        self._replicas.confirmed = lambda: None

    def lapse(self) -> None:
        """The lease has run out: this server follows no other, and waits for what the agent says."""
        if self._engine.following:
            return
        if self.leadership.leading:
            logger.warning("the lease of this server has run out: it takes no more writes")
            self._end_leading()
        if now() >= self._stand_by_at:
            self._stand_by()

    def _stand_by(self) -> None:
        """End the log of this leader. If the disk refuses that, writes are refused still, and it is tried again."""
        try:
            self._roles.stand_by()
        except ReplyError as error:
            self._stand_by_at = now() + STAND_BY_AGAIN
            if self._is_new(str(error)):
                logger.error("cannot end leading: %s", error)
            if self._aof.writer is not None:
                self._aof.writer.confirm(sys.maxsize)  # connections that wait for a reply are closed; others may read
            return
        self._stand_by_at, self._problem = 0, ""
        self._tell(lapsed=self.epoch)

    def _is_new(self, problem: str) -> bool:
        """Whether it is not the one that was logged last."""
        last, self._problem = self._problem, problem
        return problem != last

    # -- handing over -----------------------------------------------------------------------------------------

    def _fail_over(self, node: str) -> None:
        if self.in_sync is None:
            raise ReplyError("this server does not lead")
        addresses = {link.node: link.address for link in self._replicas.links.values() if link.position is not None}
        if node and node not in self.in_sync.others:
            raise ReplyError(f"node {node} is not in sync")
        if node and node not in addresses:
            raise ReplyError(f"node {node} does not follow at the moment")
        self._roles.failover.start(addresses[node] if node else None, HAND_OVER_TIME, False)

    def _may_lead_next(self, link: Link) -> bool:
        """Whether it is in sync, and all that was written is confirmed."""
        in_sync = self.in_sync
        if in_sync is None or in_sync.others.get(link.node) != link.log:
            return False
        return not self._config.replica_acks or in_sync.offset() == self._replicas.end

    def _hand_over(self, host: str, port: int, order: str) -> None:
        nodes = [link.node for link in self._replicas.links.values() if link.address == (host, port) and link.node]
        self._give_up(nodes[0] if nodes else "")

    def _give_up(self, heir: str) -> None:
        """End this epoch by itself."""
        if self.leadership.leading:
            self._end_leading()
            self._tell(hand_over=heir)
            self._stand_by()

    def _disk_refuses(self) -> None:
        """Let another node lead, if there is one that has everything. Clients are not shown what no log has."""
        if not self.leadership.leading or self.in_sync is None or not self._config.replica_acks:
            return
        heir = self.in_sync.furthest
        if heir:
            logger.error("the log of this leader cannot be written: handing over to %s", heir)
            self._end_leading()
            for session in list(self._engine.sessions.values()):  # reads here would show what no log has
                if session.link is None and session.waiter is None:
                    session.output.close(after_reply=False)
            self._tell(hand_over=heir)
            self._loop.call_soon(self.lapse)  # not in the middle of a batch

    # -- what replicas say ------------------------------------------------------------------------------------

    def admit(self, link: Link, epoch: int) -> None:
        """A node wants to follow in an epoch, or acknowledges something in it."""
        if epoch > self.epoch and self.leadership.leading:
            self.lapse()
        if not self._holds or epoch != self.epoch:
            raise ReplyError(f"this server does not lead shard {self._config.shard} in epoch {epoch}")
        link.epoch = epoch

    # -- follower.Membership ----------------------------------------------------------------------------------

    def introduction(self) -> list[str | int]:
        return ["node", self._config.node, "log", self.identity.log, "epoch", self.epoch]

    def continues(self) -> None:
        self.identity.continues(self.epoch)

    def copies(self) -> None:
        self.identity.renew()
        self._tell(log=self.identity.log)

    # -- INFO and ROLE ----------------------------------------------------------------------------------------

    @property
    def _holds(self) -> bool:
        """Whether it leads, and its lease holds."""
        return self.leadership.leading and self.leadership.holds()

    @property
    def leads(self) -> bool:
        """Whether clients see it as leader: not before its replicas had time to connect."""
        return self._holds and self.leadership.ready

    def info(self) -> dict[str, int | str]:
        fields: dict[str, int | str] = {
            "shard": self._config.shard,
            "node": self._config.node,
            "epoch": self.epoch,
            "lease_ms_left": self.leadership.milliseconds_left,
        }
        return {**fields, "in_sync": ",".join(sorted(self.in_sync.members)) if self.in_sync is not None else ""}
