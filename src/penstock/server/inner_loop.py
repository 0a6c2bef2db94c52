"""The inner loop of the server: from a chunk of input to the replies of its FAST commands.

There are two versions of `InnerLoop` with one set of tests: the one below, and `_inner_loop.pyx`, which Cython compiles
where a C compiler is at hand when the package is installed. The compiled one is used if it is there and PENSTOCK_PURE
is not set. Reason, measured: docs/design/0003-compiled-inner-loop.md.

Both give the same replies and count the same. The compiled one does three things that this one leaves out, because they
only save time:

- gather: several commands with the same name and key run as one, where the declaration has `together` for that
- receive: the rest of a long argument is read from the socket directly to its place
- send: replies are written to the socket without the transport, at the end of a chunk, or when they have waited for the
  log and for replicas (`send_directly`)

Both run handlers without `run_handler`; engine/fast_path.py says what they must do in its place.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from time import perf_counter_ns
from typing import Any

from penstock.compiled import use_compiled
from penstock.engine.concurrency.workers import LongWay
from penstock.engine.declarations import Argv, Command
from penstock.engine.dispatch import Engine
from penstock.engine.fast_path import FastCommand
from penstock.engine.observe.slow_log import QUICKEST_TIMED
from penstock.engine.observe.statistics import CALLS, FAILED, MANY_ARGUMENTS, REJECTED, SAMPLE, UNTIMED
from penstock.engine.session import Session, Unconfirmed
from penstock.protocol.errors import ProtocolError, ReplyError, wrong_arity
from penstock.protocol.requests import MORE, RequestReader
from penstock.protocol.resp import INTEGERS, OK, RawPieces, encode
from penstock.server.buffer_sizes import MUCH_INPUT, RELIEF, WORTH_COPYING

_SMALL = len(INTEGERS)
_NO_COMMANDS: dict[bytes, Any] = {}
_join = b"".join  # also the quickest test that every item is bytes


def is_command(argv: Any) -> bool:
    """Whether what a reader took is a command: a list of bytes, not empty."""
    return type(argv) is list and bool(argv) and all(type(arg) is bytes for arg in argv)


WHOLE_READ = 256_000
"""Bytes that uvloop reads at most before it gives them to a connection; asyncio reads a little more."""


class Hooks(asyncio.Protocol, ABC):
    """What the loop leaves to the connection it is part of."""

    @abstractmethod
    def execute(self, argv: Argv) -> bool:
        """Run a command that is not FAST, or not for this session; whether to go on."""

    @abstractmethod
    def fail(self, argv: Argv, error: Exception) -> bytes:
        """A handler has a bug: log it, and the reply to send."""

    @abstractmethod
    def refuse(self, why: str) -> None:
        """The input breaks the protocol: end the connection."""

    @abstractmethod
    def hold(self, data: bytes) -> None:
        """Keep input that may not run yet."""

    @abstractmethod
    def give_way(self) -> None:
        """A whole read was used up, so more is to be read: serve others first."""

    @abstractmethod
    def flush(self) -> None:
        """Send what is in `out`; sets `held_back` if the client takes no more for now."""

    @abstractmethod
    def finish(self) -> None:
        """Everything ran: send what is to be sent."""


class InnerLoop(Hooks):
    """Reads, runs and encodes. Replies collect in `out`; `running` says that the loop is at it.

    `held_back` is True while nothing may run: the session is blocked, paused, or far behind in reading.
    """

    def __init__(self, engine: Engine, reader: RequestReader, others: Collection[object]) -> None:
        self.engine = engine
        self.reader = reader
        self.session: Session = None  # type: ignore[assignment]  # the connection sets it when it is made
        self.others = others  # connections that something was sent to from elsewhere
        self.descriptor = -1  # of a plain socket: the compiled loop writes to it directly
        self.unsent: Callable[[], int] = lambda: 0  # bytes that the transport has not sent yet
        self.out: list[bytes | memoryview] = []
        self.ran = 0  # commands since `run` began
        self.dirty = -1  # changes of all clients when `run` began; -1 while it does not run
        self.running = False
        self.held_back = False

    def data_received(self, data: bytes) -> None:
        self.engine.stats.input_bytes += len(data)
        if self.held_back:
            self.hold(data)
        else:
            self.reader.feed(data)
            self.run()
            if len(data) >= WHOLE_READ:
                self.give_way()

    def run(self) -> None:
        """Run everything that is whole in the reader, until it is done or may not go on."""
        engine, reader = self.engine, self.reader
        self.session.last_active = engine.clock.refresh()
        self.running = True
        self.ran = 0
        self.dirty = engine.keyspace.dirty
        try:
            while True:
                argv = self._run_fast()
                if argv is MORE:
                    if self.held_back:
                        break
                    if self.ran:
                        reader.commands_ran()
                    if not reader.more():
                        break
                elif not is_command(argv):
                    reader.odd(argv)
                else:
                    self.ran += 1
                    if not self.execute(argv):
                        break
        except ProtocolError as error:
            self.refuse(str(error))
        self.running = False
        self.finish()
        self.dirty = -1

    def _run_fast(self) -> Any:
        """Run FAST commands as long as they come; the first other thing taken from the reader.

        That includes one of which a key, or what may be one, is a busy name (busy_names.py), or that turns out to be
        work for a thread. MORE also when the client reads so slowly that nothing more may run; `held_back` tells.
        """
        engine, session, take = self.engine, self.session, self.reader.take
        fast = engine.fast if session.plain else _NO_COMMANDS
        busy = engine.busy_names.table
        ready = engine.keyspace.ready
        push = self.out.append
        data = session.db.data
        count = size = 0
        ran: Command | None = None  # the last one
        try:
            while True:
                if size > RELIEF:
                    size = 0
                    self.flush()
                argv: Any = take() if not self.held_back else MORE
                try:
                    known = fast[argv[0]]
                    _join(argv)
                except (TypeError, LookupError):
                    return argv
                last, words, counters = known.last_key, len(argv), known.counters
                if (busy and not busy.keys().isdisjoint(argv if last < 0 else argv[: last + 1])) or (
                    known.brief and words > known.high
                ):
                    return argv
                self.ran += 1
                ran = known.command
                if not known.low <= words <= known.high:
                    counters[REJECTED] += 1
                    push(self._counted(wrong_arity(argv[0].decode().lower())))
                    continue
                calls = counters[CALLS] + 1
                alone = known.timed or words > MANY_ARGUMENTS
                began = perf_counter_ns() if alone or calls <= SAMPLE or counters[UNTIMED] + 1 >= SAMPLE else 0
                try:
                    reply = known.handler(session, argv)
                    if reply is OK:
                        push(b"+OK\r\n")
                    elif type(reply) is int:
                        push(INTEGERS[reply] if 0 <= reply < _SMALL else b":%d\r\n" % reply)
                    elif type(reply) is bytes:
                        size += len(reply)
                        if len(reply) > WORTH_COPYING:
                            self.out += (b"$%d\r\n" % len(reply), reply, b"\r\n")
                        else:
                            push(b"$%d\r\n%b\r\n" % (len(reply), reply))
                    elif reply is None:
                        push(b"$-1\r\n" if session.protocol == 2 else b"_\r\n")
                    elif type(reply) is RawPieces:
                        for piece in reply.pieces:
                            push(piece)
                            size += len(piece)
                    elif type(reply) is Unconfirmed:
                        push(reply)
                        size += len(reply)
                    else:
                        push(encode(reply, session.protocol))
                        size += len(self.out[-1])
                except ReplyError as error:
                    counters[FAILED] += 1
                    push(self._counted(error))
                except LongWay:
                    self.ran -= 1
                    return argv
                except Exception as error:
                    push(self.fail(argv, error))
                count += 1
                counters[CALLS] = calls
                if began:
                    self._time(known, argv, perf_counter_ns() - began, alone)
                else:
                    counters[UNTIMED] += 1
                if known.reads:
                    for key in argv[1 : known.reads + 1] if known.reads > 0 else argv[1:]:
                        engine.stats.count_lookup(key in data)
                if ready:
                    engine.blocking.serve()
        finally:
            engine.stats.commands += count
            if ran is not None:
                session.last_command = ran.name

    def send_directly(self, data: bytes) -> bytes:
        """Write to the socket now, if that is open and all that came before was sent; the rest, for the transport."""
        return data

    def _counted(self, error: ReplyError) -> bytes:
        self.engine.stats.count_error(error)
        return b"-%b\r\n" % error.wire()

    def _time(self, known: FastCommand, argv: Argv, took: int, alone: bool) -> None:
        """Note how long a call took."""
        self.engine.stats.count_time(known.counters, took, alone)
        if took >= QUICKEST_TIMED * 1000:
            self.engine.notice(self.session, known.command, argv, took)


COMPILED = use_compiled(globals(), "penstock.server._inner_loop", "InnerLoop")

__all__ = ["COMPILED", "MUCH_INPUT", "RELIEF", "WORTH_COPYING", "InnerLoop", "is_command"]
