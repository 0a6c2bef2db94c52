"""Many clients, few keys, everything in threads: some order of all commands explains what all clients saw.

A real server that uses a thread for a single element. Clients read and write the same four sets, in transactions and
LAZY too, some keep keys locked, some disconnect in the middle or are killed, and snapshots and rewrites are requested
all the time. Every reply is recorded with the times of the request and of the reply, and linearizable.py judges the
record. No client may wait longer than PATIENCE. In the end the server is killed: the log must give the same data.

The record is cut into rounds. Between two of them no command is under way, so the outcome of the commands of
disconnected clients is known, and the search stays short.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis
from tests.support.linearizable import EMPTY, KEYS, Done, State, Words, is_linearizable
from tests.support.raw_client import Closed, RawClient
from tests.support.server_process import Process

from penstock.testing.redis import free_port

CLIENTS = 6
COMMANDS = 25  # a client and round
PATIENCE = 60
"""Seconds after which a wait counts as endless."""

FORMS = """
SMEMBERS {k} | SMEMBERS {k} | SUNION {k} {k} | SCARD {k} | SADD {k} {m} | SADD {k} {m} {m} | SREM {k} {old}
SMOVE {k} {k} {old} | SPOP {k}
DEL {k} | COPY {k} {other} REPLACE | SUNIONSTORE {k} {k} {k} | SUNIONSTORE {k} {k} {k} | SINTERSTORE {k} {k} {k}
SDIFFSTORE {k} {k} {k}
LAZY SUNIONSTORE {k} {k} {k} | LAZY SADD {k} {m} | LAZY SDIFFSTORE {k} {k} {k}
"""


class Player:
    """A client that does random work, and records what it sent and received."""

    def __init__(self, name: str, seed: int, port: int) -> None:
        self.name, self.port = name, port
        self.chance = random.Random(f"{seed} {name}")
        self.history: list[Done] = []
        self._members = 0

    def play(self) -> None:
        """One round."""
        self._connect()
        try:
            for _ in range(COMMANDS):
                self._act()
        except (ConnectionError, Closed):
            return  # the server was killed
        finally:
            self.client.close()

    def _connect(self) -> None:
        self.client = RawClient(self.port, timeout=PATIENCE)

    def _act(self) -> None:
        fate = self.chance.random()
        if fate < 0.06:
            keys = " ".join(self.chance.sample(KEYS, 2))
            self._record((), f"DEBUG LOCK {self.chance.randint(0, 4)} {self.chance.choice(['READ', 'WRITE'])} {keys}")
        elif fate < 0.16:
            lines = [self._line() for _ in range(self.chance.randint(2, 4))]
            self._record(tuple(lines), "MULTI", *lines, "EXEC")
        elif fate < 0.18:
            self._record(("FLUSHALL",), "FLUSHALL")
        else:
            line = self._line()
            self._record((line,), line, stay=self.chance.random() > 0.03)

    def _line(self) -> str:
        forms = [form.strip() for line in FORMS.strip().splitlines() for form in line.split("|")]
        line = self.chance.choice(forms)
        while "{" in line:
            line = line.replace("{k}", self.chance.choice(KEYS), 1)
            if "{other}" in line:
                line = line.replace("{other}", self.chance.choice([key for key in KEYS if key not in line.split()]))
            if "{m}" in line:
                self._members += 1
                line = line.replace("{m}", f"{self.name}{self._members}", 1)
            line = line.replace("{old}", f"{self.name}{max(self._members - self.chance.randint(0, 3), 1)}", 1)
        return line

    def _record(self, commands: tuple[str, ...], *lines: str, stay: bool = True) -> None:
        """Send these, wait for the last reply unless it is to go away, and remember the commands, which may be none."""
        words: tuple[Words, ...] = tuple(tuple(line.removesuffix(" REPLACE").split()) for line in commands)
        sent = time.perf_counter()
        try:
            for line in lines:
                self.client.command(*line.split())
            if not stay:
                raise Closed
            replies = [self.client.read() for _ in lines]
        except (ConnectionError, Closed):
            self.history += [Done(words, sent)] if words else []
            self.client.close()
            self._connect()
            return
        answered = time.perf_counter()
        last = replies[-1]
        assert not isinstance(last, hiredis.ReplyError), (lines, last)
        if words:
            reply = [_plain(each) for each in (last if lines[0] == "MULTI" else [last])]
            self.history.append(Done(words, sent, reply, answered))


def _plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return frozenset(_plain(item) for item in reply)
    return reply.decode() if isinstance(reply, bytes) else reply


class Game:
    """A server and its players."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.port = folder, free_port()
        self.chance = random.Random(seed)
        self.players = [Player(f"p{number}:", seed, self.port) for number in range(CLIENTS)]
        self.state: State = EMPTY
        self.start()

    def start(self) -> None:
        self.server = Process(
            self.folder, self.port, "tests.support.everything_long", "--worker-threshold 1 --worker-threads 3"
        )

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """Kill clients, and request snapshots and rewrites, during the rounds."""
        over = threading.Event()

        def disturb() -> None:
            with redis.Redis(port=self.port, socket_timeout=PATIENCE) as admin:
                while not over.wait(self.chance.uniform(0.005, 0.03)):
                    command = self.chance.choice(["BGSAVE", "BGREWRITEAOF", "INFO", "LOCKS", "KILL", "KILL"])
                    if command == "KILL":
                        others = [each["id"] for each in admin.client_list() if each["id"] != str(admin.client_id())]
                        if others:
                            admin.client_kill_filter(_id=self.chance.choice(others))
                        continue
                    try:
                        admin.execute_command(command)
                    except redis.ResponseError as error:
                        assert "in progress" in str(error) or "child" in str(error), error

        with ThreadPoolExecutor(1) as pool:
            disturbing = pool.submit(disturb)
            try:
                yield
            finally:
                over.set()
            disturbing.result()

    def play(self) -> None:
        """A round, from which all clients return, and its explanation."""
        with self.disturbed(), ThreadPoolExecutor(CLIENTS) as pool:
            for playing in [pool.submit(player.play) for player in self.players]:
                playing.result()
        self.wait_until_idle()
        self.judge()

    def play_until_killed(self) -> None:
        """A round in the middle of which the server dies; what was acknowledged is there when it starts again."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            playing = [pool.submit(player.play) for player in self.players]
            time.sleep(self.chance.uniform(0.05, 0.2))
            self.server.kill()
            for each in playing:
                problem = each.exception()
                assert problem is None or isinstance(problem, ConnectionError), problem
        self.start()
        self.judge()

    def wait_until_idle(self) -> None:
        """Wait until no other client is connected and no thread works."""
        deadline = time.monotonic() + PATIENCE
        with redis.Redis(port=self.port, socket_timeout=PATIENCE) as client:
            while True:
                found = client.info("locks")
                busy = {name: found[name] for name in found if name not in ("worker_threads", "worker_jobs_done")}
                if not any(busy.values()) and len(client.client_list()) == 1:
                    return
                assert time.monotonic() < deadline, (
                    f"somebody waits for ever: {busy}, {client.execute_command('LOCKS')}"
                )
                time.sleep(0.002)

    def judge(self) -> None:
        history = [done for player in self.players for done in player.history]
        for player in self.players:
            player.history = []
        before, self.state = self.state, self.contents()
        now = time.perf_counter()
        last = [Done((("SMEMBERS", key),), now, [members], now + 1) for key, members in self.state.items()]
        assert is_linearizable([*history, *last], before), [
            before,
            *sorted(history, key=lambda done: done.sent),
            self.state,
        ]

    def contents(self) -> State:
        with redis.Redis(port=self.port, decode_responses=True) as client:
            assert set(client.keys()) <= set(KEYS)
            return {key: frozenset(client.smembers(key)) for key in KEYS}

    def jobs_done(self) -> int:
        """By threads, since the server started."""
        with redis.Redis(port=self.port) as client:
            return int(client.info("locks")["worker_jobs_done"])

    def restart(self) -> None:
        """The log gives what was in memory."""
        self.server.kill()
        self.start()
        assert self.contents() == self.state


@pytest.fixture
def game(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Game]:
    game = Game(tmp_path, request.param)
    yield game
    game.server.kill()


@pytest.mark.parametrize("game", [1, 2], indirect=True)
def test_some_order_of_commands_explains_all_replies(game: Game) -> None:
    for _ in range(4):
        game.play()
    for _ in range(4):
        if game.jobs_done() > 100:
            break
        game.play()  # threads have less to do for clients that are killed early
    assert game.jobs_done() > 100
    game.restart()


@pytest.mark.parametrize("game", [3], indirect=True)
def test_some_order_explains_what_is_left_after_kill_9(game: Game) -> None:
    for _ in range(2):
        game.play_until_killed()
