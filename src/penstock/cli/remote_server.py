"""Connects client subcommands to their server, and words their error messages.

Every error message names the server and the remedy. A lost connection is different from a refusal: the first may be
tried again, the second would be refused again.

redis-py is imported only when a server is to be reached: `penstock serve`, which shares a program with these, starts a
tenth of a second sooner.
"""

from __future__ import annotations

import socket
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import typer

from penstock.protocol.address import without_secrets

DEFAULT_URL = "redis://127.0.0.1:6379/0"
PATIENCE = 15.0  # seconds without an answer before the connection counts as lost; longer than any BLOCK used
PAUSE = 1.0  # seconds between attempts to reach a server that is down
ATTEMPTS = 30
_OF_PROGRAMS = ("decode_responses", "encoding", "encoding_errors", "legacy_responses", "retry_on_timeout")
"""Options in a URL that say how a program reads replies; a subcommand reads them in its own way."""

_URL_WITH_PASSWORD = "--url redis://user:password@host:port/0"

URL = typer.Option(
    DEFAULT_URL,
    "--url",
    envvar="PENSTOCK_URL",
    help="The server: redis://[user:password@]host:port/database, or penstock://a:6379,b:6379/shard.",
)
STREAM = typer.Argument(..., help="The stream's key.")
NEW_STREAM = typer.Argument(..., help="The stream's key; it is made if it does not exist.")

Result = TypeVar("Result")


class Lost(Exception):
    """The connection is lost, or could not be made. Unless the caller tries again, it ends the program."""

    def __init__(self, server: RemoteServer, error: Exception) -> None:
        super().__init__(str(error))
        self._server = server
        self.is_unknown_host = isinstance(error.__context__, socket.gaierror)

    def end(self) -> NoReturn:
        self._server.fail(f"lost {self._server.place} ({self})")


def _place(url: str, is_shard: bool) -> str:
    """The address in a URL, without the password."""
    parts = urlsplit(url)
    if is_shard:
        return parts.netloc.rpartition("@")[2]
    return f"{parts.hostname or '127.0.0.1'}:{parts.port or 6379}"


