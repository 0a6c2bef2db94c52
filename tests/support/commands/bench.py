"""An engine without a server, for what needs a clock or the log."""

from __future__ import annotations

from typing import Any

from penstock import commands
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.session import Session
from penstock.testing.clock import ManualClock


class Bench:
    """An engine with a clock of its own, what it logged, and a session."""

    def __init__(self) -> None:
        commands.load()
        self.clock = ManualClock()
        self.engine = Engine(clock=self.clock)
        self.logged: list[list[LogEntry]] = []
        self.engine.log = self.logged.append
        self.session = Session(self.engine)

    def run(self, *words: str | bytes, session: Session | None = None) -> Any:
        """Run a command, for the bench's own session unless another is given."""
        argv = [word.encode() if isinstance(word, str) else word for word in words]
        return self.engine.execute(session or self.session, argv)

    def eval(self, source: str | bytes, *arguments: str) -> Any:
        return self.run("EVAL", source, "0", *arguments)
