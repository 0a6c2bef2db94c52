"""The process that the Python processes of a Spark on this machine are forked from: all of them, of every kind.

Spark starts a Python process for each kind of worker (tasks, planning, writing, committing and more) and one for each
source of each streaming query. Each would import the same modules, for about half a second of CPU. Here they are
imported once, while Java starts, and every one of those processes is a fork.

Java starts its processes itself, and ends them by their process ids. So what it starts is small: fork_request.py sends
its arguments, its environment and its standard streams to this process, which forks, and waits for the fork to end. The
two end together: if Java ends the one, the other is told to end.

The invariants: this process has one thread, since a lock that another thread holds stays locked in a fork. It answers
only processes of its own user. It ends with the program that started it, which holds its standard input, and takes its
forks along. A process that it does not fork, or that finds no server, starts as it would without us.

The price: if this process is killed, all Python processes of Spark end with it. The queries fail, and so does the first
attempt of each kind of worker after that ("Stream closed"), because Java still has the daemon that ended. The next one
starts without us.

Variables of the environment that libraries read while they are loaded must be those of this process; a request with
others is refused. Rejected: `spark.python.daemon.module`, which is for tasks only; a server that the first worker
starts, which would have to be found by the others, and would not import while Java starts.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from penstock.spark import worker_daemon

KINDS = (
    "worker", "sql.worker.lookup_data_sources", "sql.worker.create_data_source", "sql.worker.plan_data_source_read",
    "sql.worker.data_source_pushdown_filters", "sql.worker.write_into_data_source",
    "sql.worker.commit_data_source_write", "sql.worker.python_streaming_sink_runner",
    "sql.streaming.python_streaming_source_runner",
)  # fmt: skip
"""The modules of PySpark that are run in such processes."""
READ_WHEN_LOADED = (
    "PYTHON",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "ARROW_",
    "JE_",
    "MIMALLOC_",
    "MALLOC_",
    "LD_",
    "LC_",
    "LANG",
)
"""Variables that begin like this are read by Python or by libraries while they are loaded."""
OF_SPARK = ("PYTHON_", "PYTHONPATH")
"""Those that begin like this are not: Spark's own, and the path, which a fork gets anew."""
UID = struct.Struct("3i")
LONGEST = 1 << 24
"""Bytes that a request may have; arguments and an environment have some thousand."""
PATIENCE = 5.0
"""Seconds for a request to arrive, and for forks to end when they are told to."""


class Request(NamedTuple):
    """A request for a forked process."""

    words: list[str]
    """As after `python`: -m, a module, and its arguments."""
    environment: dict[bytes, bytes]
    folder: str
    streams: list[int]
    """Standard input, output and error."""


class Fork(NamedTuple):
    pid: int
    ended: int
    """A descriptor that can be read when it has ended."""
    waiting: socket.socket
    """The process that Java knows, which waits for it."""


def preload() -> None:
    """Import what all those processes need."""
    for kind in KINDS:
        with contextlib.suppress(ModuleNotFoundError):  # another version of PySpark
            worker_daemon.preload(f"pyspark.{kind}")
    importlib.import_module("pandas")  # PySpark does so in each worker that writes
    worker_daemon.ready_to_fork()


def receive(connection: socket.socket) -> Request:
    """The request of a process of our own user; ValueError or OSError if it is none."""
    _, uid, _ = UID.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UID.size))
    if uid != os.getuid():
        raise ValueError("another user")
    connection.settimeout(PATIENCE)
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    try:
        with connection.makefile("rb") as rest:
            head += rest.read(8 - len(head))
            length = int.from_bytes(head, "little")
            if length > LONGEST:
                raise ValueError("too long")
            body = rest.read(length)
        if len(body) < length or len(streams) != 3:
            raise ValueError("cut off")
        words, environment, folder = marshal.loads(body)
    except BaseException:
        for each in streams:
            os.close(each)
        raise
    return Request(words, environment, folder, streams)


def fits(given: Mapping[bytes, bytes], own: Mapping[bytes, bytes]) -> bool:
    """Whether a process with the given environment would load the libraries as we did.

    >>> fits({b"OMP_NUM_THREADS": b"1", b"PYTHON_WORKER_FACTORY_PORT": b"1"}, {b"OMP_NUM_THREADS": b"1"})
    True
    >>> fits({b"OMP_NUM_THREADS": b"4"}, {b"OMP_NUM_THREADS": b"1"})
    False
    """
    watched, ours = (tuple(each.encode() for each in names) for names in (READ_WHEN_LOADED, OF_SPARK))
    return all(
        own.get(name) == value
        for name, value in given.items()
        if name.startswith(watched) and not name.startswith(ours)
    )


