"""Commands from a byte stream that may be cut anywhere and may be hostile.

`RequestReader` has two versions with one set of tests: the one below, and `_requests.pyx`, a separate parser that
Cython compiles if there is a C compiler when the package is installed. The compiled one is used unless PENSTOCK_PURE is
set. Measurements are in docs/design/0003-compiled-inner-loop.md. The rest is about the pure one.

Two readers share the work. hiredis parses arrays of bulk strings, which is what clients send, in a quarter of a
microsecond a command. But it was written for replies: it accepts integers, sets and nested arrays, allocates whatever
length a header claims, and knows no inline commands. So `RequestReader` checks that the results are lists of bytes, and
looks for giant headers, and for headers that no request has, before hiredis sees them. If the first byte of a
connection is not `*`, a person types: then `StrictReader` reads it, which implements exactly the request grammar, with
its limits and its error texts, in plain Python. It also reads from clients that have not logged in yet, because their
limits are narrow.

Rejected: switching to the strict reader after hiredis met an error. hiredis does not tell where a command began, and a
guess could run the inside of a value as a command. So a connection that began with arrays may not change to inline
commands (Redis and the compiled reader allow it; no client does it).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import hiredis

from penstock.compiled import use_compiled
from penstock.protocol.errors import ProtocolError
from penstock.protocol.grammar import MAX_ARGUMENTS, MAX_BULK, MAX_INLINE, MORE, Argv, inline_command

_STAR = 42
_NEWLINE = 10
_LONGEST_HEADER = 32
_TYPE_BYTES: dict[type, str] = {int: ":", list: "*", dict: "%", set: "~", float: ",", bool: "#"}
_ALIEN = b"~>|%"  # headers of sets, pushes, attributes, maps: a request has none of them
_TILDE, _GREATER, _BAR, _PERCENT = _ALIEN
_alien_header = re.compile(rb"\n[~>|%]\d").search
_giant_header = re.compile(rb"\*\d{7}").search
_suspects = re.compile(rb"\*\d{7}|(?<![^\n])[~>|%]\d").finditer
_cut_header = re.compile(rb"[*~>|%]\d*\r?\Z").search
_giant_start = re.compile(rb"\*\d{1,6}\r\n\$\d{9}").match
_digits = re.compile(rb"-?\d{1,18}\Z").match


AN_ARGUMENT = 48
"""Bytes that an argument takes beside its own, with its place in the list."""


class StrictReader:
    """The request grammar in plain Python: arrays of bulk strings, and inline commands.

    Cost: about a microsecond an argument. Limits are checked on the header, before any byte of the body.
    """

    def __init__(self, max_bulk: int, max_arguments: int = MAX_ARGUMENTS) -> None:
        self._buffer = bytearray()
        self._max_bulk = max_bulk
        self._max_arguments = max_arguments
        self._position = 0
        self._missing = 0  # bulk strings that the current array still needs; 0 between commands
        self._argv: Argv = []
        self._whole = 0  # bytes that _argv takes
        self.inline = False  # an inline command was seen: a person types

    def limit(self, max_bulk: int, max_arguments: int) -> None:
        self._max_bulk, self._max_arguments = max_bulk, max_arguments

    @property
    def held(self) -> int:
        """Bytes of an incomplete command."""
        return len(self._buffer) - self._position + (self._whole if self._missing else 0)

    @property
    def at_boundary(self) -> bool:
        """Whether no part of a command is held."""
        return not self._missing and self._position == len(self._buffer)

    def feed(self, data: bytes) -> None:
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def take(self) -> Any:
        """The next complete command, MORE when there is none yet. Empty commands are skipped."""
        argv = self._next()
        return MORE if argv is None else argv

    def _next(self) -> Argv | None:
        while True:
            if not self._missing:
                if self._position >= len(self._buffer):
                    return None
                if self._buffer[self._position] != 42:  # '*'
                    argv = self._inline()
                    if argv is None or argv:
                        return argv
                    continue
                count = self._header(42, "multibulk length", self._max_arguments)
                if count is None:
                    return None
                if count <= 0:
                    continue
                self._missing = count
                self._argv = []
                self._whole = 0
            while self._missing:
                start = self._position
                size = self._header(36, "bulk length", self._max_bulk)  # '$'
                if size is None:
                    return None
                end = self._position + size
                if len(self._buffer) < end + 2:
                    self._position = start
                    return None
                self._argv.append(bytes(self._buffer[self._position : end]))
                self._position = end + 2
                self._whole += size + AN_ARGUMENT
                self._missing -= 1
            return self._argv

    def _header(self, mark: int, what: str, limit: int) -> int | None:
        """The number of a `*n` or `$n` line; None when the line is incomplete."""
        buffer, start = self._buffer, self._position
        if start >= len(buffer):
            return None
        if buffer[start] != mark:
            got = chr(buffer[start])
            raise ProtocolError(f"Protocol error: expected '{chr(mark)}', got '{got}'")
        end = buffer.find(b"\r", start, start + MAX_INLINE)
        if end < 0 or end + 1 >= len(buffer):
            if len(buffer) - start >= MAX_INLINE:
                kind = "mbulk count" if mark == 42 else "bulk count"
                raise ProtocolError(f"Protocol error: too big {kind} string")
            return None
        digits = bytes(buffer[start + 1 : end])
        number = int(digits) if _digits(digits) else None
        if number is None or number > limit or (mark == 36 and number < 0):
            ordinary = MAX_ARGUMENTS if mark == 42 else MAX_BULK
            narrow = self._max_arguments < MAX_ARGUMENTS and number is not None and limit < number <= ordinary
            raise ProtocolError(f"Protocol error: {'unauthenticated' if narrow else 'invalid'} {what}")
        self._position = end + 2
        return number

    def _inline(self) -> Argv | None:
        buffer, start = self._buffer, self._position
        end = buffer.find(b"\n", start)
        if end < 0:
            if len(buffer) - start > MAX_INLINE:
                raise ProtocolError("Protocol error: too big inline request")
            return None
        self.inline = True
        line = bytes(buffer[start:end])
        self._position = end + 1
        return inline_command(line)


class BrokenFrame(ProtocolError):
    """Error texts of hiredis, and the texts of Redis for them."""

    WORDS: ClassVar[dict[str, str]] = {
        "Bad multi-bulk length": "Protocol error: invalid multibulk length",
        "Multi-bulk length out of range": "Protocol error: invalid multibulk length",
        "Bad bulk string length": "Protocol error: invalid bulk length",
        "Bulk string length out of range": "Protocol error: invalid bulk length",
    }

    def __init__(self, text: str) -> None:
        super().__init__(self.WORDS.get(text, text))


class RequestReader:
    """The reader of a connection: `feed(data)`, then `take()` until it gives MORE.

    `take` raises ProtocolError for a broken frame, after all complete commands before it; the reader cannot be used
    after that. While hiredis reads, `take` is hiredis's own function, so the caller must check that the result is a
    list of bytes, and call `odd` with anything else.

    >>> reader = RequestReader()
    >>> reader.feed(b"*1\\r\\n$4\\r\\nPING\\r\\n*1\\r\\n$4")
    >>> reader.take(), reader.take() is MORE
    ([b'PING'], True)
    """

    def __init__(self, max_bulk: int = MAX_BULK, max_arguments: int = MAX_ARGUMENTS) -> None:
        self._max_bulk = max_bulk
        self._max_arguments = max_arguments
        self._hiredis = hiredis.Reader(protocolError=BrokenFrame, notEnoughData=MORE)
        self._hiredis_feed = self._hiredis.feed
        self._strict: StrictReader | None = None
        self._started = False
        self._held = b""  # the end of the last chunk, if it cuts a header in two
        self._pieces: deque[bytes] = deque()  # input after something that looks like a giant header
        self.take: Callable[[], Any] = self._hiredis.gets
        self._fed = 0  # bytes since the last time all input was taken
        self._headers = 0  # and what looks like the header of an argument in them
        self._uncounted = b""  # the last chunk, until it is known whether it ended a command

    @property
    def backlog(self) -> int:
        """Bytes that input takes which was not taken yet; the query buffer limit applies to it.

        hiredis does not tell how many arguments it has made of it. A value may hold what looks like their headers, but
        no command has more than MAX_ARGUMENTS, so that such a value counts 50 MB too much at most.
        """
        return self._fed + AN_ARGUMENT * min(self._headers, self._max_arguments)

    def limit(self, max_bulk: int, max_arguments: int = MAX_ARGUMENTS) -> None:
        """Change the limits. Narrow ones must be set before the first byte; wide ones may follow at any time."""
        self._max_bulk, self._max_arguments = max_bulk, max_arguments
        if self._strict is not None:
            self._strict.limit(max_bulk, max_arguments)

    def feed(self, data: bytes) -> None:
        if self._strict is not None or not self._started:
            if not self._choose(data):
                return
        elif self._held:
            data = self._held + data
            self._held = b""
        self._fed += len(data)
        self._uncounted = data
        if data[-1] != _NEWLINE:
            data = self._hold_back(data)
        # A single command has one star, before its first line: then there is nothing to search for.
        if (
            ((data.rfind(b"*") or data.find(b"\r") > 6) and _giant_header(data) is not None)
            or self._pieces
            or (
                (_TILDE in data or _GREATER in data or _BAR in data or _PERCENT in data)
                and (data[0] in _ALIEN or _alien_header(data) is not None)
            )
        ):
            self._feed_carefully(data)
        else:
            self._hiredis_feed(data)

    def more(self) -> bool:
        """After MORE: whether `take` has something now."""
        if self._pieces:
            piece = self._pieces.popleft()
            if not self._hiredis.has_data():
                if piece[0] == _STAR:
                    raise ProtocolError("Protocol error: invalid multibulk length")
                raise ProtocolError(f"Protocol error: expected '$', got '{chr(piece[0])}'")
            self._hiredis_feed(piece)
            return True
        if self._strict is not None:
            self._fed, self._headers = self._strict.held, 0
        elif self._uncounted:
            self._headers += self._uncounted.count(b"\n$")
            self._uncounted = b""
        return False

    def commands_ran(self) -> None:
        """Commands were taken since the last chunk came, and all of them ran: the held bytes began in that chunk.

        Without this a command is under way, also if hiredis has made arguments of all its bytes.
        """
        self._fed = self._headers = 0
        self._uncounted = b""

    def odd(self, argv: object) -> None:
        """The result is not a list of bytes: an empty array is skipped, anything else breaks the protocol."""
        if argv is None or argv == []:
            self.commands_ran()
            return
        strange = next((arg for arg in argv if type(arg) is not bytes), argv) if type(argv) is list else argv
        if strange is None:  # a null: `$-1`
            raise ProtocolError("Protocol error: invalid bulk length")
        got = _TYPE_BYTES.get(type(strange), "?")
        raise ProtocolError(f"Protocol error: expected '$', got '{got}'")

    def _choose(self, data: bytes) -> bool:
        """The reader of this chunk: True for hiredis; otherwise the strict reader has been fed."""
        strict = self._strict
        narrow = self._max_arguments < MAX_ARGUMENTS
        if strict is None and (data[0] != _STAR or narrow or _giant_start(data)):
            strict = self._strict = StrictReader(self._max_bulk, self._max_arguments)
            self.take = strict.take
        elif strict is not None and strict.at_boundary and data[0] == _STAR and not narrow and not strict.inline:
            strict = self._strict = None  # it was only for the narrow limits
            self.take = self._hiredis.gets
        self._started = True
        if strict is None:
            return True
        strict.feed(data)
        self._fed += len(data)
        return False

    def _hold_back(self, data: bytes) -> bytes:
        """Keep a header that this chunk cuts in two for the next one, so that the search for headers sees it whole."""
        cut = _cut_header(data, max(len(data) - _LONGEST_HEADER, 0))
        if cut is None:
            return data
        self._held = data[cut.start() :]
        return data[: cut.start()]

    def _feed_carefully(self, data: bytes) -> None:
        """Cut before everything that looks like such a header; it is one only where hiredis expects an element."""
        cuts = [match.start() for match in _suspects(data)]
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        if not self._pieces:
            self._hiredis_feed(pieces.pop(0))
        else:
            self._pieces[-1] += pieces.pop(0)
        self._pieces.extend(pieces)


COMPILED = use_compiled(globals(), "penstock.protocol._requests", "RequestReader")

__all__ = ["COMPILED", "MORE", "RequestReader", "StrictReader"]
