"""One client's socket: bytes in, commands run, bytes out.

FAST commands of plain sessions run in the inner loop (inner_loop.py); everything else takes `execute`, the whole way.

Invariant: replies leave in the order of the commands. While a session is blocked or far behind in reading, its further
commands wait in `_incoming`, and run a chunk at a time afterwards; while the log must reach the disk first (appendfsync
always), replies wait with `engine.commit`. A long reply comes in pieces (`RawPieces`), which are handed to the transport
as fast as the client takes them and no more than POUR bytes a turn of the loop; while some wait, everything sent later
waits behind them, in `_outgoing`. A reply that may be larger than memory (`StreamedPieces`) is made in the same steps.

A client that reads slowly is slowed down: its commands wait, and then its socket is not read. That would be a deadlock
with a client that sends everything before it reads anything, so a client that takes nothing at all is read on
(`Limits.sweep`). What it costs then is bounded: docs/design/0019-clients-that-do-not-read.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv
from penstock.engine.observe.monitors import in_short
from penstock.engine.session import NOWHERE, Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.requests import RequestReader
from penstock.protocol.resp import NO_REPLY, Raw, RawPieces, StreamedPieces, encode
from penstock.server.chunks import Chunks, Pieces
from penstock.server.inner_loop import RELIEF, SETTLE, WORTH_COPYING, InnerLoop

if TYPE_CHECKING:
    from penstock.server.app import App

log = logging.getLogger("penstock.server")

UNAUTHENTICATED = (16384, 10)
"""Longest argument and most arguments of a client that has not logged in."""
STRIDE = 1 << 22
"""Bytes of a large reply that are sent while the rest is still being made."""
LAST_WORDS = 10
"""Seconds a client that is being closed has for reading its last replies."""
MAX_WAITING = 1 << 20
"""Bytes of commands held for a session that cannot run them yet, before its socket is no longer read."""
MAX_UNSENT = 1 << 20
"""Bytes of replies that a client has not taken, before its further commands wait."""
POUR = 1 << 19
"""Bytes of a long reply that are written before other clients have their turn."""
MAKING = 4
"""What a byte that must be made first counts for in POUR: so a turn takes a millisecond or two."""


def _something_waits() -> int:
    """`unsent` while replies wait in `_outgoing`: nothing may be written to the socket directly."""
    return 1


class Connection(InnerLoop):
    """See the top of this file. There may be thousands that are idle: what seldom happens takes no memory before it does."""

    __slots__ = (
        "_deaf", "_doubtful", "_gathered", "_incoming", "_long", "_narrow", "_outgoing", "_owed", "_pushed", "_stalled",
        "_writes_first", "app", "encrypted", "socket", "transport",
    )  # fmt: skip

    def __init__(self, app: App, accepted: socket.socket, peer: str, local: str, encrypted: bool = False) -> None:
        super().__init__(app.engine, RequestReader(app.config.proto_max_bulk_len), app.to_flush)
        self.app = app
        self.socket = accepted
        self.encrypted = encrypted
        self.session = Session(app.engine, self)
        self.session.peer, self.session.local, self.session.file_number = peer, local, accepted.fileno()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # connection_made sets it
        self._deaf = False  # too much input waits already: the socket is not read
        self._doubtful: set[int] | None = None  # which of them acknowledge a change that is not on disk yet
        self._gathered = 0  # bytes of replies by `execute` since the last flush
        self._incoming: Chunks | None = None  # input behind what the reader has, while nothing may run
        self._outgoing: Chunks | None = None  # what the transport was not given yet, because it or others come first
        self._stalled = False  # the transport has enough: the client reads too slowly
        self._writes_first = False  # it takes no reply at all, and may wait until all that it sends is taken
        self._narrow = False  # has not logged in: the reader takes small commands only
        self._owed = 0  # bytes that wait for the disk, as far as they are many: while they are, nothing more runs
        self._pushed = False  # something came from elsewhere, and it is not known how much will follow
        self._long = False  # a long reply is on its way: nothing more runs until the transport has all of it

    # -- asyncio calls these ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        if not self.encrypted:
            self.unsent = self.transport.get_write_buffer_size
            self.descriptor = self.session.file_number
        if not self.session.authenticated:
            self._narrow = True
            self.reader.limit(*UNAUTHENTICATED)
        self.app.connected(self)

    def eof_received(self) -> None:
        """The client has gone; `connection_lost` comes a turn of the loop later. It must not be given what others push meanwhile."""
        if self.session.waiter is not None:
            self.session.closing = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.closing = True
        self.descriptor = -1
        self._incoming = self._outgoing = None
        self.app.disconnected(self)
        self.session.output = NOWHERE  # else the two would keep each other until the garbage collector comes

    def pause_writing(self) -> None:
        self._stalled = True
        self._look_behind()

    def resume_writing(self) -> None:
        self._stalled = self._writes_first = False
        if self._deaf:
            self.app.limits.took_replies(self)
        if self._outgoing is not None:
            self._pour()
        else:
            self.resume()

    def _look_behind(self) -> None:
        """The client is behind in reading: is it too far?"""
        self.app.limits.check_output(self)
        if self._is_far_behind():
            self.held_back = True

    def _is_far_behind(self) -> bool:
        """Whether no more commands should run: their replies would take more memory than the commands do."""
        if not self._stalled:
            return False
        unsent = self.transport.get_write_buffer_size() + (self._outgoing.size if self._outgoing is not None else 0)
        return unsent > MAX_UNSENT and (self._incoming is None or unsent > self._incoming.size)

    # -- running commands -------------------------------------------------------------------------------------

    def hold(self, data: bytes) -> None:
        """Input came while the session may not run any: keep it, and stop reading when it is too much."""
        if self._incoming is None:
            self._incoming = Chunks()
        self._incoming.add(data)
        if self._incoming.size + self.reader.backlog <= MAX_WAITING or self._deaf:
            return
        if not self._writes_first:
            self.transport.pause_reading()
            self._deaf = True
            self.app.limits.unread[self] = self.transport.get_write_buffer_size()
        elif not self.app.limits.holds_too_much(self) and not self._is_far_behind():
            self.resume()

    def is_stuck(self) -> bool:
        """Whether only the client can end what holds its commands back, by reading."""
        session = self.session
        return self._stalled and session.waiter is None and not session.closing and self._owed <= WORTH_COPYING

    def read_on(self) -> None:
        """The socket was not read, and the client does not read either: it may do so when all it sends is taken."""
        self._writes_first = True
        self._hear()

    def _hear(self) -> None:
        self._deaf = False
        del self.app.limits.unread[self]
        self.transport.resume_reading()

    def finish(self) -> None:
        if self.reader.backlog > SETTLE:
            self._settle()
        if self.out:
            self.flush()
        if self.app.to_flush:
            self.app.flush_others()

    def _settle(self) -> None:
        """Much input came since the reader was last empty: either it is one command still, or commands ran meanwhile."""
        if self.ran and not self.held_back:
            self.reader.commands_ran()
        elif self.reader.backlog > self.app.query_buffer_limit:
            self.refuse("Protocol error: query buffer limit exceeded")

    def execute(self, argv: Argv) -> bool:
        """One command, the whole way."""
        session = self.session
        session.skipping, session.skip_next = session.skip_next, False
        try:
            reply = self.engine.execute(session, argv)
        except ReplyError as error:
            reply = error.as_reply()
        except Exception as error:
            reply = Raw(self.fail(argv, error))
        if reply is not NO_REPLY and not session.skipping and not session.muted:
            if type(reply) is StreamedPieces:
                self._stream(reply)
            elif type(reply) is RawPieces and not self._doubtful:
                self._send_pieces(reply)
            else:
                data = encode(reply, session.protocol)
                self.out.append(data)
                self._gathered += len(data)
            if self._gathered > RELIEF:
                self.flush()
        elif self._doubtful:
            self._doubtful.discard(len(self.out))
        if session.skipping and session.waiter is not None:
            session.waiter.silent = True
        session.settle()
        if self._narrow and session.authenticated:
            self._narrow = False
            self.reader.limit(self.app.config.proto_max_bulk_len)
        if self.engine.keyspace.ready:
            self.engine.blocking.serve()
        self.held_back = session.waiter is not None or self._long or self._owed > WORTH_COPYING or self._is_far_behind()
        return not (self.held_back or session.closing)

    def _send_pieces(self, reply: RawPieces) -> None:
        """Take the pieces of a reply as they come; a very large one is on its way before the last is made."""
        out = self.out
        for piece in reply.pieces:
            out.append(piece)
            self._gathered += len(piece)
            if self._gathered > STRIDE:
                self.flush()
                if self.session.closing:
                    break

    def _stream(self, reply: StreamedPieces) -> None:
        """Send a reply that is made while it is sent, behind all that was sent before."""
        self.flush()
        self._long = self.held_back = True
        commit = self.engine.commit
        if commit is not None and commit.pending:
            commit.hold(lambda _: self._begin(Pieces(reply.pieces)), [], set())
        else:
            self._begin(Pieces(reply.pieces))

    def _begin(self, reply: Pieces) -> None:
        idle = self._outgoing is None
        self._queue().add_unmade(reply)
        if idle:
            self._pour()

    def fail(self, argv: Argv, error: Exception) -> bytes:
        """A bug of ours must not take the connection, let alone the server, with it."""
        log.exception("internal error in %r", in_short(argv), exc_info=error)
        return b"-ERR internal error: %b\r\n" % repr(error).replace("\r", " ").replace("\n", " ").encode()

    def resume(self) -> None:
        """Go on with what waited, soon: the caller may be in the middle of another client's command."""
        self.session.settle()
        self.app.resume_soon(self)

    def go_on(self) -> None:
        """Run what waited, unless there is a new reason to wait; others have their turn after a chunk of it."""
        if not self._may_run():
            return
        self.held_back = False
        if self.session.postponed is not None and not self._run_postponed(self.session.postponed):
            return
        self.run()
        incoming = self._incoming
        if incoming and not self.held_back:
            self.reader.feed(bytes(incoming.take()))  # type: ignore[arg-type]  # all of it was made by the client
            self.run()
        if self.held_back or self.session.closing:
            return
        if self._deaf and (incoming is None or incoming.size <= MAX_WAITING):
            self._hear()
        if incoming:
            self.held_back = True  # what comes now must wait behind it
            self.resume()

    def _may_run(self) -> bool:
        session = self.session
        blocked = self.running or self._long or session.waiter is not None or session.closing
        return not blocked and self._owed <= WORTH_COPYING and not self._is_far_behind()

    def _run_postponed(self, argv: Argv) -> bool:
        """Run the command that a pause held back; whether the commands behind it may run too."""
        self.session.postponed = None
        self.running = True
        go_on = self.execute(argv)
        self.running = False
        if not go_on:
            self.finish()
        return go_on

    def refuse(self, why: str) -> None:
        """The input cannot be read any further: say why, close."""
        log.info("closing client %s: %s", self.session.peer, why)
        self.reject(b"-ERR %b\r\n" % why.encode())

    def reject(self, last_words: bytes) -> None:
        """This client is not wanted: say why, close."""
        self.out.append(last_words)
        self.close(after_reply=True)

    # -- engine.session.Output --------------------------------------------------------------------------------

    def send(self, data: bytes | RawPieces) -> None:
        if isinstance(data, StreamedPieces):
            self._stream(data)
            return
        if isinstance(data, RawPieces):
            self.out.extend(data.pieces)  # views, which leave as bytes do
            self._long = self.held_back = True
        else:
            self.out.append(data)
        self._pushed = True
        if not self.running:
            self.app.to_flush.add(self)
            self.app.schedule_flush()

    def doubt(self) -> None:
        if self._doubtful is None:
            self._doubtful = set()
        self._doubtful.add(len(self.out))

    def flush(self) -> None:
        """Write what is ready, once the log is as durable as the replies claim."""
        out = self.out
        if not out:
            return
        self._gathered = 0
        if self.transport.is_closing():  # it takes nothing any more, and would raise
            out.clear()
            self._doubtful = None
            return
        engine = self.engine
        commit = engine.commit
        if commit is not None and commit.pending:
            size = len(out[0]) if len(out) == 1 else sum(map(len, out))
            write = self._write
            if size > WORTH_COPYING or self._pushed:
                self._pushed = False
                self._owed += size
                write = partial(self._write_owed, size)
            commit.hold(write, out.copy(), self._doubtful or set())
            self._doubtful = None
            out.clear()
            if self._owed > WORTH_COPYING:
                self.held_back = True
                self.app.limits.check_output(self)
        elif self._long or self._stalled or self._outgoing is not None:
            if self.app.limits.too_long(self, sum(map(len, out))):
                out.clear()
                return
            self._line_up(out)
            out.clear()
        else:
            size = len(out[0]) if len(out) == 1 else sum(map(len, out))
            if size > WORTH_COPYING and self.app.limits.too_long(self, size):
                out.clear()
                return
            engine.stats.output_bytes += size
            if len(out) == 1:
                self.transport.write(out[0])
            elif size > WORTH_COPYING:
                self.transport.writelines(out)
            else:
                self.transport.write(b"".join(out))
            out.clear()

    def _queue(self) -> Chunks:
        if self._outgoing is None:
            self._outgoing = Chunks()
            self.unsent = _something_waits
        return self._outgoing

    def _line_up(self, pieces: list[bytes | memoryview]) -> None:
        """Have replies leave behind what waits already, when the client takes them."""
        idle = self._outgoing is None
        queue = self._queue()
        for piece in pieces:
            queue.add(piece)
        if self._stalled:
            self._look_behind()
        elif idle:
            self._pour()

    def _write_owed(self, size: int, data: bytes) -> None:
        """The disk was waited for: what a client cannot have yet must not fill memory."""
        before = self._owed
        self._owed -= size
        self._write(data)
        if before > WORTH_COPYING >= self._owed:
            self.resume()

    def _write(self, data: bytes) -> None:
        """What was held until the log was synced; the client may be gone since."""
        if self.transport.is_closing():
            return
        if self._long or self._stalled or self._outgoing is not None:
            self._line_up([data])
        else:
            self._hand_over(data)

    def _pour(self) -> None:
        """Write what waits until the client takes no more for now, or others should have their turn."""
        queue = self._outgoing
        if queue is None or self.transport.is_closing():
            self._outgoing = None
            return
        left = POUR
        while queue and left > 0 and not self._stalled:
            chunk = queue.take()
            if isinstance(chunk, Pieces):
                left -= self._make(chunk, queue)
            else:
                self._hand_over(chunk)
                left -= len(chunk)
        if queue:
            if not self._stalled:
                self.app.loop.call_soon(self._pour)
            if self.held_back and self._may_run():
                self.resume()
            return
        self._long = False
        self._outgoing = None
        if not self.encrypted:
            self.unsent = self.transport.get_write_buffer_size
        if self.session.closing:
            self.transport.close()
        else:
            self.resume()

    def _make(self, reply: Pieces, queue: Chunks) -> int:
        """Make and write the next piece of a reply; what that counts for in POUR."""
        piece = next(reply.pieces, None)
        if piece is None:
            return 0
        queue.put_back(reply)
        reply.made += len(piece)
        if self.app.limits.too_long(self, reply.made):
            return POUR
        self._hand_over(piece)
        return MAKING * len(piece)

    def _hand_over(self, piece: bytes | bytearray | memoryview) -> None:
        self.engine.stats.output_bytes += len(piece)
        self.transport.write(piece)

    def buffered(self) -> tuple[int, int]:
        waiting = self._incoming.size if self._incoming is not None else 0
        queued = self._outgoing.size if self._outgoing is not None else 0
        unsent = self.transport.get_write_buffer_size() + queued + self._owed + sum(map(len, self.out))
        return self.reader.backlog + waiting, unsent

    def close(self, after_reply: bool) -> None:
        """End the connection, at once or after what was sent."""
        self.session.closing = True
        if not after_reply:
            self.transport.abort()
            return
        if self.running:  # inside a command, whose own reply comes first
            self.app.loop.call_soon(self.close, True)
            return
        if not self._deaf:
            self._deaf = True
            self.transport.pause_reading()
        self.flush()
        self.app.loop.call_later(LAST_WORDS, self.transport.abort)
        commit = self.engine.commit
        if commit is not None and commit.pending:
            commit.hold(lambda _: self._close_behind_replies(), [], set())
        else:
            self._close_behind_replies()

    def _close_behind_replies(self) -> None:
        if self._outgoing is None:  # else `_pour` does it behind the last of them
            self.transport.close()
