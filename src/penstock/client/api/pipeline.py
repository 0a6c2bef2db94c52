"""Pipelines and bulk calls, without the waiting: a stack of commands to one batch, a finished batch to their results.

A pipeline without a transaction is one batch whose commands count one by one; with one it is an atomic batch. Either is
encoded before any of it is queued, written in one go, and on failure its error has the state of every command.

The hot loops here are a budget: a pipeline of ten thousand `set` is what clients are compared by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Literal

import redis
from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from penstock.client.api.calls import NOT_FOR_CALLBACKS, answer, refuse_unsharable, split_name
from penstock.client.delivery import Counters, State
from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import WAITS, Kind, kind_of, patience
from penstock.client.engine.encoding import pack_many
from penstock.client.errors import DeliveryError, NotSent, stated

Stack = list[tuple[tuple[Any, ...], dict[str, Any]]]

PIPELINE_BYTES = 800
"""What a pipeline costs beside its batch, while it waits for it; tests/client/test_bounds.py measures it."""
STACKED_BYTES = 100
"""What each of its commands costs more than a ready one."""
_NO_OPTIONS: dict[str, Any] = {}  # most commands have none: one for all, which is never changed

_MULTI, _EXEC = ("MULTI",), ("EXEC",)


class PipelineBase:
    """The methods that the pipelines of both clients add to redis-py's."""

    _queues_commands: Literal[True] = True  # reply_types.AnyPipeline
    command_stack: Any
    response_callbacks: Any
    _client: Any
    watching: bool
    explicit_transaction: bool
    _connection: Any
    _own: Any

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if (self.watching or args[0] == "WATCH") and not self.explicit_transaction:
            return self.immediate_execute_command(*args, **options)  # type: ignore[attr-defined]
        self.command_stack.append((args, options or _NO_OPTIONS))
        return self

    def start_over(self) -> bool:
        """Forget everything; whether keys were watched."""
        was_watching = self.watching
        self.command_stack = []
        self.scripts: set[Any] = set()
        self.watching = self.explicit_transaction = False
        self._connection = self._own = None
        return was_watching

    def watched_answer(self, batch: Batch, options: dict[str, Any]) -> Any:
        """The reply to a command that was sent at once, between WATCH and MULTI."""
        result = answer(batch, options, self.response_callbacks)
        name = batch.commands[0][0]
        self.watching = name == "WATCH" or (self.watching and name != "UNWATCH")
        return result

    def unwatched_by(self, batch: Batch) -> None:
        """An EXEC that was answered, with whatever reply, has ended the WATCH: UNWATCH need not be sent."""
        if batch.atomic and not isinstance(batch.results[-1], DeliveryError):
            self.watching = False

    @contextmanager
    def as_watch_error(self) -> Iterator[None]:
        """A lost connection has lost its WATCH: try again, says WatchError. But not if EXEC may have run."""
        try:
            yield
        except NotSent as error:
            if self._connection is None or not self.watching:
                raise
            lost = redis.WatchError(f"the connection was lost while watching: {error}")
            raise stated(lost, State.QUEUED) from error


@contextmanager
def told_of_all(count: int) -> Iterator[None]:
    """Give every error of a pipeline the state and the result of each of its commands."""
    try:
        yield
    except Exception as error:
        state = getattr(error, "state", None)
        if state is not None and len(getattr(error, "replies", ())) != count:
            error.states, error.replies = [state] * count, [error] * count  # type: ignore[attr-defined]
        raise


@contextmanager
def refusal_of(batch: Batch, raised: bool) -> Iterator[None]:
    """If the batch is not taken (NotSent) and that is not to be raised, it is the result of each command."""
    try:
        yield
    except NotSent as error:
        if raised:
            raise
        batch.results, batch.is_finished = [error] * batch.count, True


def batch_of(stack: Stack, is_transaction: bool, decodes: bool) -> Batch:
    """All commands of a pipeline, encoded. The reply of EXEC is never decoded as a whole: one that cannot be is the
    loss of its command.
    """
    if is_transaction:
        sent = [(args, options) for args, options in stack if EMPTY_RESPONSE not in options]
        commands = [_MULTI, *(args for args, _ in sent), _EXEC]
    else:
        sent = stack
        commands = [args for args, _ in stack]
    packed = pack_many(commands)
    batch = Batch.of(commands, packed)
    batch.size += PIPELINE_BYTES + len(stack) * STACKED_BYTES
    batch.atomic = is_transaction
    _mind(batch, packed.heads)
    if is_transaction:
        batch.raw = (len(commands) - 1,) if decodes else None
    elif raw := frozenset(index for index, (_, options) in enumerate(sent) if options and NEVER_DECODE in options):
        batch.raw = raw
    return batch


def bulk_batch(commands: Sequence[Sequence[Any]]) -> Batch:
    """Ready commands, encoded."""
    packed = pack_many(commands)
    batch = Batch.of(commands, packed)
    _mind(batch, packed.heads)
    return batch


