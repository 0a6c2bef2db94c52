"""Replicas that follow over TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.replication.servers import Pair, caught_up, is_up, servers
from tests.support.tls import Authority
from tests.support.waiting import wait_until

from penstock.testing.redis import free_port


def directives(authority: Authority, signer: Authority, name: str) -> dict[str, object]:
    """A server that trusts one authority and has a certificate of another, or of the same."""
    certificate, key = signer.issue(name)
    return {
        "tls_replication": "yes", "tls_port": free_port(), "tls_cert_file": certificate, "tls_key_file": key,
        "tls_ca_cert_file": authority.file,
    }  # fmt: skip


def follow_over_tls(replica: Pair, leader: Pair) -> None:
    replica.client.execute_command("REPLICAOF", "localhost", leader.server.app.tls_port)


def test_a_replica_follows_over_tls_and_takes_over_in_both_directions(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    with servers(tmp_path) as world:
        leader = world.start("leader", **directives(authority, authority, "one"))
        replica = world.start("replica", **directives(authority, authority, "other"))
        leader.client.set("a", b"x" * 3_000_000)
        follow_over_tls(replica, leader)
        wait_until(lambda: is_up(replica))
        leader.client.set("b", 1)
        caught_up(leader, replica)
        assert leader.info()["slave0"]["port"] == replica.server.app.tls_port
        leader.client.execute_command("FAILOVER")
        wait_until(lambda: leader.info()["role"] == "slave" and is_up(leader))
        replica.client.set("c", 1)
        caught_up(replica, leader)
        assert leader.digest() == replica.digest()


def test_a_replica_with_a_certificate_of_another_authority_gets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    with servers(tmp_path) as world:
        leader = world.start("leader", **directives(authority, authority, "one"))
        leader.client.set("a", 1)
        replica = world.start("replica", **directives(authority, stranger, "mallory"))
        follow_over_tls(replica, leader)
        wait_until(lambda: any("leader localhost" in record.getMessage() for record in caplog.records))
        assert replica.client.dbsize() == 0
        assert leader.info()["connected_slaves"] == 0


def test_a_replica_that_was_given_no_authority_trusts_those_of_the_system(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "authority")
    with servers(tmp_path) as world:
        leader = world.start("leader", **directives(authority, authority, "one"))
        replica = world.start("replica", tls_replication="yes")
        follow_over_tls(replica, leader)
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text)


def test_a_leader_with_a_certificate_of_another_authority_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    with servers(tmp_path) as world:
        leader = world.start("leader", **directives(authority, stranger, "mallory"))
        leader.client.set("a", 1)
        replica = world.start("replica", **directives(authority, authority, "one"))
        replica.client.set("own", 1)
        follow_over_tls(replica, leader)
        wait_until(lambda: any("CERTIFICATE_VERIFY_FAILED" in record.getMessage() for record in caplog.records))
        assert replica.client.exists("own")
