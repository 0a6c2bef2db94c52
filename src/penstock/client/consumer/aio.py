"""The consumer of penstock.aio.Client: tasks carry out the steps of core.py, as threads do in sync.py.

Steps of a generator run without a switch between tasks, so no lock is needed. A body that is no coroutine function
holds up the loop, and with it the heartbeats.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from types import TracebackType
from typing import Any, Self

import redis

from penstock.client.consumer.base import ConsumerBase, Iteration
from penstock.client.consumer.core import ConsumerCore, Step, Steps
from penstock.client.consumer.delivered import Delivered
from penstock.client.consumer.handlers import Handler, Middleware, OnError, log_failure
from penstock.client.consumer.options import ConsumerSettings
from penstock.client.consumer.steps import Call, Wait
from penstock.client.consumer.stop_signals import stopped_by_first_interrupt, stopped_by_sigterm
from penstock.client.consumer.worker_share import WorkerShare

_logger = logging.getLogger("penstock.consumer")


class _Wakeup:
    """How the workers of a core wait."""

    def __init__(self) -> None:
        self._changed: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self) -> None:
        """From the loop, a signal handler or another thread."""
        changed, self._changed = self._changed, None
        if changed is None or self._loop is None:
            return
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            changed.set()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(changed.set)

    async def wait(self, seconds: float) -> None:
        if self._changed is None:
            self._changed, self._loop = asyncio.Event(), asyncio.get_running_loop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)


async def send(client: Any, step: Call) -> list[Any]:
    """The replies; errors stand in their place."""
    try:
        replies: list[Any] = await client.execute_many(step.commands, raise_on_error=False)
        return replies
    except (redis.RedisError, OSError) as error:
        return [error] * len(step.commands)


async def _drive(wakeup: _Wakeup, client: Any, steps: Steps, is_keeper: bool = False) -> WorkerShare | None:
    """Carry out steps until there is a share to process; None at the end."""
    answer: Any = None
    try:
        while True:
            step: Step = steps.send(answer)
            answer = None
            if isinstance(step, WorkerShare):
                return step
            if isinstance(step, Call):
                answer = await send(client, step)
            elif isinstance(step, Wait):
                await (asyncio.sleep(step.seconds) if is_keeper else wakeup.wait(step.seconds))
    except StopIteration:
        return None
    except BaseException:
        steps.close()  # it waits for a reply that will not come
        raise


class _Iteration(Iteration):
    """With the task that extends leases."""

    def __init__(self, steps: Steps, client: Any, keeper: asyncio.Task[None]) -> None:
        super().__init__(steps, client)
        self.keeper = keeper


class AioConsumer(ConsumerBase):
    """For penstock.aio.Client."""

    def __init__(self, client: Any, settings: ConsumerSettings) -> None:
        self._wakeup = _Wakeup()
        super().__init__(client, settings, self._wakeup.wake)
        self._iteration: _Iteration | None = None
        self._signals = ExitStack()
        weakref.finalize(self, self._core.abandon)

    # -- iteration ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._signals.enter_context(self._stopped_by_sigterm())
        return self

    def _stopped_by_sigterm(self) -> AbstractContextManager[None]:
        loop = asyncio.get_running_loop()
        return stopped_by_sigterm(lambda: loop.call_soon_threadsafe(self.stop))  # it wakes the loop, which may sleep

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(error)

    async def aclose(self, error: BaseException | None = None) -> None:
        """Acknowledge what is done, also what the body left with `break`; give back the rest, and what it failed on
        with `error`.
        """
        self._signals.close()
        self.stop()
        run, self._iteration = self._iteration, None
        if run is None:
            return
        run.leave(error)
        try:
            if run.share is not None:
                await _drive(self._wakeup, run.client, run.steps)
        finally:
            await self._finish(run.client, run.keeper)

    async def __aiter__(self) -> AsyncIterator[Delivered]:
        run = _Iteration(self._core.work(), self._client.consumer_client(), self._start_keeper())
        self._iteration = run
        try:
            while (share := await _drive(self._wakeup, run.client, run.steps)) is not None:
                for message in run.each(share):
                    yield message
        except GeneratorExit:
            raise  # `aclose` is told whether the message is done
        except BaseException:
            self._iteration = None
            await self._finish(run.client, run.keeper)
            raise
        if self._iteration is run:
            self._iteration = None
            await self._finish(run.client, run.keeper)

    async def _finish(self, client: Any, keeper: asyncio.Task[None]) -> None:
        """Give back what is held, and end the keeper."""
        keeper.cancel()
        try:
            await _drive(self._wakeup, client, self._core.finish())
        except (redis.ConnectionError, redis.TimeoutError):
            _logger.warning("the server does not answer: messages that are held will come again")
        finally:
            await client.aclose()
            await asyncio.wait([keeper])

    def _start_keeper(self) -> asyncio.Task[None]:
        # It must not refer to the consumer: it would then hold messages of a consumer that was forgotten.
        return asyncio.create_task(
            _keep(self._client.consumer_client(), self._core, self._wakeup), name="consumer-keeper"
        )

    # -- workers --------------------------------------------------------------------------------------------------

    async def run(
        self,
        body: Callable[[Any], Awaitable[object] | object],
        workers: int = 1,
        on_error: OnError = log_failure,
        *,
        batch: int = 0,
        batch_ms: int = 0,
        table: bool = False,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        """Call `body` with each message, and await it if it is a coroutine, in so many tasks, until `stop`. A body that
        fails gets the message again later.

        The other arguments are those of Consumer.run.
        """
        handler = Handler(body, batch=batch, batch_ms=batch_ms, table=table, middleware=middleware)
        if workers < 1:
            raise ValueError(f"workers={workers}: at least 1 is needed to do anything")
        core = self._core
        core.workers, core.batch, core.batch_ms = workers, handler.batch, handler.batch_ms
        with self._stopped_by_sigterm(), stopped_by_first_interrupt():
            await self._run(handler, workers, on_error)

    async def _run(self, handler: Handler, workers: int, on_error: OnError) -> None:
        async def work() -> None:
            try:
                await self._work(handler, on_error)
            finally:
                self.stop()  # one that fails ends them all, after the messages they have at hand

        keeper = self._start_keeper()
        keeper.add_done_callback(lambda _: self.stop())
        tasks = [asyncio.create_task(work(), name=f"consumer-{number}") for number in range(workers)]
        try:
            await self._wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            try:
                results = await asyncio.gather(*tasks, return_exceptions=True)
                if keeper.done() and not keeper.cancelled():
                    results.append(keeper.exception())
            finally:  # also if it is cancelled again
                await self._finish(self._client.consumer_client(), keeper)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _wait(self, tasks: list[asyncio.Task[None]]) -> None:
        """Until all workers have ended, or the grace is over."""
        while left := [task for task in tasks if not task.done()]:
            grace = self._core.grace_left() if self._core.is_stopping else None
            if grace == 0:
                _logger.warning("%d bodies did not end in time; their messages are given back", len(left))
                return
            await asyncio.wait(left, timeout=0.5 if grace is None else min(grace, 0.5))

    async def _work(self, handler: Handler, on_error: OnError) -> None:
        steps, client = self._core.work(), self._client.consumer_client()
        process = self._process_batch if handler.batch else self._process_each
        try:
            while (share := await _drive(self._wakeup, client, steps)) is not None:
                try:
                    await process(share, handler, on_error)
                except BaseException:  # cancelled, most likely
                    self.stop()
                    with suppress(redis.ConnectionError, redis.TimeoutError):  # then it is delivered again in its time
                        await _drive(self._wakeup, client, steps)
                    raise
        finally:
            await client.aclose()

    async def _process_each(self, share: WorkerShare, handler: Handler, on_error: OnError) -> None:
        for message in share.each():
            try:
                result = handler.call(message)
                if inspect.isawaitable(result):
                    await result
            except BaseException as error:
                failure = _failure_within(error)
                share.failed(message, failure or error)
                if failure is None:
                    raise
                await _tell(on_error, message, failure)
            else:
                share.done(message.row)

    async def _process_batch(self, share: WorkerShare, handler: Handler, on_error: OnError) -> None:
        if not (messages := list(share.each())):
            return
        try:
            result = handler.call(handler.argument(messages))
            if inspect.isawaitable(result):
                await result
        except BaseException as error:
            failure = _failure_within(error)
            for message in messages:
                share.failed(message, failure or error)
            if failure is None:
                raise
            for message in messages:
                await _tell(on_error, message, failure)
        else:
            for message in messages:
                share.done(message.row)


def _failure_within(error: BaseException) -> Exception | None:
    """What a body failed with; None if the worker is to end. A body may await a task that others cancelled."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling():
        failure = RuntimeError("the body awaited something that was cancelled")
        failure.__cause__ = error
        return failure
    return error if isinstance(error, Exception) else None


async def _tell(on_error: OnError, message: Delivered, error: Exception) -> None:
    told = on_error(message, error)
    if inspect.isawaitable(told):
        await told


async def _keep(client: Any, core: ConsumerCore, wakeup: _Wakeup) -> None:
    try:
        await _drive(wakeup, client, core.keep(), is_keeper=True)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        _logger.warning("leases are no longer extended: %s", error)
        raise
    finally:
        await client.aclose()
