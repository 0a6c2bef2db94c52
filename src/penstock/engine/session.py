"""One client's state, whatever it is connected through: a socket, a script, the log being replayed, a test.

Handlers get a session as their argument. It knows its database, its user and its protocol version, and how to send; it
does no I/O itself. Owned by the loop thread.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote_from_bytes

from penstock.engine.blocking import Waiter, Wish
from penstock.engine.declarations import Argv, Reply, wire_name
from penstock.protocol.resp import NO_REPLY, RawPieces, StreamedPieces, encode

if TYPE_CHECKING:
    from penstock.engine.access.users import User
    from penstock.engine.concurrency.locks import Wait
    from penstock.engine.concurrency.workers import Job
    from penstock.engine.dispatch import Engine
    from penstock.engine.stream_history import Prefetched
    from penstock.engine.transactions import Transaction


Result = TypeVar("Result")


SHOWN_KEYS, SHOWN_LENGTH = 8, 64
"""How much of the names of locked keys fits in a line of CLIENT LIST."""


def _listed(keys: list[bytes]) -> str:
    """Names of keys as one word."""
    names = [quote_from_bytes(key[:SHOWN_LENGTH]) + ("..." if len(key) > SHOWN_LENGTH else "") for key in keys]
    return ",".join([*names[:SHOWN_KEYS], *(["..."] if len(names) > SHOWN_KEYS else [])])


class Unconfirmed(bytes):
    """A reply, ready to be sent, that acknowledges a change which is not on disk yet.

    If the disk refuses it, it becomes an error. It may also be the replies to several commands.
    """

    commands = 1
    pieces = 0  # so many in front of it belong to the same reply, and become the error with it

    @classmethod
    def of(cls, commands: int, replies: bytes) -> Unconfirmed:
        """The replies to so many commands."""
        made = cls(replies)
        made.commands = commands
        return made

    @classmethod
    def behind(cls, pieces: int) -> Unconfirmed:
        """The end of one reply, which so many pieces before it make up. So a large one need not be copied."""
        made = cls()
        made.pieces = pieces
        return made


CHANGED = Unconfirmed.of(0, b"")
"""Behind replies of which some acknowledge a change, without a mark for each: if the disk refuses it, the client gets
none of them, and its connection is closed.
"""
LOST = Unconfirmed(b"-READONLY This server does not lead any more.\r\n")
"""Given in place of replies that may not leave any more: the connection is closed, and nothing is sent."""


class NoData(bytes):
    """A reply, ready to be sent, that shows no data: it need not wait until the log, and replicas, have a change."""


class ReplicaLink(Protocol):
    """What a connection must know of the replica at its other end."""

    understands: bool  # it has said that it is a Penstock server
    follows: bool  # it gets the feed, or will when it has caught up

    @property
    def unsent(self) -> int:
        """Bytes that wait for it, beside those in its connection."""

    def has_room(self) -> None:
        """The connection takes more."""


class Output(Protocol):
    """Where a session's replies go."""

    def send(self, data: bytes | RawPieces) -> None:
        """Send after everything sent before; never blocks."""

    def send_now(self, data: bytes) -> int:
        """Send to a replica, which gets no other replies: not after the log is on disk. How many bytes now wait."""

    def check_unsent(self) -> None:
        """More waits for this client: end the connection if that is too much."""

    def close(self, after_reply: bool) -> None:
        """End the connection, at once or after what was sent."""

    def lose(self) -> None:
        """If there are replies that have not left, they may not leave any more: end the connection."""

    def resume(self) -> None:
        """Continue with the input that waited while the session was blocked or paused."""

    def buffered(self) -> tuple[int, int]:
        """Bytes of input that did not run yet, and of replies that were not sent yet."""


