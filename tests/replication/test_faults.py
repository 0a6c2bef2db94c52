"""Bad days, a few of them: clients of a shard with `replica-acks 1` are told the truth.

`python -m tests.support.replication.faults` does the same for as long as one likes, with all kinds of faults.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.replication import etcd_faults
from tests.support.replication.faults import WITHOUT_LOG, run

ALWAYS = {"lost", "twice", "went back", "deposed", "vanished"}
"""What never happens, whatever happens to servers."""


@pytest.mark.parametrize(
    "faults",
    [
        ["kill", "hand_over_by_force", "twice"],
        ["stop", "cut", "cut_acks"],  # the former leader lives, and may answer reads
        ["kill_copying_replica", "fill_disk", "restart"],
    ],
)
def test_no_client_is_told_what_is_not_so(tmp_path: Path, faults: list[str]) -> None:
    seed = random.randrange(1 << 32)
    crowd = run(tmp_path, faults, seed)
    found = [(fault, each) for fault, each in crowd.violations if each.what in ALWAYS]
    assert not found, f"seed {seed}: {found[:10]}"
    assert crowd.done > 80 * len(faults)


def test_no_client_of_a_shard_with_etcd_is_told_what_is_not_so(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    crowd = etcd_faults.run(tmp_path, ["kill", "stop"], seed)
    found = [(fault, each) for fault, each in crowd.violations if each.what in ALWAYS]
    assert not found, f"seed {seed}: {found[:10]}"


def test_no_client_of_a_shard_reads_what_vanishes_when_its_leader_is_alone(tmp_path: Path) -> None:
    """A leader that no replica hears from answers no read with what it alone has, and hands over."""
    seed = random.randrange(1 << 32)
    crowd = etcd_faults.run(tmp_path, ["cut_until_it_resigns"] * 2, seed)
    found = [(fault, each) for fault, each in crowd.violations if each.what in ALWAYS]
    assert not found, f"seed {seed}: {found[:10]}"


SHOWS_EVERYTHING = """
from collections import Counter

from penstock.engine.session import Unconfirmed
from penstock.storage.fenced_writer import FencedWriter
from penstock.storage.held_replies import send_all

hold, refuse = FencedWriter.hold, FencedWriter.refuse_unconfirmed
held = Counter()  # replies of each connection: a read must not overtake its connection's writes


def hold_writes(self, write, replies):
    connection = getattr(getattr(write, "func", write), "__self__", None)

    def leave(data):
        held[connection] -= 1
        write(data)

    if held[connection] or any(type(piece) is Unconfirmed for piece in replies):
        held[connection] += 1
        hold(self, leave, replies)
    else:
        send_all([(write, replies)])


FencedWriter.hold = hold_writes
FencedWriter.refuse_unconfirmed = lambda self: refuse(self) and False
"""
"""Python runs this at the start of each server: reads do not wait for replicas."""


def test_the_same_clients_find_reads_that_vanish_if_reads_do_not_wait(tmp_path: Path) -> None:
    """Otherwise they could not find them in the test above."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sitecustomize.py").write_text(SHOWS_EVERYTHING)
    environment = {"PYTHONPATH": str(tmp_path / "code")}
    crowd = etcd_faults.run(tmp_path, ["cut_until_it_resigns"], seed=1, environment=environment)
    assert "vanished" in {each.what for _, each in crowd.violations}


def test_the_same_clients_find_what_redis_loses(tmp_path: Path) -> None:
    """A write counts as acknowledged when WAIT has said that the replica has it. A leader that keeps no log is killed,
    and is back before the replica is promoted, which then copies what is left.
    """
    crowd = run(tmp_path, ["kill", "restart"], seed=1, options=WITHOUT_LOG, is_redis=True)
    assert {each.what for _, each in crowd.violations} >= {"lost"}
