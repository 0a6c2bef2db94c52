"""A run tells the server of its flows, for the console (protocol/pipelines.py).

Telling never disturbs the run: a server that is away, is full or refuses the write is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.client.api.urls import sync_pool
from penstock.client.drivers.connecting import settings_from
from penstock.protocol.pipelines import KEPT_MS, KEY, PipelineReport

if TYPE_CHECKING:
    from penstock.spark.progress import Progress

EVERY = 1.0  # seconds
LONGEST_ERROR = 4000


class RunReport:
    """`with RunReport(...) as report:` tells of a run until the block ends; its exception is the run's error."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self._pool = sync_pool(url)
        settings_from(self._pool, {})  # takes our client's settings out: this is redis-py's client
        self._pool.connection_kwargs.update(
            socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0), decode_responses=False
        )
        self._client = redis.Redis(connection_pool=self._pool)
        now = int(time.time() * 1000)
        self._report = PipelineReport(name, f"{socket.gethostname()}:{folder}", now, now)
        self._field = f"{name}:{hashlib.sha256(self._report.place.encode()).hexdigest()[:12]}"
        self._progress: Progress | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-run-report", daemon=True)

    def show(self, progress: Progress) -> None:
        self._progress = progress

    def __enter__(self) -> RunReport:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        self._report.state = "stopped" if stopped else "failed" if error is not None else "done"
        if error is not None and not stopped:
            self._report.error = "\n".join(map(str, getattr(error, "findings", [error])))[:LONGEST_ERROR]
        self._tell()
        self._pool.disconnect()

    def _run(self) -> None:
        while True:
            self._tell()
            if self._over.wait(EVERY):
                return

    def _tell(self) -> None:
        if self._progress is not None:
            self._report.flows = [
                {
                    "name": flow.name,
                    "state": flow.state,
                    "rows": flow.rows,
                    "rate": round(flow.rate, 1),
                    "lag": flow.lag,
                }
                for flow in self._progress.flows()
            ]
        self._report.updated = int(time.time() * 1000)
        with contextlib.suppress(redis.RedisError, OSError), self._client.pipeline(transaction=False) as pipe:
            pipe.hset(KEY, self._field, self._report.encode())
            pipe.pexpire(KEY, KEPT_MS)
            pipe.execute()
