"""What clients were told, and whether it was true: a checker of histories.

Clients note each operation: when it began and ended, what it was about, and what they were told. At the end the data is
read once more. `check` then says which of these things happened:

    lost         a write was acknowledged, and is not there at the end
    twice        a write is there more often than it was made
    vanished     a read showed something that is not there at the end
    went back    the position of a group at the end is before one that was read
    deposed      a server acknowledged a write that began after another one had taken over
    stale        a read showed less than an earlier one had, or than was acknowledged before it began

Four kinds of data make that visible. A *register* is written by one client with growing numbers, so a smaller one is an
older one. A *counter* is incremented by all; each reply is a number of its own. A *list* and a *stream* grow at their
end with entries of which no two are equal, so a read is the beginning of all later ones.

The checker has no I/O, and knows nothing of servers. It errs on the side of silence: where a client was told nothing,
both outcomes are right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class Told(Enum):
    """What a client knows of its operation."""

    DONE = "done"
    UNKNOWN = "unknown"
    NOT_DONE = "not done"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client."""

    kind: str
    """register, counter, list, stream, position"""
    is_write: bool
    key: str
    value: Any
    """What was written: a number or an entry. What was read: the number, or all entries. A read that failed is not
    noted.
    """
    began: float
    ended: float
    told: Told = Told.DONE
    reply: Any = None
    """Of a counter its new value, of a stream the offset."""
    server: int = 0
    """The server that was asked, if the client chose it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not happen."""

    what: str
    key: str
    text: str


class Promotion(NamedTuple):
    """A server took over: not before it was asked, and before that was seen."""

    began: float
    done: float
    server: int


@dataclass(slots=True)
class History:
    """Filled by many threads: lists are only appended to."""

    operations: list[Operation] = field(default_factory=list)
    promotions: list[Promotion] = field(default_factory=list)
    """In order."""


Final = Mapping[str, Any]
"""The data at the end, by key: a number for registers and counters (0 if there is none), a list of entries for the
others.
"""


def check(history: History, final: Final) -> list[Violation]:
    """All that went wrong. Keys that are not in `final` are checked without it."""
    by_key: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for operation in history.operations:
        by_key[operation.kind, operation.key].append(operation)
    found: list[Violation] = []
    for (kind, key), operations in by_key.items():
        writes = [each for each in operations if each.is_write]
        reads = sorted((each for each in operations if not each.is_write), key=lambda each: each.began)
        all_of_it = list(_CHECKS[kind](key, writes, reads, final.get(key)))
        first = {each.what: each for each in reversed(all_of_it)}  # one read more is no news
        found += [each for each in all_of_it if each.what not in ("vanished", "stale") or each is first[each.what]]
    found += _deposed(history)
    return found


def _known(writes: Iterable[Operation]) -> list[Operation]:
    return [write for write in writes if write.told is Told.DONE]


def _register(key: str, writes: list[Operation], reads: list[Operation], final: Any) -> Iterator[Violation]:
    yield from _stale(key, reads, [(each.ended, each.value) for each in (*_known(writes), *reads)])
    if final is None:
        return
    for what, told in (("lost", _known(writes)), ("vanished", reads)):
        newest = max((each.value for each in told), default=0)
        if final < newest:
            yield Violation(what, key, f"{newest} was {'written' if what == 'lost' else 'read'}, and it is {final}")


def _stale(key: str, reads: Sequence[Operation], known: list[tuple[float, int]]) -> Iterator[Violation]:
    """Reads, by their beginning, that show less than what was known at some time before."""
    known.sort()
    newest, at = 0, 0
    for read in reads:
        while at < len(known) and known[at][0] < read.began:
            newest = max(newest, known[at][1])
            at += 1
        if read.value < newest:
            yield Violation("stale", key, f"{newest} was known, and {read.value} was read later")


def _counter(key: str, writes: list[Operation], reads: list[Operation], final: Any) -> Iterator[Violation]:
    done = _known(writes)
    yield from _stale(key, reads, [(write.ended, write.reply) for write in done])
    for reply, times in Counter(write.reply for write in done).items():
        if times > 1:
            yield Violation("lost", key, f"{times} increments were acknowledged with {reply}")
    if final is None:
        return
    unknown = sum(write.told is Told.UNKNOWN for write in writes)
    if final < max((read.value for read in reads), default=0):
        yield Violation("vanished", key, f"more was read, and it is {final}")
    if final < len(done):
        yield Violation("lost", key, f"{len(done)} increments were acknowledged, and it is {final}")
    if final > len(done) + unknown:
        yield Violation("twice", key, f"{len(done)} increments and {unknown} in doubt made it {final}")


def _entries(key: str, writes: list[Operation], reads: list[Operation], final: Any) -> Iterator[Violation]:
    """Of a list or a stream."""
    end = list(final) if final is not None else max((read.value for read in reads), key=len, default=[])
    for read in reads:
        if read.value != end[: len(read.value)]:
            shown = next((entry for entry, now in zip(read.value, end, strict=False) if entry != now), None)
            if shown is None:
                shown = read.value[len(end)]
            yield Violation("vanished", key, f"{shown!r} was read, and something else is in its place")
    lengths = [_length(read) for read in reads]
    yield from _stale(key, lengths, [(read.ended, read.value) for read in lengths])
    if final is None:
        return
    there = Counter(end)
    for write in writes:
        if write.told is Told.DONE and not there[write.value]:
            yield Violation("lost", key, f"{write.value!r} was acknowledged, and is not there")
        elif write.told is Told.NOT_DONE and there[write.value]:
            yield Violation("twice", key, f"{write.value!r} is there, and the client was told that it was not written")
        if there[write.value] > 1:
            yield Violation("twice", key, f"{write.value!r} is there {there[write.value]} times")
        is_placed = write.told is Told.DONE and isinstance(write.reply, int) and write.kind == "stream"
        if is_placed and there[write.value] and end[write.reply - 1 : write.reply] != [write.value]:
            yield Violation("vanished", key, f"{write.value!r} is not at offset {write.reply}, which was acknowledged")


def _length(read: Operation) -> Operation:
    return Operation(read.kind, False, read.key, len(read.value), read.began, read.ended)


def _position(key: str, writes: list[Operation], reads: list[Operation], final: Any) -> Iterator[Violation]:
    yield from _stale(key, reads, [(read.ended, read.value) for read in reads])
    if final is not None and final < max((read.value for read in reads), default=0):
        yield Violation("went back", key, f"a later position was read, and it is {final}")


_CHECKS = {"register": _register, "counter": _counter, "list": _entries, "stream": _entries, "position": _position}


def _deposed(history: History) -> Iterator[Violation]:
    for write in history.operations:
        if not (write.is_write and write.server and write.told is Told.DONE):
            continue
        before = [each for each in history.promotions if each.done < write.began]
        if not before or before[-1].server == write.server:
            continue
        since = [each for each in history.promotions if before[-1].began < each.began <= write.ended]
        if write.server not in [each.server for each in since]:
            text = f"{write.server} acknowledged {write.value!r} after {before[-1].server} had taken over"
            yield Violation("deposed", write.key, text)
