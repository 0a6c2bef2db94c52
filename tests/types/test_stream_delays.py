"""Delayed messages against a dictionary of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.types.packing import CorruptValue
from penstock.types.stream import delays as module
from penstock.types.stream.delays import Delays


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 60), st.integers(0, 5)), max_size=60),
    st.integers(1, 250),
    st.integers(0, 60),
)
def test_they_hide_what_is_not_visible_yet(writes: list[tuple[int, int, int, int]], offset: int, length: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", 2)
        patch.setattr(module, "_FULL", 4)
        delays, model, last, now = Delays(), dict[int, int](), 0, 1
        for gap, count, wait, elapsed in writes:
            start = last + gap + 1
            last = start + count - 1
            delays.add(start, last + 1, now + wait, now)
            model |= dict.fromkeys(range(start, last + 1), now + wait)
            now += elapsed
            hidden = [at for at, time in model.items() if at >= offset and time > now]
            run = delays.hidden(offset, now)
            assert (run is None) == (not hidden)
            assert run is None or max(run[0], offset) == min(hidden)
            delays.check()
        for each in (delays, delays.copy(), Delays.load(delays.dump(), last)):
            shown = {at: time for a, b, time in each.parts(offset, offset + length, now) for at in range(a, b)}
            expected = {at: model.get(at, 0) for at in range(offset, offset + length)}
            assert shown == {at: time if time > now else 0 for at, time in expected.items()}
            hidden = [at for at, time in model.items() if time > now]
            assert each.count(now, 1) == len(hidden)
            assert each.count(now, offset) == sum(at >= offset for at in hidden)


def test_neighbours_with_one_time_take_no_more_memory() -> None:
    delays = Delays()
    for offset in range(1, 10_000):
        delays.add(offset, offset + 1, 500, 0)
    assert delays.size() < 1000


def test_runs_that_are_over_are_swept_out() -> None:
    delays = Delays()
    for now in range(10_000):
        delays.add(2 * now + 1, 2 * now + 2, now + 10, now)
    assert delays.size() < 30_000


def test_runs_of_evicted_messages_are_swept_out() -> None:
    """However far in the future they were to be visible."""
    delays = Delays()
    for offset in range(1, 100_000):
        delays.add(offset, offset + 1, 10**15 + offset, now=0, first=max(offset - 1000, 1))
    assert delays.size() < 100_000
    delays.check()


def test_a_few_that_stay_do_not_keep_chunks_of_their_own() -> None:
    delays = Delays()
    for offset in range(1, 200_000):
        delays.add(offset, offset + 1, 10**15 + offset if offset % 256 == 0 else offset + 10, now=offset)
    assert delays.count(300_000, 1) == 781
    assert delays.size() < 60_000
    delays.check()


def test_a_slow_group_among_very_many_looks_at_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of all of them for every 64 that became visible took all of the server's time."""
    delays = Delays()
    for offset in range(1, 100_001):
        delays.add(offset, offset + 1, offset, now=0)
    looked = 0
    sweep = module._Chunk.sweep

    def counting(chunk: Any, now: int, first: int) -> None:
        nonlocal looked
        looked += len(chunk.starts)
        sweep(chunk, now, first)

    monkeypatch.setattr(module._Chunk, "sweep", counting)
    for now in range(0, 100_000, 70):
        assert delays.hidden(1, now) == (now + 1, now + 2, now + 1)
    assert looked < 10 * 100_000


@pytest.mark.parametrize("runs", [[(0, 2, 5)], [(1, 1, 5)], [(1, 12, 5)], [(1, 3, 5), (2, 4, 5)], [(1, 2, 0)]])
def test_damaged_delays_are_refused(runs: list[tuple[int, int, int]]) -> None:
    data = b"".join(number.to_bytes(8, "little") for run in runs for number in run)
    for bad in (data, data + b"x"):
        with pytest.raises(CorruptValue):
            Delays.load(bad, 10)
