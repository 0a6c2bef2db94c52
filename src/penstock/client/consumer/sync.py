"""The consumer of penstock.Client: threads carry out the steps of core.py.

Every worker has a client of its own, at the level at-most-once: the core repeats commands itself, and knows which ones
may be repeated. So the level of the caller's client does not matter.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

import redis

from penstock.client.consumer.base import ConsumerBase, Iteration
from penstock.client.consumer.core import ConsumerCore, Step, Steps
from penstock.client.consumer.delivered import Delivered
from penstock.client.consumer.handlers import Handler, Middleware, OnError, log_failure, refuse_awaitable
from penstock.client.consumer.options import ConsumerSettings
from penstock.client.consumer.steps import Call, Wait
from penstock.client.consumer.stop_signals import stopped_by_sigterm
from penstock.client.consumer.worker_share import WorkerShare

_logger = logging.getLogger("penstock.consumer")


class _Wakeup:
    """The lock of a core, and how its workers wait."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.over = threading.Event()

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()


def send(client: Any, step: Call) -> list[Any]:
    """The replies; errors stand in their place."""
    try:
        replies: list[Any] = client.execute_many(step.commands, raise_on_error=False)
        return replies
    except (redis.RedisError, OSError) as error:
        return [error] * len(step.commands)


def _drive(wakeup: _Wakeup, client: Any, steps: Steps, is_keeper: bool = False) -> WorkerShare | None:
    """Carry out steps until there is a share to process; None at the end."""
    answer: Any = None
    try:
        while True:
            with wakeup.changed:
                step: Step = steps.send(answer)
                answer = None
                if isinstance(step, WorkerShare):
                    return step
                if isinstance(step, Wait) and not is_keeper:
                    wakeup.changed.wait(step.seconds)
                    continue
            if isinstance(step, Call):
                answer = send(client, step)
            else:
                wakeup.over.wait(step.seconds)
    except StopIteration:
        return None
    except BaseException:
        with wakeup.changed:
            steps.close()  # it waits for a reply that will not come
        raise


