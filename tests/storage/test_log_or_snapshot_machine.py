"""Whatever is done to a server and its folder: it never begins with the older one of log and snapshot.

What is newer is found out by reading both from copies of the folder. Numbers are never given out twice, so a larger one
is newer.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.support.storage.life import Life

from penstock.storage.log_or_snapshot import OlderData

MODES = st.sampled_from(["yes", "no"])
SAVES = st.sampled_from(["", "3600 1000000"])


def number_in(life: Life) -> int:
    value = life.data.get(b"0:n", b"0")
    assert isinstance(value, bytes)
    return int(value)


def killed(life: Life) -> None:
    life.persistence._child.kill()
    life.persistence._lock.release()


class Folder(RuleBasedStateMachine):
    """A server on a folder, from start to start."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="penstock-log-or-snapshot-"))
        self.folder = self.place / "data"
        self.folder.mkdir()
        self.number = 0
        self.life: Life | None = None
        self.save = ""
        self.is_given_up = False  # the log was turned off on purpose
        self.is_behind = False  # the last life began with less than the log that was given up

    def teardown(self) -> None:
        if self.life is not None:
            killed(self.life)
        shutil.rmtree(self.place)

    @property
    def server(self) -> Life:
        assert self.life is not None
        return self.life

    def on_disk(self, without: str, appendonly: str) -> int:
        """What a start would find if there were only the other one."""
        copy = self.place / "copy"
        shutil.copytree(self.folder, copy)
        for path in copy.glob(f"{without}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        life = Life(copy, appendonly=appendonly)
        number = number_in(life)
        killed(life)
        shutil.rmtree(copy)
        return number

    @precondition(lambda self: self.life is None)
    @rule(mode=MODES, save=SAVES)
    def start(self, mode: str, save: str) -> None:
        log, snapshot = self.on_disk("dump.pns", "yes"), self.on_disk("appendonlydir", "no")
        newest = max(log, snapshot)
        is_refused = False
        try:
            self.life = Life(self.folder, appendonly=mode, save=save)
        except OlderData:
            is_refused = True
            mode = "no" if mode == "yes" else "yes"
            self.life = Life(self.folder, appendonly=mode, save=save)
        found = number_in(self.life)
        may_be_behind = mode == "no" and self.is_given_up and (self.is_behind or not is_refused)
        assert found == newest or may_be_behind, (log, snapshot)
        self.is_behind = found < newest
        self.save = save
        if mode == "yes":
            self.is_given_up = False

    @precondition(lambda self: self.life is not None)
    @rule()
    def write(self) -> None:
        self.number += 1
        self.server.run(f"SET n {self.number}")

    @precondition(lambda self: self.life is not None)
    @rule(mode=MODES)
    def switch(self, mode: str) -> None:
        was_listed = self.server.persistence.aof.is_listed
        self.server.run(f"CONFIG SET appendonly {mode}")
        if mode == "no" and was_listed and not self.save:
            self.is_given_up = True

    @precondition(lambda self: self.life is not None)
    @rule(save=SAVES)
    def change_rules(self, save: str) -> None:
        self.server.engine.execute(self.server.session, [b"CONFIG", b"SET", b"save", save.encode()])
        self.save = save

    @precondition(lambda self: self.life is not None)
    @rule(command=st.sampled_from(["SAVE", "BGSAVE"]))
    def snapshot(self, command: str) -> None:
        if not self.server.persistence._child.running:  # else it is refused
            self.server.run(command)

    @precondition(lambda self: self.life is not None)
    @rule()
    def rewrite(self) -> None:
        if not self.server.persistence._child.running:
            self.server.run("BGREWRITEAOF")
            self.server.wait_for_child()
            if self.server.persistence.aof.is_listed:
                self.is_given_up = False
            elif self.server.persistence.aof.writer is None:
                self.is_given_up = True

    @precondition(lambda self: self.life is not None)
    @rule()
    def work(self) -> None:
        self.server.wait_for_child()
        if self.server.persistence.aof.is_listed:
            self.is_given_up = False

    @precondition(lambda self: self.life is not None)
    @rule(is_clean=st.booleans())
    def end(self, is_clean: bool) -> None:
        if is_clean:
            self.server.close()
            if self.server.persistence.aof.manifest.base and self.server.engine.config.appendonly:
                self.is_given_up = False
        else:
            killed(self.server)
        self.life = None


TestFolder = Folder.TestCase
TestFolder.settings = settings(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
