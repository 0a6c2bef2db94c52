"""Lines of the server's own log about a command that failed by a bug: no password is in them, wherever it failed."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.raw_client import RawClient

from penstock import Server, commands
from penstock.engine.blocking import Waiter
from penstock.engine.declarations import REGISTRY
from penstock.engine.dispatch import Engine
from penstock.engine.observe.monitors import in_short
from penstock.engine.session import Session
from penstock.testing.clock import ManualClock

commands.load()

SECRETS = ["AUTH hush", "AUTH default hush", "ACL SETUSER >hush", "CONFIG SET requirepass hush", "LAZY AUTH hush"]


def broken(*args: object, **kwargs: object) -> Any:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("line", SECRETS)
def test_three_words_are_shown_and_no_secret(line: str) -> None:
    shown = in_short(line.encode().split())
    assert shown[0] == line.split()[0].encode() and len(shown) <= 3
    assert not any(b"hush" in word for word in shown)


def test_what_is_no_secret_is_shown() -> None:
    assert in_short([b"SET", b"k", b"v", b"EX"]) == [b"SET", b"k", b"v"]
    assert in_short(["SET", 1, 2.5]) == [b"SET", b"1", b"2.5"]


@pytest.mark.parametrize("line", SECRETS)
@pytest.mark.parametrize("place", ["blocked", "thread"])
def test_a_bug_in_the_engine(place: str, line: str, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    engine = Engine(clock=ManualClock())
    session, argv = Session(engine), line.encode().split()
    command = REGISTRY.find(argv)
    assert command is not None
    monkeypatch.setattr(engine, "call", broken)
    if place == "blocked":
        engine.blocking._retry(Waiter(session, command, argv, [], 0, None), b"k")
    else:
        job = SimpleNamespace(session=session, command=command, argv=argv, spent=0)
        engine.workers._carry_out(job, command.handler)  # type: ignore[arg-type]
    assert "internal error in" in caplog.text and "hush" not in caplog.text


def test_a_bug_in_a_command_of_a_script(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server, RawClient(server.port) as client, caplog.at_level(logging.ERROR):
        monkeypatch.setattr(server.app.engine.scripting, "_command", broken)
        client.command("EVAL", "return redis.pcall('AUTH', 'hush')", "0")
        assert "internal error" in str(client.read())
    assert "internal error in a script's" in caplog.text and "hush" not in caplog.text