class RemoteServer:
    """A connection to a Penstock server on behalf of a subcommand, which its messages name."""

    def __init__(self, url: str, subcommand: str) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        from penstock.client.api.urls import WrongUrl, is_shard_url, sync_pool
        from penstock.client.drivers.connecting import settings_from

        self.subcommand = subcommand
        try:
            self._of_shard = is_shard_url(url)
            self.place = _place(url, self._of_shard)
            pool = sync_pool(url, socket_connect_timeout=5)
            settings_from(pool, {})  # checks the client's settings, and takes them out: this is redis-py's client
            for name in _OF_PROGRAMS:
                pool.connection_kwargs.pop(name, None)
            pool.connection_kwargs.update(protocol=3, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0))
            self._client = redis.Redis(connection_pool=pool)
            weakref.finalize(self, pool.disconnect)
        except ValueError as error:
            is_safe = isinstance(error, WrongUrl) or "@" not in url
            told = str(error) if is_safe else "details are hidden because they may contain the password"
            self.fail(f"'{without_secrets(url)}' is not the URL of a server ({told}); one looks like {DEFAULT_URL}")

    def call(self, *words: object) -> Any:
        """Run a command. A refusal ends the program; Lost too, unless the caller tries again."""
        import redis

        try:
            return self._client.execute_command(*words)  # type: ignore[no-untyped-call]
        except redis.RedisError as error:
            self._judge(words[0], error)

    def find(self, *words: object) -> Any:
        """As call, for a key that may have been deleted or have another type: then None."""
        import redis

        try:
            return self._client.execute_command(*words)  # type: ignore[no-untyped-call]
        except redis.RedisError as error:
            if str(error).startswith(("no such key", "WRONGTYPE")):
                return None
            self._judge(words[0], error)

    def change(self, key: object, plan: Callable[[Callable[..., Any]], list[tuple[object, ...]]]) -> list[Any] | None:
        """Run the commands of a plan as one transaction.

        None, and no change, if the key changed since the plan was made. The plan gets a function that runs a command at
        once, to read the current data.
        """
        import redis

        try:
            with self._client.pipeline() as pipe:
                pipe.watch(key)  # type: ignore[no-untyped-call]
                commands = plan(pipe.execute_command)
                pipe.multi()
                for words in commands:
                    pipe.execute_command(*words)  # type: ignore[no-untyped-call]
                replies: list[Any] = pipe.execute()
                return replies
        except redis.WatchError:
            return None
        except redis.RedisError as error:
            self._judge("a transaction", error)

    def call_patiently(self, *words: object) -> Any:
        """As call, for a command that may be repeated; again while the server is down."""
        return self.patiently(partial(self.call, *words))

    def patiently(self, step: Callable[[], Result]) -> Result:
        """Run a step that may be repeated; again while the server is down, which ends the program after a while."""
        attempt = 0
        while True:
            try:
                return step()
            except Lost as error:
                if attempt == ATTEMPTS:
                    self.fail(f"{self.place} did not come back ({error})")
                if not attempt:
                    self.say(f"lost {self.place} ({error}); trying again for {ATTEMPTS * PAUSE:.0f} s")
                attempt += 1
                time.sleep(PAUSE)

    def _judge(self, command: object, error: Exception) -> NoReturn:
        import redis
        from redis.exceptions import NoPermissionError

        from penstock.client.drivers.connecting import lacks_password

        if lacks_password(error):
            self.fail(f"{self.place} needs a password: name a user and password in {_URL_WITH_PASSWORD}")
        if isinstance(error, redis.AuthenticationError | NoPermissionError):
            self.fail(self._refusal(error))
        if isinstance(error, redis.ConnectionError | redis.TimeoutError):
            raise Lost(self, error) from error
        self.fail(f"{self.place} refuses {command}: {error}")

    def _refusal(self, error: Exception) -> str:
        return f"{self.place} refuses: {str(error).rstrip('.')}. Name a user and password in {_URL_WITH_PASSWORD}"

    def warn(self) -> None:
        """For a program that goes on without its server: say so if none answers, or if it refuses the password."""
        import redis

        from penstock.client.drivers.connecting import lacks_password

        try:
            self._client.ping()
        except redis.AuthenticationError as error:
            if not lacks_password(error):
                self.say(self._refusal(error))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            self.say(f"no server answers at {self.place} ({error}); trying again until one does")
        except redis.RedisError:
            pass  # it answers

    def is_written(self, stream: object) -> bool:
        """Whether a stream exists, and something was written to it."""
        (_, last), *_ = self.call("TREAD", stream, 1, 0, "WITHINFO")
        return bool(last)

    def check(self) -> None:
        """End the program unless a Penstock server answers."""
        try:
            info = self.call("INFO", "server")
        except Lost as error:
            if error.is_unknown_host:
                self.fail(
                    f"no host has the name in {self.place} ({error}). Name another with --url redis://host:port/0"
                )
            if self._of_shard:
                self.fail(
                    f"no leader answers at {self.place} ({error}). Start the server that led, or send REPLICAOF NO ONE"
                    " to one of the others, unless Sentinel or etcd does so"
                )
            port = self.place.rpartition(":")[2]
            self.fail(
                f"no server answers at {self.place} ({error}). Start one with `penstock serve --port {port}`,"
                " or name another with --url redis://host:port/0"
            )
        if "penstock_version" not in info:
            version = info.get("redis_version", "of an unknown version")
            self.fail(
                f"the server at {self.place} is a Redis {version}, not Penstock, and has no streams of this kind."
                " Start one with `penstock serve --port 7000` and name it with --url redis://127.0.0.1:7000/0"
            )

    def say(self, text: str) -> None:
        print(f"penstock {self.subcommand}: {text}", file=sys.stderr, flush=True)

    def fail(self, text: str) -> NoReturn:
        self.say(text)
        raise typer.Exit(1)
