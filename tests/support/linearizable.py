"""Whether what clients saw of some sets can be explained by any order of their commands.

This is the search of Wing and Gong over histories of the whole model, all keys together because commands such as
SUNIONSTORE touch several: take any command that was sent before every other one was answered, run it on the model, go
on if the reply is the one that its client got. What was reached before (the same commands done, the same state) is not
tried again, and a command that cannot have changed anything is taken as soon as its reply fits, which loses no order.
Members are unique in a history, so that a reply leaves few orders to choose from.

A command whose client was gone before its reply came may have happened at any time since it was sent, or never.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

KEYS = ("a", "b", "c", "d")
State = dict[str, frozenset[str]]  # never changed; a key that is not there is an empty set
Words = tuple[str, ...]

_READS = ("SMEMBERS", "SCARD", "SUNION")
_IDLE_IF_0 = ("SADD", "SREM", "SMOVE", "DEL", "COPY", "SPOP")  # SPOP answers None

UNKNOWN = object()
"""The reply of a command whose client did not see it."""
EMPTY: State = dict.fromkeys(KEYS, frozenset())


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A command that a client sent, or several in a transaction, with what came back and the time of both."""

    commands: tuple[Words, ...]
    sent: float
    reply: Any = UNKNOWN  # of each command
    answered: float = math.inf

    @property
    def changed_nothing(self) -> bool:
        """Whether it cannot have changed anything, whenever it happened."""
        return self.reply is not UNKNOWN and all(
            words[0] in _READS or (words[0] in _IDLE_IF_0 and not reply)
            for words, reply in zip(self.commands, self.reply, strict=True)
        )


def outcomes(state: State, words: Words) -> list[tuple[State, Any]]:
    """What a command may lead to, a state and a reply: SPOP has as many outcomes as there are members."""
    name, *rest = words
    if name == "SPOP" and state[rest[0]]:
        found = state[rest[0]]
        return [(state | {rest[0]: found - {member}}, member) for member in sorted(found)]
    return [_outcome(state, name, rest)]


def _outcome(state: State, name: str, rest: list[str]) -> tuple[State, Any]:
    if name == "LAZY":
        return _outcome(state, rest[0], rest[1:])[0], "LAZY-ENQUEUED"
    if name == "FLUSHALL":
        return EMPTY, "OK"
    key, *more = rest
    found = state[key]
    if name == "SMEMBERS":
        return state, found
    if name == "SCARD":
        return state, len(found)
    if name == "SUNION":
        return state, found.union(*(state[each] for each in more))
    if name == "SADD":
        return state | {key: found.union(more)}, len(set(more) - found)
    if name == "SREM":
        return state | {key: found.difference(more)}, len(found.intersection(more))
    if name == "SMOVE":
        target, member = more
        if member not in found:
            return state, 0
        state = state | {key: found - {member}}
        return state | {target: state[target] | {member}}, 1
    if name == "SPOP":
        return state, None
    if name == "DEL":
        return state | {key: frozenset()}, int(bool(found))
    if name == "COPY":
        return (state | {more[0]: found}, 1) if found else (state, 0)
    combine = {
        "SUNIONSTORE": frozenset.union, "SINTERSTORE": frozenset.intersection, "SDIFFSTORE": frozenset.difference
    }[name]  # fmt: skip
    stored = combine(*(state[each] for each in more))
    return state | {key: stored}, len(stored)


def _after(state: State, done: Done) -> list[State]:
    """The states after what a client sent; none if it could not have been answered like this."""
    states = [state]
    for at, words in enumerate(done.commands):
        seen = UNKNOWN if done.reply is UNKNOWN else done.reply[at]
        states = [
            after for before in states for after, reply in outcomes(before, words) if seen is UNKNOWN or reply == seen
        ]
    return states


def is_linearizable(history: Iterable[Done], state: State = EMPTY) -> bool:
    """Whether some order that respects time explains every reply."""
    ops = sorted(history, key=lambda done: done.sent)
    must = sum(1 << at for at, done in enumerate(ops) if done.reply is not UNKNOWN)
    reached: set[tuple[int, tuple[frozenset[str], ...]]] = set()
    stack = [(0, state)]
    while stack:
        taken, state = stack.pop()
        if taken & must == must:
            return True
        place = (taken, tuple(state.values()))
        if place not in reached:
            reached.add(place)
            stack += _next(ops, taken, state)
    return False


def _next(ops: list[Done], taken: int, state: State) -> list[tuple[int, State]]:
    """Where one more command may lead to; the one that was sent first is the last of these."""
    options = []
    for at in _candidates(ops, taken):
        after = [(taken | 1 << at, each) for each in _after(state, ops[at])]
        if after and ops[at].changed_nothing:
            return after
        options += after
    return options[::-1]


def _candidates(ops: list[Done], taken: int) -> list[int]:
    """Those that were sent before any other one that is left was answered."""
    first_answer = math.inf
    candidates = []
    for at in range((~taken & (taken + 1)).bit_length() - 1, len(ops)):
        if ops[at].sent > first_answer:
            break
        if not taken >> at & 1:
            candidates.append(at)
            first_answer = min(first_answer, ops[at].answered)
    return candidates
