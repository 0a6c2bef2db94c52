"""A server without sockets on a folder, from its start to its end or its crash."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from penstock import commands
from penstock.engine.config import Config
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.storage.persistence import Persistence

commands.load()


class CallNow:
    """A loop for tests without one: what is to be done soon is done by `tick`."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    call_soon_threadsafe = call_soon

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()


class Life:
    """One life of a server without sockets: loads, runs commands, each of them a batch, and is dropped or closed."""

    def __init__(self, folder: Path, sync: Callable[[int], None] = os.fdatasync, **directives: str) -> None:
        config = Config()
        for name, value in {"dir": str(folder), "appendonly": "yes", "save": "", **directives}.items():
            config.load(name.replace("_", "-"), [value])
        self.loop = CallNow()
        self.engine = Engine(config)
        self.persistence = Persistence(self.engine, self.loop, stop=lambda: None, sync=sync)
        asyncio.run(self.persistence.start())
        self.session = Session(self.engine)

    def run(self, *lines: str) -> None:
        for line in lines:
            self.engine.execute(self.session, line.encode().split())
            self.loop.run()

    def unit(self, *lines: str) -> None:
        with self.engine.unit():
            self.run(*lines)
        self.loop.run()

    def wait_for_child(self) -> None:
        self.persistence.tick()
        while self.persistence._child.running is not None or self.persistence._rewrites.scheduled:
            self.persistence.tick()
            self.loop.run()
            time.sleep(0.001)  # the child needs the processor
        self.loop.run()

    @property
    def data(self) -> dict[bytes, object]:
        found = {}
        for database in self.engine.keyspace.databases:
            for key, value in database.data.items():
                found[b"%d:%b" % (database.index, key)] = bytes(value) if type(value) is not int else b"%d" % value
        return found

    def close(self) -> dict[bytes, object]:
        self.persistence.close()
        return self.data
