"""The bad days of faults.py for a shard that etcd looks after: nothing is promoted by hand.

python -m tests.support.replication.etcd_faults --faults 30 [--seed 7] [--only kill,stop]
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.support.replication.crowd import Crowd
from tests.support.replication.faults import BALLAST, report, tell
from tests.support.replication.shards import LEASE, Shard, ShardNode, shard
from tests.support.waiting import wait_until

from penstock.testing.etcd import EtcdServer


class EtcdFaults:
    """Does things to a shard, and leaves it well."""

    def __init__(self, world: Shard, etcd: EtcdServer, crowd: Crowd, chance: random.Random) -> None:
        self._world, self._etcd, self._crowd, self._chance = world, etcd, crowd, chance

    def _wait_for_leader(self) -> None:
        """Return when one leads and takes writes."""
        self._world.leader  # noqa: B018

    def _pause(self, most: float) -> None:
        time.sleep(self._chance.random() * most)

    def _wait_for_another(self, old: ShardNode) -> None:
        wait_until(lambda: any(node.leads for node in self._world.others(old)))

    def kill(self) -> None:
        """The leader's server is killed; its agent gives the lease back, and starts it again."""
        old = self._world.leader
        with self._crowd.promotion():
            old.signal_server(signal.SIGKILL)
            self._wait_for_leader()

    def kill_node(self) -> None:
        """Agent and server of the leader are killed, and started again."""
        old = self._world.leader
        with self._crowd.promotion():
            old.stop()
            self._wait_for_another(old)
        old.start()

    def stop(self) -> None:
        """The leader's server stands still until another one leads, and goes on as if nothing had happened."""
        old = self._world.leader
        with self._crowd.promotion():
            old.signal_server(signal.SIGSTOP)
            self._wait_for_another(old)
        self._pause(0.5)
        old.signal_server(signal.SIGCONT)

    def stop_agent(self) -> None:
        """The leader's agent stands still, and its server does not."""
        old = self._world.leader
        with self._crowd.promotion():
            old.signal_agent(signal.SIGSTOP)
            self._wait_for_another(old)
        old.signal_agent(signal.SIGCONT)

    def stop_node(self) -> None:
        """Both processes of the leader stand still, and the server goes on first."""
        old = self._world.leader
        with self._crowd.promotion():
            old.signal_agent(signal.SIGSTOP)
            old.signal_server(signal.SIGSTOP)
            self._wait_for_another(old)
        old.signal_server(signal.SIGCONT)
        self._pause(0.5)
        old.signal_agent(signal.SIGCONT)

    def kill_agent(self) -> None:
        """The leader's agent is killed, and its server is not."""
        old = self._world.leader
        with self._crowd.promotion():
            old.kill_agent()
            self._wait_for_another(old)
        old.start()

    def twice(self) -> None:
        """Two leaders are killed in a row, the second one as soon as it leads."""
        for _ in range(2):
            with self._crowd.promotion():
                leading = [node for node in self._world.nodes if node.leads]
                for node in leading[:1] or [self._world.leader]:
                    node.signal_server(signal.SIGKILL)
                wait_until(lambda: any(node.leads for node in self._world.nodes))
        self._wait_for_leader()

    def hand_over(self) -> None:
        """FAILOVER."""
        with self._crowd.promotion():
            self._world.leader.call("FAILOVER")
            self._wait_for_leader()

    def rewrite(self) -> None:
        """The leader's server is killed while it rewrites its log."""
        self._world.leader.call("BGREWRITEAOF")
        self._pause(0.05)
        self.kill()

    def cut_from_etcd(self) -> None:
        """The leader does not reach etcd; clients and replicas reach the leader."""
        self._cut_from_etcd(to_target=True, from_target=True)

    def cut_answers_of_etcd(self) -> None:
        """etcd hears the leader, and the leader does not hear etcd; it passes."""
        self._cut_from_etcd(to_target=False, from_target=True)

    def cut_requests_to_etcd(self) -> None:
        """What the leader sends does not reach etcd."""
        self._cut_from_etcd(to_target=True, from_target=False)

    def _cut_from_etcd(self, to_target: bool, from_target: bool) -> None:
        old = self._world.leader
        with self._crowd.promotion():
            for relay in self._world.to_etcd[old]:
                relay.cut(to_target, from_target)
            if to_target:
                self._wait_for_another(old)
            else:  # etcd goes on renewing the lease
                self._pause(2 * LEASE)
            self._pause(0.5)
            for relay in self._world.to_etcd[old]:
                relay.mend()
            self._wait_for_leader()

    def kill_etcd_member(self) -> None:
        """One of three members of etcd is killed, and is back later."""
        self._kill_members(1, LEASE / 2)

    def kill_most_of_etcd(self) -> None:
        """Two of three members of etcd are killed, and are back later, perhaps before the lease has ended."""
        self._kill_members(2, 2 * LEASE)

    def _kill_members(self, count: int, most: float) -> None:
        killed = self._chance.sample(self._etcd.members, count)
        with self._crowd.promotion():
            for member in killed:
                member.kill()
            self._pause(most)
            for member in killed:
                member.start(self._etcd.members)
            self._wait_for_leader()

    def stop_etcd_member(self) -> None:
        """One of three members of etcd stands still for a while."""
        member = self._chance.choice(self._etcd.members)
        with self._crowd.promotion():
            member.signal(signal.SIGSTOP)
            self._pause(2 * LEASE)
            member.signal(signal.SIGCONT)
            self._wait_for_leader()

    def _replica(self) -> ShardNode:
        return self._chance.choice(self._world.others(self._world.leader))

    def kill_replica(self) -> None:
        """A replica's server is killed; its agent starts it again."""
        self._replica().signal_server(signal.SIGKILL)

    def kill_copying_replica(self) -> None:
        """A replica without data is killed while it copies everything."""
        replica = self._replica()
        replica.stop()
        replica.lose_data()
        replica.start()
        self._pause(1.0)
        replica.signal_server(signal.SIGKILL)

    def fill_disk_of_replica(self) -> None:
        """The disk of a replica is full for a while."""
        replica = self._replica()
        replica.limit_files(500)
        self._pause(2.0)
        replica.limit_files(None)

    def fill_disk_of_leader(self) -> None:
        """The disk of the leader is full for a while; sometimes it is killed then."""
        leader = self._world.leader
        with self._crowd.promotion():
            leader.limit_files(500)
            self._pause(2.0)
            if self._chance.random() < 0.5:
                leader.signal_server(signal.SIGKILL)
            leader.limit_files(None)
            self._wait_for_leader()

    def cut_from_replicas(self) -> None:
        """The leader reaches etcd, and no replica hears from it; it passes."""
        self._cut_from_replicas(to_target=True, from_target=True)

    def cut_until_it_resigns(self) -> None:
        """The leader reaches etcd and its clients, and no replica hears from it, until it hands over."""
        old = self._world.leader
        with self._crowd.promotion():
            self._world.to_node[old].cut()
            self._crowd.read_what_one_server_has(old.port)
            self._wait_for_another(old)
            self._world.to_node[old].mend()
            self._wait_for_leader()

    def cut_feed(self) -> None:
        """Replicas are heard, and hear nothing; it passes."""
        self._cut_from_replicas(to_target=False, from_target=True)

    def cut_acks(self) -> None:
        """Replicas hear, and are not heard; it passes."""
        self._cut_from_replicas(to_target=True, from_target=False)

    def _cut_from_replicas(self, to_target: bool, from_target: bool) -> None:
        relay = self._world.to_node[self._world.leader]
        with self._crowd.promotion():
            relay.cut(to_target, from_target)
            self._pause(LEASE)
            relay.mend()
            self._wait_for_leader()

    def cut_pair(self) -> None:
        """The leader and one replica do not hear each other, or one does not; it passes. Others hear both."""
        leader = self._world.leader
        replica = self._chance.choice(self._world.others(leader))
        with self._crowd.promotion():
            self._world.cut_pair(leader, replica, *self._chance.choice([(True, True), (True, False), (False, True)]))
            self._pause(LEASE)
            self._world.to_node[leader].mend()
            self._wait_for_leader()

    def set_clocks(self) -> None:
        """The time of day of all nodes is set, forward and back."""
        for clock in self._world.clocks.values():
            clock.set(self._chance.randrange(-7200, 7200))
            self._pause(0.5)

    def set_clock_and_kill(self) -> None:
        """The leader's time of day is set, and then its server is killed."""
        self._world.clocks[self._world.leader].set(self._chance.choice([-86400, 86400]))
        self.kill()


