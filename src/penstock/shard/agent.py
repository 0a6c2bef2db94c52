"""The agent of a server: its parent process, which asks etcd for the leader and tells the server.

It keeps a lease in etcd for as long as the server runs and gets on, and gives it back when the server ends, so that
another node can lead at once. Everything in etcd that says that this node is there, or leads, hangs on that lease.

    no leader       the server stops following, the node says in etcd where its log ends, and may be elected
    another leads   the server follows it
    etcd forgot     the server stops, and an operator decides (election.py)
    this one leads  the server leads, until the deadline that `Lease` computes; the in-sync set is changed as it wishes

Each step reads all that etcd holds about the shard (records.py) and does what follows from it. A step is taken when
something has changed, and at least twice a second, so no message is needed for things to come right.

Every change in etcd is a transaction on what was read. If its answer is lost, the next step sees what became of it.

Owned by the loop of this process; requests to etcd run in threads, one at a time for each client of etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from penstock.engine.config import Config
from penstock.engine.leadership import now
from penstock.shard.child import Child, Message, OrderFailed
from penstock.shard.election import candidates, may_take_the_lead, next_state
from penstock.shard.etcd import LOSES_DATA, Delete, Etcd, EtcdAddress, EtcdError, Put
from penstock.shard.lease import Lease
from penstock.shard.records import Node, Snapshot, State, key_of, read_shard

logger = logging.getLogger("penstock.agent")
Result = TypeVar("Result")

TICK = 0.5
"""Seconds between two looks at etcd if nothing seems to happen."""
SOON = 0.05
"""Seconds between two looks while a leader is chosen."""
FIRST_DELAY, LONGEST_DELAY, LONG_RUN = 0.05, 5.0, 10.0
"""Seconds before a server that has ended is started again; twice as long each time, unless it has run for LONG_RUN."""
ORDER_TIME = 30.0
"""Seconds that a server has for an order."""
STOP_MARGIN = 5.0
"""Seconds after `shard-stop-timeout`, when a server should have ended by itself, in which it still may."""


class Agent:
    """See the top of this file."""

    def __init__(
        self, config: Config, address: EtcdAddress, place: tuple[str, int], command: list[str],
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._shard, self._me, self._place = config.shard, config.node, place
        self._seconds = config.shard_lease
        self._address = address
        self._etcd = self._client()
        self._one_at_a_time = asyncio.Lock()
        self._lease = Lease(self._client(), self._seconds, self._lease_changed)
        self._command, self._environment = command, environment
        self._child: Child | None = None
        self._ended = asyncio.Event()
        self._wake = asyncio.Event()
        self._leading = 0  # the epoch in which this node leads; 0 if it does not
        self._given_up, self._heir = 0, ""  # the last epoch that was ended by its leader, this node, and for which one
        self._led, self._in_sync = 0, dict[str, str]()  # the last epoch that it led in, and the in-sync set of it
        self._changes = 0  # odd while a request for another one is under way
        self._done: tuple[object, ...] = ()  # the last order that the server has carried out
        self._position: Message = {}  # where its log is, as it said last
        self._lapses = 0  # how often the server said that its lease has run out
        self._standing_for = 0  # the epoch in which this node may be elected
        self._since = 0.0  # when it saw that there is no leader
        self._lacks_since = 0.0  # when the server said that too few nodes follow it; 0.0 if enough do
        self._stop_seconds = config.shard_stop_timeout + STOP_MARGIN
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    def _client(self) -> Etcd:
        return Etcd(self._address, self._seconds / 4)

    # -- from start to end ------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run the server until it is told to end; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)
        threading.Thread(target=self._watch, args=(loop,), daemon=True).start()
        self._start(self._warn_of_version())
        self._start(self._lease.keep())
        self._start(self._take_steps())
        try:
            return await self._run_servers()
        finally:
            for task in list(self._tasks):
                task.cancel()
            await self._withdraw()

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _signalled(self, number: signal.Signals) -> None:
        self._stopping = self._stopping or number != signal.SIGHUP
        if self._child is not None and number == signal.SIGHUP:
            self._child.signal(number)
        elif self._child is not None:
            self._child.end(number, self._stop_seconds)

    async def _run_servers(self) -> int:
        delay = FIRST_DELAY
        while True:
            self._ended.clear()
            self._done, self._standing_for = (), 0
            child = Child(self._command, self._environment, self._heard)
            await child.start()
            self._child, started = child, time.monotonic()
            if self._stopping:  # told so while it was started
                child.end(signal.SIGTERM, self._stop_seconds)
            await self._ended.wait()
            self._child = None
            await self._withdraw()
            await child.close()
            code = child.code or 0
            if self._stopping or child.is_ending or code == 0 or (code > 0 and not child.is_ready):
                return max(code, 0) if code >= 0 else 1
            delay = FIRST_DELAY if time.monotonic() - started > LONG_RUN else min(2 * delay, LONGEST_DELAY)
            logger.warning("the server has ended (%d); it is started again in %g s", code, delay)
            await asyncio.sleep(delay)
            if self._stopping:
                return 0

    async def _withdraw(self) -> None:
        """The server makes no progress: let another one lead."""
        self._stop_leading()
        self._done, self._standing_for = (), 0
        await self._lease.revoke()

    async def _warn_of_version(self) -> None:
        with contextlib.suppress(EtcdError):
            version = await self._ask(Etcd.version)
            if LOSES_DATA[0] <= version <= LOSES_DATA[1]:
                text = ".".join(map(str, version))
                logger.warning(
                    "etcd %s may lose what it has confirmed when a member is killed: use 3.5.6 or later", text
                )

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: a step is due whenever something changes."""
        etcd = self._client()
        while True:
            with contextlib.suppress(EtcdError):
                for _ in etcd.watch(key_of(self._shard) + "/", 0):
                    with contextlib.suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(self._wake.set)
            time.sleep(SOON)

    # -- the server -------------------------------------------------------------------------------------------

    def _heard(self, message: Message) -> None:
        if not message:
            self._ended.set()
        elif "wish" in message:
            assert self._child is not None
            self._start(self._change_in_sync(self._child, message["wish"], message["number"]))
        elif "hand_over" in message:
            self._given_up, self._heir = self._leading, str(message["hand_over"])
            self._stop_leading()
            self._done = ()
        else:
            self._position = {**self._position, **message}
            if "lapsed" in message:
                self._done = ()
                self._lapses += 1
            if "lacks" in message:
                self._lacks_since = time.monotonic() if message["lacks"] else 0.0
        self._wake.set()

    async def _order(self, order: str, *key: object, **fields: object) -> None:
        """Have the server do something, unless it has done that already."""
        child, wanted = self._child, (order, *key)
        if child is None or self._done == wanted:
            return
        self._done, lapses = (), self._lapses
        self._position = {**self._position, **await child.order(order, ORDER_TIME, **fields)}
        if lapses == self._lapses:  # else the lease has run out, and what the server does now is to be looked at
            self._done = wanted

    def _set_deadline(self) -> None:
        if self._child is not None:
            self._child.clock.deadline = self._lease.valid_until if self._leading else 0

    def _lease_changed(self) -> None:
        self._set_deadline()
        if not self._lease.id or (self._leading and not self._done):
            self._wake.set()

    def _stop_leading(self) -> None:
        self._leading, self._lacks_since = 0, 0.0
        if self._child is not None:
            self._child.clock.deadline = 0

    # -- etcd -------------------------------------------------------------------------------------------------

    async def _ask(self, question: Callable[..., Result], *arguments: Any) -> Result:
        async with self._one_at_a_time:
            return await asyncio.to_thread(question, self._etcd, *arguments)

    async def _take_steps(self) -> None:
        told = ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._step()
                told = ""
            except (EtcdError, OrderFailed) as error:
                if str(error) != told:
                    logger.warning("the agent cannot do its work: %s", error)
                told = str(error)
            except Exception:  # a bug of ours must not end the agent
                logger.exception("internal error of the agent")

    async def _step(self) -> None:
        child = self._child
        if child is None or child.code is not None or not child.is_ready:
            return
        if child.seconds_silent() > self._seconds:
            if self._lease.id:
                logger.error("the server makes no progress: giving up its lease")
                await self._withdraw()
            return
        if not self._lease.id:
            self._stop_leading()
            await self._lease.grant()
        changes = self._changes
        snapshot = await self._register(await self._ask(read_shard, self._shard))
        if snapshot.is_forgetful:
            await self._wait_for_operator(snapshot)
            return
        is_mine = snapshot.leader == self._me and snapshot.leader_lease == self._lease.needed()
        if is_mine and snapshot.epoch > self._given_up:  # no await from the comparison to where `_leading` is set
            await self._lead(snapshot)
            self._tell_of_removals(snapshot, changes)
            return
        self._stop_leading()
        if is_mine:
            await self._hand_over(snapshot)
            return
        if snapshot.leader:
            await self._follow(snapshot)
        else:
            await self._stand(snapshot)

    async def _register(self, snapshot: Snapshot, exactly: bool = False) -> Snapshot:
        """Have etcd know this node as it is; what etcd holds then. EtcdError if another process has its name.

        `exactly` is for a log that does not grow any more: it says where that ends.
        """
        position = self._position
        host, port = self._place
        node = Node(host, port, position["log"], position["epoch"], position["end"], self._standing_for)
        known = snapshot.nodes.get(self._me)
        if known is not None and known.lease != self._lease.id:
            raise EtcdError(f"node {self._me} is there already: another process has its name, or had it a moment ago")
        if known == node or (known is not None and not exactly and known.says_the_same_as(node)):
            return snapshot
        await self._ask(Etcd.put, key_of(self._shard, "nodes", self._me), node.encoded(), self._lease.needed())
        return await self._ask(read_shard, self._shard)

    async def _wait_for_operator(self, snapshot: Snapshot) -> None:
        """etcd has lost the in-sync set: keep this node's log as it is."""
        self._stop_leading()
        self._standing_for = 0
        await self._order("wait", "operator", epoch=self._position["epoch"])
        await self._register(snapshot, exactly=True)
        later = ", ".join(sorted(name for name, node in snapshot.nodes.items() if node.epoch > snapshot.epoch))
        raise EtcdError(
            f"etcd knows shard {self._shard} up to epoch {snapshot.epoch}; there is data of a later one at {later}: "
            f"either etcd has lost what it knew, and no node leads until `penstock shard restore {self._shard} NODE` "
            "says whose data counts; or the folder is of another shard, and that node is to be stopped"
        )

    async def _lead(self, snapshot: Snapshot) -> None:
        assert snapshot.state is not None
        epoch = self._leading = snapshot.epoch
        self._set_deadline()
        if self._lease.valid_until <= now():
            return  # it is in etcd, and was not renewed in time; it may be again
        if self._done[:2] != ("lead", epoch):
            if self._led == epoch and not await self._ask(
                Etcd.change, self._as_read(snapshot), self._put(snapshot.state)
            ):
                return  # a request for another in-sync set may be under way, and must not be carried out after this
            self._led, self._in_sync = epoch, snapshot.state.in_sync
        try:
            await self._order("lead", epoch, epoch=epoch, in_sync=snapshot.state.in_sync)
        except OrderFailed:
            await self._withdraw()
            raise
        self._standing_for = 0
        if snapshot.failover is not None:
            await self._ask(Etcd.change, {}, Delete(key_of(self._shard, "failover")))
            await self._order("fail_over", snapshot.revision, to=snapshot.failover)
            self._done = ("lead", epoch)
        if self._lacks_since and time.monotonic() - self._lacks_since > self._seconds:
            await self._resign(snapshot)

    async def _resign(self, snapshot: Snapshot) -> None:
        """Too few nodes follow this leader. If another that may lead runs, it is perhaps better off."""
        others = [name for name in candidates(snapshot) if name != self._me]
        if others:
            logger.warning("too few nodes follow this one: handing over to %s", others[0])
            self._lacks_since = 0.0
            await self._order("resign", snapshot.revision, to=others[0])

    async def _follow(self, snapshot: Snapshot) -> None:
        leader = snapshot.nodes.get(snapshot.leader)
        if leader is not None:
            place = {"host": leader.host, "port": leader.port}
            await self._order("follow", snapshot.epoch, *place.values(), epoch=snapshot.epoch, **place)
            self._standing_for = 0

    async def _stand(self, snapshot: Snapshot) -> None:
        """There is no leader: take part in the election."""
        epoch = snapshot.epoch + 1
        if self._standing_for != epoch:
            await self._order("wait", epoch, epoch=epoch)
            self._standing_for, self._since = epoch, time.monotonic()
            snapshot = await self._register(snapshot)
        if may_take_the_lead(snapshot, self._me, time.monotonic() - self._since):
            await self._take_the_lead(snapshot)
        else:
            asyncio.get_running_loop().call_later(SOON, self._wake.set)

    async def _take_the_lead(self, snapshot: Snapshot) -> None:
        state, lease = next_state(snapshot, self._me, self._position["acks"]), self._lease.needed()
        read = {key_of(self._shard, "state"): snapshot.state_revision, key_of(self._shard, "leader"): 0}
        leader = Put(key_of(self._shard, "leader"), json.dumps({"node": self._me, "epoch": state.epoch}), lease)
        self._wake.set()  # the next step sees what became of it
        if await self._ask(Etcd.change, read, self._put(state), leader):
            logger.info("this node leads shard %s in epoch %d", self._shard, state.epoch)

    async def _change_in_sync(self, child: Child, wish: dict[str, str], number: int) -> None:
        """Have etcd hold another in-sync set. The server is told if it is not certain that it does, and asks again."""
        done = False
        self._changes += 1
        try:
            snapshot = await self._ask(read_shard, self._shard)
            if self._leads_in(snapshot) and snapshot.state is not None:
                state = replace(snapshot.state, in_sync=wish, heir="")
                done = await self._ask(Etcd.change, self._as_read(snapshot), self._put(state))
        except EtcdError as error:
            logger.warning("the in-sync set could not be changed: %s", error)
        finally:
            self._changes += 1
            child.tell(in_sync=wish if done else None, number=number)
        if done:
            self._in_sync = wish
            logger.info("in sync: %s", ", ".join(sorted(wish)))

    def _tell_of_removals(self, snapshot: Snapshot, changes: int) -> None:
        """Nodes that an operator has removed are not waited for. `changes` is from before the snapshot was read."""
        if self._child is None or snapshot.state is None or changes % 2 or changes != self._changes:
            return
        removed = [node for node in self._in_sync if node not in snapshot.state.in_sync]
        if removed:
            self._in_sync = snapshot.state.in_sync
            self._child.tell(removed=removed)

    async def _hand_over(self, snapshot: Snapshot) -> None:
        """The server has ended its epoch by itself, and never leads in it again."""
        assert snapshot.state is not None
        state = self._put(replace(snapshot.state, heir=self._heir))
        await self._ask(Etcd.change, self._as_read(snapshot), state, Delete(key_of(self._shard, "leader")))
        self._wake.set()

    def _leads_in(self, snapshot: Snapshot) -> bool:
        return bool(self._leading and self._lease.id) and (snapshot.epoch, snapshot.leader_lease) == (
            self._leading,
            self._lease.id,
        )

    def _put(self, state: State) -> Put:
        return Put(key_of(self._shard, "state"), state.encoded())

    def _as_read(self, snapshot: Snapshot) -> dict[str, int]:
        names = {"state": snapshot.state_revision, "leader": snapshot.leader_revision}
        return {key_of(self._shard, name): revision for name, revision in names.items()}
