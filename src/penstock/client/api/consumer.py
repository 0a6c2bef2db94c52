"""A member of a group that acknowledges what it has done: iterate, or hand over a function and a number of workers.

    with client.consumer("orders", "kitchen") as orders:
        for message in orders:
            cook(message)                  # done: acknowledged. An exception: given back, and raised

    client.consumer("orders", "kitchen").run(cook, workers=4)      # an exception gives the message back

A message is acknowledged after the body has come to its end, when the next one is asked for; with those fetched
together, in one TACK. What is lost on the way (the program, the acknowledgement) is delivered again, so the body must
bear to see a message twice.

One body, `steps`, serves both clients: it says what to do next, and is told how it went.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Self

import redis

from penstock.client.api.streams import Message, spans

Step = tuple[str, Any]
"""("call", arguments of a command) wants its reply; ("give", message) wants None, or the exception of the body."""

OnError = Callable[[Message, Exception], object]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a consumer reads, and on what terms."""

    key: Any
    group: Any
    start: int | str = 0
    """Where the group begins if it does not exist yet: an offset, 0 for the first message there is, "$" for new ones.
    """
    count: int = 100
    """How many messages to fetch at a time."""
    retry_ms: int = 30_000
    """A message that is not acknowledged within this time is delivered again. The body must not take half as long with
    one.
    """
    expire_ms: int = 0
    """So long after its first delivery a message is given up; 0 is never."""
    dead_letter: Any = None
    """The stream to which messages that are given up go."""
    retry_delay_ms: int = 1000
    """How long a message waits that the body failed on."""
    block_ms: int = 1000
    """How long one read waits; also how soon a consumer notices `stop`."""

    def __post_init__(self) -> None:
        for least, names in ((1, ("count", "retry_ms", "block_ms")), (0, ("expire_ms", "retry_delay_ms"))):
            for name in names:
                value = getattr(self, name)
                if not isinstance(value, int) or value < least:
                    raise ValueError(f"{name}={value!r}: a consumer needs an int of at least {least}")
        if 0 < self.expire_ms < self.retry_ms:
            raise ValueError(
                f"expire_ms={self.expire_ms} is before retry_ms={self.retry_ms}: nothing would ever be retried"
            )
        if self.dead_letter is not None and not self.expire_ms:
            raise ValueError(
                f"dead_letter={self.dead_letter!r} needs expire_ms: without it no message is ever given up"
            )


def _check(body: Any, workers: int) -> None:
    if not callable(body):
        raise TypeError(f"body={body!r} is not a function; it is called with each message")
    if workers < 1:
        raise ValueError(f"workers={workers}: at least 1 is needed to do anything")


def _log_failure(message: Message, error: Exception) -> None:
    """What `run` does about a body that fails, unless it is given an `on_error`: the log says why a message comes
    again.
    """
    _log.error("the body failed on message %d, which comes again", message.offset, exc_info=error)


class ConsumerBody:
    """What both consumers share."""

    def __init__(self, client: Any, terms: Terms) -> None:
        self._client = client
        self._terms = terms
        self._stopped = False

    def stop(self) -> None:
        """End the iteration, and all workers, after the message at hand. From any thread, or from the body."""
        self._stopped = True

    def steps(self) -> Generator[Step, Any, None]:
        """The next thing to do, until stopped; what was fetched and not begun is then given back."""
        terms = self._terms
        read = (
            "TREAD",
            terms.key,
            terms.start,
            terms.count,
            "BLOCK",
            terms.block_ms,
            "GROUP",
            terms.group,
            "RETRY",
            terms.retry_ms,
            terms.expire_ms,
            *(("DEADLETTER", terms.dead_letter) if terms.dead_letter is not None else ()),
        )
        while not self._stopped:
            messages = [Message._make(row) for row in (yield "call", read) or ()]
            done: list[int] = []
            begun = 0
            # Half of the time for all that was fetched, so that what is done is acknowledged, and the rest given back,
            # in time.
            keep_until = monotonic() + terms.retry_ms / 2000
            for message in messages:
                if self._stopped or monotonic() >= keep_until:
                    break
                begun += 1
                failure = yield "give", message
                if failure is None:
                    done.append(message.offset)
                else:
                    yield "call", ("TNACK", terms.key, terms.group, message.offset, "DELAY", terms.retry_delay_ms)
            if done:
                yield "call", ("TACK", terms.key, terms.group, *spans(done))
            if begun < len(messages):
                yield "call", ("TNACK", terms.key, terms.group, *spans([m.offset for m in messages[begun:]]))


