"""What a replica copies that cannot continue from the log: the base, and the files of history that it refers to.

These files exist already. The replica asks for them by name and reads them in pieces (REPLCONF FILES, SIZE, READ); they
are kept while it is connected.

Owned by the loop thread, except what `reader` returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.replication.replicas import NO_LOG, Replicas
from penstock.storage import snapshot
from penstock.storage.lineage import Lineage
from penstock.storage.notice_logging import notice
from penstock.storage.persistence import Persistence
from penstock.types.stream.segments import NAME

LARGEST_READ = 4 << 20
"""Bytes of a file that a replica may ask for at once."""


class FullCopies:
    """See the top of this file."""

    def __init__(self, persistence: Persistence, replicas: Replicas) -> None:
        self._persistence = persistence
        self._aof = persistence.aof
        self._replicas = replicas
        self.count = 0  # for INFO

    def files(self, session: Session) -> tuple[Lineage, int, int, list[tuple[str, int]]]:
        """The parts of a full copy: the lineage, where the feed goes on after the base, the size of the base, and
        the files of history that it refers to, with their sizes. All of it is kept while the replica is connected.
        """
        if self._aof.writer is None or not self._aof.manifest.base:
            raise ReplyError(NO_LOG)
        link = self._replicas.of(session)
        base = self._aof.folder / self._aof.manifest.base
        names = snapshot.segment_names(base)
        folder = self._persistence.history.files.folder
        if link.base is not None:
            os.close(link.base)
        link.base = os.open(base, os.O_RDONLY | os.O_CLOEXEC)
        link.needs, link.position, link.follows = self._aof.feed.base_end, None, False
        self._persistence.history.known.pin(link, names)
        self.count += 1
        notice("replica %s:%d copies everything", *link.address, of="replication")
        sizes = [(name, (folder / name).stat().st_size) for name in names if (folder / name).exists()]
        return self._aof.lineage, self._aof.feed.base_end, os.fstat(link.base).st_size, sizes

    def size(self, name: str) -> int | None:
        """The size of a file of history; None if it is not there."""
        path = self._history_file(name)
        return path.stat().st_size if path.is_file() else None

    def _history_file(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ReplyError("REPLCONF READ and SIZE know the base and files of history")
        return self._persistence.history.files.folder / name

    def reader(self, session: Session, name: str, start: int, count: int) -> Callable[[], bytes]:
        """A function that reads a part of the base (named "") or of a file of history, in any thread."""
        link = self._replicas.links.get(session.id)
        if link is not None:
            link.heard = self._replicas.now()
        if count > LARGEST_READ or count < 0 or start < 0:
            raise ReplyError(f"REPLCONF READ reads at most {LARGEST_READ} bytes")
        if not name:
            if link is None or link.base is None:
                raise ReplyError("REPLCONF READ of the base comes after REPLCONF FILES")
            own = os.dup(link.base)  # the connection may end meanwhile
        else:
            try:
                own = os.open(self._history_file(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                raise ReplyError(f"the file {name} cannot be read: {error.strerror}") from None

        def read() -> bytes:
            try:
                return os.pread(own, count, start)
            finally:
                os.close(own)

        return read
