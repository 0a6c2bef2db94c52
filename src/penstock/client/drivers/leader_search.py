"""Connections to the leader of a shard: redis-py's, which look for the leader before they are opened.

They are made with the options of any connection, and a `shard` (engine/leader.py). So everything that uses redis-py's
pools finds the leader: our clients, pub/sub, and redis.Redis. All servers are asked at once, over connections of their
own with short timeouts. A server that says that it leads is not kept waiting for the others longer than GRACE.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.connection
from redis.asyncio.retry import Retry as AioRetry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from penstock.client.engine.leader import Answer, Question, Shard, says_leader
from penstock.client.events import Node

NODE_TIMEOUT = 2.0
"""Seconds that a server has for its answer."""
GRACE = 0.1
"""Seconds that the others have once one says that it leads."""
_KEPT = ("username", "password", "credential_provider", "socket_keepalive", "socket_keepalive_options", "socket_type")
"""What a connection that asks has of the options of the one that is to be opened, beside those for TLS."""

SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


class _Asking:
    """How one server is asked: the options of its connection, and the time."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._of_sentinels = {name.partition("_")[2]: options.pop(name, None) for name in SENTINEL_OPTIONS}
        kept = {name: value for name, value in options.items() if name in _KEPT or name.startswith("ssl_")}
        config = MaintNotificationsConfig(enabled=False)
        self._options = {**kept, "protocol": 2, "driver_info": None, "maint_notifications_config": config}

    def options(self, question: Question, seconds: float) -> dict[str, Any]:
        host, port = question.node
        own = {"credential_provider": None, **self._of_sentinels} if question.is_sentinel else {}
        times = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        return {**self._options, **own, **times, "host": host, "port": port}


def _seconds_for(connection: Any) -> float:
    """How long a server is waited for, within the limits of the connection that is to be opened."""
    limits: tuple[float | None, ...] = (connection.socket_timeout, connection.socket_connect_timeout)
    return min([NODE_TIMEOUT, *(limit for limit in limits if limit)])


def _with_silent(questions: Sequence[Question], answers: Mapping[Question, Answer], seconds: float) -> Any:
    """The answers, and errors for those that did not answer."""
    silent = redis.TimeoutError(f"no answer within {seconds:g} s")
    return {question: answers.get(question, silent) for question in questions}


def _disappointed(error: redis.ReadOnlyError) -> redis.ConnectionError:
    return redis.ConnectionError(f"the server does not lead any more: {error}")


# -- threads ----------------------------------------------------------------------------------------------------------


class LeaderConnection(redis.Connection):
    """To the leader of `shard`."""

    _asking_class: Any = redis.Connection

    def __init__(self, shard: Shard, **options: Any) -> None:
        self._shard = shard
        self._asking = _Asking(options)
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        if self._sock:
            return
        self.host, self.port = self._find()
        super().connect_check_health(check_health, retry_socket_connect)

    def _find(self) -> Node:
        seconds, search = _seconds_for(self), self._shard.search()
        questions = next(search)
        while True:
            answers = _ask_all(questions, lambda question: self._ask(question, seconds), seconds)
            try:
                questions = search.send(_with_silent(questions, answers, seconds))
            except StopIteration as found:
                return found.value  # type: ignore[no-any-return]

    def _ask(self, question: Question, seconds: float) -> Answer:
        try:
            connection = self._asking_class(**self._asking.options(question, seconds), retry=Retry(NoBackoff(), 0))
            try:
                connection.connect()
                for words in question.commands:
                    connection.send_command(*words)
                return [_reply(connection) for _ in question.commands]
            finally:
                connection.disconnect()
        except (redis.RedisError, OSError, ValueError) as error:
            return error

    def read_response(self, *args: Any, **options: Any) -> Any:
        """For redis-py's clients; ours read by themselves."""
        try:
            return super().read_response(*args, **options)
        except redis.ReadOnlyError as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise _disappointed(error) from error


