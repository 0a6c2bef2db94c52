"""What the rows of replicas rest on: pairs of servers, and replies that are counted."""

from __future__ import annotations

import pytest

from penstock.bench.replica_load import Name, follow, leave, rate, wait_until_equal, with_replica
from penstock.bench.rows import ROWS
from penstock.bench.run import choose


@pytest.mark.parametrize("name", ["penstock", "redis"])
def test_a_replica_that_was_away_has_everything_again(name: Name) -> None:
    with with_replica(name) as (leader, replica):
        leave(replica)
        with leader.client() as client:
            client.set("k", 1)
        follow(replica, leader)
        wait_until_equal(leader, replica)
        with replica.client() as client:
            assert client.get("k") == b"1"


@pytest.mark.parametrize("name", ["penstock", "redis"])
def test_all_replies_are_counted(name: Name) -> None:
    with with_replica(name) as (leader, replica):
        assert rate(leader, 4, 400) > 0 and rate(leader, 4, 400, waits=1) > 0
        wait_until_equal(leader, replica)
        with leader.client() as one, replica.client() as other:
            assert one.dbsize() == other.dbsize() > 0


def test_the_rows_go_by_replicas_too() -> None:
    rows = {name for name in ROWS if name.startswith("replica.")}
    assert rows and {row.name for row in choose(["replicas"])} == rows
