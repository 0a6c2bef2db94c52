"""The leader's side of one replica: it is sent the feed from the log's files, as fast as it takes it.

No change is buffered for a replica that is behind: what it has not got yet is in the files of the log, which are kept
for it (`Replicas.keep_from`). Only a replica that has everything gets new batches from memory. Messages for its
subscribers are in no file, so they do wait in memory, up to client-output-buffer-limit; then its connection is closed.

Owned by the loop thread.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.engine.session import Session
from penstock.replication.frames import out_of_band

if TYPE_CHECKING:
    from penstock.replication.replicas import Replicas

CAPABILITY = "penstock"
"""What a replica says in REPLCONF capa: it understands this feed. A server of Redis ignores such a word."""
PIECE = 1 << 18
"""Bytes that are read from a file at a time."""
ENOUGH = 1 << 19
"""Bytes that may wait in a connection before no more is sent."""


class Link:
    """A replica that follows, or is about to: it may be copying files first."""

    def __init__(self, replicas: Replicas, session: Session) -> None:
        self._replicas = replicas
        self.session = session
        self.host = ""  # as it says itself; empty: as it is connected
        self.port = 0  # where it listens
        self.node, self.log = "", ""  # of a replica of a shard: its name, and the id of its log
        self.epoch = 0  # in which it follows
        self.run = ""  # the id of its process: with an older connection of the same one it is one replica
        self.understands = False  # the feed, as it has said (CAPABILITY)
        self.base: int | None = None  # descriptor of the base that it copies
        self.position: int | None = None  # the next byte of the feed that it is sent; None before PSYNC
        self.follows = False  # it gets the feed, or will when the answer to PSYNC has left
        self.needs = 0  # the feed from here on must be kept for it
        self.acknowledged = 0  # it has appended the feed up to here
        self.synced = 0  # and this much of it is safe from a power cut
        self.heard = replicas.now()
        self.goal, self.goal_set = (
            0,
            replicas.now(),
        )  # an end of the feed that it has yet to acknowledge, and since when
        self._waiting = 0  # bytes that its connection has yet to send
        self._file: int | None = None
        self._path: Path | None = None  # of that file
        self._words: deque[bytes] = deque()  # out of band, until it has caught up
        self._published: deque[tuple[int, bytes]] = deque()  # each behind so much of the feed
        self._size = 0  # bytes of both

    @property
    def online(self) -> bool:
        """Whether it gets new batches at once."""
        return self.position is not None and self.position == self._replicas.end

    @property
    def address(self) -> tuple[str, int]:
        """Where clients reach it."""
        return self.host or self.session.peer.rpartition(":")[0].strip("[]"), self.port

    def look_how_far(self, end: int, now: float) -> None:
        """If it has what it was to have, it is to have all that there is now."""
        if self.acknowledged >= self.goal:
            self.goal, self.goal_set = end, now

    def start(self, position: int) -> None:
        """Send the feed from here on."""
        self.position = self.needs = position
        self._close_base()
        self.pump()

    def written(self, batch: bytes) -> None:
        """The log has one batch more, which ends at `Replicas.end`."""
        if self.position is None:
            return
        if self.position == self._replicas.end - len(batch) and self._waiting < ENOUGH:
            self._send(batch)
            self._say_what_waits()
        else:
            self.pump()

    def pump(self) -> None:
        """Send what it has not got yet, until its connection has enough."""
        if self.position is None or self.session.closing:
            return
        while self.position < self._replicas.end and self._waiting < ENOUGH:
            try:
                data = self._read(self.position)
            except (OSError, LookupError) as error:
                self._replicas.lost(self, str(error))
                return
            self._send(data)
        self._say_what_waits()

    def has_room(self) -> None:
        """Its connection has sent nearly everything."""
        self._waiting = 0
        self.pump()

    def tell(self, *words: bytes) -> None:
        """Send a command that is not logged, when it has caught up."""
        if self.follows:
            frame = out_of_band(*words)
            self._words.append(frame)
            self._size += len(frame)
            self._say_what_waits()

    def publish(self, frames: bytes, behind: int) -> None:
        """Send messages for its subscribers, when it has caught up and was sent the feed up to `behind`."""
        if self.follows:
            self._published.append((behind, frames))
            self._size += len(frames)
            self._say_what_waits()
            self.check_unsent()

    @property
    def unsent(self) -> int:
        """Bytes that wait in memory, beside those in its connection."""
        return self._size + self._replicas.held if self.follows else 0

    def check_unsent(self) -> None:
        """Close its connection if more waits than client-output-buffer-limit allows. It will go on where it was."""
        if self.unsent and not self.session.closing:
            self.session.output.check_unsent()

    def _say_what_waits(self) -> None:
        while self.online and self._waiting < ENOUGH:
            if self._words:
                frames = self._words.popleft()
            elif self._published and self._published[0][0] <= self._replicas.end:
                _, frames = self._published.popleft()
            else:
                return
            self._size -= len(frames)
            self._waiting = self.session.output.send_now(frames)

    def _send(self, data: bytes) -> None:
        assert self.position is not None
        self.position += len(data)
        self._waiting = self.session.output.send_now(data)

    def _read(self, position: int) -> bytes:
        path, start, end = self._replicas.aof.feed.increment_at(position)
        if path != self._path or self._file is None:
            self._close_file()
            self._file, self._path = os.open(path, os.O_RDONLY | os.O_CLOEXEC), path
        limit = min(end if end is not None else self._replicas.end, self._replicas.end)
        data = os.pread(self._file, min(PIECE, limit - position), position - start)
        if not data:
            raise OSError(f"{path} ends before offset {position} of the feed")
        return data

    def close(self) -> None:
        """Its connection has ended, or must."""
        self.follows = False
        self._words.clear()
        self._published.clear()
        self._size = 0
        self._close_file()
        self._close_base()
        self.session.output.close(after_reply=False)

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _close_base(self) -> None:
        if self.base is not None:
            os.close(self.base)
            self.base = None
