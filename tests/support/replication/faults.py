"""Bad days: what happens to a shard while a crowd of clients uses it.

    python -m tests.support.replication.faults --faults 200 [--seed 7] [--only kill,stop] [--redis [--log]]

prints how many faults of each kind there were, how many writes were acknowledged, and all violations that the checker
found; it fails if there are any. With --redis the same is done to a real Redis with one replica, whose clients WAIT.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.replication.crowd import Crowd, RedisCrowd
from tests.support.replication.plain_shards import PlainShard

BALLAST = 4 << 20
"""Bytes in the data beside what the clients write, so that a full copy takes a while."""


class Faults:
    """Does things to a shard, and leaves it well."""

    def __init__(self, shard: PlainShard, crowd: Crowd, chance: random.Random) -> None:
        self._shard, self._crowd, self._chance = shard, crowd, chance

    def _pause(self, most: float) -> None:
        time.sleep(self._chance.random() * most)

    def _promote(self) -> None:
        with self._crowd.promotion():
            self._shard.promote_furthest()

    def kill(self) -> None:
        """The leader is killed, and comes back as a replica."""
        old = self._shard.leader
        old.kill()
        self._promote()
        old.start(self._shard.leader)

    def stop(self) -> None:
        """The leader stands still until another one leads, and goes on as if nothing had happened."""
        old = self._shard.leader
        old.signal(signal.SIGSTOP)
        self._pause(0.5)
        self._promote()
        self._pause(0.5)
        old.signal(signal.SIGCONT)
        self._pause(0.5)
        old.follow(self._shard.leader)

    def restart(self) -> None:
        """The leader is killed, and comes back as the leader before any replica takes over."""
        self._shard.leader.kill()
        self._shard.leader.start()

    def pause_leader(self) -> None:
        """The leader stands still for a while, and goes on leading."""
        self._shard.leader.signal(signal.SIGSTOP)
        self._pause(0.5)
        self._shard.leader.signal(signal.SIGCONT)

    def cut(self) -> None:
        """No byte passes between the leader and its replicas; another one leads, and clients reach both."""
        self._cut(to_target=True, from_target=True, promote=True)

    def cut_for_a_while(self) -> None:
        """The same, and it passes."""
        self._cut(to_target=True, from_target=True, promote=False)

    def cut_feed(self) -> None:
        """Replicas are heard, and hear nothing."""
        self._cut(to_target=False, from_target=True, promote=self._chance.random() < 0.5)

    def cut_acks(self) -> None:
        """Replicas hear, and are not heard."""
        self._cut(to_target=True, from_target=False, promote=self._chance.random() < 0.5)

    def _cut(self, to_target: bool, from_target: bool, promote: bool) -> None:
        old = self._shard.leader
        old.relay.cut(to_target, from_target)
        self._pause(1.0)
        if promote:
            self._promote()
            self._pause(0.5)
        old.relay.mend()
        if promote:
            old.follow(self._shard.leader)

    def hand_over(self) -> None:
        """FAILOVER."""
        with self._crowd.promotion():
            self._shard.hand_over()

    def hand_over_by_force(self) -> None:
        """FAILOVER ... FORCE."""
        with self._crowd.promotion():
            self._shard.hand_over(force=True)

    def twice(self) -> None:
        """Two changes of the leader in a row, before the former one is over."""
        for fault in self._chance.choices([self.kill, self.hand_over], k=2):
            fault()

    def kill_replica(self) -> None:
        replica = self._chance.choice(self._shard.replicas)
        replica.kill()
        self._pause(0.3)
        replica.start(self._shard.leader)

    def kill_copying_replica(self) -> None:
        """A replica without data is killed while it copies everything."""
        replica = self._chance.choice(self._shard.replicas)
        replica.kill()
        for path in replica.folder.iterdir():
            if path.name != "server.log":
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        replica.start(self._shard.leader)
        self._pause(0.05)
        replica.kill()
        replica.start(self._shard.leader)

    def fill_disk(self) -> None:
        """The disk of a replica is full for a while."""
        replica = self._chance.choice(self._shard.replicas)
        replica.limit_files(500)
        self._pause(2.0)
        replica.limit_files(None)

    def delete_log(self) -> None:
        """The file that the leader's log is written to is deleted, and soon after that the leader hands over."""
        old = self._shard.leader
        files = list((old.folder / "appendonlydir").glob("*.incr.*"))
        max(files, key=lambda path: path.stat().st_mtime).unlink()
        self._pause(0.2)
        self.hand_over()

    def drop(self) -> None:
        """Connections of replicas are closed, again and again."""
        for _ in range(5):
            self._shard.leader.call("CLIENT", "KILL", "TYPE", "replica")
            self._pause(0.2)

    def chain(self) -> None:
        """One replica follows the other for a while, which is killed."""
        near, far = self._chance.sample(self._shard.replicas, 2)
        far.follow(near)
        self._pause(0.5)
        near.kill()
        near.start(self._shard.leader)
        far.follow(self._shard.leader)

    def rewrite(self) -> None:
        """The leader is killed while it rewrites its log."""
        old = self._shard.leader
        old.rewrite_log()
        self._pause(0.05)
        self.kill()


