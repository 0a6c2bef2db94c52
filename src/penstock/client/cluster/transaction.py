"""MULTI/EXEC on a cluster: all keys in one slot, so one node, so one transaction there.

Seed 003 holds MULTI/EXEC impossible because a packed transaction over a moving slot answers only "aborted". It is possible since every
refusal can be read: the command that is refused while queueing answers MOVED, ASK or TRYAGAIN itself, and so does EXEC. Either way
nothing of the transaction ran, so the whole of it is sent again to the right node. It is repeated whole or not at all.

With WATCH everything goes over one connection (a Lane). When that is lost, what was watched is forgotten by the server, so the
transaction is never repeated by itself: WatchLost says that nothing ran, OutcomeUnknown that EXEC may have.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from redis.exceptions import AskError, ExecAbortError, MovedError, ResponseError, WatchError

from penstock.client.cluster.effects import Batch, Effect, Exchange, Lane, Outcome, Pause, Refresh, Rules
from penstock.client.cluster.errors import CrossSlotRefused, WatchLost, as_exception
from penstock.client.cluster.pipeline import ASKING, REFUSALS
from penstock.client.cluster.plan import UNKEYED, Plan
from penstock.client.cluster.slot_map import Address, SlotMap, address_of, shown
from penstock.client.cluster.strategies import single_slot
from penstock.client.commands import name_of
from penstock.client.delivery import Delivery, State
from penstock.client.errors import NotReplayed, NotSent, OutcomeUnknown
from penstock.protocol.resp import pack

_MULTI, _EXEC = pack(b"MULTI"), pack(b"EXEC")


class Transaction:
    """One transaction, from the first WATCH to EXEC."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.lane = Lane()
        self._node: Address | None = None  # that has the WATCH
        self._slot = UNKEYED
        self._end: WatchLost | None = None  # it cannot go on
        self._sent = State.QUEUED  # how far it came without a reply
        self._attempt = 0
        self._started = rules.clock()

    @property
    def is_watching(self) -> bool:
        return self._node is not None

    # -- before MULTI -------------------------------------------------------------------------------------------

    def immediate(self, plan: Plan, watch: bool, slot_map: SlotMap) -> Generator[Effect, Any, Any]:
        """WATCH, or a command between WATCH and MULTI; the reply, or an exception."""
        if self._end is not None:
            raise self._end
        slot = single_slot(plan)
        if self._slot not in (UNKEYED, slot) and slot != UNKEYED:
            raise CrossSlotRefused("a transaction", {plan.route(0).keys[0]: slot, b"what is watched": self._slot})
        while True:
            first = self._node is None
            node = self._node or slot_map.owners[slot]
            if node is None:
                raise NotSent(f"{name_of(plan.commands[0])} was not sent: no node serves slot {slot}")
            outcomes: list[Outcome] = yield Exchange(
                [Batch(node, plan.packed, [0], lane=self.lane, patience=plan.patience)]
            )
            outcome = outcomes[0]
            reply: Any = outcome.error if outcome.error is not None else as_exception(outcome.replies[0])
            if outcome.error is None and reply.__class__ not in REFUSALS:
                if watch and not isinstance(reply, Exception):
                    self._node, self._slot = node, slot
                return reply
            if not first:  # something is watched on this connection, and this node has lost the slot or the connection
                lost = self._forgotten(node, reply)
                if outcome.error is None or not outcome.accepted or plan.route(0).reads:
                    raise lost
                name = name_of(plan.commands[0])
                raise OutcomeUnknown(f"{name} was sent to {shown(node)} and its reply never came", State.WRITTEN, name)
            again = yield from self._again(reply, node, slot_map)
            if again is None:
                if isinstance(reply, ResponseError):
                    raise reply
                raise NotSent(f"{name_of(plan.commands[0])} was not sent: {reply}")
            slot_map = again

    # -- MULTI, the commands, EXEC ------------------------------------------------------------------------------

    def execute(self, plan: Plan, slot_map: SlotMap) -> Generator[Effect, Any, list[Any]]:
        """One result a command; WatchError if a watched key was changed."""
        if self._end is not None:
            raise self._end
        slot = single_slot(plan)
        if self.is_watching and slot not in (UNKEYED, self._slot):
            raise CrossSlotRefused("a transaction", {plan.route(0).keys[0]: slot, b"what is watched": self._slot})
        ask: Address | None = None
        while True:
            node = (
                self._node or ask or (slot_map.owners[slot] if slot != UNKEYED else next(iter(slot_map.masters), None))
            )
            if node is None:
                return self._all(plan, NotSent, f"no node serves slot {slot}", State.QUEUED)
            before = [ASKING, _MULTI] if ask else [_MULTI]
            pieces = [*before, *plan.packed, _EXEC]
            lane = self.lane if self.is_watching else None
            outcomes: list[Outcome] = yield Exchange([Batch(node, pieces, [-1] * len(pieces), lane=lane)])
            outcome = outcomes[0]
            if outcome.error is not None:
                ended = self._lost(plan, outcome, outcome.error, node)
                if ended is not None:
                    return ended
                refusal: Exception = outcome.error
            else:
                *queued, reply = map(as_exception, outcome.replies[len(before) :])
                if isinstance(reply, list):
                    return reply
                if reply is None:
                    raise WatchError("a watched key was changed: nothing of the transaction ran")
                if not isinstance(reply, ResponseError) and reply.__class__ not in REFUSALS:
                    return [reply] * len(queued)  # it ran, and its reply cannot be decoded
                errors = [answer for answer in queued if isinstance(answer, Exception)]
                refusals: list[Exception] = [error for error in (*errors, reply) if error.__class__ in REFUSALS]
                if not refusals or len(refusals) < len(errors):
                    return [
                        answer if isinstance(answer, Exception) else ExecAbortError(str(reply)) for answer in queued
                    ]
                refusal = refusals[0]
                if self.is_watching:
                    raise self._forgotten(node, refusal)
            ask = self._named(refusal, node) if type(refusal) is AskError else None
            again = yield from self._again(refusal, node, slot_map)
            if again is None:
                return self._give_up(plan, refusal)
            slot_map = again

    def _lost(self, plan: Plan, outcome: Outcome, error: Exception, node: Address) -> list[Any] | None:
        """The connection failed. None: the whole may be sent again."""
        watching, self._node = self.is_watching, None
        if not outcome.accepted:
            lost = f"the connection to {shown(node)} was lost ({error})"
            return self._all(plan, WatchLost, lost, State.QUEUED) if watching else None
        state = self._sent = max(self._sent, State.WRITTEN if outcome.is_written else State.WRITING)
        where = f"was sent to {shown(node)} in a transaction, and the reply never came ({error})"
        if watching or self._rules.delivery is Delivery.AT_MOST_ONCE:
            return self._all(plan, OutcomeUnknown, where, state)
        for call in plan.commands:
            why_not = self._rules.why_not_again(call, state)
            if why_not is not None:
                return self._all(plan, NotReplayed, f"{where}; {name_of(call)}: {why_not}", state)
        return None

    def _forgotten(self, node: Address, reason: Any) -> WatchLost:
        """What was watched is not watched any more; nothing of the transaction ran, and nothing of it will."""
        self._node = None
        self._end = WatchLost(f"the transaction did not run: what was watched on {shown(node)} is lost ({reason})")
        return self._end

    def _give_up(self, plan: Plan, reason: Exception) -> list[Any]:
        """The budget is spent."""
        if self._sent:
            return self._all(
                plan, OutcomeUnknown, f"was sent in a transaction, and the reply never came ({reason})", self._sent
            )
        if reason.__class__ in REFUSALS:
            return [reason] * len(plan.commands)
        return self._all(plan, NotSent, str(reason), State.QUEUED)

    @staticmethod
    def _all(plan: Plan, error: type[NotSent] | type[OutcomeUnknown], text: str, state: State) -> list[Any]:
        names = [name_of(call) for call in plan.commands]
        return [error(f"{name} {text}" if state else f"{name} was not sent: {text}", state, name) for name in names]

    # -- the budget ---------------------------------------------------------------------------------------------

    def _again(self, reason: Exception, node: Address, slot_map: SlotMap) -> Generator[Effect, Any, SlotMap | None]:
        """The map and the moment for another attempt; None when there is none."""
        self._attempt += 1
        if self._attempt >= self._rules.attempts or self._rules.clock() - self._started > self._rules.patience:
            return None
        redirected = isinstance(reason, AskError)  # MOVED is one too
        if type(reason) is MovedError:
            slot_map = yield Refresh({reason.slot_id: self._named(reason, node)}, slot_map)
        elif not redirected:
            slot_map = yield Refresh(suspect=slot_map)
        if not redirected or self._attempt > 2:
            yield Pause(self._rules.backoff(self._attempt))
        return slot_map

    def _named(self, error: Exception, node: Address) -> Address:
        assert isinstance(error, AskError)
        return address_of(error.host, error.port, node, self._rules.address_remap)
