"""`penstock history export` and `penstock history import`: messages of a stream to a file, and from a file to a stream.

Both talk to a running server, so they work from any machine, and what they read and write is what any client would.

An export ends where the stream ended when it began. The file gets its name when it is whole. An import is a producer
whose id is a digest of the file, and numbers its portions: an import that was interrupted continues where it was, and
the same file is not appended twice by accident.

Rejected: copying the files of history. They lack the newest messages, and have no offsets.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import typer

from penstock.cli.remote_server import NEW_STREAM, STREAM, URL, RemoteServer
from penstock.cli.terminal import RewrittenLine, ending_quietly, shown_bytes

if TYPE_CHECKING:
    from penstock.cli.message_files import MessageWriter, Portion

_ROWS = 100_000  # messages read at once, at the most
_BYTES = 16 << 20

history = typer.Typer(
    name="history", help="Write messages of a stream to a file, or of a file to a stream.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    app.add_typer(history)


# -- export ---------------------------------------------------------------------------------------------------


@history.command("export")
def export_history(
    stream: str = STREAM,
    to: Path = typer.Option(..., "--to", help="The file to make; its ending, .arrow or .parquet, says of which kind."),
    start: int = typer.Option(None, "--from", min=1, help="The first offset; without it, the first there is."),
    end: int = typer.Option(None, "--to-offset", min=1, help="The last offset; without it, the last there is now."),
    since: str = typer.Option(
        None, "--since", help="Begin with the first message of this time, such as 2026-11-01 or 2026-11-01T12:30:00Z."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the file if there is one."),
    url: str = URL,
) -> None:
    """Write messages of a stream to an Arrow or Parquet file.

    The columns are offset, time, tag, entry and visible_at, which says when groups get a delayed message. Messages that
    are written to the stream meanwhile are left out. The file appears when it is whole.
    """
    from penstock.cli.message_files import UnusableFile, kind_of, writing
    from penstock.storage.files import replace_file

    server = RemoteServer(url, "history")
    try:
        kind = kind_of(to)
    except UnusableFile as error:
        server.fail(f"--to: {error}")
    if to.is_dir() or (to.exists() and not overwrite):
        server.fail(f"{to} exists already" + ("" if to.is_dir() else "; --overwrite replaces it"))
    if start is not None and since is not None:
        server.fail("--from and --since both say where to begin; give one of them")
    moment = _milliseconds(server, since) if since is not None else None
    server.check()
    export = _Export(server, stream, start, end, moment)

    def write(file: BinaryIO) -> None:
        with writing(file, kind) as writer:
            export.write(writer)

    with ending_quietly():
        try:
            replace_file(to, write)
        except OSError as error:
            server.fail(f"{to} could not be written: {error.strerror or error}")
    export.summary(to)


def _milliseconds(server: RemoteServer, text: str) -> int:
    """A time since 1970. Without a zone, it is local time."""
    try:
        moment = datetime.fromisoformat(text)
        return int(moment.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        server.fail(f"--since takes a time such as 2026-11-01, 2026-11-01T12:30 or 2026-11-01T12:30:00Z, not '{text}'")


class _Export:
    """The part of a stream that is exported."""

    def __init__(
        self, server: RemoteServer, stream: str, start: int | None, end: int | None, since: int | None
    ) -> None:
        self._server = server
        self._stream = stream
        self._key = os.fsencode(stream)
        self._line = RewrittenLine()
        first, last = self._bounds()
        if not last:
            server.fail(f"there is no stream '{stream}' at {server.place}, or nothing was written to it")
        if since is not None:
            start = self._server.call_patiently("TSEEK", self._key, "TIME", max(since, 0))
        self._begin = self._place = first if start is None else start
        self._last = last if end is None else min(end, last)
        self._done = 0

    def _bounds(self) -> tuple[int, int]:
        (first, last), *_ = self._server.call_patiently("TREAD", self._key, 1, 0, "WITHINFO")
        return first, last

    def write(self, writer: MessageWriter) -> None:
        for table in self._tables():
            self._pass_evicted(int(table.schema.metadata[b"first"]))
            writer.write(table)
            self._place = table.column("offset")[-1].as_py() + 1
            self._done += table.num_rows
            self._line.show(f"{self._done:,} of {self._last + 1 - self._begin:,} messages")
        self._pass_evicted(self._bounds()[0])

    def _tables(self) -> Iterator[Any]:
        """Each is fetched while the one before is written."""
        from penstock.client.api.stream_replies import ArrowReading
        from penstock.client.api.tables import Span, read_tables

        span = Span(self._key, self._begin, self._last, count=_ROWS, max_bytes=_BYTES)
        return read_tables(lambda words: ArrowReading().table(self._server.call_patiently(*words, "WITHTIME")), span)

    def _pass_evicted(self, first: int) -> None:
        """Tell of messages that were wanted, and are gone."""
        gone = min(first - 1, self._last)
        if self._place <= gone:
            self._server.say(
                f"offsets {self._place} to {gone} of '{self._stream}' are not in the file: they were evicted"
            )
            self._place = gone + 1

    def summary(self, path: Path) -> None:
        noun = "message" if self._done == 1 else "messages"
        size = path.stat().st_size
        self._line.end(f"{self._done:,} {noun} of '{self._stream}' written to {path}, {size:,} bytes")


# -- import ---------------------------------------------------------------------------------------------------


@history.command("import")
def import_history(
    file: Path = typer.Argument(
        ..., help="An Arrow or Parquet file with columns tag and entry, and perhaps time and visible_at."
    ),
    stream: str = NEW_STREAM,
    again: bool = typer.Option(False, "--again", help="Append all of the file, also if it was imported before."),
    url: str = URL,
) -> None:
    """Append the messages of an Arrow or Parquet file to a stream.

    They keep their times and delays, and get new offsets. An import that was interrupted continues where it was if it
    is run again: no message is appended twice.
    """
    from penstock.cli.message_files import UnusableFile, portions

    server = RemoteServer(url, "history")
    try:
        with file.open("rb") as opened:
            producer = f"penstock-import-{uuid.uuid4()}" if again else _producer(opened)
            server.check()
            upload = _Import(server, stream, producer)
            failed = True
            with ending_quietly():
                try:
                    for portion in portions(opened, file):
                        upload.append(portion)
                    failed = False
                finally:
                    upload.summary(file, failed)
    except (UnusableFile, OSError) as error:
        server.fail(str(error) if isinstance(error, UnusableFile) else f"{file} cannot be read: {error.strerror}")


def _producer(file: BufferedReader) -> str:
    """The id under which a stream knows this file."""
    from penstock.cli.message_files import FORMAT

    digest = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    file.seek(0)
    return f"penstock-import-{FORMAT}-{digest}"


class _Import:
    """The messages of a file on their way to a stream."""

    def __init__(self, server: RemoteServer, stream: str, producer: str) -> None:
        self._server = server
        self._stream = stream
        self._key = os.fsencode(stream)
        self._producer = producer
        self._line = RewrittenLine()
        known = server.call_patiently("TPRODUCER", self._key, producer)
        self._schema = server.call_patiently("TSCHEMA", "GET", self._key)
        self._before = known[0] if known is not None else 0  # portions that are there already
        self._number = 0
        self._passed = self._done = 0  # messages

    def append(self, portion: Portion) -> None:
        from penstock.cli.message_files import payload_of

        self._number += 1
        if self._number <= self._before:
            self._passed += portion.rows
            return
        numbered = ("PRODUCER", self._producer, self._number)
        delay = ("AT", portion.visible_at) if portion.visible_at is not None else ()
        self._server.call_patiently("TWRITE", self._key, *numbered, *delay, "FORMAT", "ARROW", payload_of(portion))
        self._done += portion.rows
        self._line.show(f"{self._done:,} messages")

    def summary(self, path: Path, failed: bool) -> None:
        if failed and not self._done:
            return  # the error says enough
        noun = "message" if self._done == 1 else "messages"
        before = f"; {self._passed:,} were there from an earlier import" if self._passed else ""
        before += " (--again appends them once more)" if self._passed and not self._done else ""
        self._line.end(f"{self._done:,} {noun} of {path} appended to '{self._stream}'{before}{self._diverted()}")

    def _diverted(self) -> str:
        """Where a stream that checks its schema puts entries that do not fit."""
        if not self._done or self._schema is None or self._schema[b"check"] != b"deadletter":
            return ""
        return f"; those that do not fit its schema went to '{shown_bytes(self._schema[b'deadletter'])}'"