OURS = (
    "kill", "stop", "restart", "pause_leader", "cut", "cut_for_a_while", "cut_feed", "cut_acks", "hand_over",
    "hand_over_by_force", "twice", "kill_replica", "kill_copying_replica", "fill_disk", "rewrite",
    "delete_log", "drop", "chain",
)  # fmt: skip
OF_REDIS = ("kill", "stop", "cut", "restart")
WITHOUT_LOG = "--appendonly no"


def run(
    folder: Path,
    names: Sequence[str],
    seed: int,
    options: str = "--replica-acks 1",
    is_redis: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Crowd:
    """Have these faults happen, one after the other; the crowd knows what was found."""
    chance = random.Random(seed)
    with PlainShard(folder, 2 if is_redis else 3, options, is_redis) as shard:
        for number in range(BALLAST >> 16):
            shard.leader.call("SET", f"ballast:{number}", chance.randbytes(1 << 16))
        with (RedisCrowd if is_redis else Crowd)(shard) as crowd:
            faults = Faults(shard, crowd, chance)
            for number, name in enumerate(names, start=1):
                began = time.monotonic()
                crowd.wait_for_writes()
                getattr(faults, name)()
                shard.wait_for_replicas()
                crowd.wait_for_writes()
                crowd.end_round(name)
                tell(f"{number} {name}: {time.monotonic() - began:.1f} s, {crowd.summary()}")
        crowd.check_all()
    return crowd


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", default="")
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--log", action="store_true", help="let Redis keep a log (appendonly yes)")
    given = parser.parse_args()
    kinds = given.only.split(",") if given.only else OF_REDIS if given.redis else OURS
    chance = random.Random(given.seed)
    names = [kinds[number % len(kinds)] for number in range(given.faults)]
    chance.shuffle(names)
    tell(f"seed {given.seed}")
    with tempfile.TemporaryDirectory() as folder:
        options = ("" if given.log else WITHOUT_LOG) if given.redis else "--replica-acks 1"
        crowd = run(Path(folder), names, given.seed, options, given.redis, tell)
    sys.exit(report(crowd, names))


def report(crowd: Crowd, names: Sequence[str]) -> bool:
    """Say what was found; whether something is wrong."""
    tell(f"{len(names)} faults: {dict(Counter(names))}")
    tell(crowd.summary())
    tell(f"by fault: {dict(Counter((fault, each.what) for fault, each in crowd.violations))}")
    for text, times in crowd.failures.most_common(20):
        tell(f"  {times} times: {text}")
    wrong = [(fault, each) for fault, each in crowd.violations if each.what != "stale"]
    for fault, each in wrong[:40]:
        tell(f"  {fault}: {each.what} {each.key}: {each.text}")
    return bool(wrong)


if __name__ == "__main__":
    main()