class LeaderSSLConnection(LeaderConnection, redis.SSLConnection):
    """The same, with TLS."""

    _asking_class = redis.SSLConnection


def _reply(connection: redis.Connection) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _ask_all(
    questions: Sequence[Question], ask: Callable[[Question], Answer], seconds: float
) -> dict[Question, Answer]:
    """The answers that came in time. Each server is asked by a thread, which ends by itself."""
    came: queue.SimpleQueue[tuple[Question, Answer]] = queue.SimpleQueue()
    if len(questions) == 1:
        return {questions[0]: ask(questions[0])}
    for question in questions:
        work = threading.Thread(target=_put_answer, args=(came, ask, question), name="penstock-search", daemon=True)
        try:
            work.start()
        except RuntimeError:  # no more threads, as at the end of the program
            _put_answer(came, ask, question)
    answers: dict[Question, Answer] = {}
    until = monotonic() + seconds
    while len(answers) < len(questions):
        try:
            question, answer = came.get(timeout=max(until - monotonic(), 0.001))
        except queue.Empty:
            break
        answers[question] = answer
        if says_leader(question, answer):
            until = min(until, monotonic() + GRACE)
    return answers


def _put_answer(
    came: queue.SimpleQueue[tuple[Question, Answer]], ask: Callable[[Question], Answer], question: Question
) -> None:
    came.put((question, ask(question)))


# -- tasks ------------------------------------------------------------------------------------------------------------


class AioLeaderConnection(redis.asyncio.Connection):
    """To the leader of `shard`."""

    _asking_class: Any = redis.asyncio.Connection

    def __init__(self, *, shard: Shard, **options: Any) -> None:
        self._shard = shard
        self._asking = _Asking(options)
        super().__init__(**options)

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        if self.is_connected:
            return
        self.host, self.port = await self._find()
        await super().connect_check_health(check_health, retry_socket_connect)

    async def _find(self) -> Node:
        seconds, search = _seconds_for(self), self._shard.search()
        questions = next(search)
        while True:
            answers = await self._ask_all(questions, seconds)
            try:
                questions = search.send(_with_silent(questions, answers, seconds))
            except StopIteration as found:
                return found.value  # type: ignore[no-any-return]

    async def _ask_all(self, questions: Sequence[Question], seconds: float) -> dict[Question, Answer]:
        """The answers that came in time."""
        tasks = {asyncio.ensure_future(self._ask(question, seconds)): question for question in questions}
        answers: dict[Question, Answer] = {}
        until = monotonic() + seconds
        waiting = set(tasks)
        try:
            while waiting and (left := until - monotonic()) > 0:
                done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    question = tasks[task]
                    answers[question] = task.result()
                    if says_leader(question, answers[question]):
                        until = min(until, monotonic() + GRACE)
            return answers
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)

    async def _ask(self, question: Question, seconds: float) -> Answer:
        try:
            connection = self._asking_class(**self._asking.options(question, seconds), retry=AioRetry(NoBackoff(), 0))
            try:
                await connection.connect()
                replies: list[Any] = []
                for words in question.commands:
                    await connection.send_command(*words)
                for _ in question.commands:
                    try:
                        replies.append(await connection.read_response())
                    except redis.ResponseError as error:
                        replies.append(error)
                return replies
            finally:
                with contextlib.suppress(redis.RedisError, OSError):
                    await connection.disconnect(nowait=True)
        except (redis.RedisError, OSError, ValueError) as error:
            return error

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """For redis-py's clients; ours read by themselves."""
        try:
            return await super().read_response(*args, **options)
        except redis.ReadOnlyError as error:
            await self.disconnect(nowait=True)
            raise _disappointed(error) from error


class AioLeaderSSLConnection(AioLeaderConnection, redis.asyncio.SSLConnection):
    """The same, with TLS."""

    _asking_class = redis.asyncio.SSLConnection
