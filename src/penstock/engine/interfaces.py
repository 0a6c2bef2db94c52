"""What the engine asks of the layers above it: an event loop, the log, storage and replication.

The engine imports none of them; the server puts them into its engine when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.engine.declarations import Argv, Reply

if TYPE_CHECKING:
    from penstock.engine.session import Session

LogEntry = tuple[int, Argv]  # database number, command


class Timers(Protocol):
    """What the engine needs of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> object: ...

    def cancel(self, timer: object | None) -> None: ...


class Commit(Protocol):
    """Replies that must not leave before the log is on disk."""

    pending: bool  # something was logged that is not on disk yet

    def log(self, entries: list[LogEntry]) -> None:
        """Log entries that belong together: after a crash all of them are there, or none."""

    def append(self, database: int, argv: Argv) -> None:
        """Log one command."""

    def hold(self, write: Callable[[bytes], None], replies: list[bytes | memoryview]) -> None:
        """Call `write` with the replies once everything logged so far is on disk, in the order of the calls.

        Those that are Unconfirmed become errors if the disk refuses the change.
        """

    def flush(self) -> None:
        """Write what was logged so far now, and not at the end of this turn of the loop."""

    def look(self) -> None:
        """A script holds the loop: send the replies whose log is on disk by now."""


class Persistence(Protocol):
    """What commands may ask of storage; storage/persistence.py implements it."""

    @property
    def last_save(self) -> int:
        """Seconds since 1970."""

    def info(self) -> dict[str, int | str]:
        """The fields of INFO persistence."""

    def save(self) -> None:
        """Write a snapshot now, while all clients wait."""

    def save_nothing(self) -> None:
        """FLUSHALL: replace the snapshot, if there are save rules; a failure is only logged, as in Redis."""

    def start_save(self, now: bool, may_schedule: bool) -> bool:
        """Have a child write a snapshot; False if it is only scheduled. ReplyError if neither is possible.

        `now` is False in the middle of a transaction, of which a child must not see one half.
        """

    def start_rewrite(self, now: bool) -> bool:
        """Have a child write a new base of the log; False if it is only scheduled."""

    def when_log_began(self, then: Callable[[str | None], None]) -> bool:
        """Whether the log that was turned on has no base yet.

        Then `then` is called when it has, or why it was given up.
        """

    def reload(self, save: bool, flush: bool) -> None:
        """Write a snapshot and read it back."""

    def reload_log(self) -> None:
        """Forget everything and read the log."""

    def shut_down(self, save: bool | None, force: bool) -> None:
        """Stop the server, with a last snapshot or without (None: if there are save rules)."""


class Replication(Protocol):
    """What commands may ask of replication; replication/replication.py implements it."""

    def follow(self, host: str, port: int) -> bool:
        """REPLICAOF: become a replica of a server; False if this one is it already. ReplyError if it cannot."""

    @property
    def leads(self) -> bool:
        """Whether this server calls itself a leader."""

    def lead(self) -> None:
        """REPLICAOF NO ONE: write by itself again."""

    def info(self) -> dict[str, int | str]:
        """The fields of INFO replication."""

    def role(self) -> list[Reply]:
        """The answer of ROLE."""

    def synchronisations(self) -> tuple[int, int, int]:
        """Replicas that copied everything, that continued where they were, and that wanted to and could not."""

    def configure(self, session: Session, settings: list[tuple[bytes, bytes]]) -> None:
        """REPLCONF: what a replica says about itself before it asks for the feed."""

    def acknowledged(self, session: Session, offset: int, synced: int, epoch: int | None) -> None:
        """REPLCONF ACK: a replica has the feed up to here, and up to there it is safe from a power cut.

        A replica of a shard says in which epoch it follows.
        """

    def start_feed(self, session: Session, feed: str, offset: int, order: str) -> Reply:
        """PSYNC: send the feed from an offset on, or say that everything must be copied first. An error for a server
        that has not said that it is one of Penstock.

        `order`: the one that asks was our leader, and hands over to us: FAILOVER, if we have everything, or FORCE.
        """

    def files(self, session: Session) -> Reply:
        """REPLCONF FILES: what a full copy consists of; it is kept while the client is connected."""

    def file_size(self, session: Session, name: str) -> int | None:
        """REPLCONF SIZE: of a file of history; None if it is not there any more."""

    def read_file(self, session: Session, name: str, start: int, count: int) -> Reply:
        """REPLCONF READ: a part of one of these files."""

    def wait(self, session: Session, local: bool, replicas: int, timeout: int, synced: bool) -> Reply:
        """WAIT and WAITAOF: answer when so many replicas have all that was written until now, or the time is over."""

    def fail_over(self, target: tuple[str, int] | None, timeout: int, force: bool) -> None:
        """FAILOVER: hand over to a replica."""

    def abort_failover(self) -> None:
        """FAILOVER ABORT."""

    def disconnected(self, session: Session) -> None:
        """A replica's connection has ended."""

    def publish(self, words: Argv) -> None:
        """Have the subscribers of replicas get a message of a client too, if this server leads."""


class NoTimers:
    """For engines in which no client blocks: tools, tests of single commands."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        return None

    def cancel(self, timer: object | None) -> None:
        return
