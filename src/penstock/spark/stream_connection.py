"""A connection to the server, for the driver and for executors: what reading and writing streams needs, and no more.

A server that does not answer is asked again until `retryTimeout` is over, and the error then names it: a restart of the
server in the middle of a query is a pause, not a failure. Everything here may be repeated: reads change nothing, a
commit is fenced by its epoch, and entries that may have been staged are staged again under another token. That last one
is why the client's level is at-most-once, and repeating is done here: to send the same bytes again, as the level
at-least-once does, would stage them twice.

A long range is read in windows of some megabytes, each of which becomes one record batch: what Arrow, Python and Java
do for a batch costs as much as for a thousand rows. The next window is fetched by a thread while Spark has the present
one.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import redis
from redis.exceptions import NoPermissionError

from penstock.client.api.sync import Client
from penstock.client.delivery import Delivery
from penstock.client.errors import ClientClosed
from penstock.protocol.address import without_secrets
from penstock.spark.options import OptionError, Options
from penstock.spark.ranges import Bounds

T = TypeVar("T")
BYTES_A_READ = 8 << 20
SILENCE = 30
"""Seconds without a byte from a server that owes a reply, after which it counts as away."""
GUARD = "penstock:increments:"
"""Begins the names of the keys that hold which batches counters have; see increments.py."""
SILENT_FOR = 2.0
"""Seconds after which a line says that the server does not answer, long before the query fails."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class ServerUnreachable(ConnectionError):
    """The server did not answer for as long as the option retryTimeout allows."""


class Fenced(RuntimeError):
    """A batch that is older than the last one that the server has of its query."""

    def __init__(self, batch: int, last: str) -> None:
        super().__init__(
            f"batch {batch} is older than {last}, which the server has of this query: another query runs on the same "
            "checkpoint, or an old checkpoint was put back. Give each query a checkpoint of its own"
        )


class ServerRefuses(PermissionError):
    """The server refuses the user or the password."""


def _unreachable(options: Options, error: Exception) -> ServerUnreachable:
    return ServerUnreachable(
        f"no answer from the server at {without_secrets(options.url)} for {options.retryTimeout / 1000:g} seconds "
        f"(option retryTimeout): {_said(error)}. Is it running, and is the option url right?"
    )


def _no_answer(options: Options, error: Exception) -> str:
    return f"no answer from the server at {without_secrets(options.url)} yet: {_said(error)}"


def _tell(text: str) -> None:
    """A line on stderr, where a user of a terminal sees it."""
    sys.stderr.write(f"penstock: {text}\n")
    sys.stderr.flush()


def _said(error: Exception) -> str:
    """The text of an error, without the client's additions for its own callers."""
    return str(error).partition(", and at-most-once holds nothing")[0].rstrip(".")


def _refuses(options: Options, error: Exception) -> ServerRefuses:
    return ServerRefuses(
        f"the server at {without_secrets(options.url)} refuses: {_said(error)}. Name a user and password that may do "
        "it in the option url, redis://user:password@host:port/0"
    )


def _not_penstock(options: Options, error: Exception) -> OptionError | None:
    """The error for a server that does not know our commands."""
    found = re.search(r"unknown command [`']?(\w+)", str(error), re.IGNORECASE)
    if found is None:
        return None
    return OptionError(
        f"the server at {without_secrets(options.url)} is not a Penstock server: it does not know the command "
        f"{found[1].upper()}. Start one with `penstock serve`, and name it in the option url"
    )


@contextmanager
def unreachable(options: Options) -> Iterator[None]:
    """Name the server if it does not answer, or refuses."""
    try:
        yield
    except (redis.AuthenticationError, NoPermissionError) as error:
        raise _refuses(options, error) from None
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise _unreachable(options, error) from error


def not_a_stream(stream: str, options: Options) -> OptionError:
    """The error for a key that holds something else."""
    return OptionError(
        f"the key {stream!r} at {without_secrets(options.url)} is no stream, and cannot be read or written as one"
    )


