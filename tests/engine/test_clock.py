"""The two times of a server: the time of day, which people set, and the time of leases, which only passes."""

from __future__ import annotations

import time

import pytest

from penstock.engine.clock import Clock

HOUR = 3_600_000


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_lease_time_does_not_follow_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    clock = Clock()
    before, of_day, lead = clock.lease_time(), clock.now, clock.lease_lead()
    assert abs(before - of_day) < 60_000 and lead == 0
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + jump * 1_000_000)
    assert clock.refresh() - of_day == pytest.approx(jump, abs=60_000)
    assert 0 <= clock.lease_time() - before < 60_000
    assert clock.lease_lead() == pytest.approx(-jump, abs=1000)


def test_lease_time_is_never_before_a_delivery_that_was_found() -> None:
    clock = Clock()
    delivered = clock.now + HOUR
    clock.catch_up(delivered)
    assert 0 <= clock.lease_time() - delivered < 60_000
    clock.catch_up(delivered - HOUR)
    assert clock.lease_time() >= delivered
