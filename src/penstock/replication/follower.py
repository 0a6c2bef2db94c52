"""A replica follows its leader: it connects, copies everything if it must, and then appends and applies the feed.

Each batch goes to this server's log as it came, and its commands are run as when a log is read at the start
(storage/replay.py), between two commands of clients. A batch that says that messages went to a file of history
(`TAPPLY key HISTORY`) is applied when that file has been copied. If the leader has removed it meanwhile, the messages
stay in memory until a later batch evicts them, as in a replay.

What comes is applied, written and acknowledged as soon as it comes (`_take_at_once`): a leader may wait for it. A task
takes over for what must wait: much at once, files to be copied, a full disk, a frame that is not whole yet.

The connection is made again and again until this server is told to lead. What is here already is never copied
again, as long as the leader still has the rest of the feed.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Protocol

from penstock.engine.dispatch import Engine
from penstock.engine.keyspace.databases import Database
from penstock.engine.observe.monitors import in_short
from penstock.engine.session import Session
from penstock.protocol.errors import PenstockError, ProtocolError, ReplyError
from penstock.protocol.grammar import Argv
from penstock.replication.compaction_ahead import read_for_compaction, with_all
from penstock.replication.copying import Offer, ask_for_offer, copy_base, copy_history, parse_lineage
from penstock.replication.diverged import keep_diverged
from penstock.replication.frames import FEED, Frame, FrameReader
from penstock.replication.leader_connection import LeaderConnection
from penstock.storage.files import StorageError
from penstock.storage.follower_writer import FollowerWriter
from penstock.storage.notice_logging import notice
from penstock.storage.persistence import Persistence
from penstock.storage.replay import Replay
from penstock.types.packing import CorruptValue
from penstock.types.stream.segments import Segment

logger = logging.getLogger("penstock.replication")

LITTLE = 1 << 16
"""Bytes of the feed that are applied as soon as they come."""
SOME = 1000
"""Commands of the feed that run before clients are served, or a few more: a batch is run in one step."""
FIRST_DELAY, LONGEST_DELAY = 0.05, 1.0
"""Seconds between attempts to connect; each time twice as long, until it is connected."""
LONGEST_CATCH_UP = 60.0
"""Seconds after which it counts as one that is always behind."""
READERS_PATIENCE = 0.5
"""Seconds that the feed waits for threads that read what it changes. Most reads of a million elements end by then; a
command of a module may read for minutes.
"""
QUIET = 60.0
"""Seconds between two lines about commands of the feed that failed."""
STUCK_DELAY = 5.0
"""Seconds after which a replica asks again for what it could not use."""


class State(Enum):
    """How far a replica is, in Redis's words."""

    CONNECT = "connect"
    CONNECTING = "connecting"
    SYNC = "sync"
    CONNECTED = "connected"


class Membership(Protocol):
    """The messages and notes of a replica in a shard. A replica outside a shard has none."""

    epoch: int  # in which it follows

    def introduction(self) -> list[str | int]:
        """Words of REPLCONF, for the leader."""

    def continues(self) -> None:
        """This log continues that of the leader."""

    def copies(self) -> None:
        """This log is about to be replaced by a copy of the leader's."""


