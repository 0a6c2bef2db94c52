"""The rows of the console: what it costs the clients while its pages are open, how quick its list is, and its memory.

The figure of the first is requests for a second of the server's processor time (processor_load.py). The console has two
pages open, the overview and the list of streams, and has looked at every stream once before the figure is taken.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.bench.processor_load import fill_streams, requests_per_processor_second
from penstock.bench.row import Row
from penstock.bench.servers import Running

_MANY = 10_000
_LOOKS = 20
_WINDOW = 20.0
"""Seconds."""


class _Console:
    """A console in a process of its own, with a session."""

    def __init__(self, server: Running, folder: str) -> None:
        words = ["console", "--url", f"redis://127.0.0.1:{server.port}", "--port", "0", "--dir", folder]
        self.process = subprocess.Popen([sys.executable, "-m", "penstock", *words], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._port = int(self.process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("POST", "/api/login", "{}", {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        self._cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        connection.close()
        while not self.ask("view/streams?only=busy")["complete"]:
            time.sleep(0.2)

    def open(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("GET", f"/api/{path}", headers={"Cookie": self._cookie})
        return connection.getresponse()

    def ask(self, path: str) -> Any:
        with self.open(path) as answer:
            return json.loads(answer.read())

    def memory(self) -> int:
        return Running("console", self._port, self.process.pid).resident_memory()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def _console(server: Running) -> Iterator[_Console]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        console = _Console(server, folder)
        try:
            yield console
        finally:
            console.stop()


def _opened(measure: Callable[[], float], server: Running) -> float:
    """The figure while two pages are open."""

    def follow(answer: http.client.HTTPResponse) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            while answer.readline():
                pass

    with _console(server) as console:
        pages = [console.open(path) for path in ("live/overview", "live/streams?sort=lag&order=down")]
        threads = [threading.Thread(target=follow, args=(page,)) for page in pages]
        for thread in threads:
            thread.start()
        figure = measure()
    for thread in threads:
        thread.join()
    return figure


def _cost(name: str, what: str, streams: int) -> Row:
    def plain(server: Running, scale: float) -> float:
        fill_streams(server, streams)
        return requests_per_processor_second(server, scale, 50)

    def opened(server: Running, scale: float) -> float:
        fill_streams(server, streams)
        return _opened(lambda: requests_per_processor_second(server, scale, 50), server)

    return Row(f"console.{name}", what, "req/CPU s", 0.99, opened, baseline=plain, rounds=7)


def _share(streams: int) -> Callable[[Running, float], float]:
    """Milliseconds of the server's processor in a second that two open pages add to an idle server.

    Steadier than the ratio of two loads, which other work on the machine moves by more than one part in a hundred.
    """

    def measure(server: Running, scale: float) -> float:
        def spent() -> float:
            before, began = server.processor_time(), time.monotonic()
            time.sleep(_WINDOW * scale)
            return 1000 * (server.processor_time() - before) / (time.monotonic() - began)

        fill_streams(server, streams)
        alone = spent()
        return _opened(spent, server) - alone

    return measure


def _list_time(server: Running, scale: float) -> float:
    """Milliseconds for a page of ten thousand streams, the middle of twenty."""
    fill_streams(server, _MANY)
    with _console(server) as console:
        times = []
        for number in range(_LOOKS):
            began = time.perf_counter()
            console.ask(f"view/streams?sort=lag&order=down&page={number}")
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def _memory(server: Running, scale: float) -> float:
    """Megabytes of a console that knows ten thousand streams and has shown messages, a download and every page."""
    fill_streams(server, _MANY)
    with server.client() as client:
        client.execute_command("TWRITE", "large", "t", "x" * 12_000_000)
    with _console(server) as console:
        for path in ("overview", "streams", "clients", "keys", "nodes", "messages?key=large", "graph?key=large"):
            console.ask(f"view/{path}")
        with console.open("stream/download?key=stream%3A1&format=parquet") as answer:
            answer.read()
        return console.memory() / (1 << 20)


def _page_weight(server: Running, scale: float) -> float:
    """Kilobytes of everything that a browser loads for a page."""
    static = Path(__file__).parent.parent / "console" / "static"
    return sum(path.stat().st_size for path in static.rglob("*") if path.is_file()) / 1024


def _alone(name: str, what: str, unit: str, measure: Callable[[Running, float], float], most: float) -> Row:
    return Row(f"console.{name}", what, unit, None, measure, True, rounds=1, baseline=lambda *_: most, most=most)


CONSOLE_ROWS = (
    _cost("open", "GET, depth 50, with two pages of the console open", 0),
    _cost("open.streams", "GET, depth 50, with two pages open and 10,000 streams", _MANY),
    _alone("share", "what two open pages add to the server's processor", "ms/s", _share(0), 10),
    _alone("share.streams", "the same, with 10,000 streams", "ms/s", _share(_MANY), 10),
    _alone("list", "the console lists 10,000 streams by lag", "ms", _list_time, 200),
    _alone("memory", "memory of a console that knows 10,000 streams", "MB", _memory, 80),
    _alone("weight", "scripts and styles of the console", "kB", _page_weight, 200),
)
