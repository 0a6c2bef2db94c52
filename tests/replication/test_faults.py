"""Bad days, a few of them: clients of a shard with `replica-acks 1` are told the truth.

`python -m tests.support.replication.faults` does the same for as long as one likes, with all kinds of faults.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.replication import etcd_faults
from tests.support.replication.faults import WITHOUT_LOG, run

ALWAYS = {"lost", "twice", "went back", "deposed"}
"""What never happens, whatever happens to servers."""


@pytest.mark.parametrize(
    ("faults", "wrong"),
    [
        (["kill", "hand_over_by_force", "twice"], ALWAYS | {"vanished"}),
        (["stop", "cut", "cut_acks"], ALWAYS),  # the former leader lives, and may answer reads
        (["kill_copying_replica", "fill_disk", "restart"], ALWAYS | {"vanished"}),
    ],
)
def test_no_client_is_told_what_is_not_so(tmp_path: Path, faults: list[str], wrong: set[str]) -> None:
    seed = random.randrange(1 << 32)
    crowd = run(tmp_path, faults, seed)
    found = [(fault, each) for fault, each in crowd.violations if each.what in wrong]
    assert not found, f"seed {seed}: {found[:10]}"
    assert crowd.done > 80 * len(faults)


def test_no_client_of_a_shard_with_etcd_is_told_what_is_not_so(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    crowd = etcd_faults.run(tmp_path, ["kill", "stop"], seed)
    found = [(fault, each) for fault, each in crowd.violations if each.what in ALWAYS]
    assert not found, f"seed {seed}: {found[:10]}"


def test_the_same_clients_find_what_redis_loses(tmp_path: Path) -> None:
    """A write counts as acknowledged when WAIT has said that the replica has it. A leader that keeps no log is killed,
    and is back before the replica is promoted, which then copies what is left.
    """
    crowd = run(tmp_path, ["kill", "restart"], seed=1, options=WITHOUT_LOG, is_redis=True)
    assert {each.what for _, each in crowd.violations} >= {"lost"}
