"""One client's socket: bytes in, commands run, bytes out.

FAST commands of plain sessions run in the inner loop (inner_loop.py); everything else takes `execute`, the whole way.

Replies leave in the order of the commands (replies.py). While a session is blocked or far behind in reading, its
further commands wait in `_incoming`, and run a chunk at a time afterwards.

A client that reads slowly is slowed down: its commands wait, and then its socket is not read. That would be a deadlock
with a client that sends everything before it reads anything, so a client that takes nothing at all is read on
(`Limits.sweep`). What it costs then is bounded: docs/design/0019-clients-that-do-not-read.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv
from penstock.engine.internal_errors import internal_error
from penstock.engine.session import NOWHERE, NoData, Session, Unconfirmed
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import NO_REPLY, Raw, RawPieces, StreamedPieces, encode
from penstock.server.chunks import Chunks
from penstock.server.inner_loop import MUCH_INPUT, RELIEF, WORTH_COPYING
from penstock.server.replies import MAX_UNSENT, Replies

if TYPE_CHECKING:
    from penstock.server.app import App

logger = logging.getLogger("penstock.server")

UNAUTHENTICATED = (16384, 10)
"""Longest argument and most arguments of a client that has not logged in."""
LAST_WORDS = 10
"""Seconds a client that is being closed has for reading its last replies."""
MAX_WAITING = 1 << 20
"""Bytes of commands held for a session that cannot run them yet, before its socket is no longer read."""


class Connection(Replies):
    """See the top of this file.

    There may be thousands that are idle: attributes for rare cases take no memory before they are needed.
    """

    __slots__ = ("_deaf", "_incoming", "_narrow", "_writes_first", "socket")

    def __init__(self, app: App, accepted: socket.socket, peer: str, local: str, encrypted: bool = False) -> None:
        super().__init__(app, encrypted)
        self.socket = accepted
        self.session = Session(app.engine, self)
        self.session.peer, self.session.local, self.session.file_number = peer, local, accepted.fileno()
        self._deaf = False  # too much input waits already: the socket is not read
        self._incoming: Chunks | None = None  # input behind what the reader has, while nothing may run
        self._writes_first = False  # it takes no reply at all, and may wait until everything it sends is read
        self._narrow = False  # has not logged in: the reader takes small commands only

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

    def move_to(self, transport: asyncio.Transport, unsent: bytearray) -> None:
        """The loop's transport takes over from the one that a busy script gave it, with what that could not send."""
        self.transport = transport
        self.unsent = transport.get_write_buffer_size
        if unsent:
            transport.write(bytes(unsent))
        if self.session.closing:  # the server stopped in between
            transport.close()

    def eof_received(self) -> None:
        """The client has disconnected; `connection_lost` comes a turn of the loop later.

        Until then it must not get what other clients push.
        """
        if self.session.waiter is not None:
            self.session.closing = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.closing = True
        self.descriptor = -1
        self._incoming = self._outgoing = None
        self.app.disconnected(self)
        self.session.output = NOWHERE  # otherwise the two would keep each other alive until the garbage collector runs

    def pause_writing(self) -> None:
        self._stalled = True
        self._look_behind()

    def resume_writing(self) -> None:
        self._stalled = self._writes_first = False
        if self.session.link is not None:
            self.session.link.has_room()
        if self._deaf:
            self.app.limits.took_replies(self)
        if self._outgoing is not None:
            self._pour()
        else:
            self.resume()

    def _look_behind(self) -> None:
        """The client is behind in reading: check whether it is too far."""
        self.check_unsent()
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
        self.app.client_memory.notice()
        if self._incoming.size + self.reader.backlog <= MAX_WAITING or self._deaf:
            return
        if not self._writes_first:
            self.transport.pause_reading()
            self._deaf = True
            self.app.limits.unread[self] = self.transport.get_write_buffer_size()
        elif not self.app.limits.holds_too_much(self) and not self._is_far_behind():
            self.resume()

    @property
    def holds_enough(self) -> bool:
        """So much of its input waits already that its socket is not to be read."""
        return self._deaf

    def give_way(self) -> None:
        """More input is waiting in the socket: serve other clients before it is read.

        The transport would read up to 32 pieces of 256,000 bytes in one turn of the loop: a client that sent 100,000
        commands at once held the others up for a second.
        """
        if not self._deaf and not self.session.closing:
            self.transport.pause_reading()
            self.app.loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        if not self._deaf and not self.transport.is_closing():
            self.transport.resume_reading()

    def is_stuck(self) -> bool:
        """Whether its commands are held back only because the client does not read."""
        session = self.session
        return self._stalled and session.waiter is None and not session.closing and self._owed <= WORTH_COPYING

    def read_on(self) -> None:
        """The socket was not read, and the client does not read either: it may do so when
        everything it sends is read.
        """
        self._writes_first = True
        self._hear()

    def _hear(self) -> None:
        self._deaf = False
        del self.app.limits.unread[self]
        self.transport.resume_reading()

    def finish(self) -> None:
        if self.reader.backlog > MUCH_INPUT:
            self._check_backlog()
        if self.out:
            self.flush()
        if self.app.to_flush:
            self.app.flush_others()

    def _check_backlog(self) -> None:
        """Much input came since the reader was last empty: either it is still one
        command, or commands ran in between.
        """
        self.app.client_memory.notice()
        if self.ran and not self.held_back:
            self.reader.commands_ran()
        elif self.reader.backlog > self.app.query_buffer_limit:
            self.refuse("Protocol error: query buffer limit exceeded")

    def execute(self, argv: Argv) -> bool:
        """Run one command through dispatch."""
        session = self.session
        session.skipping, session.skip_next = session.skip_next, False
        try:
            reply = self.engine.execute(session, argv)
        except ReplyError as error:
            reply = error.as_reply()
        except Exception as error:
            reply = Raw(self.fail(argv, error))
        marked = session.unconfirmed and self.engine.strict
        if reply is not NO_REPLY and not session.skipping and not session.muted:
            if type(reply) is StreamedPieces:
                self._stream(reply)
            elif type(reply) is RawPieces and not marked:
                self._send_pieces(reply)
            else:
                data = encode(reply, session.protocol)
                if marked:
                    data = Unconfirmed(data)
                elif not session.shows_data or self.engine.scripting.busy:  # BUSY, or of a command that runs then
                    data = NoData(data)
                self.out.append(data)
                self._gathered += len(data)
            if self._gathered > RELIEF:
                self.flush()
        if session.skipping and session.waiter is not None:
            session.waiter.silent = True
        session.unconfirmed = False
        session.update_plain()
        if self._narrow and session.authenticated:
            self._narrow = False
            self.reader.limit(self.app.config.proto_max_bulk_len)
        if self.engine.keyspace.ready:
            self.engine.blocking.serve()
        self.held_back = session.waiter is not None or self._long or self._owed > WORTH_COPYING or self._is_far_behind()
        return not (self.held_back or session.closing)

    def fail(self, argv: Argv, error: Exception) -> bytes:
        """A bug of ours must not take the connection, let alone the server, with it."""
        return b"-%b\r\n" % internal_error(argv, error).wire()

    def resume(self) -> None:
        """Continue with the waiting input, soon: the caller may be in the middle of another client's command."""
        self.session.update_plain()
        self.app.resume_soon(self)

    def go_on(self) -> None:
        """Run the waiting input, unless there is a new reason to wait; other clients are served after a chunk of it."""
        if not self._may_run():
            return
        self.held_back = False
        if self.session.postponed is not None and not self._run_postponed(self.session.postponed):
            return
        self.run()
        incoming = self._incoming
        if incoming and not (self.held_back or self.session.closing):
            self.reader.feed(bytes(incoming.take()))  # type: ignore[arg-type]  # all of it was made by the client
            self.run()
        if self.held_back or self.session.closing:
            return
        if self._deaf and (incoming is None or incoming.size <= MAX_WAITING):
            self._hear()
        if incoming:
            self.held_back = True  # input that comes now must wait behind it
            self.resume()

    def _may_run(self) -> bool:
        session = self.session
        blocked = self.running or self._long or session.waiter is not None or session.closing
        return not blocked and self._owed <= WORTH_COPYING and not self._is_far_behind()

    def _run_postponed(self, argv: Argv) -> bool:
        """Run the command that a pause held back; whether the commands behind it may run too."""
        self.session.postponed = None
        self.running = True
        self.ran, self.dirty = 1, self.engine.keyspace.dirty
        go_on = self.execute(argv)
        if self.session.waiter is None:
            self.session.fetched = None  # it has ended, perhaps before it used what a thread has read for it
        if self.out:
            self.flush()  # `run` has commands of its own
        self.dirty = -1
        self.running = False
        if not go_on:
            self.finish()
        return go_on

    def refuse(self, why: str) -> None:
        """The input cannot be parsed any further: answer why, and close."""
        logger.info("closing client %s: %s", self.session.peer, why)
        self.reject(b"-ERR %b\r\n" % why.encode())

    def reject(self, last_words: bytes) -> None:
        """This client is refused: answer why, and close."""
        self.out.append(last_words)
        self.close(after_reply=True)

    # -- the end ----------------------------------------------------------------------------------------------

    def buffered(self) -> tuple[int, int]:
        waiting = self._incoming.size if self._incoming is not None else 0
        queued = self._outgoing.size if self._outgoing is not None else 0
        unsent = self.transport.get_write_buffer_size() + queued + self._owed + sum(map(len, self.out))
        if self.session.link is not None:
            unsent += self.session.link.unsent
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
            commit.hold(lambda _: self._close_behind_replies(), [])
        else:
            self._close_behind_replies()

    def _close_behind_replies(self) -> None:
        if self._outgoing is None:  # else `_pour` does it behind the last of them
            self.transport.close()
