"""Sends replies to a client's socket.

Invariant: replies leave in the order of the commands. While the log must reach the disk first (appendfsync always), or
replicas must have it, they wait with `engine.commit`, but for those that show no data (`NoData`) and have none before
them that waits. A long reply comes in pieces (`RawPieces`), which are given to the transport as fast as the client
takes them and no more than POUR bytes a turn of the loop; while some wait, everything sent later waits behind them, in
`_outgoing`. A reply that may be larger than memory (`StreamedPieces`) is made in the same steps.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from penstock.engine.session import CHANGED, LOST, NoData, Unconfirmed
from penstock.protocol.requests import RequestReader
from penstock.protocol.resp import RawPieces, StreamedPieces
from penstock.server.chunks import Chunks, Pieces
from penstock.server.inner_loop import WORTH_COPYING, InnerLoop

if TYPE_CHECKING:
    from penstock.server.app import App

STRIDE = 1 << 22
"""Bytes of a large reply that are sent while the rest is still being made."""
MAX_UNSENT = 1 << 20
"""Bytes of replies that a client has not taken, before its further commands wait."""
POUR = 1 << 19
"""Bytes of a long reply that are written before other clients are served."""
MAKING = 4
"""What a byte that must be made first counts for in POUR: so a turn takes a millisecond or two."""


def _something_waits() -> int:
    """`unsent` while replies wait in `_outgoing`: nothing may be written to the socket directly."""
    return 1


class Replies(InnerLoop):
    """See the top of this file. Connection is the only subclass: it runs the commands and reads the socket."""

    __slots__ = (
        "_gathered", "_held", "_long", "_outgoing", "_owed", "_pushed", "_stalled", "app", "encrypted", "transport",
    )  # fmt: skip

    def __init__(self, app: App, encrypted: bool) -> None:
        super().__init__(app.engine, RequestReader(app.config.proto_max_bulk_len), app.to_flush)
        self.app = app
        self.encrypted = encrypted
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # connection_made sets it
        self._gathered = 0  # bytes of replies by `execute`, and of what was sent, since the last flush
        self._held = 0  # times that replies were given to `commit`, and have not left
        self._outgoing: Chunks | None = None  # what the transport was not given yet, because it or others come first
        self._stalled = False  # the transport has enough: the client reads too slowly
        self._owed = 0  # bytes that wait for the disk, if they are many: while they are, nothing more runs
        self._pushed = False  # `out` has a message from another client, and more may follow
        self._long = False  # a long reply is on its way: nothing more runs until the transport has all of it

    @abstractmethod
    def resume(self) -> None:
        """Continue with the waiting input, soon."""

    @abstractmethod
    def _may_run(self) -> bool:
        """Whether the next command may run."""

    @abstractmethod
    def _look_behind(self) -> None:
        """The client is behind in reading: check whether it is too far."""

    @abstractmethod
    def close(self, after_reply: bool) -> None:
        """End the connection, at once or after what was sent."""

    @abstractmethod
    def buffered(self) -> tuple[int, int]:
        """Bytes of input that did not run yet, and of replies that were not sent yet."""

    def send(self, data: bytes | RawPieces) -> None:
        if isinstance(data, StreamedPieces):
            self._stream(data)
            return
        if isinstance(data, RawPieces):
            self.out.extend(data.pieces)  # views, which leave as bytes do
            self._long = self.held_back = True
        else:
            self.out.append(data)
            self._gathered += len(data)
            if self._gathered > WORTH_COPYING and self._is_full():
                return
        self._pushed = True
        if not self.running:
            self.send_later()

    def _is_full(self) -> bool:
        """Whether what was sent since the last flush, perhaps by a script that publishes without end, is too much: the
        connection is closed then, and gets nothing more.
        """
        if not (self.session.closing or self.app.limits.too_long(self, self._gathered)):
            return False
        self.out.clear()
        return True

    def send_later(self) -> None:
        """Flush at the end of this turn of the loop."""
        self.app.to_flush.add(self)
        self.app.schedule_flush()

    def send_now(self, data: bytes) -> int:
        if self.transport.is_closing():
            return 0
        self._hand_over(data)
        return self.transport.get_write_buffer_size()

    def check_unsent(self) -> None:
        self.app.client_memory.notice()
        self.app.limits.check_output(self)

    def lose(self) -> None:
        if self.out:
            self.close(after_reply=False)

    def _send_pieces(self, reply: RawPieces) -> None:
        """Take the pieces of a reply as they come; a very large one is sent before the last is made."""
        out = self.out
        for piece in reply.pieces:
            out.append(piece)
            self._gathered += len(piece)
            if self._gathered > STRIDE and not self._may_become_an_error():
                self.flush()
                if self.session.closing:
                    break

    def _may_become_an_error(self) -> bool:
        """The reply in `out` is one that `_mark` will mark as a whole, so it may not leave in parts."""
        engine, commit = self.engine, self.engine.commit
        if commit is None or not commit.pending or engine.strict:
            return False
        return self.ran == 1 and self.dirty >= 0 and self.dirty != engine.keyspace.dirty

    def _stream(self, reply: StreamedPieces) -> None:
        """Send a reply that is made while it is sent, behind all that was sent before."""
        self.flush()
        self._long = self.held_back = True
        commit = self.engine.commit
        if commit is not None and commit.pending:
            self._held += 1
            commit.hold(lambda data: self._begin_held(Pieces(reply.pieces), data), [])
        else:
            self._begin(Pieces(reply.pieces))

    def _begin_held(self, reply: Pieces, data: bytes) -> None:
        self._held -= 1
        if data is LOST:
            self.close(after_reply=False)
        else:
            self._begin(reply)

    def _begin(self, reply: Pieces) -> None:
        idle = self._outgoing is None
        self._queue().add_unmade(reply)
        if idle:
            self._pour()

    def flush(self) -> None:
        """Write what is ready, once the log is as durable as the replies claim."""
        out = self.out
        if not out:
            return
        engine = self.engine
        commit = engine.commit
        if commit is not None and self._pushed and engine.scripting.busy:
            self.send_later()  # perhaps by the script, whose changes are not logged yet
            return
        self._gathered = 0
        if self.transport.is_closing():  # it accepts no more data, and would raise
            out.clear()
            return
        if (
            commit is not None
            and commit.pending
            and not ((type(out[0]) is NoData or self.dirty < 0) and self._may_leave_now())
        ):
            size = len(out[0]) if len(out) == 1 else sum(map(len, out))
            write, replies = self._write, out.copy()
            if self.dirty >= 0 and self.dirty != engine.keyspace.dirty and not engine.strict:
                self._mark(replies)
            if size > WORTH_COPYING or self._pushed:
                self._pushed = False
                self._owed += size
                write = partial(self._write_owed, size)
            self._held += 1
            commit.hold(write, replies)
            out.clear()
            if self._owed > WORTH_COPYING:
                self.held_back = True
                self.app.limits.check_output(self)
        elif self._long or self._stalled or self._outgoing is not None:
            self._pushed = False
            if self.app.limits.too_long(self, sum(map(len, out))):
                out.clear()
                return
            self._line_up(out)
            out.clear()
        else:
            self._pushed = False
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

    def _may_leave_now(self) -> bool:
        """Whether the replies in `out` show no data, and need not wait for the log or for replicas: one of them may be
        for the replica that others wait for. Those that were given to `commit` before must leave first.

        A replica may see everything. What it gets outside `run` is a part of a file that a thread has read.
        """
        if self._held or self.session.was_silent:
            return False
        if self.dirty < 0 and self.session.is_replica:
            return True
        return all(type(piece) is NoData for piece in self.out)

    def _mark(self, replies: list[bytes | memoryview]) -> None:
        """Some of these acknowledge a change: say so, and which one, if there is one only."""
        if self.ran != 1 or self._pushed:
            replies.append(CHANGED)
        elif len(replies) == 1:
            replies[0] = Unconfirmed(replies[0])
        else:
            replies.append(Unconfirmed.behind(len(replies)))

    def _write_owed(self, size: int, data: bytes) -> None:
        """Replies waited for the disk: they must not fill memory."""
        before = self._owed
        self._owed -= size
        self._write(data)
        if before > WORTH_COPYING >= self._owed:
            self.resume()

    def _write(self, data: bytes) -> None:
        """Send what was held until the log was synced; the client may have disconnected."""
        self._held -= 1
        if self.transport.is_closing():
            return
        if data is LOST:
            self.close(after_reply=False)
        elif self._long or self._stalled or self._outgoing is not None:
            self._line_up([data])
        elif rest := self.send_directly(data):
            self._hand_over(rest)

    def _queue(self) -> Chunks:
        if self._outgoing is None:
            self._outgoing = Chunks()
            self.unsent = _something_waits
        return self._outgoing

    def _line_up(self, pieces: list[bytes | memoryview]) -> None:
        """Queue replies behind those that wait already."""
        idle = self._outgoing is None
        queue = self._queue()
        for piece in pieces:
            queue.add(piece)
        if self._stalled:
            self._look_behind()
        elif idle:
            self._pour()

    def _pour(self) -> None:
        """Write what waits until the client takes no more for now, or other clients should be served."""
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
