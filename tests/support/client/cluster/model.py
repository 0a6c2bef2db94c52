"""A cluster of three nodes in forty lines of rules, which runs the client's logic without a socket.

It does what the cluster specification says: a slot has an owner; while it moves, keys are on one side or the other; the
owner answers ASK for keys it does not have, TRYAGAIN for commands whose keys are on both sides, and everybody else
MOVED. `ran` is the log of what was executed. Between any two commands of a batch a test may have something happen
(`between`), and cut a batch anywhere (`cut`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hiredis

from penstock.client.cluster.driver_requests import Exchange, Logic, NodeBatch, Outcome, Pause, Refresh, Rules
from penstock.client.cluster.errors import decode_error
from penstock.client.cluster.plan import Plan
from penstock.client.cluster.routing import CommandTable
from penstock.client.cluster.slot_map import Address, SlotMap
from penstock.protocol.slots import SLOTS, key_slot

NODES: list[Address] = [("a", 1), ("b", 2), ("c", 3)]

# Name, arity, flags, first key, last key, step; the last argument names the call, so that the log can be read.
TABLE = CommandTable.parse(
    [
        [b"set", 3, [b"write"], 1, 1, 1],
        [b"get", 3, [b"readonly"], 1, 1, 1],
        [b"mset", -3, [b"write"], 1, -2, 1],
        [b"mget", -3, [b"readonly"], 1, -2, 1],
        [b"ping", -1, [], 0, 0, 0],
    ]
)


class Cut(Exception):
    """The connection ends here."""


@dataclass
class Model:
    """The cluster; `owners`, `moving` and `moved` are its whole state."""

    owners: dict[int, Address] = field(default_factory=dict)  # slots that are not node a's
    moving: dict[int, Address] = field(default_factory=dict)  # slot -> where to
    moved: set[bytes] = field(default_factory=set)  # keys of moving slots that have arrived
    down: set[Address] = field(default_factory=set)
    ran: list[bytes] = field(default_factory=list)  # calls, by their last argument, as often as they ran
    replies: dict[bytes, Any] = field(default_factory=dict)  # the last reply that each was given
    batches: list[tuple[Address, list[bytes]]] = field(default_factory=list)
    now: float = 0.0
    refreshes: int = 0
    reply: Callable[[bytes], Any] = lambda call: call
    between: Callable[[Model], str | None] = lambda model: None
    """Called before each command: it may change the state, or answer an error such as `CLUSTERDOWN ...` in
    its place.
    """
    cut: Callable[[Model, NodeBatch], tuple[int, int] | None] = lambda model, batch: None
    """Called for each batch: (pieces that are executed, replies that arrive) before the connection ends."""

    @property
    def map(self) -> SlotMap:
        owners = [NODES[0]] * SLOTS
        for slot, owner in self.owners.items():
            owners[slot] = owner
        return SlotMap(tuple(owners), {}, epoch=self.refreshes, is_covered=True)

    # -- being asked --------------------------------------------------------------------------------------------

    def answer(self, node: Address, argv: list[bytes], asking: bool) -> Any:
        if (error := self.between(self)) is not None:
            return decode_error(error)
        _, *keys, call = argv if len(argv) > 1 else [*argv, b""]
        if keys:
            slot = key_slot(keys[0])
            if (refusal := self._refusal(node, slot, keys, asking)) is not None:
                return decode_error(refusal)
        self.ran.append(call)
        self.replies[call] = self.reply(call)
        return self.replies[call]

    def _refusal(self, node: Address, slot: int, keys: list[bytes], asking: bool) -> str | None:
        owner, target = self.owners.get(slot, NODES[0]), self.moving.get(slot)
        here = [(key in self.moved) == (node == target) for key in keys]
        if node == owner:
            if target is None or all(here):
                return None
            return "TRYAGAIN Multiple keys" if any(here) else f"ASK {slot} {target[0]}:{target[1]}"
        if node == target and asking:
            return None if all(here) or len(set(keys)) == 1 else "TRYAGAIN Multiple keys"
        return f"MOVED {slot} {owner[0]}:{owner[1]}"

    def exchange(self, batch: NodeBatch) -> Outcome:
        if batch.address in self.down:
            return Outcome([], ConnectionRefusedError("refused"), connected=False)
        requests = [_words(piece) for piece in batch.pieces]
        self.batches.append((batch.address, [b" ".join(words) for words in requests]))
        cut = self.cut(self, batch)
        executed = len(requests) if cut is None else cut[0]
        replies: list[Any] = []
        asking = False
        for words in requests[:executed]:
            if words == [b"ASKING"]:
                asking = True
                replies.append(b"OK")
            else:
                replies.append(self.answer(batch.address, words, asking))
                asking = False
        if cut is None:
            return Outcome(replies)
        return Outcome(replies[: cut[1]], ConnectionResetError("cut"), accepted=sum(map(len, batch.pieces[:executed])))

    def exchange_all(self, request: Exchange) -> list[Outcome]:
        """One batch after the other, and then those that follow them."""
        outcomes: list[Outcome] = []
        batches = deque(request.batches)
        while batches:
            batch = batches.popleft()
            outcomes.append(self.exchange(batch))
            if request.then is not None:
                batches += request.then(batch, outcomes[-1])
        return outcomes[: len(request.batches)]

    # -- being driven -------------------------------------------------------------------------------------------

    def rules(self, **changes: Any) -> Rules:
        return Rules(clock=lambda: self.now, jitter=lambda: 1.0, **changes)

    def plan(self, calls: list[tuple[Any, ...]], split: bool = False) -> Plan:
        plan = Plan(TABLE)
        plan.add_all(calls, split, self.map)
        return plan

    def drive(self, logic: Logic) -> Any:
        """Run the logic to its end, as sync.py does, with this model as the cluster."""
        result: Any = None
        try:
            while True:
                request = logic.send(result)
                if isinstance(request, Exchange):
                    result = self.exchange_all(request)
                elif isinstance(request, Refresh):
                    self.refreshes += 1
                    result = self.map.with_moves(request.moves)
                else:
                    assert isinstance(request, Pause)
                    self.now += request.seconds
                    result = None
        except StopIteration as end:
            return end.value


def _words(piece: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(piece)
    words: list[bytes] = reader.gets()
    return words
