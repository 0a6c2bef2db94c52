"""Spark's classes in an archive in the user's cache, from which a JVM starts with half the CPU time.

Half of a start goes into classes, more than twenty thousand of them, which Java reads, checks and links. When it ends,
Java can write them to a file as it has them in memory, and when it starts again, map that file.

The first session on a machine that has run a project to its end writes the archive. Its JVM does so after everything
else is over, at a lower priority, while the program that started it has ended already. The JVM inherits a lock, which
is free when the JVM ends, however that happens. The next session then names the archive, if it is whole, and uses it.

An archive has the classes that one session needed. Beside it is their number. A session that needed many more leaves a
mark, and the next one makes the archive anew; until that is whole, others use the old one.

Java ignores an archive that does not fit its version or its jars. So the name of the file (which Java, which Spark,
which class path) is there to have a new one made, not for safety.

Rejected: an archive made from a list of classes (`-Xshare:dump`), which took 89 s of CPU instead of about 35; one that
comes with the package, which would fit no user's Java; to wait for it at the end of a run.

See docs/design/0022-start.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pyspark.find_spark_home import _find_spark_home

from penstock.spark.cache import cache_folder
from penstock.spark.local_files import CLASS_PATH

logger = logging.getLogger(__name__)

JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""The setting of Spark that our options for Java go to. The user's own are in another, and go after them."""
NEWEST = 25
"""From this version on Java has archives of another kind (AOT caches), which we have not measured yet."""
VARIABLE = "PENSTOCK_CLASS_ARCHIVE"
"""With `no` in this variable of the environment no archive is made or used."""
KEPT = 3
"""An archive has 250 MB. So many are kept, for other environments of Python: those that were used last."""
NICENESS = 5
"""Of a JVM that makes the archive: others go first, and it still comes to its end where others are busy."""
OUTGROWN = 1.15
"""A session with so many times the classes of the one that made the archive has the archive made anew."""
ROOM = 2 << 30
"""Free bytes on the disk, without which none is made."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a JVM is to start."""

    option: str = ""
    """For its command line, as Spark's launcher reads it."""
    lock: IO[str] | None = None
    """If it makes the archive: what it has to inherit. To be closed when it has started."""
    archive: ClassArchive | None = None
    """The archive that it uses or makes."""

    @property
    def makes(self) -> bool:
        return self.lock is not None


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one class path."""

    file: Path

    @property
    def use(self) -> str:
        """The option with which a JVM starts from the archive, if it is there."""
        return self._option("SharedArchiveFile", self.file)

    def start(self) -> Start:
        """Use the archive if there is one. If there is none, and no JVM is making one, let this one do it."""
        lock = self.adopt()
        has_room = shutil.disk_usage(self.file.parent).free >= ROOM
        if lock is not None and has_room and (self._outgrown.exists() or not self.file.exists()):
            self._outgrown.unlink(missing_ok=True)  # one attempt for each mark
            fresh = self.file.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            return Start(self._option("ArchiveClassesAtExit", fresh), lock, self)
        if lock is not None:
            lock.close()
        if not self.file.exists():
            return Start()
        os.utime(self.file)
        return Start(self.use, archive=self)

    def note(self, loaded: int, makes: bool) -> None:
        """A session that ran a project ends with so many classes: one that makes the archive, or one that used it."""
        if makes:
            self._loaded.write_text(str(loaded), encoding="ascii")
            return
        try:
            has = int(self._loaded.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):  # an archive of a version that did not count
            has = 0
        if loaded > has * OUTGROWN:
            self._outgrown.touch()

    @property
    def _loaded(self) -> Path:
        return self.file.with_suffix(".loaded")

    @property
    def _outgrown(self) -> Path:
        return self.file.with_suffix(".outgrown")

    def adopt(self) -> IO[str] | None:
        """Name the archive that a JVM has made, if one has. The lock, unless a JVM that makes one has it."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lock = self.file.with_suffix(".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        fresh = self.file.with_suffix(".new")
        if _is_whole(fresh):
            fresh.replace(self.file)
            _remove_old(self.file.parent)
        return lock

    @staticmethod
    def _option(name: str, file: Path) -> str:
        quoted = str(file).replace("\\", "\\\\").replace('"', '\\"')
        return f'-Xlog:disable -XX:{name}="{quoted}"'


def archive_for(configuration: Mapping[str, str]) -> ClassArchive | None:
    """The archive for a Spark of this configuration on the Java that JAVA_HOME names; None if there can be none."""
    if os.environ.get(VARIABLE) == "no":
        return None
    try:
        home = Path(os.environ["JAVA_HOME"]).resolve()
        release = (home / "release").read_text(encoding="utf-8")
        jars = Path(_find_spark_home()) / "jars"
        fits = (str(home), release, str(jars), jars.stat().st_mtime_ns, configuration.get(CLASS_PATH))
    except (OSError, KeyError):
        return None
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.M)
    if version is None or int(version[1]) >= NEWEST:
        return None
    # Ours is built upon the archive of Java's own classes, which a Java that jlink made may lack.
    if not (home / "lib" / "server" / "classes.jsa").exists():
        return None
    return ClassArchive(cache_folder() / f"classes-{hashlib.sha256(repr(fits).encode()).hexdigest()[:16]}")


def start_for(configuration: Mapping[str, str]) -> Start:
    """How a JVM for this configuration is to start."""
    archive = archive_for(configuration)
    try:
        return archive.start() if archive is not None else Start()
    except OSError as error:
        logger.warning("Spark starts slowly: its classes cannot be kept: %s", error)
        return Start()


def _is_whole(file: Path) -> bool:
    """Whether a JVM came to the end of writing an archive: Java writes its first bytes last."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        return any(opened.read(4))
    return False


def _remove_old(folder: Path) -> None:
    archives = [each for each in folder.glob("classes-*") if not each.suffix]
    for each in sorted(archives, key=lambda each: each.stat().st_mtime, reverse=True)[KEPT:]:
        each.unlink(missing_ok=True)
        for beside in (".lock", ".loaded", ".outgrown"):
            each.with_suffix(beside).unlink(missing_ok=True)


def lower_priority(pid: int) -> None:
    """Let others go before a process that is about to write the archive. Each thread has a priority of its own."""
    tasks = Path(f"/proc/{pid}/task")
    for task in [each.name for each in tasks.iterdir()] if tasks.exists() else [str(pid)]:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(task), NICENESS)