class Nowhere:
    """Output of a session without a client: scripts and the log being replayed."""

    def send(self, data: bytes | RawPieces) -> None:
        return

    def send_now(self, data: bytes) -> int:
        return 0

    def check_unsent(self) -> None:
        return

    def close(self, after_reply: bool) -> None:
        return

    def lose(self) -> None:
        return

    def resume(self) -> None:
        return

    def buffered(self) -> tuple[int, int]:
        return 0, 0


NOWHERE = Nowhere()

CLIENT = 16 << 10
"""Bytes that a connection takes, about: its session, its reader, its transport."""
A_WATCHED_KEY = 480
"""Bytes that it takes beside its name if no other client watches it: here, and in the tables of its database."""
A_CHANNEL = 350
"""The same for a channel or a pattern that is subscribed to."""


class Session:
    """See the top of this file."""

    __slots__ = (
        "around", "authenticated", "channels", "closing", "created", "current", "db", "effects", "engine",
        "fetched", "file_number", "id", "is_local", "last_active", "last_command", "later", "leads", "library", "link",
        "local", "may_block", "may_outgrow", "monitoring", "muted", "name", "no_evict", "once_clients", "once_room",
        "output", "patterns", "peer", "plain", "postponed", "protocol", "repeated", "scripted", "shard_channels",
        "shows_data", "skip_next", "skipping", "transaction", "turn", "unconfirmed", "user", "waiter", "was_silent",
        "watch_broken", "watching",
    )  # fmt: skip

    def __init__(self, engine: Engine, output: Output | None = None) -> None:
        self.engine = engine
        self.output: Output = output or NOWHERE
        self.id = engine.next_session_id()
        self.db = engine.keyspace[0]
        self.protocol = 2
        self.user: User = engine.acl.default
        self.authenticated = engine.acl.default.needs_no_password
        self.name = b""
        self.library = [b"", b""]  # CLIENT SETINFO: name and version
        self.peer = ""  # address:port, for CLIENT LIST
        self.local = ""
        self.is_local = True  # the client is on this machine, or there is none
        self.file_number = -1
        self.created = engine.clock.now
        self.last_active = engine.clock.now
        self.last_command = ""
        # transactions
        self.transaction: Transaction | None = None
        self.watching: list[tuple[Any, bytes]] = []  # (database, key)
        self.watch_broken = False
        # waiting
        self.scripted = False  # it runs the commands of scripts
        self.may_block = True  # False inside MULTI and scripts: a blocking command answers at once
        self.may_outgrow = False  # a script that may exceed maxmemory
        self.waiter: Waiter | None = None
        self.postponed: Argv | None = None  # what a pause or a lock holds back; the output runs it when it resumes
        self.turn: tuple[Argv, Wait] | None = None  # a command that waited for locks, which may have to wait again
        self.current: tuple[Any, Argv] | None = None  # (command, argv) while a handler runs, for `block`
        self.fetched: Prefetched | None = None  # messages that were read from files for the EXEC or script that waits
        self.later: Callable[[Job], None] | None = (
            None  # no client waits for what it runs; called when a thread is done
        )
        self.repeated: Argv | None = None  # a threaded command that is run again because LAZY came in between
        self.around: Callable[[Callable[[], Reply]], Reply] | None = None  # what a command inside another is run by
        # logging
        self.effects: list[Argv] | None = None  # what to log instead of argv; [] logs nothing
        self.unconfirmed = False  # the command made a change that must be on disk before its reply leaves
        self.shows_data = True  # the reply of the command that ran last may
        # ONCE
        self.once_clients: set[bytes] = set()  # the clients whose commands came through it
        self.once_room = 0  # with more clients than this it looks which of them are still known
        # pub/sub
        self.channels: set[bytes] = set()
        self.patterns: set[bytes] = set()
        self.shard_channels: set[bytes] = set()
        # CLIENT REPLY
        self.muted = False
        self.skip_next = False
        self.skipping = False  # the command that runs gets no reply
        self.was_silent = False  # so a reply may stand for commands before it, and waits for what they have changed
        self.closing = False
        self.link: ReplicaLink | None = None  # of a replica that follows this server
        self.leads = False  # it stands for the leader that this server follows
        self.no_evict = False
        self.monitoring = False
        self.plain = False  # nothing about this session needs a gate: its commands may take the fast path
        self.update_plain()

    @classmethod
    def of_server(cls, engine: Engine) -> Session:
        """A session of the server itself, which runs commands that were allowed before: it may do everything, and never
        waits.
        """
        session = cls(engine)
        session.user = engine.acl.server
        session.authenticated = True
        session.may_block = False
        return session

    def is_allowed(self, setting: str) -> bool:
        """What one of the enable-... directives says about this client: yes, no, or local."""
        return setting == "yes" or (setting == "local" and self.is_local)

    # -- for handlers -----------------------------------------------------------------------------------------

    def log(self, *commands: Argv) -> None:
        """Log these instead of the command as it was sent; none at all if called without arguments."""
        self.effects = list(commands)

    def acknowledge_again(self) -> None:
        """The reply is that of an earlier command, sent again: it acknowledges a change that may not be safe yet.

        While the log has anything pending, the repeat counts as a change, which logs nothing. So its reply is marked
        and waits as the first one does, on every way that a command takes, and becomes the same error.
        """
        self.effects = []
        commit = self.engine.commit
        if commit is not None and commit.pending:
            self.engine.keyspace.dirty += 1

    def block(self, keys: list[bytes], deadline: int, timeout_reply: Reply = None, wish: Wish | None = None) -> Reply:
        """Wait until one of `keys` changes, then run the current command again; return what this returns.

        With a `wish` it is run again only when that is met.

        Where waiting is not allowed (MULTI, scripts) the answer is that of a timeout, at once.
        """
        if not self.may_block:
            return timeout_reply
        if self.waiter is None:
            assert self.current is not None, "block() outside a handler"
            command, argv = self.current
            waiter = Waiter(self, command, argv, keys, deadline, timeout_reply)
            waiter.wish = wish
            self.engine.blocking.enter(waiter)
        return NO_REPLY

    def aside(
        self,
        work: int,
        compute: Callable[[], Result],
        commit: Callable[[Result], Reply] = lambda result: result,
        *,
        lock: bool = True,
    ) -> Reply:
        """Run the slow part of the current command, `compute`, then `commit` its result; return what this returns.

        The handler has parsed its arguments and looked its values up; `work` says about how many elements `compute`
        will touch. `compute` reads those values and nothing else: no keyspace, no session, no clock. `commit` changes
        data, says what to log if that is not the command itself, and gives the reply.

        If there is enough work, and the session may wait, `compute` runs in a thread (workers.py) or, if it is
        `InSteps`, on the loop between the commands of others (loop_steps.py). The values do not
        change during that if their keys are in the command's declaration: others are not locked. `lock=False` locks
        none, for a `compute` that works on a copy, or on immutable values.
        """
        workers = self.engine.workers
        if work < workers.threshold or not self.may_block or self.waiter is not None:
            return commit(compute())
        return workers.aside(self, compute, commit, lock)

    def candidates(self, keys: list[bytes]) -> list[bytes]:
        """Which of its keys a blocking command has to try: all when it comes, then the one that changed.

        So a key that changed first is served first, whatever the order of the arguments, as in Redis.
        """
        waiter = self.waiter
        return keys if waiter is None or waiter.changed is None else [waiter.changed]

    def push(self, value: Any) -> None:
        """Send out of band: a pub/sub message, a subscription's confirmation."""
        self.output.send(encode(value, self.protocol))

    # -- for the engine ---------------------------------------------------------------------------------------

    @property
    def peer_has_left(self) -> bool:
        """Whether the other side has closed the connection: the kernel knows before all that it sent has been read."""
        poll = select.poll()
        poll.register(self.file_number, getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))

    @property
    def subscribed(self) -> bool:
        return bool(self.channels or self.patterns or self.shard_channels)

    @property
    def is_replica(self) -> bool:
        """Whether a Penstock server is at the other end, which copies or follows this one."""
        return self.link is not None and self.link.understands

    def update_plain(self) -> None:
        """Compute `plain` again; to be called after anything that may have changed it."""
        self.plain = (
            self.authenticated
            and self.user.unrestricted
            and self.transaction is None
            and self.waiter is None
            and not self.muted
            and not self.skip_next
            and not self.closing
            and self.link is None
            and not (self.protocol == 2 and self.subscribed)
        )

    def memory(self) -> int:
        """Bytes that this client takes, about: commands and replies that wait, a transaction, names it observes."""
        queued = self.transaction.size if self.transaction is not None else 0
        taken = CLIENT + sum(self.output.buffered()) + queued
        if self.watching or self.subscribed:
            channels = chain(self.channels, self.patterns, self.shard_channels)
            taken += sum(A_WATCHED_KEY + len(key) for _, key in self.watching)
            taken += sum(A_CHANNEL + len(name) for name in channels)
        return taken

    def describe(self) -> str:
        """A line of CLIENT LIST. Values that only Redis's allocator has are 0."""
        age, idle = ((self.engine.clock.now - since) // 1000 for since in (self.created, self.last_active))
        waiting, unsent = self.output.buffered()
        queued, queued_size = -1, 0
        if self.transaction is not None:
            queued, queued_size = len(self.transaction.queue), self.transaction.size
        library, version = (part.decode() for part in self.library)
        command = wire_name(self.last_command) or "NULL"
        return (
            f"id={self.id} addr={self.peer} laddr={self.local} fd={self.file_number} name={self.name.decode()} "
            f"age={age} idle={idle} flags={self._letters()} db={self.db.index} sub={len(self.channels)} "
            f"psub={len(self.patterns)} ssub={len(self.shard_channels)} multi={queued} qbuf={waiting} qbuf-free=0 "
            f"argv-mem=0 multi-mem={queued_size} rbs=0 rbp=0 obl=0 oll={1 if unsent else 0} omem={unsent} "
            f"tot-mem={self.memory()} events=r cmd={command} user={self.user.name} redir=-1 resp={self.protocol} "
            f"lib-name={library} lib-ver={version}{self._lock_fields()}"
        )

    def _lock_fields(self) -> str:
        """Keys that it waits for or has locked, for CLIENT LIST; most lines have neither field."""
        fields = {"lock-wait": self.engine.lock_gate.awaited(self), "lock-held": self.engine.workers.held(self)}
        return "".join(f" {name}={_listed(keys)}" for name, keys in fields.items() if keys)

    def _letters(self) -> str:
        """The flags of CLIENT LIST."""
        letters = {
            "S": self.link is not None, "M": self.leads, "O": self.monitoring, "P": self.subscribed,
            "x": self.transaction is not None, "b": self.waiter is not None, "d": self.watch_broken,
            "c": self.closing, "e": self.no_evict, "U": self.peer.endswith(":0"),
            "L": bool(self.engine.lock_gate.awaited(self)), "W": self.engine.workers.job_of(self) is not None,
        }  # fmt: skip
        return "".join(letter for letter, holds in letters.items() if holds) or "N"

    def unblocked(self, reply: bytes | RawPieces, silent: bool) -> None:
        """The command this session was blocked in is over; `silent` if CLIENT REPLY SKIP came before it."""
        if not silent and not self.muted:
            if self.unconfirmed and not isinstance(reply, StreamedPieces):
                if not isinstance(reply, RawPieces):
                    reply = Unconfirmed(reply)
                elif self.engine.strict:
                    reply = Unconfirmed(b"".join(reply.pieces))
                else:
                    pieces = [*reply.pieces]
                    reply = RawPieces([*pieces, Unconfirmed.behind(len(pieces))])
            self.output.send(reply)
        self.unconfirmed = False
        self.output.resume()
