"""Errors that only a cluster has; what they share with a single server is in errors.py.

redis.RedisError
|-- redis.exceptions.ClusterCrossSlotError
|   `-- CrossSlotRefused     keys of several slots in one command; refused here, before anything is sent
|-- redis.exceptions.RedisClusterException
|   `-- NotRoutable          no node can be chosen for the command
|-- redis.ResponseError
|   `-- RoleChanged          a node that is not the master any more ended a blocking command, for longer than `patience`
`-- DeliveryError
    `-- NotSent
        |-- NoTopology       no node says which node owns which slot
        `-- TooManyConnections   (also redis.MaxConnectionsError) all connections of its own are in use

What failed because time was up is NotSentInTime or NoReplyInTime here too, both of them redis.TimeoutError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MaxConnectionsError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    TryAgainError,
)

from penstock.client.delivery import State
from penstock.client.drivers.connecting import is_refusal
from penstock.client.errors import (
    ClientClosed,
    NoReplyInTime,
    NotSent,
    NotSentInTime,
    OutcomeUnknown,
    TransactionLost,
    reply_error,
)


class CrossSlotRefused(ClusterCrossSlotError):
    """One command has keys of several slots. Nothing was sent, neither of it nor of its pipeline."""

    state = State.QUEUED

    def __init__(self, name: str, slots: Mapping[bytes, int]) -> None:
        self.slots = dict(slots)
        some = ", ".join(
            f"{key.decode('utf-8', 'backslashreplace')} in {slot}" for key, slot in list(slots.items())[:4]
        )
        super().__init__(
            f"{name} has keys in several slots ({some}): give them one hash tag, as in {{user:1}}.name and "
            "{user:1}.cart, "
            f"or for MGET, MSET, DEL, UNLINK, TOUCH and EXISTS say split=True"
        )


class NotRoutable(RedisClusterException):
    """No node can be chosen for the command. Nothing was sent."""

    state = State.QUEUED


class Moved(str):
    """The reply MOVED: where a slot is now, as `host:port`. The sender of the command knows the slot.

    After a reshard thousands come at once, and an exception for each would cost more than the rest.
    """

    __slots__ = ()


class RoleChanged(redis.ResponseError):
    """UNBLOCKED by the node itself: a command that blocked did not run, because the node is not the master any more.

    UNBLOCKED by CLIENT UNBLOCK is another matter: that is for the caller.
    """

    state = State.REPLIED


def decode_error(line: str) -> Exception | Moved:
    """Turn an error reply into the client's exception."""
    code, _, rest = line.partition(" ")
    if code == "MOVED":
        return Moved(rest.partition(" ")[2])
    if code == "UNBLOCKED" and "CLIENT UNBLOCK" not in rest:
        return RoleChanged(line)
    return reply_error(line)


REFUSALS: frozenset[type[Any]] = frozenset(
    [
        Moved,
        MovedError,
        AskError,
        TryAgainError,
        ClusterDownError,
        MasterDownError,
        BusyLoadingError,
        ReadOnlyError,
        RoleChanged,
    ]
)
"""Replies that prove that a command did not run, and may run elsewhere or later."""


def as_exception(reply: Any, slot: int | None) -> Any:
    """The exception for a MOVED of this slot; anything else as it is."""
    return reply_error(f"MOVED {slot} {reply}") if reply.__class__ is Moved else reply


class WatchLost(TransactionLost, redis.WatchError):
    """The connection with the WATCH is lost. Nothing of the transaction ran: begin it again."""


class NoTopology(NotSent):
    """No known node says which node owns which slot."""


class TimeIsUp(redis.TimeoutError):
    """The time of a call is up. Nothing is wrong with the connection."""


class TooManyConnections(NotSent, MaxConnectionsError):
    """The command needs a connection of its own (it blocks, or comes after WATCH), and max_connections
    allows no more.
    """


def is_final_refusal(error: Exception) -> bool:
    """Why there is no connection is not going to change by trying again."""
    return isinstance(error, TooManyConnections | ClientClosed) or is_refusal(error)


def unsent(text: str, command: str, cause: Exception | None, is_late: bool = False) -> Exception:
    """For a command that did not run and will not."""
    kind = NotSentInTime if is_late or isinstance(cause, redis.TimeoutError) else NotSent
    return caused(kind(text, command=command), cause)


def unknown(text: str, state: State, command: str, cause: Exception | None, is_late: bool = False) -> Exception:
    """For a command that may have run."""
    kind = NoReplyInTime if is_late or isinstance(cause, redis.TimeoutError) else OutcomeUnknown
    return caused(kind(text, state, command), cause)


def caused(error: Exception, cause: Exception | None) -> Exception:
    error.__cause__ = cause
    return error