class ForkServer:
    """Forks until the program that started it has ended."""

    def __init__(self, listener: socket.socket, environment: Mapping[bytes, bytes]) -> None:
        self._listener = listener
        self._environment = environment
        self._forks: dict[int, Fork] = {}  # by each of their descriptors
        self._poll = select.poll()
        for each in (0, listener):
            self._poll.register(each, select.POLLIN)

    def serve(self) -> Request | None:
        """In a fork, what it is to become; None in the server, when it is to end."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == 0:
                    self._end()
                    return None
                if descriptor == self._listener.fileno():
                    connection, _ = self._listener.accept()
                    if (request := self._answer(connection)) is not None:
                        return request
                elif descriptor in self._forks:
                    self._look_after(self._forks[descriptor], descriptor)

    def _answer(self, connection: socket.socket) -> Request | None:
        """Fork, if the request is in order; it is returned in the fork. Who gets no answer starts by itself."""
        try:
            request = receive(connection)
        except (OSError, ValueError, EOFError, TypeError):
            connection.close()
            return None
        try:
            pid = os.fork() if fits(request.environment, self._environment) else -1
        except OSError:  # too many processes, or too little memory
            pid = -1
        if pid == 0:
            self._leave(connection)
            return request
        for each in request.streams:
            os.close(each)
        if pid < 0:
            connection.close()
            return None
        try:
            fork = Fork(pid, os.pidfd_open(pid), connection)
        except OSError:  # too many descriptors; the process that asked starts Python itself and needs its input alone
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            connection.close()
            return None
        for descriptor in (fork.ended, connection.fileno()):
            self._forks[descriptor] = fork
            self._poll.register(descriptor, select.POLLIN)
        with contextlib.suppress(OSError):  # it has ended, which the loop sees
            connection.sendall(pid.to_bytes(4, "little"))
        return None

    def _look_after(self, fork: Fork, descriptor: int) -> None:
        """One of the two has ended."""
        if descriptor != fork.ended:
            self._forget(descriptor)
            os.kill(fork.pid, signal.SIGTERM)  # as Java told the process that it knows
            return
        _, status = os.waitpid(fork.pid, 0)
        self._forget(fork.ended)
        os.close(fork.ended)
        self._forget(fork.waiting.fileno())
        with contextlib.suppress(OSError):
            fork.waiting.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
        fork.waiting.close()

    def _forget(self, descriptor: int) -> None:
        if self._forks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _leave(self, connection: socket.socket) -> None:
        """Let go, in a fork, of what is the server's."""
        connection.close()
        self._listener.close()
        for fork in set(self._forks.values()):
            os.close(fork.ended)
            fork.waiting.close()

    def _end(self) -> None:
        """Take the forks along."""
        self._listener.close()
        forks = set(self._forks.values())
        for fork in forks:
            os.kill(fork.pid, signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        for fork in forks:
            if not select.select([fork.ended], [], [], max(until - time.monotonic(), 0))[0]:
                os.kill(fork.pid, signal.SIGKILL)
            os.waitpid(fork.pid, 0)


def become(request: Request) -> NoReturn:
    """Do in a fork what `python` with these words does."""
    code = 1
    try:
        for place, stream in enumerate(request.streams):
            os.dup2(stream, place)
            os.close(stream)
        os.chdir(request.folder)
        os.environ.clear()
        os.environb.update(request.environment)
        time.tzset()
        given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        sys.path[:] = dict.fromkeys([request.folder, *given, *sys.path[1:]])
        _, module, *words = request.words
        sys.argv = [module, *words]
        sys.modules.pop(module, None)  # runpy warns of a module that is there already
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def main(listening: int) -> None:
    environment = dict(os.environb)
    with socket.socket(fileno=listening) as listener:
        preload()
        os.write(1, b"\n")
        request = ForkServer(listener, environment).serve()
    if request is not None:
        become(request)


if __name__ == "__main__":
    main(int(sys.argv[1]))
