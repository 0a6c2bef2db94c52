"""A server inside a Python process: for tests, demos, and programs that want one without running one.

    with penstock.Server() as server:
        redis.Redis.from_url(server.url).set("a", 1)

The server's loop runs in a thread of its own; everything it owns stays in that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from penstock.engine.config import Config, ConfigError
from penstock.engine.directives import DIRECTIVES
from penstock.server.app import App

T = TypeVar("T")


class Server:
    """A Penstock server in a thread. Directives are keyword arguments: `Server(port=7000, appendonly="yes")`.

    One that may stand on several lines of a file takes a list: `Server(module=["one", "other.py"])`.

    The port is chosen by the system unless given (0 listens on none), only 127.0.0.1 is listened on, and nothing is
    saved to disk unless `save` or `appendonly` is given.
    """

    def __init__(self, **directives: object) -> None:
        self._config = Config()
        self._choose_port = "port" not in directives
        for name, value in {"port": 0, "bind": "127.0.0.1", "save": "", **directives}.items():
            name = name.replace("_", "-")
            for each in value if isinstance(value, list) else [value]:
                text = ("no", "yes")[each] if isinstance(each, bool) else str(each)
                words = DIRECTIVES[name].kind.words(text) if name in DIRECTIVES else [text]
                self._config.load(name, words, "penstock.Server: ")
        self._keeps_nothing = not {"dir", "save", "appendonly"} & set(directives)
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app: App | None = None

    def start(self) -> Server:
        """Start, and return when clients can connect. An error at start is raised here."""
        if self._thread is not None:
            raise RuntimeError("this Server was started already; make a new one")
        self._thread = threading.Thread(target=self._main, name="penstock-server", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def stop(self) -> None:
        """Shut down cleanly: finish replies, flush and sync. Safe to call twice.

        Like a signal it ends a busy script, or waits for it if it has written and there is no log.
        """
        if self._loop is not None and self._app is not None and self._thread is not None:
            self._app.engine.scripting.interrupt()  # the loop hears nothing while a script blocks it
            with contextlib.suppress(RuntimeError):  # SHUTDOWN may have closed the loop already
                self._loop.call_soon_threadsafe(self._app.stop_requested.set)
            self._thread.join()

    @property
    def app(self) -> App:
        if self._app is None:
            raise RuntimeError("the server is not running")
        return self._app

    @property
    def port(self) -> int:
        return self.app.port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def call(self, function: Callable[[App], T]) -> T:
        """Run `function(app)` in the server's own thread and return what it returns."""
        assert self._loop is not None

        async def run() -> T:
            return function(self.app)

        coroutine: Coroutine[Any, Any, T] = run()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _main(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                if self._keeps_nothing:  # neither reads nor leaves files where the program happens to run
                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))
                    self._config.load("dir", [folder])
                runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._app = App(self._config, self._choose_port)
        await self._app.start()
        self._started.set()
        await self._app.stop_requested.wait()
        await self._app.stop()


__all__ = ["ConfigError", "Server"]