class Consumer(ConsumerBase):
    """For penstock.Client."""

    def __init__(self, client: Any, settings: ConsumerSettings) -> None:
        self._wakeup = _Wakeup()
        super().__init__(client, settings, self._wakeup.wake)
        self._iteration: Iteration | None = None
        self._signals = ExitStack()
        weakref.finalize(self, _forget, self._core, self._wakeup)

    # -- iteration ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._signals.enter_context(stopped_by_sigterm(self.stop))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
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
                _drive(self._wakeup, run.client, run.steps)
        finally:
            self._finish(run.client)

    def __iter__(self) -> Iterator[Delivered]:
        run = self._iteration = Iteration(self._core.work(), self._client.consumer_client())
        keeper = self._start_keeper(None)
        try:
            while (share := _drive(self._wakeup, run.client, run.steps)) is not None:
                yield from run.each(share)
        except GeneratorExit:
            raise  # `close` is told whether the message is done
        except BaseException:
            self._iteration = None
            self._finish(run.client)
            raise
        if self._iteration is run:
            self._iteration = None
            self._finish(run.client)
            keeper.join(1)

    def _finish(self, client: Any) -> None:
        """Give back what is held, and end the keeper."""
        try:
            _drive(self._wakeup, client, self._core.finish())
        except (redis.ConnectionError, redis.TimeoutError):
            _logger.warning("the server does not answer: messages that are held will come again")
        finally:
            self._wakeup.over.set()
            client.close()

    def _start_keeper(self, failed: Callable[[BaseException], object] | None) -> threading.Thread:
        # It must not refer to the consumer: it would then hold messages of a consumer that was forgotten.
        client, core, wakeup = self._client.consumer_client(), self._core, self._wakeup

        def keep() -> None:
            try:
                _drive(wakeup, client, core.keep(), is_keeper=True)
            except BaseException as error:
                _logger.warning("leases are no longer extended: %s", error)
                if failed is not None:
                    failed(error)
            finally:
                client.close()

        thread = threading.Thread(target=keep, name="consumer-keeper", daemon=True)
        thread.start()
        return thread

    # -- workers --------------------------------------------------------------------------------------------------

    def run(
        self,
        body: Callable[[Any], object],
        workers: int = 1,
        on_error: OnError = log_failure,
        *,
        batch: int = 0,
        batch_ms: int = 0,
        table: bool = False,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        """Call `body` with each message, in so many threads, until `stop`. A body that fails gets the message again
        later.

        `batch`: call it with a list of up to so many messages, or with a pyarrow Table if `table`; wait up to
        `batch_ms` for a batch to be full. `middleware`: functions around the body.
        """
        handler = Handler(body, batch=batch, batch_ms=batch_ms, table=table, middleware=middleware)
        if workers < 1:
            raise ValueError(f"workers={workers}: at least 1 is needed to do anything")
        if handler.is_coroutine:
            raise TypeError(f"body={body!r} is a coroutine function, which needs the consumer of a penstock.aio.Client")
        core = self._core
        core.workers, core.batch, core.batch_ms = workers, handler.batch, handler.batch_ms
        with stopped_by_sigterm(self.stop):
            self._run(handler, workers, on_error)

    def _run(self, handler: Handler, workers: int, on_error: OnError) -> None:
        failures: list[BaseException] = []
        at_work: set[int] = set()
        leaving: queue.SimpleQueue[int] = queue.SimpleQueue()

        def fail(error: BaseException) -> None:
            failures.append(error)
            self.stop()

        def work(number: int) -> None:
            try:
                self._work(handler, on_error)
            except BaseException as error:
                fail(error)
            finally:
                at_work.discard(number)
                leaving.put(number)

        def wait() -> None:  # not by join: an interrupted one takes its thread for ended (CPython, bpo-45274)
            while at_work and (not self._core.is_stopping or self._core.grace_left() != 0):
                with suppress(queue.Empty):
                    leaving.get(timeout=0.1 if self._core.is_stopping else 1)

        try:
            self._start_keeper(fail)
            for number in range(workers):
                # A daemon: a body that does not end within the grace must not keep the program.
                thread = threading.Thread(target=work, args=(number,), name=f"consumer-{number}", daemon=True)
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
            try:
                wait()
            finally:  # also after another interrupt, which waits for no body
                if at_work:
                    _logger.warning("%d bodies did not end in time; their messages are given back", len(at_work))
                self._finish(self._client.consumer_client())
        if failures:
            raise failures[0]

    def _work(self, handler: Handler, on_error: OnError) -> None:
        steps, client = self._core.work(), self._client.consumer_client()
        process = self._process_batch if handler.batch else self._process_each
        try:
            while (share := _drive(self._wakeup, client, steps)) is not None:
                try:
                    process(share, handler, on_error)
                except BaseException:  # the end, and not of this message alone
                    self.stop()
                    with suppress(redis.ConnectionError, redis.TimeoutError):  # then it is delivered again in its time
                        _drive(self._wakeup, client, steps)
                    raise
        finally:
            client.close()

    def _process_each(self, share: WorkerShare, handler: Handler, on_error: OnError) -> None:
        body, done = handler.call, share.done
        for message in share.each():
            try:
                result = body(message)
            except Exception as error:
                share.failed(message, error)
                on_error(message, error)
            except BaseException as error:
                share.failed(message, error)
                raise
            else:
                if result is not None:
                    refuse_awaitable(result)
                done(message.row)

    def _process_batch(self, share: WorkerShare, handler: Handler, on_error: OnError) -> None:
        if not (messages := list(share.each())):
            return
        try:
            result = handler.call(handler.argument(messages))
        except BaseException as error:
            for message in messages:
                share.failed(message, error)
            if not isinstance(error, Exception):
                raise
            for message in messages:
                on_error(message, error)
        else:
            refuse_awaitable(result)
            for message in messages:
                share.done(message.row)


def _forget(core: ConsumerCore, wakeup: _Wakeup) -> None:
    core.abandon()
    wakeup.over.set()
