"""`penstock tail`, `penstock write` and `penstock streams`: streams from a terminal or a shell script.

They are ordinary clients: redis-py, and the commands that docs/streams.md describes.
"""

from __future__ import annotations

import base64
import json
import os
import select
import sys
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.remote_server import NEW_STREAM, URL, Lost, RemoteServer
from penstock.cli.terminal import RewrittenLine, ending_quietly, one_line, shown_bytes, write_as

if TYPE_CHECKING:
    from rich.table import Table

_BATCH = 1000  # messages read or written at once, at the most
_BATCH_BYTES = 1 << 20
_BLOCK_MS = 1000  # after that, check whether the output is still read
_RETRY_MS = 60_000  # a message that a member took and did not print is delivered again after that
_LINGER = 0.2  # seconds a line of input may wait for others
_PAUSE = 1.0  # seconds between attempts to reach a server that is down
_ATTEMPTS = 30  # before a write gives up


def register(app: typer.Typer) -> None:
    app.command("tail")(tail)
    app.command("write")(write)
    app.command("streams")(streams)


# -- tail -----------------------------------------------------------------------------------------------------


def tail(
    stream: str = typer.Argument(..., help="The stream's key; it need not exist yet."),
    start: str = typer.Option("new", "--from", help="Where to begin: an offset, 'first' or 'new'."),
    group: str = typer.Option(None, "--group", help="Read as a member of this group, acknowledging what was printed."),
    count: int = typer.Option(None, "--count", min=1, help="End after so many messages."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object a message instead of offset, tag and entry."),
    url: str = URL,
) -> None:
    """Print a stream's messages as they come, until Ctrl-C.

    If the server goes away, the connection is made again, and printing continues where it stopped.
    """
    server = RemoteServer(url, "tail")
    if start not in ("first", "new") and not (start.isdecimal() and int(start) > 0):
        server.fail(f"--from takes an offset from 1 on, 'first' or 'new', not '{start}'")
    server.check()
    show = _as_json if as_json else _as_text
    write_as(as_json)
    (_, last), *_ = _patiently(server, "TREAD", os.fsencode(stream), 1, 0, "WITHINFO")
    if not last:
        server.say(f"there is no stream '{one_line(stream)}' yet, or nothing was written to it; waiting for it")
    source = _Member(server, stream, group, start) if group else _Follower(server, stream, start)
    left = count or 0
    with ending_quietly():
        while count is None or left:
            messages = source.read(min(_BATCH, left) if count else _BATCH)
            printed = 0
            try:
                for message in messages:
                    sys.stdout.write(show(*message) + "\n")
                    sys.stdout.flush()
                    printed += 1
            finally:
                source.printed(messages[:printed])
            left -= printed
            if not messages and _nobody_reads(sys.stdout.fileno()):
                raise BrokenPipeError


def _nobody_reads(descriptor: int) -> bool:
    """Whether the reader of our output is gone: writing would not tell, if there is nothing to write."""
    pipe = select.poll()
    pipe.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in pipe.poll(0))


def _as_text(offset: int, tag: bytes, entry: bytes) -> str:
    return f"{offset}\t{shown_bytes(tag)}\t{shown_bytes(entry)}"


def _as_json(offset: int, tag: bytes, entry: bytes) -> str:
    fields: dict[str, object] = {"offset": offset}
    for name, raw in (("tag", tag), ("entry", entry)):
        try:
            fields[name] = raw.decode()
        except UnicodeDecodeError:
            fields[f"{name}_base64"] = base64.b64encode(raw).decode()
    return json.dumps(fields, ensure_ascii=False)


class _Follower:
    """Reads a stream from an offset on."""

    def __init__(self, server: RemoteServer, stream: str, start: str) -> None:
        self._server = server
        self._stream = stream
        self._key = os.fsencode(stream)
        first, last = self._bounds()
        self._place = first if start == "first" else last + 1 if start == "new" else int(start)
        self._reached = start in ("first", "new")  # the stream has been at least this long

    def _bounds(self) -> tuple[int, int]:
        (first, last), *_ = _patiently(self._server, "TREAD", self._key, 1, 0, "WITHINFO")
        return first, last

    def read(self, count: int) -> list[Any]:
        """The next messages; none after a while without any."""
        server, stream, place = self._server, self._stream, self._place
        reply = _patiently(
            server, "TREAD", self._key, place, count, "MAXBYTES", _BATCH_BYTES, "BLOCK", _BLOCK_MS, "WITHINFO"
        )
        if reply is None:
            first, last = self._bounds()
            if self._reached and place > last + 1:
                server.say(f"'{stream}' was replaced: it ends at offset {last} now; going on with its first, {first}")
                self._place = first
            return []
        self._reached = True
        (first, _), *messages = reply
        if place < first:
            server.say(f"offsets {place} to {first - 1} of '{stream}' were evicted before they were read")
            self._place = first
            return []
        self._place += len(messages)
        return [message for message in messages if message is not None]

    def printed(self, messages: list[Any]) -> None:
        """Nothing to acknowledge."""


