"""All replicas of a server: their connections, their offsets, and the increments of the log that are kept for them.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.replication.link import Link
from penstock.storage.batches import Batch
from penstock.storage.notice_logging import notice
from penstock.storage.persistence import Persistence

logger = logging.getLogger("penstock.replication")

NO_LOG = "replicas follow the log, and this server has none: CONFIG SET appendonly yes first"


class Replicas:
    """See the top of this file."""

    def __init__(self, engine: Engine, persistence: Persistence) -> None:
        self._engine = engine
        self._persistence = persistence
        self.aof = persistence.aof
        self.links: dict[int, Link] = {}  # by the id of their session
        self.end = 0  # the offset after the last batch that they may have
        self.on_progress: Callable[[], None] = lambda: None  # a replica has more than before
        self.on_written: Callable[[], None] = lambda: None  # the log has more than before
        self.confirmed: Callable[[], int | None] = self._confirmed_by_some  # up to where replies may leave
        self.on_gone: Callable[[], None] = lambda: None  # a replica has
        self.always_told = False  # replicas say after each batch what they have, also with `replica-acks 0`
        self.continued = 0  # replicas that went on where they were, for INFO
        self.refused = 0  # replicas that wanted to continue and must copy everything
        self.held = 0  # bytes of published messages that wait as replies do
        self._acks = 0  # `replica-acks`, as replies wait for it
        self._last_gone = -1.0  # when the last of them went; -1: there was none yet
        self._last_ping = 0.0
        self.aof.feed.keep_from = self._keep_from

    @staticmethod
    def now() -> float:
        """Seconds on a clock that cannot be set."""
        return time.monotonic()

    # -- the feed ---------------------------------------------------------------------------------------------

    def opened(self) -> None:
        """The log was opened, or opened again: note its end, and the function to call with news of it."""
        self.end = self.aof.feed.end
        self.aof.on_written = self._written
        if self.aof.writer is not None:
            self.aof.writer.on_written = self._written
        self._agree_on_acks()

    def acks_were_set(self, wanted: int) -> None:
        """Have replies wait for replicas to what is written from now on, also in this turn of the loop."""
        writer = self.aof.writer
        if wanted and writer is not None and not self._engine.following:
            writer.confirmed_by_replicas = True
            self.aof.set_policy(writer.policy)

    def acks_change(self) -> None:
        """`replica-acks` may have another value. If more replicas count than before, replies also wait until these have
        what the log has already.
        """
        before = self._acks
        self._agree_on_acks()
        if self._acks > before:
            self.wait_for_all()

    def _agree_on_acks(self) -> None:
        """`replica-acks`: whether replies wait for replicas, which say after each batch what they have then."""
        wanted, writer = self._engine.config.replica_acks, self.aof.writer
        self._acks = wanted
        if writer is None or self._engine.following:
            return
        writer.confirmed_by_replicas = wanted > 0
        self.aof.set_policy(writer.policy)
        if not wanted:
            writer.confirm(self.end)
        for link in self.links.values():
            self._say_when_to_acknowledge(link)

    def _say_when_to_acknowledge(self, link: Link) -> None:
        always = self.always_told or self._engine.config.replica_acks
        link.tell(b"REPLCONF", b"GETACK", b"ALWAYS" if always else b"NEVER")

    def confirm(self) -> None:
        """Let the replies leave that enough replicas confirm."""
        writer = self.aof.writer
        if self._engine.config.replica_acks and writer is not None and (offset := self.confirmed()) is not None:
            writer.confirm(offset)

    def wait_for_all(self) -> None:
        """Replicas are there again, or for the first time: no reply leaves before they have all that the log has.

        The log may have changes that were never confirmed: of an earlier leader, or from when replicas were too few.
        """
        writer = self.aof.writer
        if writer is not None and not self._engine.following:
            writer.wait_for_replicas()
            self.confirm()

    def _confirmed_by_some(self) -> int | None:
        """Up to where as many replicas as `replica-acks` says have the feed."""
        wanted = self._engine.config.replica_acks
        offsets = sorted((link.acknowledged for link in self.links.values()), reverse=True)
        return offsets[wanted - 1] if len(offsets) >= wanted else None

    def replaced(self) -> None:
        """Another log has taken the place of this one."""
        self.close_all()
        self.opened()
        self.wait_for_all()

    def _written(self, batch: Batch) -> None:
        self.end += sum(map(len, batch))
        if self.links:
            whole = b"".join(batch)
            for link in list(self.links.values()):
                link.written(whole)
        self.on_written()

    def _keep_from(self) -> int | None:
        """The offset from which the log must be kept; None if no replica needs it."""
        config = self._engine.config
        needed = [link.needs for link in self.links.values()]
        if self.links or self._backlog_is_kept():
            needed.append(max(self.end - config.repl_backlog_size, 0))
        return min(needed, default=None)

    def _backlog_is_kept(self) -> bool:
        ttl = self._engine.config.repl_backlog_ttl
        return self._last_gone >= 0 and (not ttl or self.now() - self._last_gone < ttl)

    @property
    def backlog_start(self) -> int:
        """The first offset that a replica can continue from."""
        return self.aof.feed.start

    # -- replicas come and go ---------------------------------------------------------------------------------

    def of(self, session: Session) -> Link:
        """The link of a replica's session, made when it first says what it is."""
        link = self.links.get(session.id)
        if link is None:
            link = self.links[session.id] = Link(self, session)
            session.link = link
        return link

    def start(self, session: Session, feed: str, offset: int) -> bool:
        """Send the feed from an offset on; False if everything must be copied first."""
        if self.aof.writer is None:
            raise ReplyError(NO_LOG)
        link = self.of(session)
        common = self.aof.lineage.common(feed, offset, self.end)
        if common != offset or offset < self.backlog_start:
            if feed:
                self.refused += 1
            return False
        self.continued += 1
        link.follows = True
        notice("replica %s:%d follows from offset %d", *link.address, offset, of="replication")
        self._engine.timers.call_later(0, lambda: self._begin(link, offset))  # after the reply
        return True

    def after_replies(self, write: Callable[[bytes], None], pieces: list[bytes | memoryview]) -> None:
        """Write this as if it were the reply to a command that ran now."""
        commit = self._engine.commit
        if commit is not None and commit.pending:
            commit.hold(write, pieces)
        else:
            write(b"".join(pieces))

    def _begin(self, link: Link, offset: int) -> None:
        if link.session.id in self.links:
            link.start(offset)
            self._persistence.history.known.unpin(link)
            self._say_when_to_acknowledge(link)

    def forget(self, session: Session) -> None:
        """A replica's connection has ended."""
        link = self.links.pop(session.id, None)
        if link is not None:
            self._last_gone = self.now()
            link.close()
            self._persistence.history.known.unpin(link)
            if link.position is not None:
                notice("replica %s:%d is gone", *link.address, of="replication")
            self.on_gone()
            self.on_progress()

    def forget_older(self, link: Link) -> None:
        """A replica has come again. It counts once, also if its last connection was lost without a sign."""
        for other in list(self.links.values()):
            if other is not link and other.run == link.run:
                self.forget(other.session)

    def lost(self, link: Link, problem: str) -> None:
        """The feed cannot be sent to a replica; it comes again."""
        logger.error("replica %s:%d cannot be served: %s", *link.address, problem)
        link.close()

    def close_all(self, but: Session | None = None) -> None:
        """The feed is another one from now on: replicas must ask again."""
        for link in list(self.links.values()):
            if link.session is not but:
                link.close()

    def acknowledged(self, session: Session, offset: int, synced: int) -> None:
        link = self.links.get(session.id)
        if link is not None:
            link.heard = self.now()
            if link.position is None:  # a sign of life while it copies: it speaks of another log
                return
            link.acknowledged = link.needs = min(max(offset, link.acknowledged), self.end)
            link.synced = min(max(synced, link.synced), link.acknowledged)
            self.confirm()
            self.on_progress()

    def count(self, offset: int, synced: bool) -> int:
        """How many replicas have the feed up to an offset."""
        following = [link for link in self.links.values() if link.position is not None]
        return sum((link.synced if synced else link.acknowledged) >= offset for link in following)

    def ask_all(self) -> None:
        """Have all replicas say what they have."""
        for link in self.links.values():
            link.tell(b"REPLCONF", b"GETACK", b"*")

    def tick(self) -> None:
        """Many times a second: signs of life, silent replicas, files that no replica needs."""
        now, config = self.now(), self._engine.config
        if now - self._last_ping >= config.repl_ping_replica_period:
            self._last_ping = now
            for link in self.links.values():
                link.tell(b"PING")
        for link in list(self.links.values()):
            link.look_how_far(self.end, now)
            if now - link.heard > config.repl_timeout:
                logger.warning("replica %s:%d was silent for %d seconds", *link.address, config.repl_timeout)
                link.close()
        if self.aof.manifest.kept:
            self.aof.feed.trim()

    def good(self, seconds: int) -> int:
        """How many replicas follow and gave a sign of life within so many seconds.

        If replies wait for them (`replica-acks`), they must also have got on: a replica whose disk is full gives signs
        of life, and all clients would wait for it.
        """
        now, config = self.now(), self._engine.config
        links = [link for link in self.links.values() if link.position is not None]
        if seconds:
            links = [link for link in links if now - link.heard <= seconds]
        if config.replica_acks:
            links = [link for link in links if now - link.goal_set <= (seconds or config.repl_timeout)]
        return len(links)
