"""Clients that write and read all the time, and note what they were told (histories.py).

Three write to all kinds of data, one reads, one is a consumer of a group, and one asks each server by its own address,
as a client does that does not know who leads. Keys belong to a round; at the end of a round its data is read and
checked, and at the end of the run once more.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import redis
from tests.support.replication.histories import History, Operation, Promotion, Told, Violation, check
from tests.support.waiting import wait_until

import penstock
from penstock.client.errors import NotSent

WRITERS = 3
GROUP = "group"
POSITION = "jobs:position"
PATIENCE = 30.0
PACE = 0.01
"""Seconds between two rounds of writes of a client: servers and clients share the machine."""


class AnyServer(Protocol):
    """A server of a shard."""

    port: int


class AnyShard(Protocol):
    """What a crowd must know of a shard."""

    @property
    def nodes(self) -> Sequence[AnyServer]: ...
    @property
    def leader(self) -> AnyServer: ...
    @property
    def url(self) -> str: ...


class Crowd:
    """For servers of ours; `with Crowd(shard) as crowd:`."""

    def __init__(self, shard: AnyShard) -> None:
        self.shard = shard
        now = time.monotonic()
        self._promotions = [Promotion(now, now, shard.leader.port)]
        self.round = 0
        self._histories = defaultdict[int, History](History)
        self.done = 0
        """Writes that were acknowledged, in all rounds."""
        self.unknown = 0
        self.violations: list[tuple[str, Violation]] = []
        self.failures = Counter[str]()
        """Errors that clients of the shard got, and how often."""
        self.errors: list[BaseException] = []
        self._finals: dict[tuple[str, str], Any] = {}
        self._rounds_of: dict[threading.Thread, int] = {}
        self._over = threading.Event()
        tasks: list[Callable[[], None]] = [lambda number=n: self._write(number) for n in range(WRITERS)]  # type: ignore[misc]
        self._threads = [threading.Thread(target=self._run, args=(task,)) for task in (*tasks, *self._others())]

    def _others(self) -> list[Callable[[], None]]:
        return [self._read, self._consume, self._ask_each_server]

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    # -- rounds ---------------------------------------------------------------------------------------------------

    def wait_for_writes(self, count: int = 40) -> None:
        """Return when so many more writes were acknowledged."""
        before = self.done
        wait_until(lambda: self.done >= before + count or self.errors)
        if self.errors:
            raise self.errors[0]

    @contextlib.contextmanager
    def promotion(self) -> Iterator[None]:
        """Another server becomes the leader of the shard meanwhile."""
        began = time.monotonic()
        yield
        self._promotions.append(Promotion(began, time.monotonic(), self.shard.leader.port))

    def read_what_one_server_has(self, port: int) -> None:
        """Send a change to a server that no replica hears from, and read it there. What is shown must stay."""
        now, key = self.round, f"register:{self.round}:alone"
        shown = [0]

        def read(client: redis.Redis) -> int:
            shown.append(int(client.get(key) or 0))  # type: ignore[arg-type]
            return shown[-1]

        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as writer, _plain_client(port) as client:
            writer.sendall(f"SET {key} 1\r\n".encode())
            write = Operation("register", True, key, 1, began, time.monotonic(), Told.UNKNOWN)
            self._histories[now].operations.append(write)
            with contextlib.suppress(redis.ResponseError):
                while shown[-1] == 0 and time.monotonic() < began + PATIENCE:
                    asked = len(shown)
                    self.look(now, "register", key, partial(read, client))
                    if len(shown) == asked:
                        break  # no answer, as it should be

    def end_round(self, fault: str) -> None:
        """All servers are well: check the data of this round."""
        ended = self.round
        self.round += 1
        wait_until(lambda: all(self._rounds_of.get(thread, 0) > ended for thread in self._threads) or self.errors)
        history = self._histories.pop(ended)
        history.promotions = list(self._promotions)
        keys = {(each.key, each.kind) for each in history.operations}
        finals = {(key, kind): self._value(key, kind) for key, kind in keys}
        found = check(history, {key: value for (key, _), value in finals.items()})
        self.violations += [(fault, violation) for violation in found]
        self._finals |= finals

    def summary(self) -> str:
        found = dict(Counter(each.what for _, each in self.violations))
        return f"{self.done} acknowledged, {self.unknown} in doubt, {found or 'nothing'} found"

    def check_all(self) -> None:
        """At the end: everything that was there at the end of a round is there still."""
        for (key, kind), before in self._finals.items():
            now = self._value(key, kind)
            is_there = now[: len(before)] == before if isinstance(before, list) else now >= before
            if not is_there:
                self.violations.append(("later", Violation("lost", key, f"it was {before!r}, and is {now!r}"[:500])))

    def _value(self, key: str, kind: str) -> Any:
        with penstock.Client(port=self.shard.leader.port, socket_timeout=60) as client:
            return _read_value(client, key, kind)

    # -- clients --------------------------------------------------------------------------------------------------

    def note(self, now: int, kind: str, key: str, value: Any, ask: Callable[[], Any], server: int = 0) -> None:
        """Write in a round, and note what was told."""
        began = time.monotonic()
        reply, told = None, Told.DONE
        try:
            reply = ask()
        except redis.RedisError as error:
            told = told_by(error)
            if not server:
                self.failures[f"{type(error).__name__} {error}"[:200]] += 1
        operation = Operation(kind, True, key, value, began, time.monotonic(), told, reply, server)
        self._histories[now].operations.append(operation)
        self.done += told is Told.DONE
        self.unknown += told is Told.UNKNOWN

    def _in_round(self) -> int:
        """The round that the operations from now on belong to."""
        self._rounds_of[threading.current_thread()] = self.round
        return self.round

    def _client(self, **options: Any) -> Any:
        return penstock.Client.from_url(
            self.shard.url, delivery="exactly-once", command_timeout=PATIENCE, socket_timeout=2, **options
        )

    def _write(self, number: int) -> None:
        written = 0
        with self._client() as client:
            while not self._over.wait(PACE):
                now, written = self._in_round(), written + 1
                self._write_all(client, now, number, written)

    def _write_all(self, client: Any, now: int, number: int, written: int) -> None:
        entry, register = f"{number}-{written}", f"register:{now}:{number}"
        self.note(now, "register", register, written, lambda: client.set(register, written))
        self.note(now, "counter", f"counter:{now}", 1, lambda: client.incr(f"counter:{now}"))
        self.note(now, "list", f"list:{now}", entry, lambda: client.rpush(f"list:{now}", entry))
        self.note(now, "stream", f"stream:{now}", entry, lambda: client.twrite(f"stream:{now}", "t", entry))
        self.note(now, "stream", "jobs", entry, lambda: client.twrite("jobs", "t", entry))
        self.note(now, "list", f"units:{now}", entry, lambda: _in_a_unit(client, now, entry))

    def _read(self) -> None:
        with self._client() as client:
            while not self._over.wait(0.05):
                now = self._in_round()
                keys = [("counter", f"counter:{now}"), ("list", f"list:{now}"), ("stream", f"stream:{now}")]
                keys.append(("list", f"units:{now}"))
                for kind, key in [*keys, *(("register", f"register:{now}:{n}") for n in range(WRITERS))]:
                    self.look(now, kind, key, partial(_read_value, client, key, kind))
                self.look(now, "position", POSITION, partial(_read_value, client, POSITION, "position"))

    def look(self, now: int, kind: str, key: str, ask: Callable[[], Any]) -> None:
        """Read in a round, and note what was shown."""
        began = time.monotonic()
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            value = ask()
            self._histories[now].operations.append(Operation(kind, False, key, value, began, time.monotonic()))

    def _consume(self) -> None:
        with self._client() as client:
            consumer = client.consumer("jobs", GROUP, count=100)
            stopper = threading.Thread(target=lambda: (self._over.wait(), consumer.stop()))
            stopper.start()
            with consumer:
                for _ in consumer:
                    self._in_round()

    def _ask_each_server(self) -> None:
        written = 0
        while not self._over.wait(0.02):
            now, written = self._in_round(), written + 1
            for node in self.shard.nodes:
                key = f"register:{now}:at:{node.port}"

                def ask(port: int = node.port, key: str = key, value: int = written) -> Any:
                    with _plain_client(port, timeout=0.3) as client:
                        return client.set(key, value)

                self.note(now, "register", key, written, ask, node.port)


def _plain_client(port: int, timeout: float = 2.0) -> redis.Redis:
    """A client that tries nothing again."""
    return redis.Redis(port=port, socket_timeout=timeout, retry=None)


def _in_a_unit(client: Any, now: int, entry: str) -> Any:
    """MULTI. What is counted in it must be as long as the list, at any time."""
    with client.pipeline(transaction=True) as pipe:
        length, counted = pipe.rpush(f"units:{now}", entry).incr(f"counted:{now}").execute()
    assert length == counted, f"a list of {length} entries was counted as {counted}"
    return length


def told_by(error: redis.RedisError) -> Told:
    """What an error says about the command."""
    text = str(error)
    is_refused = isinstance(error, NotSent | redis.ReadOnlyError) or "Not enough good replicas" in text
    is_refused = is_refused or "Connection refused" in text
    return Told.NOT_DONE if is_refused else Told.UNKNOWN


def _read_value(client: Any, key: str, kind: str) -> Any:
    if kind == "list":
        return [entry.decode() for entry in client.lrange(key, 0, -1)]
    if kind == "stream":
        return [message[2].decode() for message in client.execute_command("TREAD", key, 1, 1_000_000) if message]
    if kind == "position":
        return max((group.done_through for group in client.tgroup_list("jobs")), default=0)
    return int(client.get(key) or 0)


class RedisCrowd(Crowd):
    """For real Redis, where a write is acknowledged when WAIT says that a replica has it."""

    def _others(self) -> list[Callable[[], None]]:
        return [self._read]

    def _connected(self, work: Callable[[Any], None]) -> None:
        while not self._over.is_set():
            port = self.shard.leader.port
            with contextlib.suppress(redis.RedisError), _plain_client(port) as client:
                while not self._over.is_set() and port == self.shard.leader.port:
                    work(client)
            time.sleep(0.01)
            self._in_round()

    def _write(self, number: int) -> None:
        written = [0]

        def work(client: Any) -> None:
            now, written[0] = self._in_round(), written[0] + 1
            entry, value = f"{number}-{written[0]}", written[0]
            key = f"register:{now}:{number}"
            self.note(now, "register", key, value, lambda: _confirmed(client, "SET", key, value))
            self.note(now, "counter", f"counter:{now}", 1, lambda: _confirmed(client, "INCR", f"counter:{now}"))
            self.note(now, "list", f"list:{now}", entry, lambda: _confirmed(client, "RPUSH", f"list:{now}", entry))

        self._connected(work)

    def _read(self) -> None:
        def work(client: Any) -> None:
            now = self._in_round()
            keys = [("counter", f"counter:{now}"), ("list", f"list:{now}")]
            for kind, key in [*keys, *(("register", f"register:{now}:{n}") for n in range(WRITERS))]:
                self.look(now, kind, key, partial(_read_value, client, key, kind))
            time.sleep(0.005)

        self._connected(work)


def _confirmed(client: Any, *words: Any) -> Any:
    with client.pipeline(transaction=False) as pipe:
        pipe.execute_command(*words)
        pipe.execute_command("WAIT", 1, 200)
        reply, replicas = pipe.execute()
    if replicas < 1:
        raise redis.TimeoutError("no replica has it")
    return reply