class _Member:
    """Reads as a member of a group; printed messages are acknowledged, the others are delivered again later."""

    def __init__(self, server: RemoteServer, stream: str, group: str, start: str) -> None:
        self._server = server
        self._key = os.fsencode(stream)
        self._group = os.fsencode(group)
        self._place = {"first": "0", "new": "$"}.get(start, start)

    def read(self, count: int) -> list[Any]:
        found = _patiently(
            self._server, "TREAD", self._key, self._place, count, "GROUP", self._group, "RETRY", _RETRY_MS, 0,
            "MAXBYTES", _BATCH_BYTES, "BLOCK", _BLOCK_MS,
        )  # fmt: skip
        return found or []

    def printed(self, messages: list[Any]) -> None:
        if messages:
            offsets = [message[0] for message in messages]
            _patiently(self._server, "TACK", self._key, self._group, *_ranges(offsets))


def _ranges(offsets: list[int]) -> list[str]:
    """Offsets as TACK takes them, runs of neighbours as one.

    >>> _ranges([3, 4, 5, 9])
    ['3-5', '9-9']
    """
    ranges: list[list[int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    return [f"{first}-{last}" for first, last in ranges]


def _patiently(server: RemoteServer, *words: object) -> Any:
    """Run a command, again and again while the server is down."""
    away = False
    while True:
        try:
            reply = server.call(*words)
        except Lost as error:
            if not away:
                server.say(f"lost {server.place} ({error}); trying again every second, Ctrl-C ends")
            away = True
            time.sleep(_PAUSE)
            continue
        if away:
            server.say(f"{server.place} is back")
        return reply


# -- write ----------------------------------------------------------------------------------------------------


def write(
    stream: str = NEW_STREAM,
    tag: str = typer.Option("", "--tag", help="The tag of every message."),
    json_tag: str = typer.Option(None, "--json-tag", help="Lines are JSON objects; take the tag from this field."),
    url: str = URL,
) -> None:
    """Append the lines of standard input to a stream, one message each.

    Batches are numbered, so that one that is sent again after a lost connection is not appended twice.
    """
    server = RemoteServer(url, "write")
    if sys.stdin is None:
        server.fail("standard input is closed; the messages are read from there")
    server.check()
    writer = _Writer(server, stream)
    bad: str | None = None
    with ending_quietly():
        try:
            for lines in _batches(sys.stdin.fileno()):
                words: list[bytes] = []
                for line in lines:
                    try:
                        words += (_tag_of(line, json_tag) if json_tag else os.fsencode(tag), line)
                    except ValueError as error:
                        bad = f"line {writer.written + len(words) // 2 + 1}: {error}"
                        break
                writer.append(words)
                if bad:
                    break
        finally:
            writer.summary()
    if bad:
        server.fail(f"{bad}; stopped before it")


def _tag_of(line: bytes, field: str) -> bytes:
    """The tag of a JSON line; ValueError says what is wrong with it."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):  # the latter for deeply nested brackets
        raise ValueError("not JSON, and --json-tag needs it to be") from None
    if not isinstance(fields, dict) or field not in fields:
        raise ValueError(f"not a JSON object with a field '{field}', which --json-tag asks for")
    value = fields[field]
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _batches(descriptor: int) -> Iterator[list[bytes]]:
    """Lines of a file or pipe, many at once when they come fast, soon when they do not."""
    rest: list[bytes] = []  # of an unfinished line: joined once, however long it gets
    lines: list[bytes] = []
    size, due = 0, 0.0
    while True:
        wait = max(due - time.monotonic(), 0) if lines else None
        if select.select([descriptor], [], [], wait)[0]:
            data = os.read(descriptor, _BATCH_BYTES)
            if not data:
                break
            if not lines:
                due = time.monotonic() + _LINGER
            head, *more = data.split(b"\n")
            rest.append(head)
            size += len(data)
            if more:
                lines += (b"".join(rest), *more[:-1])
                rest = more[-1:]
        if len(lines) >= _BATCH or (lines and (size >= _BATCH_BYTES or time.monotonic() >= due)):
            yield lines
            lines, size = [], 0
    if any(rest):
        lines.append(b"".join(rest))
    if lines:
        yield lines


class _Writer:
    """Appends batches, and keeps count."""

    def __init__(self, server: RemoteServer, stream: str) -> None:
        self.written = 0
        self._server = server
        self._stream = stream
        self._key = os.fsencode(stream)
        self._producer = f"penstock-write-{uuid.uuid4()}"
        self._batch = 0
        self._last = 0
        self._unsure = 0  # messages that were sent and not answered
        self._line = RewrittenLine()

    def append(self, words: list[bytes]) -> None:
        """Append `tag entry tag entry ...`, in commands of a bounded size."""
        for at in range(0, len(words), 2 * _BATCH):
            part = words[at : at + 2 * _BATCH]
            self._batch += 1
            self._unsure = len(part) // 2
            first = self._send("TWRITE", self._key, "PRODUCER", self._producer, self._batch, "ENTRIES", *part)
            self.written += len(part) // 2
            self._unsure = 0
            self._last = first + len(part) // 2 - 1
            self._line.show(f"{self.written:,} messages")

    def _send(self, *words: object) -> int:
        attempt = 0
        while True:
            try:
                return int(self._server.call(*words))
            except Lost as error:
                if attempt == _ATTEMPTS:
                    self._server.fail(f"{self._server.place} did not come back ({error})")
                if not attempt:
                    self._server.say(
                        f"lost {self._server.place} ({error}); trying again for {_ATTEMPTS * _PAUSE:.0f} s"
                    )
                attempt += 1
                time.sleep(_PAUSE)
            except typer.Exit:
                if not attempt:
                    self._unsure = 0  # the server refused, and said so
                raise

    def summary(self) -> None:
        place = f", the last at offset {self._last}" if self.written else ""
        noun = "message" if self.written == 1 else "messages"
        unsure = f"; {self._unsure:,} more may be written, the server did not answer" if self._unsure else ""
        self._line.end(f"{self.written:,} {noun} appended to '{self._stream}'{place}{unsure}")


# -- streams --------------------------------------------------------------------------------------------------


def streams(
    watch: bool = typer.Option(False, "--watch", help="Go on, a new list every second, until Ctrl-C."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object a stream instead of the table."),
    url: str = URL,
) -> None:
    """List the streams and how far behind their groups are.

    Of each stream: length, messages written a second, bytes, and the lag of every group.
    """
    from rich.console import Console

    server = RemoteServer(url, "streams")
    server.check()
    console = Console(markup=False, highlight=False, emoji=False)  # a name is a name, whatever is in it
    write_as(as_json)
    with ending_quietly():
        before, since = _sample(server), time.monotonic()
        while True:
            time.sleep(1)
            after, now = _sample(server), time.monotonic()
            rows = [_row(name, info, before.get(name), now - since) for name, info in sorted(after.items())]
            if as_json:
                sys.stdout.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
                sys.stdout.flush()
            else:
                if watch and console.is_terminal:
                    console.clear()
                console.print(_table(rows, server.place))
            if not watch:
                return
            before, since = after, now


def _sample(server: RemoteServer) -> dict[bytes, dict[bytes, Any]]:
    """TINFO of every stream."""
    found: dict[bytes, dict[bytes, Any]] = {}
    cursor: object = 0
    while True:
        cursor, names = server.call("SCAN", cursor, "TYPE", "tstream", "COUNT", 1000)
        described = {name: server.find("TINFO", name) for name in names}
        found |= {name: info for name, info in described.items() if info is not None}
        if not int(str(cursor)):
            return found


def _row(name: bytes, info: dict[bytes, Any], before: dict[bytes, Any] | None, seconds: float) -> dict[str, Any]:
    written = info[b"last"] - before[b"last"] if before is not None else info[b"last"]
    return {
        "stream": name.decode("utf-8", "backslashreplace"),
        "length": info[b"length"],
        "first": info[b"first"],
        "last": info[b"last"],
        "rate": round(max(written, 0) / seconds, 1),
        "bytes": info[b"bytes-stored"],
        "groups": {
            group[b"name"].decode("utf-8", "backslashreplace"): {"lag": group[b"lag"], "pending": group[b"pending"]}
            for group in info[b"groups"]
        },
    }


def _table(rows: list[dict[str, Any]], place: str) -> Table:
    from rich.table import Table

    table = Table(title=f"Streams at {place}", caption=None if rows else "There are none yet.")
    for heading in ("stream", "messages", "offsets", "written/s", "bytes", "groups: lag (pending)"):
        table.add_column(heading, justify="left" if heading[:2] in ("st", "gr") else "right", overflow="fold")
    for row in rows:
        groups = [f"{one_line(name)}: {group['lag']:,} ({group['pending']:,})" for name, group in row["groups"].items()]
        table.add_row(
            one_line(row["stream"]), f"{row['length']:,}", f"{row['first']}-{row['last']}" if row["length"] else "-",
            f"{row['rate']:,.1f}", f"{row['bytes']:,}", "\n".join(groups) or "-",
        )  # fmt: skip
    return table