class StreamConnection:
    """See the top of this file."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._patience = options.retryTimeout / 1000
        self._client: Any = Client.from_url(
            options.url, protocol=2, delivery=Delivery.AT_MOST_ONCE, command_timeout=None, socket_timeout=SILENCE
        )

    def __enter__(self) -> StreamConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def repeat(self, ask: Callable[[], T]) -> T:
        """The result of `ask`, which is called again while the server is unreachable."""
        deadline = time.monotonic() + self._patience
        silent = True
        for pause in itertools.chain.from_iterable((_pauses(), itertools.repeat(LONGEST_PAUSE))):
            try:
                return ask()
            except (redis.AuthenticationError, NoPermissionError) as error:
                raise _refuses(self._options, error) from None
            except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError) as error:
                if isinstance(error, ClientClosed):
                    raise
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _unreachable(self._options, error) from None
                if silent and self._patience - left >= SILENT_FOR:
                    silent = False
                    _tell(f"{_no_answer(self._options, error)}; trying for {left:.0f} s more (option retryTimeout)")
                time.sleep(min(pause, left))
            except redis.ResponseError as error:
                raise _not_penstock(self._options, error) or error from None
        raise AssertionError("the pauses never end")

    def call_once(self, *words: str | bytes | int) -> Any:
        """Run a command without asking again; for `repeat`."""
        return self._client.execute_command(*words)

    def call(self, *words: str | bytes | int) -> Any:
        """Run a command that may be repeated."""
        return self.repeat(lambda: self.call_once(*words))

    def together(self, *commands: Sequence[str | bytes | int]) -> list[Any]:
        """Run commands as one transaction."""
        return self._transaction(commands, raise_on_error=True)

    def together_unless_fenced(self, *commands: Sequence[str | bytes | int]) -> None:
        """Run writes of producers as one transaction; those that the server takes for old were made before."""
        for reply in self._transaction(commands, raise_on_error=False):
            if isinstance(reply, redis.ResponseError) and not str(reply).startswith("FENCED"):
                raise reply

    def _transaction(self, commands: Sequence[Sequence[str | bytes | int]], raise_on_error: bool) -> list[Any]:
        def ask() -> list[Any]:
            with self._client.pipeline(transaction=True) as pipe:
                for words in commands:
                    pipe.execute_command(*words)
                replies: list[Any] = pipe.execute(raise_on_error)
            return replies

        return self.repeat(ask)

    def many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Run commands that may be repeated. The replies, with errors in the place of replies of failed commands."""

        def ask() -> list[Any]:
            replies: list[Any] = self._client.execute_many(commands, raise_on_error=False)
            for reply in replies:
                if isinstance(reply, (redis.ConnectionError, redis.TimeoutError, NoPermissionError)):
                    raise reply
            return replies

        return self.repeat(ask)

    def is_cluster(self) -> bool:
        """Whether the server is a node of a cluster."""
        return bool(self.repeat(lambda: self._client.info("cluster")).get("cluster_enabled"))

    def once(
        self, guard: Sequence[Any], commands: Sequence[Sequence[Any]], check: Callable[[], None]
    ) -> tuple[int, list[Any]]:
        """Run commands as one transaction with `guard`, a SET of a number, unless its key has that number or a larger
        one.

        Answers the number that the key has then, and the replies of the commands: none if they were run before. `check`
        is called right before they are run.
        """
        _, key, number = guard[:3]

        def ask() -> tuple[int, list[Any]]:
            with self._client.pipeline(transaction=True) as pipe:
                pipe.watch(key)
                last = pipe.execute_command("GET", key)
                if last is not None and int(last) >= number:
                    return int(last), []
                check()
                pipe.multi()
                for words in (*commands, guard):
                    pipe.execute_command(*words)
                replies: list[Any] = pipe.execute(raise_on_error=False)
            return number, replies[:-1]

        while True:
            try:
                return self.repeat(ask)
            except redis.WatchError:
                pass  # the same batch was committed in between, or the connection was lost

    # -- streams ----------------------------------------------------------------------------------------------

    def streams(self, pattern: str) -> list[str]:
        """The names of all streams that match."""

        def ask() -> set[bytes]:
            return set(self._client.scan_iter(match=pattern, count=1000, _type="tstream"))

        try:
            return sorted(name.decode() for name in self.repeat(ask))
        except UnicodeDecodeError as error:
            raise OptionError(
                f"pattern {pattern!r} matches the stream {error.object!r}, whose name is not UTF-8; use another "
                "pattern, or name the streams"
            ) from None

    def bounds(self, streams: Sequence[str]) -> dict[str, Bounds | None]:
        """The range of offsets of each stream; None for one that does not exist."""

        def ask() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                for stream in streams:
                    pipe.execute_command("EXISTS", stream)
                    pipe.execute_command("TREAD", stream, 1, 0, "WITHINFO")
                replies: list[Any] = pipe.execute(raise_on_error=False)
            for number, reply in enumerate(replies):
                if isinstance(reply, Exception):
                    raise not_a_stream(streams[number // 2], self._options) if is_wrong_type(reply) else reply
            return replies

        replies = self.repeat(ask) if streams else []
        return {
            stream: Bounds(there_is[0][0], there_is[0][1] + 1) if exists else None
            for stream, exists, there_is in zip(streams, replies[::2], replies[1::2], strict=True)
        }

    def fields(self, stream: str) -> str | None:
        """The newest schema of a stream, as text; None if it has none, or does not exist."""
        try:
            found = self.repeat(lambda: self._client.read_arrow(stream, 1, 0, with_info=True))
        except redis.ResponseError as error:
            raise not_a_stream(stream, self._options) if is_wrong_type(error) else error from None
        fields: bytes | None = (found.schema.metadata or {}).get(b"schema")
        return fields.decode() if fields is not None else None

    def fields_of_version(self, stream: str, version: int) -> str | None:
        """A version of the schema of a stream, as text; None if there is none."""
        found = self.repeat(lambda: self._client.tschema_get(stream, version))
        return found.fields if found is not None else None

    def set_fields(self, stream: str, fields: str) -> None:
        """Give a stream a schema, or a wider one; to repeat it changes nothing."""
        self.repeat(lambda: self._client.tschema_set(stream, fields))

    def stage(self, stream: str, token: str, payload: bytes) -> None:
        """Put entries aside; without asking again, for `repeat`: to stage twice under one token adds up."""
        try:
            self.call_once("TSTAGE", stream, token, "ARROW", payload)
        except redis.ResponseError as error:
            raise not_a_stream(stream, self._options) if is_wrong_type(error) else error from None

    def place_at(self, stream: str, milliseconds: int) -> int:
        """The offset of the first message at or after a time; one past the end if there is none."""
        return int(self.call("TSEEK", stream, "TIME", milliseconds))

    def bytes_a_message(self, stream: str) -> int:
        """About how large the messages of a stream are."""
        with _may_be_gone():
            described = self.repeat(lambda: self._client.tinfo(stream))
            return max(int(described.bytes_raw) // max(int(described.length), 1), 1)
        return 1

    def place_group(self, stream: str, group: str, place: int) -> None:
        """Let a group of a stream show how far a reader is."""
        with _may_be_gone():
            self.call("TGROUP", "SET", stream, group, place)

    def read(self, stream: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The messages of a range that are still there: offset, time, tag, entry."""
        ahead = ThreadPoolExecutor(1, "penstock-fetch")
        try:
            window = self._window(stream, start, end)
            while window is not None:
                at = window.column("offset")[-1].as_py() + 1
                coming = ahead.submit(self._window, stream, at, end) if at < end else None
                yield window
                window = coming.result() if coming is not None else None
        finally:
            ahead.shutdown(wait=False, cancel_futures=True)  # one that is under way ends with the client

    def _window(self, stream: str, at: int, end: int) -> pa.RecordBatch | None:
        """The next messages of a range, as many as are worth a batch; None if there are no more."""
        found = self.repeat(lambda: self._client.read_arrow(stream, at, end - at, max_bytes=BYTES_A_READ))
        return pa.concat_batches(found.to_batches()) if found.num_rows else None

    # -- streams of Redis -------------------------------------------------------------------------------------

    def entries(self, stream: str, first: str, last: str, count: int) -> list[tuple[str, dict[bytes, bytes]]]:
        """Up to so many entries of a stream of Redis between two ids: the id and the fields of each."""
        found = self._of_redis(stream, "XRANGE", stream, first, last, "COUNT", count)
        return [(id_.decode(), fields) for id_, fields in found]

    def last_entry(self, stream: str) -> str | None:
        """The id of the last entry of a stream of Redis; None if there is none."""
        found = self._of_redis(stream, "XREVRANGE", stream, "+", "-", "COUNT", 1)
        return str(found[0][0].decode()) if found else None

    def last_generated(self, stream: str) -> str | None:
        """The largest id that a stream of Redis has had; None if there is no such stream."""
        with _may_be_gone():
            described = self._of_redis(stream, "XINFO STREAM", stream)
            return str(described["last-generated-id"].decode())
        return None

    def _of_redis(self, stream: str, *words: str | int) -> Any:
        try:
            return self.call(*words)
        except redis.ResponseError as error:
            if not is_wrong_type(error):
                raise
            raise OptionError(
                f"the key {stream!r} at {without_secrets(self._options.url)} is no stream of Redis (XADD); streams of "
                "Penstock are read with the option stream"
            ) from None


@contextmanager
def _may_be_gone() -> Iterator[None]:
    """Ignore the error for a stream that was just deleted: its reader reports it."""
    try:
        yield
    except redis.ResponseError as error:
        if "no such key" not in str(error):
            raise


def is_wrong_type(error: Exception) -> bool:
    """Whether a server says that a key holds something else."""
    return "WRONGTYPE" in str(error)


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while pause < LONGEST_PAUSE:
        yield pause
        pause *= 2