class Consumer(ConsumerBody):
    """For penstock.Client."""

    def __init__(self, client: Any, terms: Terms) -> None:
        super().__init__(client, terms)
        self._steps: Generator[Step, Any, None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Acknowledge what is done, also what the body left with `break`; give back the rest, and what it failed on
        with `error`.
        """
        steps, self._steps = self._steps, None
        self._leave(steps, error)

    def _leave(self, steps: Generator[Step, Any, None] | None, error: BaseException | None) -> None:
        self.stop()
        if steps is not None:
            with suppress(redis.ConnectionError, redis.TimeoutError):  # then it is delivered again in its time
                self._drive(steps, error)

    def _drive(self, steps: Generator[Step, Any, None], answer: Any) -> Message | None:
        """Do steps until there is a message to give; None at the end."""
        try:
            kind, what = steps.send(answer)
            while kind == "call":
                kind, what = steps.send(self._client.execute_command(*what))
        except StopIteration:
            return None
        except BaseException:
            self._steps = None  # it waits for a reply that will not come
            raise
        message: Message = what
        return message

    def __iter__(self) -> Iterator[Message]:
        steps = self._steps = self.steps()
        while (message := self._drive(steps, None)) is not None:
            yield message
        self._steps = None

    def run(self, body: Callable[[Message], object], workers: int = 1, on_error: OnError = _log_failure) -> None:
        """Call `body` with each message, in so many threads, until `stop`. A body that fails gets the message again
        later.
        """
        _check(body, workers)
        if inspect.iscoroutinefunction(body):
            raise TypeError(f"body={body!r} is a coroutine function, which needs the consumer of a penstock.aio.Client")
        failures: list[BaseException] = []
        at_work: set[int] = set()
        leaving: queue.SimpleQueue[int] = queue.SimpleQueue()

        def work(number: int) -> None:
            try:
                self._work(body, on_error)
            except BaseException as error:
                failures.append(error)
                self.stop()
            finally:
                at_work.discard(number)
                leaving.put(number)

        def wait() -> None:  # not by join: an interrupted one takes its thread for ended (CPython, bpo-45274)
            while at_work:
                with suppress(queue.Empty):
                    leaving.get(timeout=1)

        try:
            for number in range(workers):
                thread = threading.Thread(target=work, args=(number,), name=f"consumer-{number}")
                at_work.add(number)
                try:
                    thread.start()
                except (
                    BaseException
                ):  # no more threads are to be had; or an interrupt, and then `work` says when it ends
                    if thread.ident is None:
                        at_work.discard(number)
                    raise
            wait()
        finally:  # also after an interrupt: workers acknowledge what they have done, and give back the rest
            self.stop()
            wait()
        if failures:
            raise failures[0]

    def _work(self, body: Callable[[Message], object], on_error: OnError) -> None:
        steps = self.steps()
        message = self._drive(steps, None)
        while message is not None:
            failure = None
            try:
                try:
                    body(message)
                except Exception as error:
                    failure = error
                    on_error(message, error)
            except BaseException as error:  # the end, and not of this message alone
                self._leave(steps, error)
                raise
            message = self._drive(steps, failure)


class AioConsumer(ConsumerBody):
    """For penstock.aio.Client."""

    def __init__(self, client: Any, terms: Terms) -> None:
        super().__init__(client, terms)
        self._steps: Generator[Step, Any, None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(error)

    async def aclose(self, error: BaseException | None = None) -> None:
        """Acknowledge what is done, also what the body left with `break`; give back the rest, and what it failed on
        with `error`.
        """
        steps, self._steps = self._steps, None
        await self._leave(steps, error)

    async def _leave(self, steps: Generator[Step, Any, None] | None, error: BaseException | None) -> None:
        self.stop()
        if steps is not None:
            with suppress(redis.ConnectionError, redis.TimeoutError):  # then it is delivered again in its time
                await self._drive(steps, error)

    async def _drive(self, steps: Generator[Step, Any, None], answer: Any) -> Message | None:
        try:
            kind, what = steps.send(answer)
            while kind == "call":
                kind, what = steps.send(await self._client.execute_command(*what))
        except StopIteration:
            return None
        except BaseException:
            self._steps = None  # it waits for a reply that will not come
            raise
        message: Message = what
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        steps = self._steps = self.steps()
        while (message := await self._drive(steps, None)) is not None:
            yield message
        self._steps = None

    async def run(
        self, body: Callable[[Message], Awaitable[object] | object], workers: int = 1, on_error: OnError = _log_failure
    ) -> None:
        """Call `body` with each message, and await it if it is a coroutine, in so many tasks, until `stop`. A body that
        fails gets the message again later.
        """
        _check(body, workers)

        async def work() -> None:
            try:
                await self._work(body, on_error)
            finally:
                self.stop()  # one that fails ends them all, after the messages they have at hand

        results = await asyncio.gather(*(work() for _ in range(workers)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _work(self, body: Callable[[Message], Awaitable[object] | object], on_error: OnError) -> None:
        steps = self.steps()
        message = await self._drive(steps, None)
        while message is not None:
            failure = None
            try:
                try:
                    result = body(message)
                    if inspect.isawaitable(result):
                        await result
                except Exception as error:
                    failure = error
                    told = on_error(message, error)
                    if inspect.isawaitable(told):
                        await told
            except BaseException as error:  # cancelled, most likely
                await self._leave(steps, error)
                raise
            message = await self._drive(steps, failure)
