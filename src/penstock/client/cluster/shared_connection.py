"""The connection to one node that many threads or tasks share: which batches use it, and what their results mean.

The connection is that of penstock.Client, with its core (engine/connection.py), and commands that are ready at the same
time are written together. Here the core never repeats a command (at-most-once) and holds nothing without a connection:
only the logic of the cluster knows where a command goes next, and whether it may be sent again.

Commands that block, WATCH, and large batches have connections of their own, so that they do not delay other callers;
one thread serves many nodes at once (sync_connections.py). When max_connections is reached, large batches use the
shared connection too.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import redis
from redis.exceptions import MovedError

from penstock.client.cluster.driver_requests import NodeBatch, Outcome
from penstock.client.cluster.errors import Moved, TimeIsUp, TooManyConnections
from penstock.client.cluster.slot_map import Address, shown
from penstock.client.delivery import Delivery, Settings, State
from penstock.client.drivers.connecting import HEALTH_CHECK_INTERVAL
from penstock.client.engine.batch import Batch
from penstock.client.engine.connection import ConnectionCore
from penstock.client.engine.encoding import Packed
from penstock.client.errors import ClientClosed, DeliveryError

MOST_PIECES = 64
"""Of a batch that shares a connection although it could have its own."""
WAS_CLOSED = "the client was closed"
_UNBOUNDED = 1 << 62  # what is held is bounded by call_bounds.py, for all nodes together
_NAMELESS = ("command",)


def goes_shared(batch: NodeBatch) -> bool:
    """Whether a batch shares from the start."""
    return len(batch.pieces) <= MOST_PIECES and may_share(batch)


def may_share(batch: NodeBatch) -> bool:
    return batch.lane is None and batch.patience == 0.0


def core_maker(arguments: Mapping[str, Any], encoder: Any) -> Callable[[], ConnectionCore]:
    """Cores for shared connections."""
    settings = Settings(
        Delivery.AT_MOST_ONCE, command_timeout=None, silence_timeout=arguments.get("socket_timeout", 5.0),
        health_check_interval=arguments.get("health_check_interval") or HEALTH_CHECK_INTERVAL,
        max_buffered_commands=_UNBOUNDED, max_buffered_bytes=_UNBOUNDED, backoff_base=0.0, backoff_cap=0.0,
    )  # fmt: skip
    encoding = encoder.encoding if encoder.decode_responses else None
    return partial(ConnectionCore, settings, encoding=encoding, encoding_errors=encoder.encoding_errors)


def as_batch(batch: NodeBatch, deadline: float) -> Batch:
    """A batch as the core wants it."""
    pieces = batch.pieces
    if len(pieces) == 1:
        made = Batch(_NAMELESS, pieces[0])
    else:
        packed = Packed(b"".join(pieces), array("Q", map(len, pieces)), len(pieces), {})
        made = Batch.of((_NAMELESS,) * len(pieces), packed)
    if batch.raw:
        made.raw = batch.raw
    if deadline != math.inf:
        made.deadline = deadline
    return made


def outcome_of(done: Batch) -> Outcome:
    """The outcome of a batch that the core has finished."""
    replies = done.results
    if not isinstance(replies[-1], Exception) and len(replies) == 1:
        return Outcome(replies)
    for position, reply in enumerate(replies):
        if isinstance(reply, MovedError):
            replies[position] = Moved(f"{reply.host}:{reply.port}")
        elif isinstance(reply, DeliveryError) or getattr(reply, "state", None) is State.QUEUED:
            reached = [result.state for result in replies[position:]]
            is_written = all(state is State.WRITTEN for state in reached)
            # Nothing of it was sent, as far as it has no reply: as if there had been no connection.
            return Outcome(replies[:position], reply, connected=any(reached), is_written=is_written, reached=reached)
    return Outcome(replies)


def out_of_time() -> Outcome:
    """It was not even tried."""
    return Outcome([], TimeIsUp("no time was left to send it"), connected=False)


def closed() -> Outcome:
    """The client was closed. What was sent before may have run all the same, so this is for the logic to tell."""
    return Outcome([], ClientClosed(WAS_CLOSED), connected=False)


def reason(failure: Exception, address: Address, left: float) -> Exception:
    """Why there is no reply, without the core's words about a command it does not know; `left` is how much time there
    was still.
    """
    if isinstance(failure.__cause__, Exception):
        return failure.__cause__
    if not isinstance(failure, redis.TimeoutError):
        return failure
    return no_answer(address, left < _CLOCKS_DIFFER)


_CLOCKS_DIFFER = 0.05  # seconds; loops round their time, and look at it by turns


def no_answer(address: Address, is_up: bool, silence: float | None = None) -> Exception:
    """A node did not answer: the time of the call `is_up`, or the node was silent for too long."""
    if is_up:
        return TimeIsUp(f"{shown(address)} had not answered when its time was up")
    return redis.TimeoutError(f"{shown(address)} was silent" + ("" if silence is None else f" for {silence} s"))


def too_many(batch: NodeBatch, most: int) -> Outcome:
    """There may be no connection more to this node."""
    error = TooManyConnections(
        f"all {most} connections to {shown(batch.address)} are in use, by commands that block and by transactions "
        "that watch; raise max_connections"
    )
    return Outcome([], error, connected=False)