def _mind(batch: Batch, heads: dict[Any, Sequence[Any]]) -> None:
    """Look for commands that are not ordinary; one look for each spelling of a name, if all are."""
    if batch.atomic:
        del heads["MULTI"], heads["EXEC"]
    if all(kind_of(command) is Kind.ORDINARY for command in heads.values()) and not heads.keys() & _LOOK_CLOSER:
        return
    for index, command in enumerate(batch.commands):
        kind = kind_of(command)
        if kind is Kind.ORDINARY or (batch.atomic and index in (0, batch.count - 1)):
            continue
        if kind in WAITS:
            if not batch.atomic:  # in a transaction nothing blocks
                batch.patience += patience(split_name(command)) or math.inf
                batch.blocks = batch.blocks or kind is Kind.BLOCKING
            continue
        refuse_unsharable(split_name(command), kind, is_shared=True)
        batch.notable = {**(batch.notable or {}), index: kind}


_LOOK_CLOSER = frozenset(
    spelling for word in ("CLIENT", "XREAD", "XREADGROUP", "TREAD") for spelling in (word, word.encode())
)
"""Names under which one command may be ordinary and the next not."""


def results_of(batch: Batch, stack: Stack, callbacks: Any, raise_on_error: bool, pipeline: Any) -> list[Any]:
    """The return value of `execute` for a finished batch; raises the first failure if asked to."""
    results = _transaction_replies(batch, stack, pipeline) if batch.atomic else batch.results
    found: dict[Any, Any] = {}
    answers: list[Any] = []
    failed = False
    for (args, options), result in zip(stack, results, strict=True):
        if isinstance(result, Exception):
            if EMPTY_RESPONSE in options and isinstance(result, redis.ResponseError):
                result = options[EMPTY_RESPONSE]
            else:
                failed = True
        else:
            try:
                callback = found[args[0]]
            except KeyError:
                callback = found[args[0]] = callbacks.get(args[0])
            if callback is not None:
                if options:
                    options = {name: value for name, value in options.items() if name not in NOT_FOR_CALLBACKS}
                try:
                    result = callback(result, **options)
                except Exception as error:  # the loss of this command alone
                    result, failed = stated(error, State.REPLIED), True
        answers.append(result)
    if failed and raise_on_error:
        first = _with_all(batch, answers)
        if not isinstance(first, DeliveryError):
            pipeline.raise_first_error(stack, answers)
        raise first  # which redis-py would return
    return answers


def _transaction_replies(batch: Batch, stack: Stack, pipeline: Any) -> Iterable[Any]:
    """The replies inside that of EXEC; raises if there are none."""
    outcome = batch.results[-1]
    if isinstance(outcome, redis.exceptions.ExecAbortError):
        sent = [args for args, options in stack if EMPTY_RESPONSE not in options]
        for number, (args, result) in enumerate(zip(sent, batch.results[1:-1], strict=True), start=1):
            if isinstance(result, Exception):
                pipeline.annotate_exception(result, number, args)
                raise result
    if isinstance(outcome, Exception):
        raise outcome
    if outcome is None:
        raise stated(redis.WatchError("Watched variable changed."), State.REPLIED)
    replies, decoding = iter(outcome), pipeline._client.decoding
    results: list[Any] = []
    for _, options in stack:
        if EMPTY_RESPONSE in options:
            results.append(options[EMPTY_RESPONSE])
        elif decoding is None or NEVER_DECODE in options:
            results.append(next(replies))
        else:
            results.append(decoded_alone(next(replies), decoding))
    return results


def decoded_alone(reply: Any, decoding: tuple[str, str]) -> Any:
    """A reply that stood among others, as text; if it cannot be that, it becomes the exception, and the others are
    unharmed.
    """
    try:
        return _decoded(reply, *decoding)
    except ValueError as error:
        return stated(error, State.REPLIED)


def _decoded(reply: Any, encoding: str, errors: str) -> Any:
    if isinstance(reply, bytes):
        return reply.decode(encoding, errors)
    if isinstance(reply, list | set):
        return type(reply)(_decoded(item, encoding, errors) for item in reply)
    if isinstance(reply, dict):
        return {_decoded(key, encoding, errors): _decoded(value, encoding, errors) for key, value in reply.items()}
    return reply


def bulk_results(batch: Batch, raise_on_error: bool) -> list[Any]:
    """The return value of `execute_many` for a finished batch; raises the first failure if asked to."""
    results = batch.results
    if raise_on_error and any(issubclass(kind, Exception) for kind in set(map(type, results))):
        raise _with_all(batch, results)
    return results


def _with_all(batch: Batch, answers: list[Any]) -> Exception:
    """The first DeliveryError, or else the first error, with the state of every command and what became of it."""
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    first: Any = next((error for error in errors if isinstance(error, DeliveryError)), errors[0])
    first.states = [State.REPLIED] * len(answers) if batch.atomic else batch.states
    first.replies = answers
    found: Exception = first
    return found


def total(counters: Iterable[Counters]) -> Counters:
    """The sum of several cores' counters."""
    every = list(counters)
    return Counters(*(sum(getattr(one, field.name) for one in every) for field in fields(Counters)))
