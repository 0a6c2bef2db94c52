"""Saves the part of a log that the leader lacks, before the leader's log replaces it."""

from __future__ import annotations

import logging
import os
import shutil
from typing import BinaryIO

from penstock.storage.aof import AppendOnlyFile
from penstock.storage.files import sync_folder, unused_name, write_synced

logger = logging.getLogger("penstock.replication")


def keep_diverged(aof: AppendOnlyFile, start: int) -> None:
    """Copy the log from an offset on to a file that ends with .diverged.

    If a rewrite has removed the log from there on, the base is kept too, as a second file: it has what was in it. Both
    can be read with `penstock check`, and the log with Redis's tools.
    """
    if aof.writer is not None:
        aof.writer.drain()
    end = aof.feed.end
    path = unused_name(aof.folder / f"{aof.prefix}.{start}-{end}.diverged")
    base = unused_name(aof.folder / f"{aof.prefix}.{start}-{end}.base.diverged")
    rewritten = start < aof.feed.start
    pieces = []
    at = max(start, aof.feed.base_end) if rewritten else start
    while at < end:
        part, begin, part_end = aof.feed.increment_at(at)
        pieces.append((part, at - begin))
        at = part_end if part_end is not None else end

    def copy(file: BinaryIO) -> None:
        for part, offset in pieces:
            with part.open("rb") as source:
                source.seek(offset)
                shutil.copyfileobj(source, file)

    write_synced(path, copy)
    if rewritten:
        os.link(aof.folder / aof.manifest.base, base)
    sync_folder(aof.folder)
    kept = f"{base.name} and {path.name}" if rewritten else path.name
    logger.warning("%d bytes of the log were never taken by the new leader; they are kept in %s", end - start, kept)
