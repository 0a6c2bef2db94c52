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
others is refused. A fork has the umask, the niceness, the limits (RLIMIT_NOFILE) and the CPU affinity of this process,
which are those of the program that started it, also if Java was given others. Rejected: `spark.python.daemon.module`,
which is for tasks only; a server that the first worker starts, which would have to be found by the others, and would
not import while Java starts.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import marshal
import math
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
OF_SPARK = (
    "PYTHON_WORKER_",
    "PYTHON_UNIX_DOMAIN_",
    "PYTHON_FAULTHANDLER_DIR",
    "PYTHON_TRACEBACK_DUMP_",
    "PYTHON_DAEMON_",
    "PYTHON_UDF_",
    "PYTHONPATH",
)
"""Those that begin like this are not: Spark's own, and the path, which a fork gets anew."""
OF_WORKERS = (b"PYTHONHASHSEED", b"PYTHONUNBUFFERED", b"OMP_NUM_THREADS")
"""What this process was started with as Spark starts workers of tasks; others may lack it."""
UID = struct.Struct("3i")
LONGEST = 1 << 24
"""Bytes that a request may have; arguments and an environment have some thousand."""
PATIENCE = 5.0
"""Seconds for a request to arrive, and for forks to end when they are told to, before they are killed."""
A_READ = 1 << 16


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


