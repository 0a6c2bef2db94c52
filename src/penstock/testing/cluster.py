"""A real Redis Cluster on demand, and the things that happen to clusters: slots move, masters die, replicas take over.

    with RedisCluster() as cluster:                     # three masters, a replica each, on 127.0.0.1
        source, target = cluster.masters[:2]
        slot = key_slot(b"{t}")
        cluster.half_migrate(slot, target, keys=[b"{t}a"])   # GET {t}a now gets ASK, MGET {t}a {t}b TRYAGAIN
        cluster.kill(source)                            # kill -9, by its process id

The nodes start from a configuration that already names their ids, slots and masters, so there is no meeting, no slot
assignment and no election to wait for: what remains is the two seconds for which Redis keeps any restarted master
from taking writes. Rejected: `redis-cli --cluster create`, which takes eight seconds and is not in every package.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import redis

from penstock.protocol.slots import SLOTS, key_slot
from penstock.testing.redis import candidate_ports, find_redis, given_out

_BUS = 10_000  # Redis before 7.0 has no choice: the cluster bus is at the port plus this


class View(NamedTuple):
    """What a node says of its cluster."""

    ranges: list[tuple[int, int, str]]
    """The first and the last slot of each range, and its owner, by id."""
    roles: dict[str, str]
    """The master of each node, `-` for a master, by id."""


@dataclass(slots=True, eq=False)
class ClusterNode:
    """One redis-server of a cluster."""

    id: str
    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def is_master(self) -> bool:
        return bool(self.ask("ROLE")[0] == b"master")

    def ask(self, *words: str | int | bytes) -> Any:
        """The reply to one command, sent to this node and no other; an error reply is raised."""
        with redis.Redis(port=self.port, protocol=2, socket_timeout=60) as client:
            client.response_callbacks.clear()
            return client.execute_command(*words)

    def ask_each(self, *commands: tuple[str | int, ...]) -> list[Any]:
        """The replies to commands that go over one connection, without another attempt; an error reply is raised."""
        make: Any = redis.Connection  # it has no types
        connection = make(host="127.0.0.1", port=self.port, protocol=2, socket_timeout=120, driver_info=None)
        try:
            connection.connect()
            connection.send_packed_command(connection.pack_commands(commands))
            return [connection.read_response() for _ in commands]
        finally:
            connection.disconnect()

    def slots(self) -> dict[int, str]:
        """The owner of each slot, by id, as this node sees it."""
        ranges = _ranges(self.ask("CLUSTER", "SLOTS"))
        return {slot: owner for first, last, owner in ranges for slot in range(first, last + 1)}

    def listed(self) -> set[str]:
        """The nodes that clients are told of, by id.

        A replica is included when its replication offset is known, which may take seconds.
        """
        return {place[2].decode() for row in self.ask("CLUSTER", "SLOTS") for place in row[2:]}

    def roles(self) -> dict[str, str]:
        """The master of each node, `-` for a master, by id, as this node sees it."""
        return _roles(self.ask("CLUSTER", "NODES"))

    def view(self) -> View | None:
        """How this node sees the cluster; None unless it serves requests, and, as a replica, follows its master."""
        try:
            state, replication, slots, nodes = self.ask_each(
                ("CLUSTER", "INFO"), ("INFO", "replication"), ("CLUSTER", "SLOTS"), ("CLUSTER", "NODES")
            )
        except (redis.RedisError, OSError):
            return None
        follows = b"role:master" in replication or b"master_link_status:up" in replication
        if b"cluster_state:ok" not in state or not follows:
            return None
        return View(sorted(_ranges(slots)), _roles(nodes))


class RedisCluster:
    """`with RedisCluster() as cluster:`; every node is a process of its own, ended by its process id.

    A directive of redis-server is a keyword argument; `cluster_node_timeout` is how many milliseconds a node may be
    silent before the others replace it.
    """

    def __init__(self, masters: int = 3, replicas: int = 1, **directives: str) -> None:
        if masters < 1 or replicas < 0:
            raise ValueError(f"a cluster has at least 1 master and 0 replicas of each, not {masters} and {replicas}")
        self.nodes: list[ClusterNode] = []
        self._masters = masters
        self._replicas = replicas
        self._directives = {"cluster_node_timeout": "2000", **directives}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    # -- from start to stop -------------------------------------------------------------------------------------

    def start(self, seconds: float = 120) -> RedisCluster:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-cluster-")
        root = Path(self._folder.name)
        for port in _free_ports(self._masters * (1 + self._replicas)):
            (folder := root / str(port)).mkdir()
            self.nodes.append(ClusterNode(secrets.token_hex(20), port, folder))
        for node in self.nodes:
            (node.folder / "nodes.conf").write_text(self._configuration(node))
        try:
            for node in self.nodes:
                self._launch(node)
            self.wait_until_ok(seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                node.process.kill()  # a test cluster needs no orderly shutdown
                node.process.wait(timeout=20)
                node.process = None
        self.nodes = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> RedisCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- who is who ---------------------------------------------------------------------------------------------

    @property
    def masters(self) -> list[ClusterNode]:
        """Running nodes that own slots, in the order of their slots."""
        owners = dict.fromkeys(self._any_master().slots().values())
        return [node for owner in owners for node in self.nodes if node.id == owner and node.is_running]

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        """A running replica of this master, dead or alive."""
        for replica, its_master in self._any_master().roles().items():
            if its_master == master.id and (node := self.node(replica)).is_running:
                return node
        raise LookupError(f"the node on port {master.port} has no running replica")

    def node(self, node_id: str) -> ClusterNode:
        return next(node for node in self.nodes if node.id == node_id)

    def owner(self, slot: int) -> ClusterNode:
        return self.node(self._any_master().slots()[slot])

    def keys_on(self, node: ClusterNode, prefix: str = "key") -> Iterator[bytes]:
        """Names of keys, in different slots for the most part, that this master owns now; there is no end to them."""
        mine = {slot for slot, owner in self._any_master().slots().items() if owner == node.id}
        if not mine:
            raise LookupError(f"the node on port {node.port} owns no slot")
        return (key for number in count() if key_slot(key := b"%s:%d" % (prefix.encode(), number)) in mine)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses of the running nodes, for a client to start from."""
        return [node.address for node in self.nodes if node.is_running]

    # -- what happens to clusters -------------------------------------------------------------------------------

    def half_migrate(self, slot: int, target: ClusterNode, keys: Iterable[bytes] = ()) -> ClusterNode:
        """Begin to move a slot and stop there, with `keys` moved and the rest not; answers the source.

        The source answers ASK for keys it does not have. Commands whose keys are on both sides get TRYAGAIN: from the
        source, or before Redis 7.0 from the target that ASK led to.
        """
        source = self.owner(slot)
        if source is target:
            raise ValueError(f"slot {slot} is on port {target.port} already")
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        self._migrate(source, target, list(keys))
        return source

    def finish_migration(self, slot: int, target: ClusterNode) -> None:
        """Move what `half_migrate` left behind, and give the slot to the target, known to every running node."""
        source = self.owner(slot)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            self._migrate(source, target, keys)
        self._assign(slot, target)

    def undo_migration(self, slot: int, target: ClusterNode) -> None:
        """Undo `half_migrate`: the moved keys return, and the marks of both sides are removed."""
        source = self.owner(slot)
        source.ask("CLUSTER", "SETSLOT", slot, "STABLE")  # first, or it would send the returning keys away with ASK
        while keys := target.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            self._migrate(target, source, keys)
        target.ask("CLUSTER", "SETSLOT", slot, "STABLE")

    def move_slot(self, slot: int, target: ClusterNode) -> None:
        """A whole migration."""
        self.half_migrate(slot, target)
        self.finish_migration(slot, target)

    def kill(self, node: ClusterNode) -> None:
        """kill -9; what it had not replicated is lost."""
        assert node.process is not None
        node.process.send_signal(signal.SIGKILL)
        node.process.wait(timeout=20)

    def restart(self, node: ClusterNode) -> None:
        """Start a node that was killed; it joins in the role that the others have given it."""
        if node.is_running:
            raise ValueError(f"the node on port {node.port} still runs")
        self._launch(node)
        self.wait_until_ok()

    def fail_over(self, master: ClusterNode) -> ClusterNode:
        """Promote a replica, at once and without a vote if the master is dead; answers the new master."""
        replica = self.replica_of(master)
        again_at = 0.0

        def took_over() -> bool:
            """Ask again if Redis gave up: an election that takes five seconds, as on a busy machine, is abandoned."""
            nonlocal again_at
            if replica.is_master:
                return True
            if time.monotonic() >= again_at:
                again_at = time.monotonic() + 6
                with contextlib.suppress(redis.ResponseError):  # it has just become the master
                    replica.ask("CLUSTER", "FAILOVER", *([] if master.is_running else ["TAKEOVER"]))
            return False

        _wait("the replica to take over", took_over)
        self.wait_until_ok()
        return replica

    def wait_until_ok(self, seconds: float = 120) -> None:
        """Every running node serves, follows its master, and sees the same owners and replicas as the others."""

        def agreed() -> bool:
            first, *others = (node.view() for node in self.nodes if node.is_running)
            owned = sum(last - start + 1 for start, last, _ in first.ranges) if first is not None else 0
            return owned == SLOTS and all(view == first for view in others)

        _wait("the cluster to be ok", agreed, seconds)

    def wait_until_listed(self, seconds: float = 120) -> None:
        """Every running node lists all running nodes, replicas too: for clients that are
        about to read from replicas.
        """
        running = [node for node in self.nodes if node.is_running]
        ids = {node.id for node in running}
        _wait("replicas to be listed", lambda: all(ids <= node.listed() for node in running), seconds)

    def mend(self) -> None:
        """Undo what a test did: dead nodes start, each master has its replicas, open migrations close, every key is
        removed. Slots stay where they are.
        """
        for node in self.nodes:
            if not node.is_running:
                self._launch(node)
        self.wait_until_ok()
        self._share_out_replicas()
        for node in self.masters:
            (view,) = node.ask_each(("CLUSTER", "NODES"))
            replicas = sum(master == node.id for master in _roles(view).values())
            stable = [("CLUSTER", "SETSLOT", slot, "STABLE") for slot in _open_slots(view)]
            node.ask_each(("FLUSHALL",), ("WAIT", replicas, 60_000), *stable)  # replicas are empty too

    # -- how ----------------------------------------------------------------------------------------------------

    def _share_out_replicas(self) -> None:
        """Give replicas to masters that have too few. A node that was a master, and comes back, follows the node that
        took the last of its slots, which need not be the one that took most of them.
        """
        masters, roles = self.masters, self._any_master().roles()
        wanted = [master.id for master in masters for _ in range(self._replicas)]
        spare = []
        for node in self.nodes:
            if roles[node.id] in wanted:
                wanted.remove(roles[node.id])
            elif node not in masters:
                spare.append(node)
        for master_id, node in zip(wanted, spare, strict=False):  # tests may take slots from a master
            emptying = [("FLUSHALL",)] if roles[node.id] == "-" else []  # it must be empty, and a replica may not
            node.ask_each(*emptying, ("CLUSTER", "REPLICATE", master_id))
        if wanted:
            self.wait_until_ok()

    def _any_master(self) -> ClusterNode:
        for node in self.nodes:
            if node.is_running and node.is_master:
                return node
        raise LookupError("no master of this cluster runs")

    def _assign(self, slot: int, target: ClusterNode) -> None:
        target.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        for node in self.masters:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        _wait(
            f"slot {slot} to be known on port {target.port}",
            lambda: all(node.slots().get(slot) == target.id for node in self.nodes if node.is_running),
        )

    @staticmethod
    def _migrate(source: ClusterNode, target: ClusterNode, keys: list[bytes]) -> None:
        if keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "KEYS", *keys)

    def _configuration(self, node: ClusterNode) -> str:
        """The nodes.conf of a cluster that is already set up."""
        lines = []
        for number, other in enumerate(self.nodes):
            flags = "myself," if other is node else ""
            place = f"{other.id} 127.0.0.1:{other.port}@{other.port + _BUS}"
            if number < self._masters:
                first, end = (SLOTS * n // self._masters for n in (number, number + 1))
                lines.append(f"{place} {flags}master - 0 0 {number + 1} connected {first}-{end - 1}")
            else:
                master = self.nodes[number % self._masters]
                lines.append(f"{place} {flags}slave {master.id} 0 0 {number % self._masters + 1} connected")
        return "\n".join([*lines, f"vars currentEpoch {self._masters} lastVoteEpoch 0", ""])

    def _launch(self, node: ClusterNode) -> None:
        settings = {
            "port": str(node.port), "bind": "127.0.0.1", "dir": str(node.folder), "save": "", "logfile": "log",
            "cluster_enabled": "yes", "cluster_config_file": "nodes.conf",
            "cluster_replica_validity_factor": "0",  # a replica may always be elected, however old its data
            "repl_diskless_sync_delay": "0", "repl_ping_replica_period": "1",
            **self._directives,
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
        node.process = subprocess.Popen([find_redis().path, *words], stdout=subprocess.DEVNULL)


def _free_ports(wanted: int) -> list[int]:
    """Ports that are free now, with their bus ports, below the range that the system assigns by itself."""
    ports: list[int] = []
    for port in candidate_ports(11_000, 22_000):  # 10,000 more is the bus port
        try:
            for number in (port, port + _BUS):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        ports.append(port)
        if len(ports) == wanted:
            given_out.update(ports, (number + _BUS for number in ports))
            return ports
    raise OSError(f"no {wanted} free ports between 11000 and 22000 for a cluster")


def _ranges(rows: list[Any]) -> list[tuple[int, int, str]]:
    """What CLUSTER SLOTS says: the first and the last slot of each range, and its owner."""
    return [(row[0], row[1], row[2][2].decode()) for row in rows]


def _roles(view: bytes) -> dict[str, str]:
    """What CLUSTER NODES says: the master of each node, `-` for a master."""
    return {words[0]: words[3] for words in map(str.split, view.decode().splitlines())}


def _open_slots(view: bytes) -> list[int]:
    """Slots that a node is migrating or importing, from its own line of CLUSTER NODES.

    >>> _open_slots(b"5f17 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460 [77->-9ab2] [93-<-4c1d]")
    [77, 93]
    """
    mine = next(line for line in view.splitlines() if b"myself" in line)
    return [int(word[1:].partition(b"-")[0]) for word in mine.split()[8:] if word.startswith(b"[")]


def _wait(what: str, happened: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)
