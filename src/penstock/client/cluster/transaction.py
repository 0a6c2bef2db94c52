"""MULTI/EXEC on a cluster: all keys in one slot, so one node, so one transaction there.

While its slot moves, a transaction is refused: the command that is refused while queueing answers MOVED, ASK or
TRYAGAIN, or EXEC does. Either way nothing of the transaction ran, so the whole of it is sent again to the right node.
It is repeated whole or not at all.

With WATCH everything goes over one connection (a Lane). When that is lost, what was watched is forgotten by the server,
so the transaction is never repeated by itself: WatchLost says that nothing ran, OutcomeUnknown that EXEC may have.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import redis
from redis.exceptions import AskError, ExecAbortError, MovedError, ResponseError, WatchError

from penstock.client.cluster.call_bounds import ClusterCounters
from penstock.client.cluster.driver_requests import (
    DriverRequest,
    Exchange,
    Lane,
    NodeBatch,
    Outcome,
    Pause,
    Refresh,
    Rules,
)
from penstock.client.cluster.errors import (
    REFUSALS,
    CrossSlotRefused,
    TimeIsUp,
    WatchLost,
    as_exception,
    is_final_refusal,
    unknown,
    unsent,
)
from penstock.client.cluster.plan import UNKEYED, Plan
from penstock.client.cluster.rounds import ASKING
from penstock.client.cluster.slot_map import Address, SlotMap, address_of, shown
from penstock.client.cluster.strategies import single_slot
from penstock.client.delivery import State
from penstock.client.engine.command_kinds import as_command, name_of
from penstock.client.errors import NoReplyInTime, NotReplayed, NotSent, NotSentInTime, OutcomeUnknown, stated
from penstock.client.events import Replayed
from penstock.protocol.resp import pack

_MULTI, _EXEC = pack(b"MULTI"), pack(b"EXEC")


class Transaction:
    """One transaction, from the first WATCH to EXEC."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._done = ClusterCounters()
        self._until = math.inf
        self.lane = Lane()
        self._node: Address | None = None  # that has the WATCH
        self._slot = UNKEYED
        self._end: WatchLost | None = None  # it cannot go on
        self._sent = State.QUEUED  # how far it came without a reply
        self._refusal: Exception | None = None  # what a node said last, in the present step
        self._attempt = 0
        self._started = 0.0  # the present step

    @property
    def is_watching(self) -> bool:
        return self._node is not None

    # -- before MULTI -------------------------------------------------------------------------------------------

    def immediate(
        self, plan: Plan, watch: bool, slot_map: SlotMap, until: float = math.inf, done: ClusterCounters | None = None
    ) -> Generator[DriverRequest, Any, Any]:
        """WATCH, or a command between WATCH and MULTI; the reply, or an exception."""
        self._begin(until, done)
        slot = single_slot(plan)
        if self._slot not in (UNKEYED, slot) and slot != UNKEYED:
            raise CrossSlotRefused("a transaction", {plan.route(0).keys[0]: slot, b"what is watched": self._slot})
        (reply,) = yield from self._counted(self._immediate(plan, watch, slot, slot_map), 1)
        return reply

    def _immediate(
        self, plan: Plan, watch: bool, slot: int, slot_map: SlotMap
    ) -> Generator[DriverRequest, Any, list[Any]]:
        name = name_of(plan.commands[0])
        while True:
            first = self._node is None
            node = self._node or slot_map.owners[slot]
            if node is None:
                raise NotSent(f"{name} was not sent: no node serves slot {slot}")
            batch = NodeBatch(node, plan.packed, [0], lane=self.lane, patience=plan.patience, raw=plan.raw)
            outcomes: list[Outcome] = yield Exchange([batch], until=self._until)
            outcome = outcomes[0]
            reply: Any = outcome.error if outcome.error is not None else as_exception(outcome.replies[0], slot)
            if outcome.error is None and reply.__class__ not in REFUSALS:
                if watch and not isinstance(reply, Exception):
                    self._node, self._slot = node, slot
                return [reply]
            if not first:  # something is watched on this connection, and this node has lost the slot or the connection
                lost = self._forgotten(node, reply)
                if outcome.error is None or not outcome.left or plan.route(0).reads:
                    raise lost
                text = f"{name} was sent to {shown(node)} and its reply never came ({reply})"
                raise unknown(text, outcome.states(batch)[0], name, reply)
            again = yield from self._again(reply, outcome, node, slot_map)
            if again is None:
                reply = self._told(reply)
                if reply.__class__ in REFUSALS:
                    raise reply
                if is_final_refusal(reply):
                    raise stated(reply, State.QUEUED)
                # WATCH changes nothing, so it counts as not run whether it was sent or not.
                raise unsent(f"{name} was not sent: {reply}", name, reply, self._is_late)
            slot_map = again

    # -- MULTI, the commands, EXEC ------------------------------------------------------------------------------

    def execute(
        self,
        plan: Plan,
        slot_map: SlotMap,
        until: float = math.inf,
        done: ClusterCounters | None = None,
        is_raw: bool = False,
    ) -> Generator[DriverRequest, Any, list[Any]]:
        """One result a command, not decoded if `is_raw`; WatchError if a watched key was changed."""
        self._begin(until, done)
        slot = single_slot(plan)
        if self.is_watching and slot not in (UNKEYED, self._slot):
            raise CrossSlotRefused("a transaction", {plan.route(0).keys[0]: slot, b"what is watched": self._slot})
        return (yield from self._counted(self._execute(plan, slot, slot_map, is_raw), len(plan.commands)))

    def _execute(
        self, plan: Plan, slot: int, slot_map: SlotMap, is_raw: bool
    ) -> Generator[DriverRequest, Any, list[Any]]:
        ask: Address | None = None
        while True:
            node = (
                self._node or ask or (slot_map.owners[slot] if slot != UNKEYED else next(iter(slot_map.masters), None))
            )
            if node is None:
                return self._all(plan, NotSent, f"no node serves slot {slot}", State.QUEUED)
            if self._sent and (ended := self._replayed(plan, node)) is not None:
                return ended
            before = [ASKING, _MULTI] if ask else [_MULTI]
            pieces = [*before, *plan.packed, _EXEC]
            lane = self.lane if self.is_watching else None
            raw = frozenset([len(pieces) - 1] if is_raw else [])
            batch = NodeBatch(node, pieces, [-1] * len(pieces), lane=lane, raw=raw)
            outcomes: list[Outcome] = yield Exchange([batch], until=self._until)
            outcome = outcomes[0]
            if outcome.error is not None:
                ended = self._lost(plan, outcome, outcome.error, node)
                if ended is not None:
                    return ended
                refusal: Exception = outcome.error
            else:
                *queued, reply = (as_exception(answer, slot) for answer in outcome.replies[len(before) :])
                if isinstance(reply, list):
                    return reply
                if reply is None:
                    raise stated(WatchError("a watched key was changed: nothing of the transaction ran"), State.REPLIED)
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
            again = yield from self._again(refusal, outcome, node, slot_map)
            if again is None:
                return self._give_up(plan, refusal)
            slot_map = again

    def _begin(self, until: float, done: ClusterCounters | None) -> None:
        """A step of the transaction, with its own time."""
        if self._end is not None:
            raise self._end
        self._attempt, self._started, self._until, self._refusal = 0, self._rules.clock(), until, None
        self._done = done or ClusterCounters()

    def _counted(
        self, logic: Generator[DriverRequest, Any, list[Any]], count: int
    ) -> Generator[DriverRequest, Any, list[Any]]:
        """Count a step's commands by what they ended with."""
        try:
            results = yield from logic
        except redis.RedisError as error:
            self._done.count_results([error] * count)
            raise
        self._done.count_results(results)
        return results

    def _told(self, reason: Exception) -> Exception:
        """Why a step ends: what was refused until its time was up did not run, and the refusal says why; better
        TRYAGAIN than ASK.
        """
        return self._refusal if isinstance(reason, TimeIsUp | AskError) and self._refusal is not None else reason

    @property
    def _is_late(self) -> bool:
        return self._rules.clock() >= self._until

    def _lost(self, plan: Plan, outcome: Outcome, error: Exception, node: Address) -> list[Any] | None:
        """The connection failed. None: the whole may be sent again."""
        watching, self._node = self.is_watching, None
        if not outcome.left:
            lost = f"the connection to {shown(node)} was lost ({error})"
            return self._all(plan, WatchLost, lost, State.QUEUED) if watching else None
        self._sent = max(self._sent, State.WRITTEN if outcome.is_written else State.WRITING)
        where = f"was sent to {shown(node)} in a transaction, and the reply never came ({error})"
        if watching:
            return self._all(plan, self._unknown(error), where, self._sent)
        return self._held_back(plan, where, error)

    def _held_back(self, plan: Plan, where: str, error: Exception | None = None) -> list[Any] | None:
        """The result if the current level and filter forbid to send it again; None if it may be sent."""
        if not (plan.repeats and self._rules.repeats):
            return self._all(plan, self._unknown(error), where, self._sent)
        for call in plan.commands:
            why_not = self._rules.why_not_again(call, self._sent)
            if why_not is not None:
                self._done.filtered += len(plan.commands)
                return self._all(plan, NotReplayed, f"{where}; {name_of(call)}: {why_not}", self._sent)
        return None

    def _replayed(self, plan: Plan, node: Address) -> list[Any] | None:
        """It is about to be sent again, if it still may; else its end."""
        ended = self._held_back(plan, "was sent in a transaction, and the reply never came")
        if ended is None:
            self._done.replayed += len(plan.commands)
            self._rules.listeners.tell(Replayed([as_command(call, self._sent) for call in plan.commands], node))
        return ended

    def _unknown(self, error: Exception | None) -> type[OutcomeUnknown]:
        return NoReplyInTime if self._is_late or isinstance(error, redis.TimeoutError) else OutcomeUnknown

    def _forgotten(self, node: Address, reason: Any) -> WatchLost:
        """The WATCH is lost: nothing of the transaction ran, and nothing of it will."""
        self._node = None
        if isinstance(reason, AskError):  # of which redis-py keeps where to, and not why
            reason = f"{'MOVED' if isinstance(reason, MovedError) else 'ASK'} {reason}"
        self._end = WatchLost(f"the transaction did not run: what was watched on {shown(node)} is lost ({reason})")
        return self._end

    def _give_up(self, plan: Plan, reason: Exception) -> list[Any]:
        """The budget is spent."""
        if self._sent:
            text = f"was sent in a transaction, and the reply never came ({reason})"
            return self._all(plan, self._unknown(reason), text, self._sent)
        reason = self._told(reason)
        if reason.__class__ in REFUSALS:
            return [reason] * len(plan.commands)
        if is_final_refusal(reason):
            return [stated(reason, State.QUEUED)] * len(plan.commands)
        is_late = self._is_late or isinstance(reason, redis.TimeoutError)
        return self._all(plan, NotSentInTime if is_late else NotSent, str(reason), State.QUEUED)

    @staticmethod
    def _all(plan: Plan, error: type[NotSent] | type[OutcomeUnknown], text: str, state: State) -> list[Any]:
        names = [name_of(call) for call in plan.commands]
        return [error(f"{name} {text}" if state else f"{name} was not sent: {text}", state, name) for name in names]

    # -- the budget ---------------------------------------------------------------------------------------------

    def _again(
        self, reason: Exception, outcome: Outcome, node: Address, slot_map: SlotMap
    ) -> Generator[DriverRequest, Any, SlotMap | None]:
        """The map and the moment for another attempt; None when there is none."""
        rules = self._rules
        self._attempt += 1
        if reason.__class__ in REFUSALS and not (isinstance(reason, AskError) and self._refusal is not None):
            self._refusal = reason
        if rules.clock() - self._started >= rules.patience or self._is_late:
            return None
        if isinstance(reason, TimeIsUp) or (not outcome.connected and is_final_refusal(reason)):
            return None
        redirected = isinstance(reason, AskError)  # MOVED is one too
        self._done.redirected += redirected
        if type(reason) is MovedError:
            slot_map = yield Refresh({reason.slot_id: self._named(reason, node)}, slot_map, self._until)
        elif not redirected:
            slot_map = yield Refresh(suspect=slot_map, until=self._until)
        if not redirected or self._attempt > 2:
            yield Pause(max(min(rules.backoff(self._attempt), self._until - rules.clock()), 0.0))
        return slot_map

    def _named(self, error: Exception, node: Address) -> Address:
        assert isinstance(error, AskError)
        return address_of(error.host, error.port, node, self._rules.address_remap)
