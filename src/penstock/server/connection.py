"""One client's socket: bytes in, commands run, bytes out.

`_run` is the inner loop of the whole server. For FAST commands of plain sessions it is: look the name up in
`engine.fast`, check the arity, call the handler, encode. Everything else takes `_execute`, the whole way.

Invariant: replies leave in the order of the commands. While a session is blocked or reads too slowly, its further
commands wait in the reader; while the log must reach the disk first (appendfsync always), replies wait with
`engine.commit`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.engine.session import Session
from penstock.engine.spec import Argv
from penstock.protocol.errors import ProtocolError, ReplyError, wrong_arity
from penstock.protocol.requests import MORE, RequestReader
from penstock.protocol.resp import INTEGERS, NO_REPLY, OK, Raw, encode

if TYPE_CHECKING:
    from penstock.server.app import App

log = logging.getLogger("penstock.server")

SMALL = len(INTEGERS)
_join = b"".join  # also the quickest test that every item is bytes
MAX_WAITING = 1 << 20
"""Bytes of commands held for a session that cannot run them yet, before its socket is no longer read."""


class Connection(asyncio.Protocol):
    """See the top of this file."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.engine = app.engine
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # connection_made sets both
        self.session: Session = None  # type: ignore[assignment]
        self.reader = RequestReader(app.config.proto_max_bulk_len)
        self._deaf = False  # too much input waits already: the socket is not read
        self._out: list[bytes] = []  # replies of the batch under way
        self._running = False  # inside the inner loop: what is sent joins _out
        self._stalled = False  # the client reads too slowly: run nothing more until it caught up

    # -- asyncio calls these ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.session = Session(self.engine, self)
        self.app.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.app.disconnected(self)

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        if self._stalled or self.session.waiter is not None:
            if self.reader.backlog > MAX_WAITING:
                self.transport.pause_reading()
                self._deaf = True
        else:
            self._run()

    def pause_writing(self) -> None:
        self._stalled = True
        self.app.watch_backlog(self)

    def resume_writing(self) -> None:
        self._stalled = False
        self.resume()

    # -- running commands -------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The inner loop: everything that is whole in the reader."""
        engine, session, reader = self.engine, self.session, self.reader
        session.last_active = engine.clock.refresh()
        ready = engine.keyspace.ready
        out = self._out
        push = out.append
        take = reader.take
        fast = engine.fast if session.plain else {}
        count = 0
        self._running = True
        try:
            while True:
                argv = take()
                try:
                    _join(argv)
                    entry = fast.get(argv[0])
                except (TypeError, LookupError):
                    if argv is not MORE:
                        reader.odd(argv)
                    elif not reader.more():
                        break
                    continue
                if entry is None:
                    self._execute(argv)
                    if session.waiter is not None or session.closing or self._stalled:
                        break
                    fast = engine.fast if session.plain else {}
                    take = reader.take
                    continue
                handler, low, high = entry
                count += 1
                try:
                    if not low <= len(argv) <= high:
                        raise wrong_arity(argv[0].decode().lower())
                    reply = handler(session, argv)
                    if reply is OK:
                        push(b"+OK\r\n")
                    elif type(reply) is int:
                        push(INTEGERS[reply] if 0 <= reply < SMALL else b":%d\r\n" % reply)
                    elif type(reply) is bytes:
                        push(b"$%d\r\n%b\r\n" % (len(reply), reply))
                    else:
                        push(encode(reply, session.protocol))
                except ReplyError as error:
                    push(b"-%b\r\n" % error.wire())
                except Exception as error:
                    push(self._internal_error(argv, error))
                if ready:
                    engine.blocking.serve()
        except ProtocolError as error:
            self._refuse_input(str(error))
        self._running = False
        engine.stats.commands += count
        if reader.backlog > self.app.config.client_query_buffer_limit:
            self._refuse_input("Protocol error: query buffer limit exceeded")
        if out:
            self.flush()
        if self.app.to_flush:
            self.app.flush_others()

    def _execute(self, argv: Argv) -> None:
        """One command, the whole way."""
        session = self.session
        silent = session.skip_next
        session.skip_next = False
        try:
            reply = self.engine.execute(session, argv)
        except ReplyError as error:
            reply = error
        except Exception as error:
            reply = Raw(self._internal_error(argv, error))
        if reply is not NO_REPLY and not silent and not session.muted:
            self._out.append(encode(reply, session.protocol))
        session.settle()
        if self.engine.keyspace.ready:
            self.engine.blocking.serve()

    def _internal_error(self, argv: Argv, error: Exception) -> bytes:
        """A bug of ours must not take the connection, let alone the server, with it."""
        log.exception("internal error in %r", argv[:3], exc_info=error)
        return b"-ERR internal error: %b\r\n" % repr(error).replace("\r", " ").replace("\n", " ").encode()

    def resume(self) -> None:
        """Go on with what waited."""
        session = self.session
        session.settle()
        if self._running or self._stalled or session.waiter is not None or session.closing:
            return
        if self._deaf:
            self._deaf = False
            self.transport.resume_reading()
        self._run()

    def _refuse_input(self, why: str) -> None:
        """The input cannot be read any further: say why, close."""
        log.info("closing client %s: %s", self.session.peer, why)
        self._out.append(b"-ERR %b\r\n" % why.encode())
        self.close(after_reply=True)

    # -- engine.session.Output --------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self._out.append(data)
        if not self._running:
            self.app.to_flush.add(self)
            self.app.schedule_flush()

    def flush(self) -> None:
        """Write what is ready, once the log is as durable as the replies claim."""
        out = self._out
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        commit = self.engine.commit
        if commit is not None and commit.pending:
            commit.hold(self._write, data)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        self.engine.stats.output_bytes += len(data)
        self.transport.write(data)

    def close(self, after_reply: bool) -> None:
        """End the connection, at once or after what was sent."""
        self.session.closing = True
        if not after_reply:
            self.transport.abort()
            return
        self.flush()
        commit = self.engine.commit
        if commit is not None and commit.pending:
            commit.hold(lambda _: self.transport.close(), b"")
        else:
            self.transport.close()
