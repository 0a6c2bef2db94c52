"""Collects and serves the reports of `penstock worker`'s processes: /health for a supervisor, /metrics for
Prometheus.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock.client.consumer.counts import Counts


@dataclass(slots=True)
class Report(Counts):
    """The counts of all processes together, those that ended included; and how the processes are."""

    wanted: int = 0
    alive: int = 0
    silent: int = 0
    """Processes that have not reported for a while: they hang, or their machine does."""
    restarts: int = 0
    held: int = 0
    waiting: int = 0
    """Processes for which the server does not answer."""

    @property
    def is_waiting(self) -> bool:
        return self.waiting > 0

    @property
    def is_healthy(self) -> bool:
        return self.alive == self.wanted and not self.silent

    def as_json(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps({"status": "ok" if self.is_healthy else "failing", **values}) + "\n"

    def as_metrics(self) -> str:
        """In the text format of Prometheus."""
        lines = []
        for field in fields(self):
            is_gauge = field.name in ("wanted", "alive", "silent", "held", "waiting")
            name = f"penstock_worker_{field.name}" + ("" if is_gauge else "_total")
            lines += [f"# TYPE {name} {'gauge' if is_gauge else 'counter'}", f"{name} {getattr(self, field.name)}"]
        return "\n".join(lines) + "\n"


@contextmanager
def serve_report(report: Callable[[], Report], host: str, port: int) -> Iterator[str | None]:
    """Serve reports by HTTP while the block runs; its address. Port 0: do not."""
    if not port:
        yield None
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            now = report()
            if self.path == "/health":
                self._answer(200 if now.is_healthy else 503, "application/json", now.as_json())
            elif self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4", now.as_metrics())
            else:
                self._answer(404, "text/plain", "there are /health and /metrics\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

    class Listener(ThreadingHTTPServer):
        address_family = family

    server = Listener((str(place[0]), port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
