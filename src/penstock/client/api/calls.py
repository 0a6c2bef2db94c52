"""One call of a command method, without the waiting: arguments to a batch, a finished batch to what the method returns.

The same functions serve the sync and the asyncio client; between the two lies the only difference, how one waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import redis
from redis.client import EMPTY_RESPONSE, NEVER_DECODE

from penstock.client.delivery import State
from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import PLAIN, WAITS, Kind, kind_of, name_of, patience
from penstock.client.engine.encoding import pack
from penstock.client.errors import NotSharable, stated
from penstock.protocol.tuples import pack_tuple

_RAW = (0,)


def call(arguments: tuple[Any, ...], options: dict[str, Any], is_shared: bool) -> Batch:
    """The batch for one command; refuses what would confuse others on a shared connection."""
    packed = pack_tuple(arguments) if arguments[0] in PLAIN else None
    if packed is not None:
        batch = Batch(arguments, packed)
    else:
        batch = Batch(arguments, pack(arguments))
        kind = kind_of(arguments)
        if kind is not Kind.ORDINARY:
            _mind(batch, kind, is_shared)
    if options and NEVER_DECODE in options:
        batch.raw = _RAW
    return batch


def _mind(batch: Batch, kind: Kind, is_shared: bool) -> None:
    arguments = split_name(batch.commands[0])
    if kind in WAITS:
        batch.patience = patience(arguments) or math.inf
        batch.blocks = kind is Kind.BLOCKING
        return
    if kind is Kind.STREAMING and name_of(arguments) == "QUIT":
        batch.blocks = True  # that is, it ends a connection of its own, and not the one that others share
        return
    refuse_unsharable(arguments, kind, is_shared)
    batch.notable = {0: kind}


def refuse_unsharable(arguments: Sequence[Any], kind: Kind, is_shared: bool) -> None:
    """Raise NotSharable, with what to use instead, if the command would harm others on the connection, or its own
    callers.
    """
    name = name_of(arguments)
    if kind is Kind.STREAMING:
        raise NotSharable(f"{name} {_REFUSALS.get(name, _SUBSCRIBING)}")
    if kind is Kind.TRANSACTION and is_shared:
        raise NotSharable(
            f"{name} on a connection that others share would catch their commands too; use pipeline() with its "
            "watch(), multi() and reset(), transaction(), or client(), which has a connection of its own"
        )


_REFUSALS = {
    "CLIENT REPLY": "leaves commands without the replies by which this client knows what became of them; "
    "to save round trips use pipeline() or execute_many()",
    "MONITOR": "ends the order of commands and replies on a connection; use monitor(), which has its own",
    "QUIT": "would end the connection that all callers of this client share; use close()",
    **dict.fromkeys(
        ["SYNC", "PSYNC"], "makes a replica of its connection, which this client cannot be; use redis.Redis for it"
    ),
}
_SUBSCRIBING = "ends the order of commands and replies on a connection; use pubsub(), which has its own"


def split_name(arguments: Sequence[Any]) -> Sequence[Any]:
    """redis-py's "CLIENT SETNAME" as two words."""
    head = arguments[0]
    return (*head.split(), *arguments[1:]) if isinstance(head, str | bytes) else arguments


def answer(batch: Batch, options: dict[str, Any], callbacks: Any) -> Any:
    """The return value of a command method, from a finished batch of one; raises its error."""
    return read_reply(batch.commands[0][0], batch.results[0], options, callbacks)


def read_reply(name: Any, reply: Any, options: dict[str, Any], callbacks: Any) -> Any:
    """A reply as redis-py gives it; an exception is raised. `callbacks` has the names in upper case."""
    if isinstance(reply, Exception):
        if EMPTY_RESPONSE in options and isinstance(reply, redis.ResponseError):
            return options[EMPTY_RESPONSE]
        raise reply
    callback = dict.get(callbacks, name)
    if callback is None and not (type(name) is str and name.isupper()):
        callback = dict.get(callbacks, name.upper())
    if callback is None:
        return reply
    if options:
        options = {option: value for option, value in options.items() if option not in NOT_FOR_CALLBACKS}
    try:
        return callback(reply, **options)
    except Exception as error:  # the reply is not what redis-py expects; the command ran
        stated(error, State.REPLIED)
        raise


NOT_FOR_CALLBACKS = frozenset({"keys", "target_nodes", "node", EMPTY_RESPONSE, NEVER_DECODE})
"""Options of a command that are not for the function that converts its reply."""
