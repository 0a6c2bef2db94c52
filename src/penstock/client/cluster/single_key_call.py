"""The most common call: one command with one key, to the master of its slot, over the shared connection.

Such a command needs no plan if its node answers normally. One object is both the batch that the core queues and the
unit that the bounds count. Errors go to `ClusterCore.after`, as the outcome of a first round.

Rejected: the same logic with cheaper requests. Nested generators and coroutines were a third of the cost of a call.
"""

from __future__ import annotations

from typing import Any

from penstock.client.cluster.call_bounds import Hold
from penstock.client.cluster.slot_map import Address
from penstock.client.engine.batch import Batch, lay_out

WAITER_BYTES = 700
"""What a task that waits for it costs, its coroutines and its future; tests/client/cluster/test_bounds.py measures it.
"""


class SingleKeyCall(Batch, Hold):
    """See the top of this file."""

    def __init__(self, arguments: tuple[Any, ...], data: bytes, address: Address, until: float) -> None:
        Batch.__init__(self, arguments, data)
        self.size += WAITER_BYTES
        self.address = address
        self.until = until
        """When its time is up, by the clock of the rules; `deadline` is the same by the clock of its driver."""
        self.is_held = False

    repeats = True
    """As that of a Plan."""


lay_out(SingleKeyCall, SingleKeyCall((), b"", ("", 0), 0.0))
