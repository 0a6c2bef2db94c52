"""Putting dead letters back, without I/O: generators that yield commands, get their replies, and return a plan.

`penstock letters` runs them over redis-py, the console over asyncio. Each plan is one transaction that fails if the
dead-letter stream changed since it was made. It appends the messages to the streams they came from, and moves a group
of the dead-letter stream past their letters. So the group's position is how far letters were put back: an interrupted
replay continues there, and two replays at once do not repeat each other.

A single letter that is put back out of order leaves a mark: it is written under a producer's id that names the letter.
A second attempt appends nothing, and a replay of all passes over it. A stream forgets producers when there are many;
a letter whose mark is forgotten counts as not put back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import chain
from typing import Any

from penstock.protocol.dead_letters import Letter, name_in_text
from penstock.schema.fitting import misfit
from penstock.schema.parser import parse

GROUP = "penstock-letters-replay"
"""The group of a dead-letter stream whose position says how far its letters were put back."""
AT_ONCE = 500
BYTES_AT_ONCE = 4 << 20
MARKED = "it was put back on its own"

Command = tuple[object, ...]
Steps = Generator[Command, Any, Any]


class CannotPutBack(Exception):
    """A letter whose message its stream would not take."""

    def __init__(self, offset: int, why: str, place: int) -> None:
        super().__init__(f"the letter at offset {offset} cannot be put back: {why}")
        self.offset, self.why, self.place = offset, why, place


class Plan:
    """Letters to put back in one transaction."""

    def __init__(self, key: bytes, place: int) -> None:
        self.key = key
        self.place = self.end = place
        self.moves = True
        """Whether the group moves past the letters."""
        self.targets: dict[bytes, dict[int, tuple[bytes, bytes]]] = {}
        """By stream, the messages to put back: by the offset of its letter, the tag and the entry."""
        self.skipped: list[tuple[int, str]] = []
        """The letters that are passed over, and why."""

    def add(self, offset: int, tag: bytes, raw: bytes) -> None:
        self.end = offset + 1
        try:
            letter = Letter.decode(raw)
        except ValueError:
            self.skipped.append((offset, "it is not a letter"))
        else:
            self.targets.setdefault(letter.stream, {})[offset] = tag, letter.entry

    def entries(self, target: bytes) -> Iterable[tuple[int, bytes]]:
        """The offset of each letter to a target, and the entry in it."""
        return [(offset, entry) for offset, (_, entry) in self.targets[target].items()]

    def leave_out(self, target: bytes, offset: int, why: str) -> None:
        """Pass over a letter."""
        self.skipped.append((offset, why))
        del self.targets[target][offset]
        if not self.targets[target]:
            del self.targets[target]

    def commands(self) -> list[Command]:
        if self.moves:
            written: list[Command] = [
                ("TWRITE", target, "ENTRIES", *chain.from_iterable(messages.values()))
                for target, messages in self.targets.items()
            ]
            return [*written, ("TGROUP", "SET", self.key, GROUP, self.end)]
        return [
            ("TWRITE", target, "PRODUCER", mark(self.key, offset), 1, "ENTRIES", *message)
            for target, messages in self.targets.items()
            for offset, message in messages.items()
        ]


def mark(key: bytes, offset: int) -> bytes:
    """The producer's id of a letter that is put back on its own."""
    return b"penstock-letter:%d:%s" % (offset, key[:200])


def position(key: bytes, first: int) -> Steps:
    """The offset of the first letter that was not put back."""
    groups = yield "TGROUP", "LIST", key
    return max([first, *(group[b"position"] for group in groups if group[b"name"] == GROUP.encode())])


def read(key: bytes, place: int, last: int, count: int) -> Steps:
    """The next letters: offset, tag, entry. Letters that compaction removed are left out."""
    found: list[Any] = []
    while not found and place <= last:
        messages = yield "TREAD", key, place, count, "MAXBYTES", BYTES_AT_ONCE
        found = [message for message in messages if message is not None]
        place += len(messages)
    return found


def replay(key: bytes, place: int, bounds: tuple[int, int], limit: int, skip: bool) -> Steps:
    """The plan for the next letters, from `place` or from where another replay is by now."""
    first, last = bounds
    plan = Plan(key, max(place, (yield from position(key, first))))
    for message in (yield from read(key, plan.place, last, limit)):
        plan.add(*message[:3])
    if plan.end == plan.place:  # compaction removed the rest
        plan.end = last + 1
    yield from _leave_out_marked(plan)
    yield from _leave_out_unfit(plan, skip)
    return plan


def single(key: bytes, offset: int, first: int) -> Steps:
    """The plan for one letter. The next in line moves the group past it; another one gets a mark."""
    place = yield from position(key, first)
    plan = Plan(key, offset)
    plan.moves = offset == place
    for message in (yield from read(key, offset, offset, 1)):
        plan.add(*message[:3])
    if offset < place:
        raise CannotPutBack(offset, "it was put back before", offset)
    if not plan.targets:
        raise CannotPutBack(offset, "it is not a letter, or was removed", offset)
    yield from _leave_out_marked(plan)
    if not plan.targets:
        raise CannotPutBack(offset, MARKED, offset)
    yield from _leave_out_unfit(plan, skip=False)
    return plan


def _leave_out_marked(plan: Plan) -> Steps:
    for target in list(plan.targets):
        if (yield "TYPE", target) != b"tstream" or not (yield "TINFO", target)[b"producers"]:
            continue
        for offset, _ in plan.entries(target):
            if (yield "TPRODUCER", target, mark(plan.key, offset)) is not None:
                plan.leave_out(target, offset, MARKED)


def _leave_out_unfit(plan: Plan, skip: bool) -> Steps:
    for target in list(plan.targets):
        for offset, why in (yield from _obstacles(plan, target)):
            if not skip:
                raise CannotPutBack(offset, why, plan.place)
            plan.leave_out(target, offset, why)


def _obstacles(plan: Plan, target: bytes) -> Steps:
    """The letters to a target that cannot be put back, and why.

    An entry that its stream's schema would refuse, or turn into another letter, is one of them.
    """
    name = name_in_text(target)
    if (yield "TYPE", target) not in (b"tstream", b"none"):
        return [(offset, f"'{name}' is no stream") for offset, _ in plan.entries(target)]
    schema = yield "TSCHEMA", "GET", target
    if schema is None or schema[b"check"] == b"off":
        return []
    wanted = parse(schema[b"fields"].decode())
    return [
        (offset, f"it still does not fit the schema of '{name}' ({why}); widen the schema, or set CHECK off")
        for offset, entry in plan.entries(target)
        if (why := misfit(wanted, entry))
    ]
