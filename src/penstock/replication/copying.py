"""A replica copies files of its leader: the base of its log, and the files of history that are missing here.

A copy that was interrupted goes on where it was: the part of a base is kept under a name that says which one it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.protocol.errors import ProtocolError, ReplyError
from penstock.replication.leader_connection import LeaderConnection
from penstock.storage import snapshot
from penstock.storage.files import TEMPORARY, StorageError, install, sync_folder
from penstock.storage.lineage import Lineage
from penstock.types.stream.segments import NAME

PART = 1 << 20
"""Bytes that are asked for at once."""
AHEAD = 4
"""Parts that are asked for before the first of them is there."""


_feed = re.compile(r"([0-9a-f]{40}):(\d{1,18})").fullmatch


@dataclass(frozen=True, slots=True)
class Offer:
    """The files that a leader offers."""

    lineage: Lineage
    start: int  # where the feed goes on after the base
    size: int  # of the base
    files: tuple[tuple[str, int], ...]  # of history, with their sizes

    @property
    def name(self) -> str:
        """The local name of a part of the base."""
        return f"{TEMPORARY}copy-{self.lineage.id}-{self.start}-{self.size}.base"


def parse_lineage(text: str) -> Lineage:
    """A lineage as PSYNC and REPLCONF FILES answer it: id:offset id:offset ..."""
    found = [_feed(word) for word in text.split()]
    feeds = [(feed[1], int(feed[2])) for feed in found if feed is not None]
    if not feeds or len(feeds) < len(found):
        raise ProtocolError(f"this is not the lineage of a log: {text[:60]!r}")
    return Lineage(tuple(feeds))


def show_lineage(lineage: Lineage) -> str:
    """The inverse of `parse_lineage`."""
    return " ".join(f"{feed}:{start}" for feed, start in lineage.feeds)


async def ask_for_offer(leader: LeaderConnection) -> Offer:
    match await leader.ask("REPLCONF", "FILES"):
        case [bytes(lineage), int(start), int(size), *files] if start >= 0 and size >= 0:
            named = tuple(map(_named, files))
            return Offer(parse_lineage(lineage.decode("utf-8", "replace")), start, size, named)
    raise ProtocolError("the leader does not say what there is to copy")


def _named(file: object) -> tuple[str, int]:
    match file:
        case [bytes(name), int(size)] if size >= 0 and NAME.fullmatch(name.decode("utf-8", "replace")):
            return name.decode(), size
    raise ProtocolError("the leader offers a file whose name is not one of history")


async def copy_base(
    leader: LeaderConnection, offer: Offer, folder: Path, databases: int, progress: Callable[[int], None]
) -> Path:
    """Copy the base into `folder`; the path of the copy, which is whole and fits into so many databases."""
    path = folder / offer.name
    for other in folder.glob(f"{TEMPORARY}copy-*.base"):
        if other != path:
            other.unlink()
    await _copy(leader, "", offer.size, path, progress)
    try:
        await asyncio.to_thread(snapshot.verify, path, databases)
    except StorageError:
        path.unlink(missing_ok=True)
        raise
    return path


async def copy_history(leader: LeaderConnection, name: str, size: int, folder: Path) -> bool:
    """Copy a file of history, if it is not here; False if the leader does not have it any more."""
    path = folder / name
    if path.exists() and path.stat().st_size == size:
        return True
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
    temporary = folder / f"{TEMPORARY}copy-{name}"
    try:
        await _copy(leader, name, size, temporary, lambda size: None)
    except ReplyError:
        temporary.unlink(missing_ok=True)
        return False
    install(temporary, path)
    return True


async def _copy(leader: LeaderConnection, name: str, size: int, path: Path, progress: Callable[[int], None]) -> None:
    """Copy what `path` lacks of a file. ReplyError if the leader does not have it any more."""
    with path.open("ab") as file:
        if file.tell() > size:
            file.truncate(0)
        parts = [(at, min(PART, size - at)) for at in range(file.tell(), size, PART)]
        asked = 0
        for number, (at, count) in enumerate(parts):
            for part in parts[asked : number + AHEAD]:
                leader.say("REPLCONF", "READ", name, *part)
                asked += 1
            try:
                data = await leader.reply()
            except ReplyError:
                for _ in range(asked - number - 1):  # the connection is used on
                    with contextlib.suppress(ReplyError):
                        await leader.reply()
                raise
            if not isinstance(data, bytes) or len(data) != count:
                raise ProtocolError(f"the leader's file {name or 'base'} is shorter than it said")
            file.write(data)
            progress(at + count)
        file.flush()
        os.fsync(file.fileno())
