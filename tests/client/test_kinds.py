"""Which commands block, whatever their keys and groups are called."""

from __future__ import annotations

import math

import pytest

from penstock.client.engine.command_kinds import Kind, kind_of, patience


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("XREAD BLOCK 1500 STREAMS k 0", 1.5),
        ("xread count 1 block 0 streams k 0", 0),
        ("XREAD STREAMS block 0", None),
        ("XREADGROUP GROUP streams worker BLOCK 1500 STREAMS k >", 1.5),
        ("XREADGROUP GROUP g streams COUNT 1 BLOCK 0 STREAMS k >", 0),
        ("XREADGROUP GROUP block 5 STREAMS k >", None),
        ("TREAD block 1 10", None),
        ("TREAD k $ 10 GROUP block RETRY 5 0", None),
        ("TREAD k $ 10 GROUP block RETRY 5 0 DEADLETTER block BLOCK 20", 0.02),
        ("TREAD streams 1 10 BLOCK 20", 0.02),
        ("TREAD k 1 10 BLOCK", None),
        ("BLPOP k 3", 3),
    ],
)
def test_a_command_blocks_for_as_long_as_its_options_say_and_names_are_no_options(
    line: str, seconds: float | None
) -> None:
    for words in (line.split(), line.encode().split()):
        assert kind_of(words) is (Kind.ORDINARY if seconds is None else Kind.BLOCKING)
        found = patience(words)
        assert found is None if seconds is None else math.isclose(found or 0.0, seconds)