KINDS = (
    "kill", "kill_node", "kill_agent", "stop", "stop_agent", "stop_node", "twice", "hand_over", "rewrite",
    "cut_from_etcd", "cut_answers_of_etcd", "cut_requests_to_etcd", "kill_etcd_member", "kill_most_of_etcd",
    "stop_etcd_member", "cut_from_replicas", "cut_until_it_resigns", "cut_feed", "cut_acks", "kill_replica",
    "kill_copying_replica", "fill_disk_of_replica", "fill_disk_of_leader", "cut_pair", "set_clocks",
    "set_clock_and_kill",
)  # fmt: skip


class _Seen:
    """The shard as a crowd sees it."""

    def __init__(self, world: Shard) -> None:
        self._world = world
        self.nodes = world.nodes
        self.url = f"penstock://{','.join(f'127.0.0.1:{node.port}' for node in world.nodes)}/orders"

    @property
    def leader(self) -> ShardNode:
        return self._world.leader


def run(
    folder: Path, names: Sequence[str], seed: int, tell: Callable[[str], None] = lambda line: None, members: int = 1,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Crowd:  # fmt: skip
    """Have these faults happen, one after the other; the crowd knows what was found."""
    chance = random.Random(seed)
    with EtcdServer(folder, members) as etcd, shard(folder, etcd, environment=environment) as world:
        for number in range(BALLAST >> 16):
            world.leader.call("SET", f"ballast:{number}", chance.randbytes(1 << 16))
        with Crowd(_Seen(world)) as crowd:
            faults = EtcdFaults(world, etcd, crowd, chance)
            for number, name in enumerate(names, start=1):
                began = time.monotonic()
                crowd.wait_for_writes()
                getattr(faults, name)()
                wait_until(world.are_in_sync)
                crowd.wait_for_writes()
                crowd.end_round(name)
                tell(f"{number} {name}: {time.monotonic() - began:.1f} s, {crowd.summary()}")
        crowd.check_all()
    return crowd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    kinds = given.only.split(",") if given.only else KINDS
    names = [kinds[number % len(kinds)] for number in range(given.faults)]
    random.Random(given.seed).shuffle(names)
    tell(f"seed {given.seed}: {dict(Counter(names))}")
    with tempfile.TemporaryDirectory() as folder:
        crowd = run(Path(folder), names, given.seed, tell, members=3)
    sys.exit(report(crowd, names))


if __name__ == "__main__":
    main()
