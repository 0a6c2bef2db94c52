"""Three real Redis Sentinels that watch one server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

import redis
from redis.sentinel import Sentinel

from penstock.testing.redis import find_redis, free_port

NAME = "orders"
COUNT = 3


class Sentinels:
    """`with Sentinels(folder, port) as sentinels:`; they are ended by their process ids."""

    def __init__(self, folder: Path, port: int, down_after: int = 1000) -> None:
        self._folder = folder
        self._watched = port
        self._down_after = down_after
        self.ports = [free_port() for _ in range(COUNT)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Sentinels:
        for port in self.ports:
            file = self._folder / f"sentinel-{port}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._folder}\nlogfile {file}.log\n"
                f"sentinel monitor {NAME} 127.0.0.1 {self._watched} 2\n"
                f"sentinel down-after-milliseconds {NAME} {self._down_after}\n"
                f"sentinel failover-timeout {NAME} 5000\n"
            )
            command = [find_redis().path, str(file), "--sentinel"]
            self._processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        self.client = Sentinel([("127.0.0.1", port) for port in self.ports], socket_timeout=5)
        return self

    def knows(self, replicas: int) -> bool:
        """Whether each of them knows so many replicas, and the other two."""
        try:
            for port in self.ports:
                with redis.Redis(port=port, decode_responses=True) as client:
                    (watched,) = client.sentinel_masters().values()
                    if (watched["num-slaves"], watched["num-other-sentinels"]) != (replicas, COUNT - 1):
                        return False
        except redis.ConnectionError:
            return False
        return True

    @property
    def leader(self) -> int:
        """The port of the server that leads, as they see it."""
        with redis.Redis(port=self.ports[0], decode_responses=True) as client:
            return int(client.sentinel_get_master_addr_by_name(NAME)[1])

    def logs(self) -> str:
        """What they wrote, for a test that fails."""
        return "\n".join(path.read_text() for path in self._folder.glob("sentinel-*.log"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
