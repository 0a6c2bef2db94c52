"""A pipeline over a cluster: pack per node, write all before reading any, put the answers into call order.

What the promises are, and what keeps them:

- *A command with a reply never runs again.* Completion is a sentinel in `results`, never the truth of a reply, and only
  what is PENDING is ever put into a batch.
- *Commands that share a key run in call order.* One connection keeps the order of a batch. A command with several keys
  may be told TRYAGAIN while a later one on the same key would run, so it closes the gate of its slot until its reply is
  there. In one round all commands of a slot go to one node. If the server still lets a later command overtake (its
  state changed between the two), the earlier one fails with the server's refusal instead of running late.
- *A refused command was not executed* (MOVED, ASK, TRYAGAIN, CLUSTERDOWN, LOADING, READONLY, UNBLOCKED), so it is
  regrouped with the others and sent again, at every delivery level, for as long as `patience` without progress lasts.
- *A command that was written and has no reply* may have run: the delivery level of the call decides whether it is sent
  again, and the level of now, if it was lowered since (docs/client.md).
- *No command outlives its time* (`until`): it ends with what is known of it then.

Commands whose slots have moved are sent after them as soon as their node has answered, while others still work
(`_take`).

Rejected: resending redirected commands one by one (redis-py-cluster, redis-py): after a reshard every command pays a
round trip. Rejected: sending what is replayed on one key one command at a time. It would spare a command that is
refused in the middle of its replay, and overtaken there, its OutcomeUnknown; ten thousand INCRs of one counter would
pay a round trip each after every cut for it. Rejected: wrapping commands of one slot in MULTI/EXEC to keep their order:
on a half-migrated slot it gets TRYAGAIN where single commands would pass.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final

from redis.exceptions import AskError, SlotNotCoveredError, TryAgainError

from penstock.client.cluster.call_bounds import ClusterCounters
from penstock.client.cluster.driver_requests import DriverRequest, Exchange, NodeBatch, Outcome, Pause, Refresh, Rules
from penstock.client.cluster.errors import (
    REFUSALS,
    Moved,
    TimeIsUp,
    as_exception,
    caused,
    is_final_refusal,
    unknown,
    unsent,
)
from penstock.client.cluster.plan import UNKEYED, Plan
from penstock.client.cluster.rounds import ALONG, RoundPlanner
from penstock.client.cluster.slot_map import Address, SlotMap, address_of, shown
from penstock.client.delivery import State
from penstock.client.engine.command_kinds import as_command, name_of
from penstock.client.errors import NotReplayed, NotSent, OutcomeUnknown, stated
from penstock.client.events import Replayed

PENDING: Final = type("_Pending", (), {"__repr__": lambda self: "PENDING"})()
"""In the place of a result that is not there yet."""


class PackedPipeline:
    """One run of a plan. `run` is the logic; `results` and `states` say afterwards what became of each command."""

    def __init__(
        self, plan: Plan, slot_map: SlotMap, rules: Rules, until: float = math.inf, done: ClusterCounters | None = None
    ) -> None:
        self._plan = plan
        self._rounds = RoundPlanner(plan, slot_map, rules)
        self._rules = rules
        self._until = until
        self._done = done or ClusterCounters()
        self.results: list[Any] = [PENDING] * len(plan.packed)
        self._moves: dict[int, Address] = {}  # learned since the last refresh
        self._attempts: dict[int, int] = {}
        self._sent: dict[int, State] = {}  # how far commands came that were written and lost their reply
        self._allowed_by = rules.delivery, rules.replay_filter  # what let them be sent again
        self._last_error: dict[int, Exception | Moved] = {}
        self._refused: list[int] = []  # of one batch
        self._followed: tuple[
            tuple[list[int], Moved], ...
        ] = ()  # batches that moved whole, not yet noted for each command
        self._stale = False  # the map needs a refresh
        self._progress: float | None = None  # when a command was last finished, or the first trouble began

    def run(self) -> Generator[DriverRequest, Any, list[Any]]:
        """Drive every command to its result: a reply, or the exception that says how far it came."""
        pending = range(len(self.results))
        return self._go_on(pending, self._next_round(pending))

    def run_after(self, batch: NodeBatch, outcome: Outcome) -> Generator[DriverRequest, Any, list[Any]]:
        """As `run`, when the first round is over already."""
        batches = self._take(batch, outcome)
        return self._go_on(self._without_result(range(len(self.results))), batches)

    def _go_on(self, pending: Sequence[int], batches: list[NodeBatch]) -> Generator[DriverRequest, Any, list[Any]]:
        rules = self._rules
        while pending:
            if batches:
                yield Exchange(batches, self._take, self._until)
                before = len(pending)
                pending = self._without_result(pending)
                if not pending:
                    break
                self._note_followed()
                if len(pending) < before:
                    self._progress = None
            if rules.clock() >= self._until:
                self._give_up(pending, rules.late(), is_late=True)
                break
            if self._stale or self._moves:
                self._rounds.map = yield Refresh(self._moves, self._rounds.map, self._until)
                self._moves, self._stale = {}, False
            now = rules.clock()
            if self._progress is None:
                self._progress = now
            if now - self._progress >= rules.patience:
                self._give_up(pending, f"nothing moved for {rules.patience:g} s")
                break
            if self._sent and (rules.delivery, rules.replay_filter) != self._allowed_by:
                pending = self._ask_again(pending)
            batches = self._next_round(pending)
            if self._sent:
                self._tell_of_replay(batches)
            if pending and not batches and not self._stale:
                wake = self._rounds.next_wake(pending, now)
                yield Pause(max(min(wake, self._until) - now, 0.0))
        if self._moves or self._stale:  # what was learned last is of use to the next pipeline
            yield Refresh(self._moves, self._rounds.map, self._until)
        self._done.count_results(self.results)
        return self.results

    def _without_result(self, indices: Sequence[int]) -> list[int]:
        results = self.results
        return [index for index in indices if results[index] is PENDING]

    @property
    def states(self) -> list[State]:
        return [
            result.state if isinstance(result, NotSent | OutcomeUnknown) else State.REPLIED for result in self.results
        ]

    def _next_round(self, pending: Sequence[int]) -> list[NodeBatch]:
        batches, uncovered = self._rounds.next_round(pending)
        for index in uncovered:
            slot = self._plan.slots[index]
            self._last_error[index] = SlotNotCoveredError(f"no node serves slot {slot}")
            self._stale = True
            self._rounds.pause(slot, self._rules.backoff(self._count(index)))
        return batches

    # -- after a batch ------------------------------------------------------------------------------------------

    def _take(self, batch: NodeBatch, outcome: Outcome) -> list[NodeBatch]:
        """Finish a batch. If its slots have moved, and nothing else is the matter, what they refused follows them at
        once.

        All pending commands of a slot are in one batch of a plain round, so their order is kept. Whatever needs a wait,
        a new map or a second redirect is for the next round.
        """
        kinds = set(map(type, outcome.replies))
        if outcome.error is None and ALONG not in batch.indices:
            if kinds.isdisjoint(REFUSALS):
                results = self.results
                for index, reply in zip(batch.indices, outcome.replies, strict=True):
                    results[index] = reply
                return []
            if kinds == {Moved} and self._may_follow_whole(batch) and len(places := set(outcome.replies)) == 1:
                return [self._follow_whole(batch, *places)]
        self._note_followed()
        self._refused = []
        followed = self._take_each(batch, outcome, kinds)
        if not followed or not self._rounds.is_plain:
            return []
        (place, *others), packed = set(followed.values()), self._plan.packed
        if not others and len(followed) == len(batch.indices):
            return [NodeBatch(place, batch.pieces, batch.indices, patience=batch.patience)]
        groups: dict[Address, list[int]] = defaultdict(list)
        for index, address in followed.items():
            if self.results[index] is PENDING:
                groups[address].append(index)
        return [
            NodeBatch(address, [packed[index] for index in group], group, patience=batch.patience)
            for address, group in groups.items()
        ]

    def _may_follow_whole(self, batch: NodeBatch) -> bool:
        """If all of it moved to one place: whether it may go there as it is, without a look at each command."""
        is_first = not self._attempts and all(indices is not batch.indices for indices, _ in self._followed)
        return is_first and self._rounds.is_plain and self._rules.patience > 0

    def _follow_whole(self, batch: NodeBatch, place: Moved) -> NodeBatch:
        """A node has none of its slots any more, as after a failover; that may be thousands of commands."""
        address, slots, indices = self._named(place, batch), self._plan.slots, batch.indices
        self._moves.update(dict.fromkeys([slots[index] for index in indices], address))
        self._done.redirected += len(indices)
        self._followed += ((indices, place),)
        return NodeBatch(address, batch.pieces, indices, patience=batch.patience)

    def _note_followed(self) -> None:
        """Something else is the matter: what following was for each command counts from now on."""
        for indices, place in self._followed:
            self._attempts.update(dict.fromkeys(indices, 1))
            self._last_error.update(dict.fromkeys(indices, place))
        self._followed = ()

    def _take_each(self, batch: NodeBatch, outcome: Outcome, kinds: set[type[Any]]) -> dict[int, Address]:
        """Take in what came; where to send the commands that may follow their slots now."""
        results, indices, replies = self.results, batch.indices, outcome.replies
        if outcome.error is None and kinds == {Moved} and ALONG not in indices:
            return self._moved(indices, replies, batch)
        followed: dict[int, Address] = {}
        moved: dict[int, Moved] = {}
        for index, reply in zip(indices, replies, strict=False):
            if reply.__class__ not in REFUSALS:
                if index != ALONG:
                    results[index] = reply
            elif reply.__class__ is Moved:
                moved[index] = reply
            elif index != ALONG:
                self._refusal(index, reply, batch)
        if moved:
            followed = self._moved(list(moved), list(moved.values()), batch)
        if outcome.error is not None:
            self._lost(batch, outcome, outcome.error)
        self._check_order(batch)
        return followed if kinds & REFUSALS == {Moved} and outcome.error is None else {}

    def _moved(self, indices: list[int], replies: list[Moved], batch: NodeBatch) -> dict[int, Address]:
        """These slots have other owners now; after a reshard that may be every command of a pipeline, so it is quick.

        Answers where they are, if this is the first refusal for all of them.
        """
        slots, attempts, moves, pinned = self._plan.slots, self._attempts, self._moves, self._plan.pinned
        self._rounds.avoid_replica(batch)
        self._done.redirected += len(indices)
        self._refused += indices
        self._last_error.update(zip(indices, replies, strict=True))
        addresses = {place: self._named(place, batch) for place in set(replies)}
        owners = [addresses[place] for place in replies]
        moves.update(zip([slots[index] for index in indices], owners, strict=True))
        moves.pop(UNKEYED, None)  # of commands that were to run on a certain node
        if not pinned and self._rules.patience > 0 and attempts.keys().isdisjoint(indices):
            attempts.update(dict.fromkeys(indices, 1))
            if len(addresses) > 1:  # a slot that moved on in between: all its commands go to where it was last
                owners = [moves[slots[index]] for index in indices]
            return dict(zip(indices, owners, strict=True))
        for index in indices:
            self._redirected_again(index, self._count(index))
        return {}

    def _refusal(self, index: int, error: Exception, batch: NodeBatch) -> None:
        """The server did not run it, and says why."""
        self._refused.append(index)
        self._last_error[index] = error
        attempt = self._count(index)
        if isinstance(error, AskError):
            self._done.redirected += 1
            self._rounds.asks[index] = self._named(f"{error.host}:{error.port}", batch)
            self._redirected_again(index, attempt)
            return
        self._stale = self._stale or not isinstance(error, TryAgainError)
        self._rounds.avoid_replica(batch)
        self._rounds.pause(self._plan.slots[index], self._rules.backoff(attempt))

    def _redirected_again(self, index: int, attempt: int) -> None:
        """Twice in a row is a race, more is a quarrel between nodes, which needs time."""
        if index in self._plan.pinned:
            self._give_up([index], "it was to run on this node and no other")
        elif attempt > 2:
            self._rounds.pause(self._plan.slots[index], self._rules.backoff(attempt - 2))

    def _named(self, place: str, batch: NodeBatch) -> Address:
        host, _, port = place.rpartition(":")
        return address_of(host, int(port), batch.address, self._rules.address_remap)

    def _lost(self, batch: NodeBatch, outcome: Outcome, error: Exception) -> None:
        """The connection failed: what was not written goes elsewhere, about the rest the delivery level decides."""
        if isinstance(error, TimeIsUp):
            self._until = min(self._until, self._rules.clock())  # the driver's clock may differ a little
        else:
            self._stale = True
        self._rounds.avoid_replica(batch)
        is_final = not outcome.connected and is_final_refusal(error)
        rest = batch.indices[len(outcome.replies) :]
        for index, state in zip(rest, outcome.states(batch), strict=True):
            if index == ALONG:
                continue
            self._last_error[index] = error
            if state is not State.QUEUED and not self._may_repeat(index, state, f"to {shown(batch.address)} ", error):
                continue
            if is_final and index not in self._sent:
                self.results[index] = stated(error, State.QUEUED)
                continue
            attempt = self._count(index)
            if not outcome.connected or attempt > 1:
                self._rounds.pause(self._plan.slots[index], self._rules.backoff(attempt))
            if is_final:
                self._give_up([index], f"{attempt} connections failed")

    def _may_repeat(self, index: int, state: State, where: str, reason: Exception | Moved | None) -> bool:
        """Whether a command that was written may be written again; if not, it has failed."""
        rules, name, error = self._rules, self._name(index), self._as_exception(index, reason)
        state = self._sent[index] = max(state, self._sent.get(index, state))
        self._allowed_by = rules.delivery, rules.replay_filter
        if not (self._plan.repeats and rules.repeats):
            text = f"{name} was sent {where}and its reply never came ({error}): whether it ran is not known"
            self.results[index] = unknown(text, state, name, error)
            return False
        why_not = rules.why_not_again(self._plan.commands[index], state)
        if why_not is not None:
            text = f"{name} was sent {where}and its reply never came ({error}); {why_not}"
            self.results[index] = caused(NotReplayed(text, state, name), error)
            self._done.filtered += 1
            return False
        return True

    def _ask_again(self, pending: Sequence[int]) -> list[int]:
        """The level or the filter was changed since commands lost their replies: some may not be sent again
        any more.
        """
        for index in pending:
            if index in self._sent:
                self._may_repeat(index, self._sent[index], "", self._last_error.get(index))
        return self._without_result(pending)

    def _tell_of_replay(self, batches: Sequence[NodeBatch]) -> None:
        """Commands that were written before are about to be written again."""
        for batch in batches:
            again = [
                as_command(self._plan.commands[index], self._sent[index])
                for index in batch.indices
                if index in self._sent
            ]
            if again:
                self._done.replayed += len(again)
                self._rules.listeners.tell(Replayed(again, batch.address))

    def _check_order(self, batch: NodeBatch) -> None:
        """A refused command that a later, conflicting one has overtaken may not run any more: it fails as refused.

        Commands that conflict are of one slot, and go to one node in one round: they are in one batch.
        """
        plan, refused = self._plan, self._refused
        slots = {plan.slots[index] for index in refused}
        by_key: dict[bytes, list[tuple[int, bool]]] = {}
        for index in refused:
            route = plan.route(index)
            for key in route.keys:
                by_key.setdefault(key, []).append((index, route.reads))
        for index in batch.indices:
            if index == ALONG or plan.slots[index] not in slots or not self._has_run(index):
                continue
            route = plan.route(index)
            for earlier, reads in (row for key in route.keys for row in by_key.get(key, ())):
                if earlier < index and self.results[earlier] is PENDING and not (reads and route.reads):
                    self._give_up([earlier], f"{self._name(index)}, called later on the same key, ran before it")

    def _has_run(self, index: int) -> bool:
        """It has an answer, or may have run for all we know."""
        return self.results[index] is not PENDING and self.results[index].__class__ not in REFUSALS

    # -- the budget ---------------------------------------------------------------------------------------------

    def _count(self, index: int) -> int:
        attempt = self._attempts[index] = self._attempts.get(index, 0) + 1
        if self._plan.slots[index] == UNKEYED:
            self._rounds.use_another_master()
        return attempt

    def _give_up(self, indices: Iterable[int], why: str, is_late: bool = False) -> None:
        """End commands with the error that says most truly how far they came."""
        for index in indices:
            name, error = self._name(index), self._as_exception(index, self._last_error.get(index))
            if index in self._sent:
                text = f"{name} was sent, its reply never came, and it could not be sent again: {why} ({error})"
                self.results[index] = unknown(text, self._sent[index], name, error, is_late)
            elif error is not None and error.__class__ in REFUSALS:
                error.args = (f"{error} ({why})",)
                self.results[index] = error
            else:
                reason = f"{why} ({error})" if error is not None else why
                self.results[index] = unsent(f"{name} was not sent: {reason}", name, error, is_late)

    def _as_exception(self, index: int, error: Exception | Moved | None) -> Any:
        return as_exception(error, self._plan.route(index).slot) if error.__class__ is Moved else error

    def _name(self, index: int) -> str:
        return name_of(self._plan.commands[index])
