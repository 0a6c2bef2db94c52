"""Errors that only a cluster has; what they share with a single server is in errors.py.

redis.RedisError
|-- redis.exceptions.ClusterCrossSlotError
|   `-- CrossSlotRefused     keys of several slots in one command; refused here, before anything is sent
|-- redis.exceptions.RedisClusterException
|   `-- NotRoutable          no node can be chosen for the command
`-- DeliveryError
    `-- NotSent
        `-- NoTopology       no node says who owns the slots
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from redis.exceptions import ClusterCrossSlotError, RedisClusterException

from penstock.client.delivery import State
from penstock.client.errors import NotSent, TransactionLost, reply_error


class CrossSlotRefused(ClusterCrossSlotError):
    """One command has keys of several slots. Nothing was sent, neither of it nor of its pipeline."""

    state = State.QUEUED

    def __init__(self, name: str, slots: Mapping[bytes, int]) -> None:
        self.slots = dict(slots)
        some = ", ".join(
            f"{key.decode('utf-8', 'backslashreplace')} in {slot}" for key, slot in list(slots.items())[:4]
        )
        super().__init__(
            f"{name} has keys in several slots ({some}): give them one hash tag, as in {{user:1}}.name and {{user:1}}.cart, "
            f"or for MGET, MSET, DEL, UNLINK, TOUCH and EXISTS say split=True"
        )


class NotRoutable(RedisClusterException):
    """No node can be chosen for the command. Nothing was sent."""

    state = State.QUEUED


class Moved(str):
    """A MOVED as it travels. After a reshard thousands come at once, and an exception for each would cost more than the rest.

    The parser makes one of every error reply, and `decode_errors` an exception of those that are something else.
    """

    __slots__ = ()


def decode_error(line: str) -> Exception | Moved:
    """What the client makes of an error reply."""
    return Moved(line) if line.startswith("MOVED ") else reply_error(line)


def decode_errors(replies: list[Any]) -> list[Any]:
    """Replies as the parser gives them, with the exceptions that errors are."""
    return [
        reply if reply.__class__ is not Moved or reply.startswith("MOVED ") else reply_error(str(reply))
        for reply in replies
    ]


def as_exception(reply: Any) -> Any:
    """The exception for a MOVED; anything else as it is."""
    return reply_error(str(reply)) if reply.__class__ is Moved else reply


class WatchLost(TransactionLost, redis.WatchError):
    """What was watched is not watched any more. Nothing of the transaction ran: begin it again."""


class NoTopology(NotSent):
    """None of the known nodes says who owns the slots."""
