"""What a server has logged and its leader has not: it is put aside before the leader's log takes its place."""

from __future__ import annotations

import logging
import shutil

from penstock.storage.aof import AppendOnlyFile
from penstock.storage.files import unused_name, write_synced

log = logging.getLogger("penstock.replication")


def keep_diverged(aof: AppendOnlyFile, start: int) -> None:
    """Copy the log from an offset on to a file that ends with .diverged.

    It can be read with `penstock check`, and with Redis's tools.
    """
    if aof.writer is not None:
        aof.writer.drain()
    end = aof.feed.end
    path = unused_name(aof.folder / f"{aof.prefix}.{start}-{end}.diverged")
    lost = end - start
    at = start
    pieces = []
    while at < end:
        try:
            part, begin, part_end = aof.feed.increment_at(at)
        except LookupError:
            at = aof.feed.start
            continue
        pieces.append((part, at - begin))
        at = part_end if part_end is not None else end

    def copy(file: object) -> None:
        for part, offset in pieces:
            with part.open("rb") as source:
                source.seek(offset)
                shutil.copyfileobj(source, file)  # type: ignore[arg-type]

    write_synced(path, copy)
    log.warning("%d bytes of the log were never taken by the new leader; they are kept in %s", lost, path.name)
