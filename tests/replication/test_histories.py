"""The checker of histories finds what must not happen, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.replication.histories import History, Operation, Promotion, Told, check


def write(kind: str, value: Any, at: float, told: Told = Told.DONE, reply: Any = None, server: int = 0) -> Operation:
    return Operation(kind, True, "k", value, at, at + 0.5, told, reply, server)


def read(kind: str, value: Any, at: float) -> Operation:
    return Operation(kind, False, "k", value, at, at + 0.5)


W, R = write, read
UNKNOWN, NOT_DONE = Told.UNKNOWN, Told.NOT_DONE


@pytest.mark.parametrize(
    ("operations", "final"),
    [
        ([W("register", 1, 1), R("register", 1, 2), W("register", 2, 3, UNKNOWN), R("register", 2, 4)], 2),
        ([W("register", 1, 1), W("register", 2, 2, UNKNOWN)], 1),
        ([W("register", 1, 1), W("register", 2, 2), R("register", 1, 2.2)], 2),
        ([W("counter", 1, 1, reply=1), W("counter", 1, 2, UNKNOWN), W("counter", 1, 3, reply=3)], 3),
        ([W("counter", 1, 1, reply=1), W("counter", 1, 2, UNKNOWN)], 1),
        ([W("list", "a", 1), R("list", ["a"], 2), W("list", "b", 3, UNKNOWN), R("list", ["a", "b"], 4)], ["a", "b"]),
        ([W("list", "a", 1), W("list", "b", 2, NOT_DONE)], ["a"]),
        ([W("stream", "a", 1, reply=1), W("stream", "b", 2, reply=2)], ["a", "b"]),
        ([R("position", 3, 1), R("position", 3, 2), R("position", 5, 3)], None),
    ],
)
def test_a_history_in_which_all_is_well(operations: list[Operation], final: Any) -> None:
    assert check(History(operations), {} if final is None else {"k": final}) == []


@pytest.mark.parametrize(
    ("operations", "final", "what"),
    [
        ([W("register", 1, 1), W("register", 2, 2)], 1, "lost"),
        ([W("register", 2, 1), R("register", 1, 2)], 2, "stale"),
        ([W("register", 2, 1, UNKNOWN), R("register", 2, 2), R("register", 1, 3)], 2, "stale"),
        ([W("register", 2, 1, UNKNOWN), R("register", 2, 2)], 1, "vanished"),
        ([W("counter", 1, 1, reply=1), W("counter", 1, 2, reply=2)], 1, "lost"),
        ([W("counter", 1, 1, reply=1), W("counter", 1, 2, reply=1)], 2, "lost"),
        ([W("counter", 1, 1, reply=1)], 2, "twice"),
        ([W("list", "a", 1), W("list", "b", 2)], ["b"], "lost"),
        ([W("list", "a", 1)], ["a", "a"], "twice"),
        ([W("list", "a", 1, NOT_DONE)], ["a"], "twice"),
        ([W("list", "a", 1, UNKNOWN), R("list", ["a"], 2), W("list", "b", 3)], ["b"], "vanished"),
        ([W("list", "a", 1, UNKNOWN), R("list", ["a"], 2)], [], "vanished"),
        ([R("list", ["a", "b"], 1), R("list", ["a"], 2)], ["a", "b"], "stale"),
        ([R("counter", 2, 1), W("counter", 1, 2, UNKNOWN), W("counter", 1, 2, UNKNOWN)], 1, "vanished"),
        ([W("stream", "a", 1, reply=2)], ["a"], "vanished"),
        ([R("position", 5, 1), R("position", 3, 2)], 5, "stale"),
        ([R("position", 5, 1)], 3, "went back"),
    ],
)
def test_a_history_in_which_something_went_wrong(operations: list[Operation], final: Any, what: str) -> None:
    assert {each.what for each in check(History(operations), {} if final is None else {"k": final})} == {what}


def test_a_server_that_acknowledges_after_another_one_took_over() -> None:
    before, during, after = (W("register", value, at, server=1) for value, at in ((1, 1), (2, 4.8), (3, 6)))
    promotions = [Promotion(0.0, 0.1, 1), Promotion(4.0, 5.0, 2)]
    assert check(History([before, during], promotions), {"k": 3}) == []
    assert [each.what for each in check(History([before, after], promotions), {"k": 3})] == ["deposed"]
    assert check(History([W("register", 4, 9, server=1)], [*promotions, Promotion(8.0, 10.0, 1)]), {"k": 4}) == []
