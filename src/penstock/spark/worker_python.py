"""The Python that Spark starts its workers with.

Spark puts a zip of PySpark's sources first on the path of its workers. Python compiles what it imports from a zip at
each start, and that takes three times as long as the start itself: 1.2 s of CPU instead of 0.4 s for each of the six
or more processes that a query begins with. On a busy machine it takes longer than the ten seconds after which Spark
gives a worker up. A PySpark that pip installed is in the same version beside the zip, with its compiled files. So
workers start by a script that takes the zips out of the path.

The script also starts our daemon in place of Spark's (worker_daemon.py). The setting `spark.python.daemon.module` would
do so for tasks, but not for processes that plan.

A program that starts a JVM starts a server beside it (fork_server.py), from which the daemons and the processes of
streaming queries are forked, with everything imported. The environment of the JVM names it, and the script asks it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pyspark
from pyspark.find_spark_home import _find_spark_home

from penstock.spark.cache import cached
from penstock.spark.worker_daemon import ARROW_ALLOCATOR

logger = logging.getLogger(__name__)

_SCRIPT = """\
#!/bin/sh
# Starts Python for Spark without the zips of PySpark's sources on its path; PySpark is installed beside them.
# Workers are forked from a daemon of Penstock, which has imported what they need.
path=$PYTHONPATH
PYTHONPATH=
IFS=:
for each in $path; do
    case $each in
        */pyspark.zip | */py4j-*-src.zip) ;;
        *) PYTHONPATH=$PYTHONPATH${{PYTHONPATH:+:}}$each ;;
    esac
done
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m penstock.spark.worker_daemon "$@"
fi
case "${{{variable}:+$2}}" in
    penstock.spark.worker_daemon | pyspark.sql.streaming.python_streaming_source_runner)
        exec {python} -I -S {request} "${variable}" {python} "$@" ;;
esac
exec {python} "$@"
"""

FORK_SERVER = "PENSTOCK_FORK_SERVER"
"""The environment variable in which a JVM has the name of the server for its workers."""


def use_worker_python() -> None:
    """Have the next JVM of this process start its workers quickly.

    Spark starts tasks with the Python that PYSPARK_PYTHON names. Processes that plan, such as the driver's part of a
    data source, are started with the one that PYSPARK_DRIVER_PYTHON names, if it names one.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()


def worker_python() -> str:
    """The value of PYSPARK_PYTHON for a Spark on this machine."""
    if Path(_find_spark_home()).resolve() != Path(pyspark.__file__).resolve().parent:
        return sys.executable  # another Spark than the installed PySpark: its zip may be of another version
    script = _SCRIPT.format(
        python=shlex.quote(sys.executable),
        request=shlex.quote(str(Path(__file__).with_name("fork_request.py"))),
        variable=FORK_SERVER,
    )
    name = f"python-{hashlib.sha256(script.encode()).hexdigest()[:16]}"

    def make(file: Path) -> None:
        file.write_text(script, encoding="utf-8")
        file.chmod(0o755)

    try:
        return str(cached(name, make))
    except OSError as error:
        logger.warning("Spark's Python workers will start slowly: %s cannot be kept: %s", name, error)
        return sys.executable


class ForkServer:
    """The server from which the workers of the next JVM are forked, as a process that ends with this one."""

    def __init__(self) -> None:
        self.name = f"penstock-{uuid.uuid4()}"
        with socket.socket(socket.AF_UNIX) as listener:  # a request waits until the server has imported everything
            listener.bind(f"\0{self.name}")
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.spark.fork_server", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # it says when it is ready
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                # What Spark sets for its workers, and Python and its libraries read when they are loaded.
                env={"PYTHONHASHSEED": "0", **os.environ, "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"},
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as for Java
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        """End it and what it forked."""
        if self._process.returncode is not None:  # it has
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        if not select.select([self._process.stdout], [], [], 0)[0]:
            self._process.kill()  # it still imports, has forked nothing, and does not look at the pipe
        self._process.wait()
        self._process.stdout.close()


def fork_server() -> ForkServer | None:
    """A server for the workers of the next JVM; None if they are not started by our script, or it could not run."""
    by_script = os.environ.get("PYSPARK_PYTHON") == worker_python() != sys.executable
    return ForkServer() if by_script and _sees_forks_end() and ARROW_ALLOCATOR not in os.environ else None


def _sees_forks_end() -> bool:
    """Whether a process can wait for another one by a descriptor.

    It cannot outside of Linux, before Linux 5.3, where seccomp forbids it, and with a Python that was compiled without
    it, such as conda's 3.11.
    """
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
