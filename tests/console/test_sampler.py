"""The figures of all streams, which the console takes in turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import redis

from penstock import Server
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
