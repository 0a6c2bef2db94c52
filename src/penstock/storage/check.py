"""`penstock check`: the contents of a snapshot, a log or a folder of them, whether they are undamaged, and repair of a
log. The files of history of a folder are checked in history_check.py.

A log is repaired by cutting it before the first damage; a .bak file keeps what was cut. Everything after the damage is
removed, later increments too: a log with a hole in it would build data that never existed. A log that a server is
writing is not repaired: the batch under way looks torn. A snapshot cannot be repaired this way, because its blocks are
not in the order of time.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

from penstock.storage import batches, blocks, manifest, snapshot
from penstock.storage.check_report import Report
from penstock.storage.files import StorageError, sync_folder, unused_name
from penstock.storage.folder_lock import FolderInUse, FolderLock
from penstock.storage.history_check import ReferredFiles, check_history
from penstock.storage.segment_files import FOLDER, SegmentFiles, problems
from penstock.types import codec
from penstock.types.stream.nodes import Storage


def run_check(path: Path, fix: bool = False) -> Report:
    """Inspect a file or a folder; with `fix`, cut damaged logs at their last good batch."""
    report = Report()
    try:
        _check(path, fix, report)
    except (OSError, StorageError) as error:
        report.damage(path, str(error))
    return report


def _check(path: Path, fix: bool, report: Report) -> None:
    if not path.exists():
        report.missing(path, "there is no such file or folder")
    elif path.is_dir():
        _check_folder(path, fix, report)
    elif path.suffix == ".manifest":
        _check_manifest(path, fix, report)
    elif path.suffix == ".aof" or (path.suffix == ".diverged" and ".base" not in path.suffixes):
        _check_increment(path, fix, report)
    elif path.suffix == ".arrow":
        _check_segment(path, report)
    else:
        _check_snapshot(path, report)


def _check_folder(folder: Path, fix: bool, report: Report) -> None:
    manifests = sorted([*folder.glob("*.manifest"), *folder.glob("*/*.manifest")])
    snapshots = sorted(path for path in folder.glob("*.pns") if not manifest.sequence_of(path.name))
    whole: list[Path] = []
    for path in (*snapshots, *manifests):
        before = report.damaged
        if path in snapshots:
            _check_snapshot(path, report)
        else:
            _check_manifest(path, fix, report)
        if report.damaged == before:
            whole.append(path)
    if not manifests and not snapshots:
        report.missing(folder, "there is neither a snapshot nor a log here")
    files = SegmentFiles(folder / FOLDER)
    if len(whole) == len(snapshots) + len(manifests):
        check_history(folder, files, snapshots, manifests, fix, report)
    elif files.folder.exists():
        report.say(files.folder, "not checked: which files are needed is known when the rest is whole")


def _check_manifest(path: Path, fix: bool, report: Report) -> None:
    try:
        listed = manifest.read(path)
    except StorageError as error:
        report.damage(path, str(error))
        return
    report.say(path, f"a log of {len(listed.names)} files")
    for name in listed.names:
        file = path.with_name(name)
        if not file.exists():
            report.damage(file, "the manifest lists it, and it is not there")
        elif name == listed.base:
            _check_snapshot(file, report)
        elif file.exists() and name in manifest.read(path).names:  # the repair of an earlier file may have removed it
            _check_increment(file, fix, report)


def _check_segment(path: Path, report: Report) -> None:
    found = problems(path)
    for problem in found:
        report.damage(path, problem)
    if not found:
        report.say(path, f"a file of history, {path.stat().st_size} bytes")


def _check_snapshot(path: Path, report: Report) -> None:
    counts: Counter[tuple[int, str]] = Counter()
    expiring = clients = files = 0
    storage = Storage(files=ReferredFiles(SegmentFiles(path.parent)))
    try:
        for block in snapshot.read(path):
            if block.kind == blocks.ONCE:
                clients += len(block.keys)
                continue
            if block.kind == blocks.SEGMENTS:
                files = len(block.keys)
                continue
            if block.kind == blocks.STANDING:
                continue
            expiring += sum(map(bool, block.times))
            if block.kind == blocks.STRINGS:
                counts[block.database, "string"] += len(block.keys)
            else:
                counts.update(
                    (block.database, codec.type_name(value)) for value in block.decoded(storage) if value is not None
                )
    except (StorageError, ValueError) as error:
        report.damage(path, str(error))
        return
    report.say(path, f"a snapshot, {path.stat().st_size} bytes, {counts.total()} keys, {expiring} with an expiry time")
    for (database, kind), count in sorted(counts.items()):
        report.say(path, f"database {database}: {count} {kind}")
    if clients:
        report.say(path, f"replies kept for {clients} clients of ONCE")
    if files:
        report.say(path, f"refers to {files} files of history")


def _check_increment(path: Path, fix: bool, report: Report) -> None:
    counts: Counter[str] = Counter()
    number = 0
    damage: StorageError | None = None
    try:
        for _, commands in batches.read(path):
            number += 1
            counts.update(argv[0].decode("utf-8", "replace").upper() for argv in commands)
    except StorageError as error:
        damage = error
    report.say(path, f"a log, {path.stat().st_size} bytes, {number} whole batches, {counts.total()} commands")
    for name, count in sorted(counts.items()):
        report.say(path, f"{count} {name}")
    if damage is None:
        return
    if fix:
        lock = FolderLock(path.absolute().parent.parent)  # the folder of the log is inside of the server's
        try:
            lock.take()
            _cut(path, damage.offset, report)
        except FolderInUse as error:
            report.damage(path, f"not fixed: {error.problem}")
        finally:
            lock.release()
    else:
        torn = isinstance(damage, batches.TornTail)
        report.damage(path, f"at byte {damage.offset}: {damage.problem}{' (a torn end)' if torn else ''}")


def _cut(path: Path, offset: int, report: Report) -> None:
    """Keep a copy, cut the file, and take the increments that follow it out of the manifest."""
    listings = {listing: manifest.read(listing) for listing in path.parent.glob("*.manifest")}  # or nothing is touched
    copy = unused_name(path.with_name(path.name + ".bak"))
    shutil.copyfile(path, copy)
    os.truncate(path, offset)
    report.say(path, f"fixed: cut to {offset} bytes; the whole of it is in {copy.name}")
    for listing, listed in listings.items():
        if path.name in listed.increments:
            last = listed.increments.index(path.name) + 1
            replace(listed.repaired(), increments=listed.increments[:last]).write(listing)
            for name in listed.increments[last:]:
                aside = unused_name(path.with_name(name + ".bak"))
                path.with_name(name).rename(aside)
                report.say(path.with_name(name), f"fixed: taken out of the log: {aside.name}; it follows the damage")
    sync_folder(path.parent)
