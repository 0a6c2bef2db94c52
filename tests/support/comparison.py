"""A Hypothesis state machine that sends the same commands to ours and to a real Redis and compares the replies.

A family's test gives a strategy of commands; `normal` may hide what is rightly different (the order of a set):

    TestHashes = comparison_machine(commands, normal=sort_if({b"HKEYS", b"HVALS"}))
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from hypothesis.strategies import SearchStrategy

from penstock import Server
from penstock.testing.redis import RedisServer

Argv = list[bytes]
Normal = Callable[[Argv, Any], Any]

_servers: list[Any] = []


def clients() -> tuple[redis.Redis, redis.Redis]:
    """Of one pair of servers for all examples of a machine; see `with_servers`."""
    if not _servers:
        for server in (Server(), RedisServer(hz="100")):  # it looks only so often whose time to wait is over
            server.start()
            _servers.append(server)
    ours, theirs = (redis.Redis.from_url(server.url, protocol=2, socket_timeout=60) for server in _servers)
    return ours, theirs


def with_servers(case: type[unittest.TestCase]) -> type[unittest.TestCase]:
    """The test of a machine that uses `clients`: the servers end with it, since a server is at work also when no client
    asks for anything.
    """

    def end(cls: type) -> None:
        while _servers:
            _servers.pop().stop()

    case.tearDownClass = classmethod(end)  # type: ignore[assignment]
    return case


def reply_of(client: redis.Redis, argv: Argv) -> Any:
    """The raw reply, an error as its text; no response callback of redis-py in between."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*argv)
        try:
            return connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return f"error: {type(error).__name__} {error}"
    finally:
        client.connection_pool.release(connection)


def sort_if(names: set[bytes]) -> Normal:
    """Sort the array replies of these commands before comparing."""

    def normal(argv: Argv, reply: Any) -> Any:
        return sorted(reply, key=repr) if argv[0].upper() in names and isinstance(reply, list) else reply

    return normal


def comparison_machine(
    commands: SearchStrategy[Argv],
    normal: Normal = lambda argv, reply: reply,
    examples: int = 50,
    steps: int = 30,
    ask_ours: Callable[[Argv], Argv] = lambda argv: argv,
) -> type[unittest.TestCase]:
    """A test case class; assign it to a name that starts with Test. `ask_ours` sends the same command to ours."""

    class Comparison(RuleBasedStateMachine):
        @initialize()
        def connect(self) -> None:
            self.history: list[Argv] = []
            self.ours, self.theirs = clients()
            for client in (self.ours, self.theirs):
                client.flushall()

        @rule(argv=commands)
        def run(self, argv: Argv) -> None:
            self.history.append(argv)
            ours = normal(argv, reply_of(self.ours, ask_ours(argv)))
            theirs = normal(argv, reply_of(self.theirs, argv))
            assert ours == theirs, f"after {self.history}: ours {ours!r}, Redis {theirs!r}"

        def teardown(self) -> None:
            for client in (getattr(self, "ours", None), getattr(self, "theirs", None)):
                if client is not None:
                    client.close()

    case = with_servers(Comparison.TestCase)
    case.settings = settings(
        # No explain phase: it traces every line of redis-py, and a failure then looks like a hang.
        phases=[phase for phase in Phase if phase is not Phase.explain],
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return case