class Incoming:
    """A request that arrives in pieces, so that a process that sends nothing makes no other one wait."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.until = time.monotonic() + PATIENCE
        self._data = bytearray()
        self._streams: list[int] = []
        connection.setblocking(False)

    def receive(self) -> Request | None:
        """The request of a process of our own user, once all of it is here; ValueError or OSError if it is none."""
        _, uid, _ = UID.unpack(self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UID.size))
        if uid != os.getuid():
            raise ValueError("another user")
        try:
            data, streams, _, _ = socket.recv_fds(self.connection, A_READ, 3)
        except BlockingIOError:
            return None
        self._data += data
        self._streams += streams
        length = int.from_bytes(self._data[:8], "little")
        if len(self._data) >= 8 and length > LONGEST:
            raise ValueError("too long")
        if len(self._data) < 8 or len(self._data) < 8 + length:
            if not data:
                raise EOFError("cut off")
            return None
        if len(self._streams) != 3:
            raise ValueError("not three streams")
        words, environment, folder = marshal.loads(self._data[8 : 8 + length])
        streams, self._streams = self._streams, []
        return Request(words, environment, folder, streams)

    def close(self) -> None:
        for each in self._streams:
            os.close(each)
        self._streams = []
        self.connection.close()


def fits(given: Mapping[bytes, bytes], own: Mapping[bytes, bytes]) -> bool:
    """Whether a process with the given environment would load the libraries as we did.

    >>> fits({b"OMP_NUM_THREADS": b"1", b"PYTHON_WORKER_FACTORY_PORT": b"1"}, {b"OMP_NUM_THREADS": b"1"})
    True
    >>> fits({b"OMP_NUM_THREADS": b"4"}, {b"OMP_NUM_THREADS": b"1"})
    False
    >>> fits({}, {b"OMP_NUM_THREADS": b"1", b"LC_ALL": b"C"})
    False
    """
    watched, ours = (tuple(each.encode() for each in names) for names in (READ_WHEN_LOADED, OF_SPARK))
    return all(
        own.get(name) == given.get(name)
        for name in {*own, *given}
        if name.startswith(watched) and not name.startswith(ours) and (name in given or name not in OF_WORKERS)
    )


class ForkServer:
    """Forks until the program that started it has ended."""

    def __init__(self, listener: socket.socket, environment: Mapping[bytes, bytes]) -> None:
        self._listener = listener
        self._environment = environment
        self._incoming: dict[int, Incoming] = {}  # by their descriptors
        self._forks: dict[int, Fork] = {}  # by each of their descriptors
        self._told: dict[int, float] = {}  # forks that were told to end, by `ended`: when they are killed
        self._poll = select.poll()
        for each in (0, listener):
            self._poll.register(each, select.POLLIN)

    def serve(self) -> Request | None:
        """In a fork, what it is to become; None in the server, when it is to end."""
        while True:
            for descriptor, _ in self._poll.poll(self._milliseconds()):
                if descriptor == 0:
                    self._end()
                    return None
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._incoming:
                    if (request := self._hear(self._incoming[descriptor])) is not None:
                        return request
                elif descriptor in self._forks:
                    self._look_after(self._forks[descriptor], descriptor)
            self._give_up()

    def _milliseconds(self) -> int | None:
        """How long nothing is to be done, if nothing comes."""
        untils = [each.until for each in self._incoming.values()] + list(self._told.values())
        return max(math.ceil((min(untils) - time.monotonic()) * 1000), 0) if untils else None

    def _give_up(self) -> None:
        """Let go of requests that do not arrive, and kill forks that do not end."""
        now = time.monotonic()
        for incoming in [each for each in self._incoming.values() if each.until <= now]:
            self._drop(incoming)
            incoming.close()
        for ended in [ended for ended, until in self._told.items() if until <= now]:
            del self._told[ended]
            os.kill(self._forks[ended].pid, signal.SIGKILL)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._incoming[connection.fileno()] = Incoming(connection)
        self._poll.register(connection, select.POLLIN)

    def _drop(self, incoming: Incoming) -> None:
        del self._incoming[incoming.connection.fileno()]
        self._poll.unregister(incoming.connection)

    def _hear(self, incoming: Incoming) -> Request | None:
        """Fork, if a request is complete and in order; it is returned in the fork.

        A process that gets no answer starts by itself.
        """
        try:
            request = incoming.receive()
        except (OSError, ValueError, EOFError, TypeError):
            self._drop(incoming)
            incoming.close()
            return None
        if request is None:  # a piece of it
            return None
        self._drop(incoming)
        return self._answer(request, incoming.connection)

    def _answer(self, request: Request, connection: socket.socket) -> Request | None:
        """Fork for a request; it is returned in the fork, once this process can see that the fork ends.

        Until then the fork waits, and touches nothing: if it cannot be watched, the process that asked starts Python
        itself, and needs all of its input.
        """
        pid = ended = begin = go = -1
        with contextlib.suppress(OSError):  # too many processes or descriptors, or too little memory
            if fits(request.environment, self._environment):
                begin, go = os.pipe()
                pid = os.fork()
                if pid > 0:
                    ended = os.pidfd_open(pid)
        if pid == 0:
            os.close(go)
            if not os.read(begin, 1):  # the server cannot watch this process, or was killed
                os._exit(1)
            os.close(begin)
            self._leave(connection)
            return request
        for each in request.streams:
            os.close(each)
        if ended >= 0:
            self._watch(Fork(pid, ended, connection))
            os.write(go, b"\n")
        else:
            connection.close()
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        if begin >= 0:
            os.close(begin)
            os.close(go)
        return None

    def _watch(self, fork: Fork) -> None:
        """Wait for the end of either process, and tell the one that asked what it waits for."""
        for descriptor in (fork.ended, fork.waiting.fileno()):
            self._forks[descriptor] = fork
            self._poll.register(descriptor, select.POLLIN)
        with contextlib.suppress(OSError):  # it has ended, which the loop sees
            fork.waiting.sendall(fork.pid.to_bytes(4, "little"))

    def _look_after(self, fork: Fork, descriptor: int) -> None:
        """One of the two has ended."""
        if descriptor != fork.ended:
            self._forget(descriptor)
            os.kill(fork.pid, signal.SIGTERM)  # as Java told the process that it knows
            self._told[fork.ended] = time.monotonic() + PATIENCE
            return
        _, status = os.waitpid(fork.pid, 0)
        self._told.pop(fork.ended, None)
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
        for incoming in self._incoming.values():
            incoming.close()
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
