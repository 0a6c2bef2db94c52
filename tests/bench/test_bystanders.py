"""What is concluded from the waits of bystanders."""

from __future__ import annotations

import pytest

from penstock.bench.bystanders import Moment, Notice, Wait, notice_of, table_of_notices


def wait(seconds: float, used: float, delayed: float = 0.0, server_delayed: float = 0.0, start: float = 10.0) -> Wait:
    return Wait(Moment(start, 5.0, 1.0, 2.0), Moment(start + seconds, 5.0 + used, 1.0 + delayed, 2.0 + server_delayed))


@pytest.mark.parametrize(
    ("one", "held", "loop"),
    [
        (wait(0.02, used=0.018), 0.018, 0.018),
        (wait(0.05, used=0.001, server_delayed=0.049), 0.001, 0.001),
        (wait(0.05, used=0.02, delayed=0.049), 0.001, 0.001),
        (wait(0.05, used=0.02, delayed=0.02, server_delayed=0.029), 0.02, 0.001),
        (wait(0.05, used=0.03, delayed=0.06), 0.0, 0.0),
    ],
)
def test_delays_of_the_machine_are_not_the_servers(one: Wait, held: float, loop: float) -> None:
    assert (one.held, one.loop) == (pytest.approx(held), pytest.approx(loop))


def test_an_idle_server_and_one_beside_slow_commands_are_told_apart() -> None:
    before = [wait(0.004, used=0.0001, delayed=0.0038, start=8.0), wait(0.001, used=0.0002, start=8.5)]
    beside = [wait(0.002, used=0.002, start=9.5), wait(0.03, used=0.001, delayed=0.02, start=9.7)]
    notice = notice_of([*before, *beside], sent_at=9.0, seconds=0.5)
    assert notice == Notice(
        idle=pytest.approx(4), idle_held=pytest.approx(0.2), idle_loop=pytest.approx(0.2), worst=pytest.approx(30),
        held=pytest.approx(2), loop=pytest.approx(2), nearly_worst=pytest.approx(30),
        rate=pytest.approx(2 / 0.73), command=pytest.approx(500),
    )  # fmt: skip
    title, line = table_of_notices({"ours": [notice, notice]}).splitlines()
    assert len(line) == len(title) and line.split()[:4] == ["ours", "4.00", "0.20", "0.20"]
