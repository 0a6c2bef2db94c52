"""What went wrong, and whether the command may have run.

    redis.RedisError
    `-- DeliveryError                 no reply; .state says how far it came, .states of each command of a pipeline
        |-- NotSent                   (also redis.ConnectionError) it did not run: safe to try again
        |   |-- NotSentInTime         (also redis.TimeoutError) it waited for a connection until its time was up
        |   |-- BufferFull            too much is held already
        |   |-- TransactionLost       the connection with its WATCH or MULTI is gone
        |   `-- ClientClosed
        `-- OutcomeUnknown            (also redis.ConnectionError) it may have run, or may run yet
            |-- NoReplyInTime         (also redis.TimeoutError)
            `-- NotReplayed           the replay filter, or the end of its transaction's connection, forbids a repeat

    redis.DataError
    `-- NotEncodable                  never queued
    redis.RedisError
    |-- NotSharable                   never queued
    `-- WrongShard                    (a redis.ResponseError) the URL of a shard has a server of another one

So a handler written for redis-py (`except redis.ConnectionError`, `except redis.TimeoutError`) works, and one that
wants to know may ask. Errors the server replies are redis-py's own, with `.state = State.REPLIED`; codes redis-py does
not know (FENCED, LOCKED ...) become classes that are both redis.ResponseError and the class of protocol/errors.py.

Rejected: one error with a `was_sent` flag. The two cases are handled in different places: the first is tried again,
the second is looked into.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import redis
from redis._parsers.base import BaseParser

from penstock.client.delivery import State
from penstock.protocol import errors as protocol_errors


class DeliveryError(redis.RedisError):
    """A command ended without a reply."""

    def __init__(self, text: str, state: State, command: str = "") -> None:
        super().__init__(text)
        self.state = state
        self.command = command
        self.states: Sequence[State] = (state,)
        """Of each command of a pipeline, in order."""
        self.replies: Sequence[Any] = ()
        """Of a pipeline: its replies as far as they came, and a DeliveryError in the place of the others."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.state, self.command), {"states": self.states, "replies": self.replies}


class NotSent(DeliveryError, redis.ConnectionError):
    """The command did not run, and will not: not a byte of it left this program."""

    def __init__(self, text: str, state: State = State.QUEUED, command: str = "") -> None:
        super().__init__(text, State.QUEUED, command)


class NotSentInTime(NotSent, redis.TimeoutError):
    """The command waited for a connection until its time was up."""


class BufferFull(NotSent):
    """More commands, or more bytes, are held than the settings allow."""


class TransactionLost(NotSent):
    """The connection that had the WATCH or the MULTI is gone, so this command would run outside of the transaction."""


class ClientClosed(NotSent):
    """The client was closed."""


class OutcomeUnknown(DeliveryError, redis.ConnectionError):
    """The command was sent, at least in part, and its reply never came: it may have run."""


class NoReplyInTime(OutcomeUnknown, redis.TimeoutError):
    """The command was sent and its reply did not come in time."""


class NotReplayed(OutcomeUnknown):
    """The command was sent, its reply was lost, and it may not be sent again."""


class WrongShard(redis.ResponseError):
    """A server belongs to another shard than the one that the URL names."""

    state = State.QUEUED


class ExactlyOnceUnavailable(redis.RedisError):
    """The server does not know ONCE."""

    state = State.QUEUED


class NotEncodable(redis.DataError):
    """An argument has no wire form, or it is no command at all. It was never queued."""

    state = State.QUEUED


class NotSharable(redis.RedisError):
    """The command would change a connection that others share, or end the order of commands and replies on it. It was
    never queued.
    """

    state = State.QUEUED


def stated(error: Exception, state: State) -> Exception:
    """An error that is not ours, with how far its command came."""
    error.state = state  # type: ignore[attr-defined]
    return error


def _classes_redis_py_lacks() -> dict[str, type[redis.ResponseError]]:
    return {
        code: type(
            cls.__name__, (redis.ResponseError, cls),
            {"__doc__": cls.__doc__, "__module__": __name__, "__reduce__": lambda error: (reply_error, (str(error),))},
        )
        for code, cls in protocol_errors.BY_CODE.items()
        if code not in BaseParser.EXCEPTION_CLASSES
    }  # fmt: skip


_OWN = _classes_redis_py_lacks()


STREAM_COMMANDS = frozenset(
    {
        "TACK", "TAPPLY", "TCOMMIT", "TEVICT", "TEXTEND", "TGIVEUP", "TGROUP", "TINFO", "TNACK", "TPRODUCER", "TREAD",
        "TRETAIN", "TSCHEMA", "TSEEK", "TSTAGE", "TUNSTAGE", "TWRITE",
    }
)  # fmt: skip
"""Commands of streams that only Penstock has."""
_UNKNOWN = re.compile(r"ERR unknown command [`'](\w+)", re.IGNORECASE)


def reply_error(line: str) -> Exception:
    """The exception for an error reply. If a server does not know streams, it says that it is no Penstock server.

    >>> type(reply_error("FENCED epoch 3 is not newer")).__name__
    'Fenced'
    """
    unknown = _UNKNOWN.match(line)
    if unknown is not None and unknown[1].upper() in STREAM_COMMANDS:
        line = f"{line.rstrip(' ,')}. This is not a Penstock server: `penstock serve` starts one, and the URL names it"
    code = line.partition(" ")[0]
    own = _OWN.get(code)
    error: Exception = own(line) if own is not None else BaseParser.parse_error(line)  # type: ignore[no-untyped-call]
    error.state = State.REPLIED  # type: ignore[attr-defined]
    return error
