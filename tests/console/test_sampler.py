"""The figures of all streams, which the console takes in turns."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from penstock import Server
from penstock.console import sampler as sampler_module
from penstock.console.history import History
from penstock.console.login import Login
from penstock.console.sampler import Sampler

pytestmark = pytest.mark.filterwarnings("ignore:.*lib_name:DeprecationWarning")  # of newer versions of redis-py


def test_figures_are_renewed_after_the_clock_was_set_back(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.execute_command("TWRITE", "clock", "t", "e")

    async def look_twice() -> int:
        login, history = Login(server.url), History(tmp_path, "server")
        sampler = Sampler(login, history)
        await sampler.refresh([b"clock"])
        before = sampler.streams[b"clock"]
        before.taken += 3600  # the clock was an hour ahead
        before.taken_at -= 60
        await login.call("TWRITE", "clock", "t", "e")
        await sampler.refresh([b"clock"])
        await login.close()
        history.close()
        return sampler.streams[b"clock"].last

    assert asyncio.run(look_twice()) == 2


def test_a_round_that_fails_is_not_the_last(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.execute_command("TWRITE", "rounds", "t", "e")

    async def fail_once() -> int | None:
        login, history = Login(server.url), History(tmp_path, "server")
        sampler = Sampler(login, history)
        sampler.login = None  # type: ignore[assignment] # every round is an error of ours
        sampler.start()
        await sampler.wait_for_round(60)
        assert sampler.problem is not None
        sampler.login, sampler.problem = login, None
        await sampler.wait_for_round(60)
        await sampler.stop()
        await login.close()
        history.close()
        return sampler.total

    assert (asyncio.run(fail_once()) or 0) >= 1


def test_a_stream_that_a_user_may_not_read_is_asked_for_ever_less_often(
    server: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.execute_command("TWRITE", "others", "t", "e")
    client.execute_command("ACL", "SETUSER", "narrow", "on", ">p", "~mine:*", "+@all")

    async def ask_for_ten_minutes() -> None:
        login, history = Login(server.url, "narrow", "p"), History(tmp_path, "server")
        sampler = Sampler(login, history)
        now = time.monotonic()
        for second in range(0, 620, 20):
            clock = SimpleNamespace(time=time.time, monotonic=partial(float, now + second))
            monkeypatch.setattr(sampler_module, "time", clock)
            await sampler._look_for_new()
        monkeypatch.undo()
        assert sampler.streams == {}
        await login.close()
        history.close()

    client.execute_command("ACL", "LOG", "RESET")
    asyncio.run(ask_for_ten_minutes())
    refused = [row for row in client.acl_log() if row["object"] == "others"]
    assert sum(int(row["count"]) for row in refused) == 4, "at 0, 1, 3 and 7 minutes"
