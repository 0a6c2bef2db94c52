"""A project that was moved or copied: its tables and checkpoints name the folder it was in, and are made to name the
new one.

Spark writes absolute paths in three places: the metastore (where each table is), the log of each table of files (which
files it has), and the checkpoints (which files of a table a flow has read, where the schemas of its state are). After a
move Spark would fill tables in a folder that is no longer there, and after a copy it would fill the tables of the
original.

`.penstock/place.json` says where the project was run last. It is written last, and every step before it can be
repeated, so a process that dies in between does no harm: the next run does it all again. A project of version 0.1 has
no such file; its metastore says where it was.

The folder's inode is in the file as well. It stays the same when a folder is moved and is another one when it is
copied, also if the copy takes the place of the original. A copy gets new identities for its flows: see identity.py. If
it is uncertain whether a folder was moved, it is treated as a copy, which is right in both cases.

Rejected: one name for every folder, by a link or by Hadoop's ViewFs. Two copies would need two names, and other
programs could not read the tables without it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.spark.identity import renew_identities
from penstock.spark.pipeline_session import PipelineSession
from penstock.spark.problems import Finding, Place, Problem
from penstock.spark.project import Project
from penstock.spark.project_file import STATE
from penstock.spark.starting import METASTORE, WAREHOUSE

_COLUMNS = (("DBS", "DB_LOCATION_URI"), ("SDS", "LOCATION"), ("SERDE_PARAMS", "PARAM_VALUE"))
"""Where Hive's metastore has paths."""
_LOGS = ("_spark_metadata/*", "sources/*/*", "_metadata/**/*")
"""Files of tables and checkpoints that have paths in them."""


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    """Where a project was run last."""

    folder: str
    device: int = 0
    inode: int = 0

    @classmethod
    def now(cls, project: Project) -> FolderIdentity:
        found = project.state.stat()
        return cls(str(project.folder), found.st_dev, found.st_ino)

    @classmethod
    def recorded(cls, project: Project) -> FolderIdentity | None:
        try:
            return cls(**json.loads(_record(project).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def record(self, project: Project) -> None:
        fresh = _record(project).with_suffix(f".{os.getpid()}")  # renamed when it is whole
        fresh.write_text(json.dumps(asdict(self)), encoding="utf-8")
        fresh.replace(_record(project))

    def is_copy_of(self, before: FolderIdentity) -> bool:
        if self.folder == before.folder:  # the number of a device may change when the machine starts
            return before.inode not in (0, self.inode)
        return (self.device, self.inode) != (before.device, before.inode)


def _record(project: Project) -> Path:
    return project.state / "place.json"


def adapt_to_folder(project: Project, session: PipelineSession, url: str) -> str | None:
    """Make a project run where it is now. A sentence for the user if it was in another folder before.

    Call it before anything runs in the session.
    """
    now = FolderIdentity.now(project)
    before = FolderIdentity.recorded(project) or _of_metastore(project, session)
    said = None
    if before is not None and before != now:
        is_copy = now.is_copy_of(before)
        if is_copy:
            _need_storage_of_its_own(project, before)
            renew_identities(_checkpoints(project), url)
        if before.folder != now.folder:
            _take_stray_tables(Path(before.folder), project)
            _rewrite_logs(project, session, before.folder)
            _rewrite_metastore(project, session, before.folder)
            is_there = is_copy and (Path(before.folder) / STATE).exists()
            said = f"this is a copy of {before.folder}" if is_there else f"this project was in {before.folder} before"
    if before != now:
        now.record(project)
    return said


def _checkpoints(project: Project) -> Iterator[Path]:
    """The checkpoints of a project's flows that are in its folder."""
    storage = project.storage
    if isinstance(storage, Path) and storage.is_relative_to(project.folder):
        yield from (file.parent for file in sorted(storage.glob("**/metadata")) if (file.parent / "offsets").is_dir())


def _need_storage_of_its_own(project: Project, before: FolderIdentity) -> None:
    """Problem if a copy would go on with the checkpoints of the original."""
    storage = project.storage
    original = Path(before.folder) / project.spec_path.name
    is_inside = isinstance(storage, Path) and storage.is_relative_to(project.folder)
    if not is_inside and before.folder != str(project.folder) and original.exists():
        raise Problem(
            Finding(
                f"this is a copy of {before.folder}, and both keep their checkpoints in {storage}; give this one "
                "another storage",
                Place(project.spec_path),
            )
        )


def _of_metastore(project: Project, session: PipelineSession) -> FolderIdentity | None:
    """Where a project of version 0.1 was."""
    with _Metastore(project, session) as metastore:
        for location in metastore.query("SELECT DB_LOCATION_URI FROM APP.DBS WHERE NAME = 'default'"):
            folder = urlsplit(location).path.removesuffix(f"/{STATE}/{WAREHOUSE}")
            if folder != urlsplit(location).path:
                here = FolderIdentity.now(project)
                return here if folder == here.folder else FolderIdentity(folder)
    return None


class _Metastore:
    """A connection to a project's metastore, if it has one: the database is in the JVM, so that is where we ask."""

    def __init__(self, project: Project, session: PipelineSession) -> None:
        self._connection: Any = None
        folder = project.state / METASTORE
        if folder.is_dir():
            manager = session.jvm.java.sql.DriverManager
            self._connection = manager.getConnection(f"jdbc:derby:;databaseName={folder}")
            self._connection.setAutoCommit(False)

    def __enter__(self) -> _Metastore:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._connection is not None:
            if kind is None:
                self._connection.commit()
            else:
                self._connection.rollback()
            self._connection.close()

    def query(self, text: str) -> list[str]:
        if self._connection is None or not self._is_filled():
            return []
        found = self._connection.createStatement().executeQuery(text)
        values = []
        while found.next():
            values.append(found.getString(1))
        return [value for value in values if value is not None]

    def _is_filled(self) -> bool:
        """A run that died early leaves a database without tables."""
        return bool(self._connection.getMetaData().getTables(None, "APP", "SERDE_PARAMS", None).next())

    def replace(self, table: str, column: str, old: str, new: str) -> None:
        statement = self._connection.prepareStatement(f"UPDATE APP.{table} SET {column} = ? WHERE {column} = ?")
        statement.setString(1, new)
        statement.setString(2, old)
        statement.executeUpdate()


def _rewrite_metastore(project: Project, session: PipelineSession, old: str) -> None:
    """All of it in one transaction."""
    with _Metastore(project, session) as metastore:
        for table, column in _COLUMNS:
            for value in set(metastore.query(f"SELECT {column} FROM APP.{table}")):
                moved = _moved(value, [(old, str(project.folder))])
                if moved != value:
                    metastore.replace(table, column, value, moved)


def _moved(text: str, folders: list[tuple[str, str]]) -> str:
    """A text with the URIs of files in one folder changed to those in another, for each pair of folders.

    >>> _moved("file:/a/b file:///a/b/c file:/a/bc file:/a/b/b/c", [("/a/b", "/a/b/b")])
    'file:/a/b/b file:///a/b/b/c file:/a/bc file:/a/b/b/c'
    """
    for old, new in folders:
        # Not where the new folder is named already: it may be in the old one, and this may be a second attempt.
        pattern = rf"(file:(?://)?)(?!{re.escape(new)}(?![^/\"\s])){re.escape(old)}(?![^/\"\s])"
        text = re.sub(pattern, r"\1" + new.replace("\\", r"\\"), text)
    return text


def _rewrite_logs(project: Project, session: PipelineSession, old: str) -> None:
    quoted = session.jvm.org.apache.hadoop.fs.Path  # quotes a path exactly as the logs have it
    folders = [(old, str(project.folder))]
    in_uris = (quoted(old).toUri().toString(), quoted(str(project.folder)).toUri().toString())
    if in_uris not in folders:
        folders.insert(0, in_uris)
    for file in _logs(project):
        try:
            text = file.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        if (moved := _moved(text, folders)) != text:
            # Hadoop refuses a file that does not fit the checksum beside it, and needs none.
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            fresh = file.with_name(f".{file.name}.{os.getpid()}.tmp")
            fresh.write_bytes(moved.encode())
            fresh.replace(file)


def _logs(project: Project) -> Iterator[Path]:
    folders = [project.state / WAREHOUSE, *_checkpoints(project)]
    for folder in folders:
        for pattern in _LOGS:
            yield from (
                file for file in folder.glob(f"**/{pattern}") if file.is_file() and not file.name.startswith(".")
            )


def _take_stray_tables(old: Path, project: Project) -> None:
    """Take back what version 0.1 wrote to the former folder after the project was moved away: a folder with tables and
    no project.
    """
    if any(old.glob("spark-pipeline.y*ml")):
        return
    stray = old / STATE / WAREHOUSE
    for file in sorted(stray.glob("**/*")):
        target = project.state / WAREHOUSE / file.relative_to(stray)
        if file.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            whole = target.with_name(f".{target.name}.{os.getpid()}")  # it may be on another disk
            shutil.move(file, whole)
            whole.replace(target)
