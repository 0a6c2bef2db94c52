"""The servers that have the keys: one, or a cluster. What tables of keys need of them.

The server is asked whether it is a cluster, so the same options work for both. The user chooses the client's delivery
level. Writes of tables may be repeated, so `at-least-once` loses and doubles nothing; with `at-most-once` a task fails
instead of sending a command again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import redis

from penstock.client.api.sync import Client
from penstock.client.cluster.sync import Cluster
from penstock.protocol.slots import SLOTS
from penstock.spark.options import OptionError, Options
from penstock.spark.stream_connection import is_wrong_type, unreachable

KEYS_A_SCAN = 1000


class KeyServers:
    """See the top of this file."""

    def __init__(self, options: Options) -> None:
        self._options = options
        timeout = options.retryTimeout / 1000
        client: Any = Client.from_url(options.url, delivery=options.delivery, command_timeout=timeout, protocol=2)
        with unreachable(options):
            self.is_cluster = bool(client.info("cluster").get("cluster_enabled"))
            if self.is_cluster:
                client.close()
                client = Cluster.from_url(options.url, delivery=options.delivery)
        self._client = client

    def __enter__(self) -> KeyServers:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def runs(self) -> list[tuple[int, int]]:
        """All slots, as runs of slots that are on one server."""
        if not self.is_cluster:
            return [(0, SLOTS)]
        owners = self._client.slot_map.owners
        runs = [list(slots) for _, slots in groupby(range(SLOTS), key=owners.__getitem__)]
        return [(run[0], run[-1] + 1) for run in runs]

    def scan(self, first: int, end: int) -> Iterator[bytes]:
        """The keys on the servers that have these slots: also keys of other slots, and some keys several times."""
        with unreachable(self._options):
            yield from self._scan(first, end)

    def _scan(self, first: int, end: int) -> Iterator[bytes]:
        options = self._options
        if options.keySet:
            try:
                for member in self._client.sscan_iter(options.keySet, count=KEYS_A_SCAN):
                    yield bytes(member)
            except redis.ResponseError as error:
                raise (
                    OptionError(f"option keySet: {options.keySet!r} is no set") if is_wrong_type(error) else error
                ) from None
            return
        addresses = dict.fromkeys(self._client.slot_map.owners[first:end]) if self.is_cluster else [None]
        for address in addresses:
            where = {"node": address} if address is not None else {}
            cursor = 0
            while True:
                cursor, keys = self._client.scan(cursor, options.keys, KEYS_A_SCAN, options.type, **where)
                yield from keys
                if not cursor:
                    break

    def run(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Run commands, packed for each server; their replies in order."""
        with unreachable(self._options):
            replies: list[Any] = self._client.execute_many(commands, raise_on_error=False)
            if any(issubclass(kind, Exception) for kind in set(map(type, replies))):
                raise self._failure(commands, replies)
        return replies

    def _failure(self, commands: Sequence[Sequence[Any]], replies: list[Any]) -> Exception:
        """The first error among replies; it names the key, if it is about what the key holds."""
        at, error = next((at, reply) for at, reply in enumerate(replies) if isinstance(reply, Exception))
        if not is_wrong_type(error):
            failure: Exception = error
            return failure
        key = bytes(commands[at][1]).decode(errors="replace")
        return OptionError(f"the key {key!r} holds something else than a {self._options.type} (option type)")
