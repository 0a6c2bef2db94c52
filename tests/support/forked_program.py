"""Programs of ours in processes of their own, forked from one that has their imports.

A start of `python -m penstock` is mostly imports, and the tests start some hundred programs whose start is not what
they are about. `ForkedProgram` is a subprocess.Popen that gets its process from a helper, which has imported what the
programs need and runs `python -m MODULE WORDS` in a child of its own. From there on it is that program: with the
arguments, files, environment and folder that are given, and its own process id, to be waited for and killed. When it
ends, threads are waited for, what was registered with atexit is done, and its output is written; objects that are left
are not taken apart.

What the interpreter looks at only when it starts, such as LD_PRELOAD, is as in this process; with another value it is
an ordinary Popen. Tests of the start itself use subprocess, as do programs that change something before they import
the server.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "PENSTOCK_PURE", "OMP_")
"""How the names of variables begin that matter when a program starts."""
ARROW_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
"""The variable with the settings of jemalloc in pyarrow."""
_PID = struct.Struct("i")


class Helper:
    """The process that forks, of which each process of the tests has one. It ends when its socket is closed."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            words = [sys.executable, "-m", "tests.support.forked_program", str(other.fileno())]
            self._process = subprocess.Popen(words, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT)
        self._lock = threading.Lock()
        self.at_start = _at_start(os.environ)
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], files: list[int]) -> tuple[int, int]:
        """A new process that runs what is asked for; its id, and a pipe from which its exit status is read."""
        status, to_helper = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [*files, to_helper])
        finally:
            os.close(to_helper)
        return _PID.unpack(os.read(status, _PID.size))[0], status

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_helper: list[Helper] = []


class ForkedProgram(subprocess.Popen[Any]):
    """`ForkedProgram([sys.executable, "-m", module, *words], ...)`, with the options of Popen."""

    def _execute_child(self, *arguments: Any) -> None:
        given = signature(subprocess.Popen._execute_child).bind(self, *arguments).arguments
        environment = os.environ if given["env"] is None else given["env"]
        command = [os.fsdecode(word) for word in given["args"]]
        if not _helper:
            _helper.append(Helper())
        is_usual = not any(given[name] for name in ("preexec_fn", "start_new_session", "pass_fds", "shell"))
        if not is_usual or command[:2] != [sys.executable, "-m"] or _at_start(environment) != _helper[0].at_start:
            self._status = -1
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        request = {
            "module": command[2], "words": command[3:], "folder": os.fsdecode(given["cwd"] or Path.cwd()),
            "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
        }  # fmt: skip
        pipes = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = [standard if file == -1 else file for standard, file in enumerate(pipes)]
        self.pid, self._status = _helper[0].fork(request, files)
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in names))  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """What os.waitpid returns for a child."""
        if self._status == -1:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        if flags and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._status, _PID.size)
        os.close(self._status)
        return self.pid, _PID.unpack(status)[0] if status else signal.SIGKILL  # its helper is gone

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            except ChildProcessError:  # an ordinary child that another has waited for
                self.returncode = 0
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def _at_start(environment: Any) -> dict[str, str]:
    named = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    return {name: value for name, value in named.items() if name.startswith(AT_START)}


# -- the helper -------------------------------------------------------------------------------------------------------


def _import() -> None:
    """What the programs need. No thread may be started by it: a fork has only the one that forked."""
    from penstock.cli import serve
    from penstock.engine.keyspace.allocators import share_heap

    share_heap()
    os.environ[ARROW_ALLOCATOR] = "background_thread:false"
    serve._import_arrow_without_numpy()
    from penstock import commands

    for name in ("cli.main", "cli.streams", "cli.console", "client.api.sync", "client.api.aio", "console.serve"):
        import_module(f"penstock.{name}")
    import_module("penstock.server.process")
    commands.load()
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "an import has started a thread"
    gc.collect()
    gc.freeze()


def _ask(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; in a child, the request, and in the helper None at its end."""
    pipes: dict[int, int] = {}  # to which the exit status of a child is written
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests, reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
            while pipes:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                with contextlib.suppress(BrokenPipeError):  # the tests do not want to know
                    os.write(pipes[pid], _PID.pack(status))
                os.close(pipes.pop(pid))
        if requests in ready:
            data, files, *_ = socket.recv_fds(requests, 1 << 20, 4)
            if not data:
                return None
            *standard, status = files
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for own, file in enumerate(standard):
                    os.dup2(file, own)
                for file in (*files, *pipes.values(), reader, writer):
                    os.close(file)
                requests.close()
                request: dict[str, Any] = json.loads(data)
                return request
            for file in standard:
                os.close(file)
            os.write(status, _PID.pack(pid))
            pipes[pid] = status


def _open_standard_files() -> None:
    """Make sys.stdin and the like anew, as Python does at a start: those of the helper know what its files are like."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, name), "w" if number else "r"
        new = open(number, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        new.reconfigure(line_buffering=name == "stderr" or new.isatty())  # type: ignore[union-attr]
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _end(status: int) -> None:
    """End as Python does, but for the modules: to take all of them apart copies the pages that the helper shares.

    If the output cannot be written it is left to Python to say so.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 0xFF)


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the programs and for the tests
    with socket.socket(fileno=descriptor) as requests:
        _import()
        request = _ask(requests)
    if request is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.path[0] = request["folder"]
        sys.argv = [request["module"], *request["words"]]
        _open_standard_files()
        try:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if isinstance(end.code, int | None):
                _end(end.code or 0)
            raise
        _end(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
