"""A console in a process of its own, as users start it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.forked_program import ForkedProgram


class ConsoleProcess:
    """`penstock console`; `with` ends it."""

    def __init__(self, url: str, folder: Path, *options: str, port: int = 0) -> None:
        words = ["console", "--url", url, "--port", str(port), "--dir", str(folder), *options]
        self.process = ForkedProgram([sys.executable, "-m", "penstock", *words], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, f"the console did not start: {line!r}"
        self.address = line.rpartition(" is at ")[2].strip().rstrip("/")
        self.port = int(self.address.rpartition(":")[2])
        self.cookie = self.token = ""

    def __enter__(self) -> ConsoleProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def ask(
        self, path: str, body: object = None, method: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """A request by hand: status, headers, and the JSON or text of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie, "X-Penstock-Token": self.token}
        sent |= {"Content-Type": "application/json"} if body is not None else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else body if isinstance(body, bytes | str) else json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, data, sent)
        response = connection.getresponse()
        raw = response.read()
        connection.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        try:
            return response.status, found, json.loads(raw)
        except ValueError:
            return response.status, found, raw

    def log_in(self, user: str = "", password: str = "") -> None:
        status, headers, said = self.ask("/api/login", {"user": user, "password": password})
        assert status == 200, said
        self.cookie = headers["set-cookie"].partition(";")[0]
        self.token = said["token"]

    def view(self, path: str) -> Any:
        status, _, said = self.ask(f"/api/view/{path}")
        assert status == 200, said
        return said
