"""The figures of the graphs over time, in a SQLite file of the console's folder.

Each series is kept at three resolutions. Each resolution is a ring: a point's place in it follows from its time, so a
new point takes the place of the oldest one and the file never grows beyond series times points. Series that were not
touched for longest make room for new ones. The file survives the console and the server; a gap in time is a gap in the
graph. If the file is damaged, it is put aside, and a new one begins.

The history belongs to a server and not to its address: the table `feed` says under which name the history of each
server is that was seen there (same_server.py).

Rejected: a file for each series (ten thousand files), and asking the server, which keeps no history of itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

RINGS = ((10, 360), (120, 720), (1800, 672))
"""Seconds between points, and points: an hour, a day, two weeks."""
MOST_SERIES = 1000
MOST_IDLE = 50_000
MOST_FEEDS = 1000
LONGEST_NAME = 2048
"""Bytes of the names of a stream and a group that have a history: the file is bounded."""
PATIENCE = 5.0
"""Seconds to wait for another console that uses the file."""

Series = tuple[bytes, bytes]
"""A stream and a group; (stream, empty) is the stream itself, and (empty, empty) the server."""
Values = tuple[float, ...]
"""Three numbers, and of a group a fourth."""
SERVER: Series = (b"", b"")

_TABLES = """
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY AUTOINCREMENT, server TEXT, stream BLOB, reader BLOB, touched INTEGER,
    UNIQUE (server, stream, reader)
);
CREATE TABLE IF NOT EXISTS point (
    series INTEGER, ring INTEGER, place INTEGER, time INTEGER, a REAL, b REAL, c REAL,
    PRIMARY KEY (series, ring, place)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS feed (place TEXT, id TEXT, server TEXT, UNIQUE (place, id));
"""
_PUT = """
INSERT INTO point VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO UPDATE SET
    time = excluded.time, a = excluded.a, b = excluded.b, c = excluded.c, d = excluded.d
WHERE point.time / ?9 <> excluded.time / ?9
"""
"""The first point of an interval stays, also if the console was started again within it."""
_COMPARED = 3
"""Values that make a point of their own if they change. How far a group is behind in time grows by itself."""


@dataclass(frozen=True, slots=True)
class Point:
    """The figures at a time, in seconds. Of a stream: last offset, bytes, length. Of a group: position, lag, pending,
    milliseconds behind. Of the server: commands, bytes of memory, clients.
    """

    time: int
    values: Values


class History:
    """The history of one server. Calls come from the event loop and do their work in a thread, one at a time."""

    def __init__(self, folder: Path, place: str) -> None:
        self._path = folder / "history.sqlite"
        self._place = place
        self.server = place
        """The name of its history: the place, or for a later server at this place another one."""
        self.feed = ""
        """The feed of the server that was recognized last."""
        self._lock = threading.Lock()
        self._ids: dict[Series, int] = {}
        self._places: dict[tuple[Series, int], int] = {}
        """The number of the last interval that has a point, of each series and ring."""
        self._known: dict[Series, Values] = {}
        self._unchanged: dict[Series, tuple[int, Values]] = {}
        """When the values of a series were last seen to be those of its last point, and what was seen."""
        self._idle: dict[Series, Values] = {}
        """Series without history, as they were seen first."""
        try:
            self._file = self._open()
        except sqlite3.OperationalError as error:  # no room, no permission, locked for long: the file itself is well
            raise OSError(f"{self._path}: {error}") from error
        except sqlite3.DatabaseError:
            self._put_aside()
            self._file = self._open()
        latest = self._file.execute("SELECT server FROM feed WHERE place = ? ORDER BY rowid DESC LIMIT 1", (place,))
        self._load((latest.fetchone() or (place,))[0])

    def _load(self, server: str) -> None:
        """Go on with the history of this name."""
        self.server = server
        for known in (self._places, self._known, self._unchanged, self._idle):
            known.clear()
        rows = self._file.execute("SELECT stream, reader, id FROM series WHERE server = ?", (server,))
        self._ids = {(stream, reader): number for stream, reader, number in rows}

    def _open(self) -> sqlite3.Connection:
        file = sqlite3.connect(self._path, PATIENCE, check_same_thread=False, isolation_level=None)
        try:
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = OFF")  # losing the last points of a graph is no harm
            file.executescript(_TABLES)
            if "d" not in {name for _, name, *_ in file.execute("PRAGMA table_info(point)")}:  # of an earlier version
                file.execute("ALTER TABLE point ADD COLUMN d REAL")
            self._path.chmod(0o600)
        except sqlite3.DatabaseError:
            file.close()
            raise
        return file

    def _put_aside(self) -> None:
        """A log of changes that stayed behind would be applied to the new file."""
        self._path.replace(self._path.with_suffix(".damaged"))
        for rest in ("-wal", "-shm"):
            self._path.with_name(self._path.name + rest).unlink(missing_ok=True)

    # -- which server it is of ----------------------------------------------------------------------------------

    async def knows(self, feed: str, before: str) -> bool:
        """Go on with the history of the server that has this feed, or had the one before; False if there is none."""
        return await asyncio.to_thread(self._find, feed, before)

    def _find(self, feed: str, before: str) -> bool:
        with self._lock, contextlib.suppress(sqlite3.Error):
            known = dict(self._file.execute("SELECT id, server FROM feed WHERE place = ?", (self._place,)).fetchall())
            if known and feed not in known and before not in known:
                return False
            self._become(known.get(feed) or known.get(before) or self._place, feed)
        return True

    async def begin(self, feed: str, goes_on: bool) -> None:
        """A server that is not known: the one before goes on under another feed, or this is another one."""
        await asyncio.to_thread(self._begin, feed, goes_on)

    def _begin(self, feed: str, goes_on: bool) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._become(self.server if goes_on else f"{self._place} {feed}", feed)

    def _become(self, server: str, feed: str) -> None:
        self._file.execute("INSERT OR REPLACE INTO feed VALUES (?, ?, ?)", (self._place, feed, server))
        self._file.execute("DELETE FROM feed WHERE rowid <= (SELECT max(rowid) FROM feed) - ?", (MOST_FEEDS,))
        if server != self.server:
            self._load(server)
        self.feed = feed

    async def last_offsets(self, count: int) -> dict[bytes, int]:
        """The last offset that was seen of the streams that were seen last."""
        return await asyncio.to_thread(self._last_offsets, count)

    def _last_offsets(self, count: int) -> dict[bytes, int]:
        rows: list[tuple[bytes, float | None]] = []
        with self._lock, contextlib.suppress(sqlite3.Error):
            rows = self._file.execute(
                "SELECT stream, (SELECT a FROM point WHERE series = id AND ring = 0 ORDER BY time DESC LIMIT 1) "
                "FROM series WHERE server = ? AND reader = x'' AND stream <> x'' ORDER BY touched DESC LIMIT ?",
                (self.server, count),
            ).fetchall()
        return {stream: int(last) for stream, last in rows if last is not None}

    # -- points -------------------------------------------------------------------------------------------------

    async def record(self, now: float, seen: Iterable[tuple[Series, Values]]) -> None:
        short = ((series, values) for series, values in seen if sum(map(len, series)) <= LONGEST_NAME)
        rows = [(series, values) for series, values in short if self._is_due(series, values, int(now))]
        if rows:
            await asyncio.to_thread(self._record, int(now), rows)

    def _is_due(self, series: Series, values: Values, now: int) -> bool:
        """Whether there is no point yet of this interval, and something changed, or nothing for a long time.

        When there are many series, one that has never changed has no history: of ten thousand streams most are idle.
        """
        if series not in self._ids and len(self._ids) >= MOST_SERIES // 2:
            if len(self._idle) >= MOST_IDLE:
                self._idle.clear()  # most are of streams that are gone
            first = self._idle.setdefault(series, values)
            if first[:_COMPARED] == values[:_COMPARED]:
                return False
            del self._idle[series]
        step, _ = RINGS[0]
        if self._places.get((series, 0)) == now // step:
            return False
        long, _ = RINGS[-1]
        same = self._known.get(series, ())[:_COMPARED] == values[:_COMPARED]
        if same and self._places.get((series, len(RINGS) - 1)) == now // long:
            self._unchanged[series] = now, values
            return False
        return True

    def _record(self, now: int, rows: list[tuple[Series, Values]]) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):  # a full disk or a damaged file must not end the console
            self._file.execute("BEGIN")
            try:
                for series, values in rows:
                    self._put(self._id(series, now), series, now, values)
                self._file.execute("COMMIT")
            except BaseException:
                self._ids.clear()
                if self._file.in_transaction:  # SQLite itself may have ended it, as when the disk is full
                    self._file.execute("ROLLBACK")
                raise

    def _put(self, number: int, series: Series, now: int, values: Values) -> None:
        unchanged, before = self._unchanged.pop(series, (None, ()))
        for ring, (step, length) in enumerate(RINGS):
            at = now // step
            last = self._places.get((series, ring))
            if last == at:
                continue
            if unchanged is not None and last is not None and last < unchanged // step < at:
                # Nothing changed until then: without a point there the change would look slow.
                self._insert(number, ring, unchanged // step, unchanged, length, before)
            self._insert(number, ring, at, now, length, values)
            self._places[series, ring] = at
        self._known[series] = values

    def _insert(self, number: int, ring: int, at: int, when: int, length: int, values: Values) -> None:
        row = (number, ring, at % length, when, *values, None)[:8]
        self._file.execute(_PUT, (*row, RINGS[ring][0]))

    def _id(self, series: Series, now: int) -> int:
        number = self._ids.get(series)
        if number is None:
            key = (self.server, *series)
            self._file.execute("INSERT OR IGNORE INTO series (server, stream, reader) VALUES (?, ?, ?)", key)
            (number,) = self._file.execute(
                "SELECT id FROM series WHERE server = ? AND stream = ? AND reader = ?", key
            ).fetchone()
            self._ids[series] = number
            self._make_room()
        if not self._file.execute("UPDATE series SET touched = ? WHERE id = ?", (now, number)).rowcount:
            self._forget(series)  # another console on this folder needed the room
            return self._id(series, now)
        return int(number)

    def _make_room(self) -> None:
        (count,) = self._file.execute("SELECT count(*) FROM series").fetchone()
        if count <= MOST_SERIES:
            return
        old = self._file.execute(
            "SELECT id, stream, reader FROM series WHERE touched IS NOT NULL ORDER BY touched LIMIT ?",
            (count - MOST_SERIES,),
        ).fetchall()
        for number, stream, reader in old:
            self._file.execute("DELETE FROM point WHERE series = ?", (number,))
            self._file.execute("DELETE FROM series WHERE id = ?", (number,))
            self._forget((stream, reader))

    def _forget(self, series: Series) -> None:
        self._ids.pop(series, None)
        self._known.pop(series, None)
        self._unchanged.pop(series, None)
        for ring in range(len(RINGS)):
            self._places.pop((series, ring), None)

    async def read(self, now: float, stream: bytes, seconds: int) -> dict[bytes, list[Point]]:
        """The points of a stream and its groups, of the last so many seconds; the stream itself is under b''."""
        return await asyncio.to_thread(self._read, int(now), stream, seconds)

    def _read(self, now: int, stream: bytes, seconds: int) -> dict[bytes, list[Point]]:
        ring = next((n for n, (step, length) in enumerate(RINGS) if step * length >= seconds), len(RINGS) - 1)
        since = now - seconds
        rows: list[tuple[bytes, int, float, float, float, float | None]] = []
        with self._lock, contextlib.suppress(sqlite3.Error):
            rows = self._file.execute(
                "SELECT reader, time, a, b, c, d FROM series JOIN point ON series.id = point.series "
                "WHERE server = ? AND stream = ? AND ring = ? AND time >= ? ORDER BY reader, time",
                (self.server, stream, ring, since),
            ).fetchall()
        found: dict[bytes, list[Point]] = {}
        for reader, when, *values in rows:
            found.setdefault(reader, []).append(Point(when, tuple(each for each in values if each is not None)))
        return found

    def close(self) -> None:
        with self._lock:
            self._file.close()