class Follower:
    """See the top of this file. `run` it as a task."""

    def __init__(
        self,
        engine: Engine,
        persistence: Persistence,
        leader: tuple[str, int],
        tls: Callable[[], ssl.SSLContext | None],
        on_change: Callable[[], None],
        on_copied: Callable[[], None],
        order: str = "",
        membership: Membership | None = None,
    ) -> None:
        self._engine = engine
        self._config = engine.config
        self._persistence = persistence
        self._aof = persistence.aof
        self.leader = leader
        self._tls = tls
        self._on_change = on_change  # told of each new state
        self._on_copied = on_copied  # told when another log has taken the place of this one's
        self._order = order  # FAILOVER or FORCE: the first request tells the other server to lead
        self._membership = membership
        self.state = State.CONNECT
        self.heard = time.monotonic()  # when the leader last said something
        self.lost_at: float | None = None  # when a leader was last connected; None: none was since this server follows
        self._connected_at = self.heard
        self.copied, self.to_copy = 0, 0  # bytes of the base
        self._connection: LeaderConnection | None = None
        self._client: Session | None = None  # its row of CLIENT LIST
        self._replay = Replay(engine)
        self._failures = 0  # of commands that were not told yet
        self._last_failure = ""
        self._tells_failures_at = 0.0
        self._has_caught_up = False  # it had all that the leader had, since it was connected
        self.must_copy = False  # its log is not that of the leader, and has yet to be replaced
        self.is_behind = False  # it knows that it lacks something, or that it may
        self._asked = False  # the leader wants to know what is here
        self._always = False  # after each batch
        self.refused = False  # the server that was to lead does not want to
        self.on_published: Callable[[Argv], None] = lambda words: None  # told of each message for subscribers

    # -- connections ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled."""
        told, delay = "", FIRST_DELAY
        while True:
            try:
                await self._follow()
            except (OSError, PenstockError, EOFError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
                if problem != told:
                    logger.warning("leader %s:%d: %s; trying again", *self.leader, problem)
                if isinstance(error, StorageError):  # what comes cannot be used here, and will be the same
                    told, delay = problem, STUCK_DELAY
                elif self.state is State.CONNECTED:
                    told, delay = "", FIRST_DELAY
                else:
                    told = problem
            except Exception:  # a bug of ours must not end the replica
                logger.exception("internal error while following %s:%d", *self.leader)
            self._disconnect()
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    def stop(self) -> None:
        """Ignore everything that is received from now on."""
        self._on_change = lambda: None
        self._disconnect()

    def _disconnect(self) -> None:
        if self.state is State.CONNECTED:
            self.lost_at = time.monotonic()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._client is not None:
            self._engine.forget(self._client)
            self._client = None
        self._set(State.CONNECT)

    def _set(self, state: State) -> None:
        self.state = state
        self._on_change()

    async def _follow(self) -> None:
        while (writer := self._aof.writer) is not None and not writer.has_all:
            await asyncio.sleep(0.05)  # memory has more than the log: the leader would send that again
        self._set(State.CONNECTING)
        config = self._config
        leader = self._connection = await LeaderConnection.open(
            *self.leader, config.masteruser, config.masterauth, self._tls(), config.repl_timeout
        )
        client = self._client = leader.as_client(self._engine)
        self._engine.sessions[client.id] = client
        own = (config.tls_port, config.port) if config.tls_replication else (config.port, config.tls_port)
        port = config.replica_announce_port or own[0] or own[1]
        address = ["ip-address", config.replica_announce_ip] if config.replica_announce_ip else []
        await leader.ask("REPLCONF", "listening-port", port, *address)
        with suppress(ReplyError):  # a server of Redis, which PSYNC will tell
            await leader.ask("REPLCONF", "run", self._engine.stats.run_id)
        self._set(State.SYNC)
        signs_of_life = asyncio.create_task(self._acknowledge_every_second(leader))
        try:
            if not await self._start(leader):
                await self._copy_everything(leader)
                if not await self._start(leader):
                    raise ProtocolError("the leader does not continue what it has given to copy")
            self.heard = time.monotonic()
            self._set(State.CONNECTED)
            notice("following %s:%d from offset %d", *self.leader, self._aof.feed.end, of="replication")
            await self._apply_all(leader)
        finally:
            signs_of_life.cancel()

    async def _start(self, leader: LeaderConnection) -> bool:
        """Ask for the feed from where this log ends; whether it comes."""
        if self._membership is not None:
            await leader.ask("REPLCONF", *self._membership.introduction())
        last_words = [self._order] if self._order else []
        end = self._aof.feed.end
        try:
            answer = await leader.ask("PSYNC", self._aof.lineage.written_by(end) or "?", end, *last_words)
        except ReplyError:
            self.refused = bool(self._order)
            raise
        self._order = ""
        match answer:
            case [b"CONTINUE", bytes(lineage)]:
                self._aof.follow(parse_lineage(lineage.decode("utf-8", "replace")))
                if self._membership is not None:
                    self._membership.continues()
                return True
            case [b"COPY"]:
                return False
        raise ProtocolError(f"this is no server of Penstock: it answers PSYNC with {str(answer)[:60]}")

    # -- copying ----------------------------------------------------------------------------------------------

    async def _copy_everything(self, leader: LeaderConnection) -> None:
        self.must_copy = self.is_behind = True
        offer = await ask_for_offer(leader)
        notice(
            "copying %d bytes and %d files of history from %s:%d",
            offer.size,
            len(offer.files),
            *self.leader,
            of="replication",
        )
        self.copied, self.to_copy = 0, offer.size
        history, names = self._persistence.history, [name for name, _ in offer.files]
        history.known.pin(self, names)
        try:
            while history.known.is_removing(names):  # since before they were wanted
                await asyncio.sleep(0.001)
            base = await copy_base(leader, offer, self._aof.folder, len(self._engine.keyspace), self._copies)
            for name, size in offer.files:
                await copy_history(leader, name, size, self._folder)
            self._put_aside(offer)
            if self._membership is not None:
                self._membership.copies()
            await asyncio.shield(self._persistence.replace_by(base, offer.start, offer.lineage))
        finally:
            history.known.unpin(self)
            self.to_copy = 0
        self._replay = Replay(self._engine)
        self.must_copy = False
        self._on_copied()

    def _put_aside(self, offer: Offer) -> None:
        """Keep what this server has logged and its leader has not."""
        end = self._aof.feed.end
        fork = self._aof.lineage.fork(end, offer.lineage)
        if fork is not None and fork < end:
            keep_diverged(self._aof, fork)

    @property
    def _folder(self) -> Path:
        return self._persistence.history.files.folder

    def _copies(self, size: int) -> None:
        self.copied, self.heard = size, time.monotonic()

    async def _copy_named(self, names: list[str]) -> None:
        """Copy files of history over a connection of their own; the feed waits."""
        config = self._config
        connection = await LeaderConnection.open(
            *self.leader, config.masteruser, config.masterauth, self._tls(), config.repl_timeout
        )
        try:
            for name in names:
                size = await connection.ask("REPLCONF", "SIZE", name)
                if size is None or not await copy_history(connection, name, size, self._folder):
                    logger.info("the leader no longer has %s; its messages stay in memory", name)
        finally:
            connection.close()

    # -- the feed ---------------------------------------------------------------------------------------------

    @property
    def is_catching_up(self) -> bool:
        """Whether it gets what came while it was away, and will soon have it."""
        is_behind = self.state is State.CONNECTED and not self._has_caught_up
        return is_behind and time.monotonic() - self._connected_at < LONGEST_CATCH_UP

    async def _apply_all(self, leader: LeaderConnection) -> None:
        frames = FrameReader()
        self._has_caught_up, self._connected_at = False, time.monotonic()
        self.is_behind = True
        self._acknowledge()
        leader.take_at_once = lambda data: len(data) <= LITTLE and self._take_at_once(frames, data)
        while True:
            data = await leader.read()
            self._hears()
            await self._take(frames.feed(data))
            if leader.has_unread:
                await asyncio.sleep(0)  # clients first

    def _hears(self) -> None:
        self.heard = time.monotonic()
        if self._client is not None:
            self._client.last_active = self._engine.clock.now

    def _take_at_once(self, frames: FrameReader, data: bytes) -> bool:
        """Apply and write what has just come, in the same turn of the loop: a leader with `replica-acks` waits for it.

        False, and nothing is done, if there is anything to wait for, or anything wrong: the task sees to that.
        """
        writer = self._aof.writer
        if not isinstance(writer, FollowerWriter) or writer.trouble is not None:
            return False
        try:
            whole = frames.feed_whole(data)
            if whole is None or not all(frame.logged for frame in whole):
                return False
            commands = [argv for frame in whole for argv in frame.commands]
            if _may_need_files(commands) or self._meets_locks(commands):
                return False
            self._apply(commands)
        except (ProtocolError, StorageError):
            return False
        self._hears()
        writer.write_batches([frame.raw for frame in whole])
        return True

    async def _take(self, frames: list[Frame]) -> None:
        """Batches that came together are applied together, between messages beside the log."""
        batches: list[Frame] = []
        count = 0
        for frame in frames:
            if frame.logged:
                if _may_need_files(frame.commands):
                    if missing := self._missing(frame.commands):
                        await self._append(batches)
                        batches = []
                        await self._copy_named(missing)
                    if _compacts(frame.commands):  # what it reads may be what the batches before it have written
                        await self._append(batches)
                        await self._append([frame], compacts=True)
                        batches = []
                        continue
                batches.append(frame)
                count += len(frame.commands)
                if count >= SOME:
                    await self._append(batches)
                    batches, count = [], 0
                    await asyncio.sleep(0)
                continue
            await self._append(batches)
            batches = []
            for argv in frame.commands:
                self._hear(argv)
        await self._append(batches)

    async def _append(self, batches: list[Frame], compacts: bool = False) -> None:
        """Apply batches, and append them to this server's log as they came."""
        if not batches:
            return
        commands = [argv for frame in batches for argv in frame.commands]
        read = await read_for_compaction(self._engine, commands) if compacts else []
        await self._let_readers_end(commands)
        while (writer := self._aof.writer) is not None and writer.trouble is not None:
            await asyncio.sleep(0.1)  # the disk refuses, and memory must not get ahead of it for long
        if not isinstance(writer, FollowerWriter):
            raise StorageError(self._aof.folder, 0, "the log was turned off", "A replica needs it")
        try:
            with with_all(read):
                self._apply(commands)
        except StorageError:  # then none was
            if len(batches) == 1:
                raise
            for batch in batches:  # those before it can be used
                await self._append([batch])
            raise
        writer.append_batches([frame.raw for frame in batches])

    async def _let_readers_end(self, commands: list[Argv]) -> None:
        """Wait for threads that read what these commands change, but not for long.

        After that `Replay` leaves the old values to them and goes on with copies. A wait is better: a copy is made on
        the loop, and the order that a reader makes of a sorted set is lost with the old value.
        """
        until = time.monotonic() + READERS_PATIENCE
        with suppress(StorageError):  # `_apply` will say so
            while self._meets_locks(commands) and time.monotonic() < until:
                await asyncio.sleep(0.001)

    def _meets_locks(self, commands: list[Argv]) -> bool:
        return self._replay.meets_locks(FEED, self._aof.feed.end, commands)

    def _apply(self, commands: list[Argv]) -> None:
        """Run commands, in one step for all clients."""
        engine, keyspace = self._engine, self._engine.keyspace
        database = self._replay.database
        engine.clock.refresh()
        engine.loading, keyspace.expiring = True, False
        try:
            self._replay.run(FEED, self._aof.feed.end, commands)
        finally:
            engine.loading, keyspace.expiring = False, True
        if engine.monitors.sessions:
            self._show(database, commands)
        if self._replay.failed:
            self._failures += len(self._replay.failed)
            self._last_failure = self._replay.failed[-1]
            del self._replay.failed[:]
            self._tell_failures()
        if keyspace.ready:
            engine.blocking.serve()

    def _show(self, database: Database, commands: list[Argv]) -> None:
        """Show in MONITOR what has come, as commands of the leader. The first of them ran in this database."""
        engine, client = self._engine, self._client
        if client is None:
            return
        client.db = database
        for argv in commands:
            if argv[0] == b"TAPPLY" and argv[2] == b"AT":
                argv = argv[4:]
            if (command := engine.commands.find(argv)) is not None:
                if argv[0] == b"SELECT":
                    client.db = engine.keyspace[int(argv[1])]
                engine.monitors.feed(client, command, argv)

    def _tell_failures(self) -> None:
        """Log why commands of the feed failed, now and then: any client can have LAZY commands fail."""
        now = time.monotonic()
        if not self._failures or now < self._tells_failures_at:
            return
        if self._failures == 1:
            logger.warning("a command of the feed failed: %s", self._last_failure)
        else:
            logger.warning("%d commands of the feed failed; the last one: %s", self._failures, self._last_failure)
        self._failures, self._tells_failures_at = 0, now + QUIET

    def _missing(self, commands: list[Argv]) -> list[str]:
        """The files of history that these commands refer to and that are not here."""
        indexes = [argv[3] for argv in commands if argv[0] == b"TAPPLY" and len(argv) == 4 and argv[2] == b"HISTORY"]
        missing = []
        for index in indexes:
            try:
                segment = Segment.load(index)
            except CorruptValue:
                continue  # its replay says so
            if not self._persistence.history.is_there(segment):
                missing.append(segment.name)
        return missing

    def _hear(self, argv: Argv) -> None:
        """A message beside the log. The leader sends none before this server has all that the leader has."""
        self._has_caught_up, self.is_behind = True, False
        match argv:
            case [b"PUBLISH", channel, message]:
                self.on_published(argv)
                self._engine.publications.publish(channel, message)
            case [b"SPUBLISH", channel, message]:
                self.on_published(argv)
                self._engine.publications.publish_to_shard(channel, message)
            case [b"REPLCONF", b"GETACK", b"*"]:
                self._asked = True
                self.written()
            case [b"REPLCONF", b"GETACK", b"ALWAYS" | b"NEVER" as when]:
                self._always = when == b"ALWAYS"
                self.written()
            case [b"PUBLISH" | b"SPUBLISH" | b"REPLCONF", *_]:
                raise ProtocolError(f"the leader sent {in_short(argv)}, which means nothing")

    # -- what the leader is told ------------------------------------------------------------------------------

    def written(self) -> None:
        """This server's log has more than before: tell the leader, if it has asked."""
        writer = self._aof.writer
        if writer is not None and (self._always or (self._asked and writer.has_all)):
            self._asked = False
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._connection is not None and self.state in (State.SYNC, State.CONNECTED):
            epoch: list[str | int] = ["EPOCH", self._membership.epoch] if self._membership is not None else []
            self._connection.say("REPLCONF", "ACK", self._aof.feed.end, "FACK", self._aof.feed.synced_end, *epoch)

    async def _acknowledge_every_second(self, leader: LeaderConnection) -> None:
        """Also give up a leader that is silent. A timeout of each read would cost a tenth of what a replica does."""
        while True:
            self._acknowledge()
            self._tell_failures()
            await asyncio.sleep(1)
            seconds = self._config.repl_timeout
            if self.state is State.CONNECTED and time.monotonic() - self.heard > seconds:
                leader.abort(f"nothing came for {seconds} seconds")


def _may_need_files(commands: list[Argv]) -> bool:
    """Every batch is asked, so this is one look at each command."""
    return b"TAPPLY" in {argv[0] for argv in commands}


def _compacts(commands: list[Argv]) -> bool:
    return any(argv[0] == b"TAPPLY" and argv[2:3] == [b"COMPACT"] for argv in commands)
