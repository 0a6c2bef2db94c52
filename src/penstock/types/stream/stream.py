"""The stream value: messages, groups, producers, schemas and retention.

A dump is a flat list of parts. Nodes are dumped as they are in memory (compressed ones stay so), so that a snapshot
copies and does not encode; a part may have 4 GiB, the whole any size. A snapshot refers to the files of history, DUMP
has the nodes themselves. Loading decodes every node once, one after the
other: damaged bytes must be refused there, not crash a later read. A payload from a client is also limited by the size
it unpacks to, node by node. A snapshot is not: its checksums prove that a server wrote it, and accepted data must not
be lost to a lowered limit.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Self

from penstock.types.packing import CorruptValue, Part, made, pack_many, unpack_many
from penstock.types.registry import value_type
from penstock.types.stream.active import Active
from penstock.types.stream.delays import Delays
from penstock.types.stream.expiries import Expiries
from penstock.types.stream.groups import Group
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Storage, check_unpacked, load_node, part_of
from penstock.types.stream.producers import Commit, Producers, Stages
from penstock.types.stream.retention import Retention
from penstock.types.stream.schemas import Check, Schemas
from penstock.types.stream.segments import Segment
from penstock.types.stream.stored_nodes import load_segments, numbers_outside_history, sealed

_FORMAT = 1
_WITH_SCHEMAS = 2  # one more part at the end; a stream without schemas is written in the older format
_WITH_DELAYS = 3  # likewise
_WITH_BOTH = 4  # schemas first
_VERSIONS = {
    (False, False): _FORMAT,
    (True, False): _WITH_SCHEMAS,
    (False, True): _WITH_DELAYS,
    (True, True): _WITH_BOTH,
}
_WITH_HISTORY = 4  # added to one of these: segments come before the nodes, which are those in memory
_HEAD = struct.Struct("<BIIIIqqq?")  # format; nodes, groups, producers, stages; retention
_LOG = struct.Struct("<qqqqq")
_NODE = struct.Struct("<qq???")


@value_type("tstream", tag=6, item_cost=64)
class Stream:
    """A stream.

    Its server gives it `storage`, which the streams of the server share and its settings edit.

    >>> stream = Stream(Storage())
    >>> stream.messages.append(1000, b"tag", b"entry")
    1
    >>> stream.messages.first, stream.messages.last
    (1, 1)
    """

    # A client that waits for a stream at a key remembers which one it was, and must not keep a deleted one alive.
    __slots__ = (
        "__weakref__", "checked", "delays", "expiries", "groups", "members_from", "members_seen", "messages",
        "producers", "retention", "schemas", "seen_in", "stages", "surveyed",
    )  # fmt: skip

    def __init__(self, storage: Storage) -> None:
        self.messages = Messages(storage)
        self.groups: dict[bytes, Group] = {}
        self.producers = Producers()
        self.stages = Stages()
        self.retention = Retention()
        self.delays: Delays | None = None  # messages that groups get later, if there ever was one
        self.schemas: Schemas | None = None
        self.checked: Schemas | None = None  # the schemas, if entries are to be checked before they are written
        self.expiries = Expiries()  # of the leases of groups
        self.members_from = 0  # members that may be forgotten are not looked for before; not dumped
        self.members_seen = 0  # groups of which a look that is not at its end has looked through the members
        self.surveyed = 0  # the last offset that the survey of /metrics has counted; not dumped
        self.seen_in = 0  # the number of the last survey that saw it; not dumped
        storage.streams.add(self)

    def group(self, name: bytes, position: int) -> Group:
        """The group of that name, made at a position if it is new."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(position)
        return group

    def commit(self, producer: bytes, epoch: int, tokens: list[bytes], now: int) -> Commit:
        """Append the staged entries of tokens in that order, all or nothing, once for a producer's epoch.

        A repeat of the last epoch gets the same answer, whatever its tokens; an older one is ProducerFenced.
        """
        earlier = self.producers.committed(producer, epoch)
        if earlier is not None:
            return earlier
        batches = self.stages.take(tokens)
        commit = Commit(self.messages.append_arrow(now, batches), sum(batch.num_rows for batch in batches))
        self.producers.remember_commit(producer, epoch, commit, now)
        return commit

    def delay(self, first: int, at: int, now: int) -> None:
        """Hide the messages from an offset on from groups until a time."""
        if at > now:
            if self.delays is None:
                self.delays = Delays()
            self.delays.add(first, self.messages.last + 1, at, now, self.messages.first)

    def hides(self, now: int) -> Delays | None:
        """The delays, if some may not be over."""
        delays = self.delays
        return delays if delays is not None and delays.latest > now else None

    def retain(self, retention: Retention) -> None:
        """Set the retention; retention.py and compaction.py enforce it."""
        self.retention = retention
        self.messages.set_compaction(retention.compact)

    def set_schemas(self, schemas: Schemas | None) -> None:
        """Set the schemas, and whether entries are checked."""
        self.schemas = schemas
        self.checked = schemas if schemas is not None and schemas.check is not Check.OFF else None

    def dead_letter_keys(self) -> set[bytes]:
        """The keys that get dead letters: expired messages, and entries that do not fit its schema. O(leases)."""
        keys = set[bytes]().union(*(group.leases.dead_letter_keys() for group in self.groups.values()))
        if self.schemas is not None and self.schemas.dead_letter is not None:
            keys.add(self.schemas.dead_letter)
        return keys

    # The whole.

    def dump(self) -> bytes:
        """The whole value as bytes."""
        return pack_many(map(made, self._parts(refer=False)))

    def dump_referring(self) -> bytes:
        """The same for a snapshot, which refers to the files of history."""
        return pack_many(map(made, self.parts()))

    def parts(self) -> Iterator[Part]:
        """The parts that `dump_referring` packs, for a caller that writes a large stream without joining them."""
        return self._parts(refer=True)

    def _parts(self, refer: bool) -> Iterator[Part]:
        messages, kept = self.messages, self.retention
        active = messages.active
        segments = messages.history if refer else []
        nodes = len(messages.nodes) if segments else messages.sealed_nodes
        counts = (nodes, len(self.groups), len(self.producers.by_id), len(self.stages.by_token))
        version = _VERSIONS[self.schemas is not None, self.delays is not None] + (_WITH_HISTORY if segments else 0)
        yield _HEAD.pack(version, *counts, kept.count, kept.age_ms, kept.bytes, kept.compact)
        yield _LOG.pack(messages.first, messages.last, messages.lowest, active.start, active.before)
        if segments:
            yield pack_many([segment.dump() for segment in segments])
        for node in sealed(messages, in_memory=bool(segments)):
            yield _NODE.pack(node.before, node.newest, node.compressed, node.large, node.offsets is not None)
            yield _packed(node.offsets or array("q"))
            yield part_of(node)
        yield _packed(active.times)
        yield active.tags
        yield active.entries
        for name, group in self.groups.items():
            yield name
            yield group.dump()
        yield from self.producers.dump()
        yield from self.stages.parts()
        if self.schemas is not None:
            yield self.schemas.dump()
        if self.delays is not None:
            yield self.delays.dump()

    @classmethod
    def load(cls, data: bytes, limit: int | None = None, storage: Storage | None = None) -> Self:
        """The value that `dump` wrote.

        CorruptValue for anything else, OversizedValue for a node that unpacks to over `limit`. Without `storage` the
        defaults apply.
        """
        parts = iter(unpack_many(data))
        try:
            stream = cls._load(parts, limit, storage if storage is not None else Storage())
        except (struct.error, StopIteration, OverflowError) as error:
            raise CorruptValue(f"a stream is damaged: {error!r}") from error
        if next(parts, None) is not None:
            raise CorruptValue("a stream has more parts than its header says")
        return stream

    @classmethod
    def _load(cls, parts: Iterator[bytes], limit: int | None, storage: Storage) -> Self:
        stream = cls(storage)
        messages = stream.messages
        version, nodes, groups, producers, stages, *kept = _HEAD.unpack(next(parts))
        refers = version > max(_VERSIONS.values()) and limit is None  # a client's bytes cannot refer to our files
        version -= _WITH_HISTORY if refers else 0
        if version not in _VERSIONS.values():
            raise CorruptValue(f"a stream of format {version}")
        messages.first, messages.last, messages.lowest, start, before = _LOG.unpack(next(parts))
        if refers:
            load_segments(messages, map(Segment.load, unpack_many(next(parts))))
        for number in numbers_outside_history(messages, nodes):
            node_before, newest, compressed, large, sparse = _NODE.unpack(next(parts))
            offsets = _unpacked(next(parts))
            payload = next(parts)
            if limit is not None:
                check_unpacked(number, payload, limit)
            node = load_node(number, node_before, newest, compressed, large, offsets if sparse else None, payload)
            messages.nodes[number] = node
            messages.sealed_nodes += 1
            messages.sealed_rows += node.count
            messages.sealed_raw += node.raw
        messages.active = Active(start, before)
        messages.active.extend(_unpacked(next(parts)), unpack_many(next(parts)), unpack_many(next(parts)))
        for fault in messages.faults():
            raise CorruptValue(f"a stream is damaged: {fault}")
        messages.cooling.loaded(messages.active.number)
        for _ in range(groups):
            name = next(parts)
            if name in stream.groups:
                raise CorruptValue("a group is there twice")
            stream.groups[name] = Group.load(next(parts), messages.last)
            stream.expiries.note(name, 0)
        for _ in range(producers):
            stream.producers.load_one(next(parts), next(parts))
        for _ in range(stages):
            stream.stages.load_one(next(parts), parts)
        stream.retain(Retention(*kept))
        if version in (_WITH_SCHEMAS, _WITH_BOTH):
            stream.set_schemas(Schemas.load(next(parts)))
        if version in (_WITH_DELAYS, _WITH_BOTH):
            stream.delays = Delays.load(next(parts), messages.last)
        return stream

    def copy(self) -> Stream:
        """An equal stream; only bytes that never change are shared."""
        stream = Stream(self.messages.storage)
        stream.messages = self.messages.copy()
        for name, group in self.groups.items():
            stream.groups[name] = group.copy()
            stream.expiries.note(name, 0)
        records = iter([*self.producers.dump()])
        for name in records:
            stream.producers.load_one(name, next(records))
        for token, stage in self.stages.by_token.items():
            stream.stages.stage(token, stage.batches[:], stage.used)
        stream.retention = self.retention
        stream.set_schemas(self.schemas)
        stream.delays = self.delays.copy() if self.delays is not None else None
        return stream

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        groups = sum(len(name) + group.size() for name, group in self.groups.items())
        schemas = self.schemas.size() if self.schemas is not None else 0
        schemas += self.delays.size() if self.delays is not None else 0
        return 500 + self.messages.size() + groups + self.producers.size() + self.stages.size() + schemas

    def size_of_copy(self) -> int:
        """About how many bytes `copy` takes: all but what the nodes share."""
        groups = sum(len(name) + group.size() for name, group in self.groups.items())
        return 1000 * len(self.messages.nodes) + self.messages.active.size() + groups + self.producers.size()

    def check(self) -> None:
        """Assert every invariant; the failure shows the stream."""
        try:
            self.messages.check()
            assert self.retention.compact == (self.messages.compactor is not None)
            for group in self.groups.values():
                group.check()
            self.expiries.check()
            self.producers.check()
            self.stages.check()
            if self.delays is not None:
                self.delays.check()
        except AssertionError as failure:
            failure.add_note(
                f"messages: {self.messages.info()}, lowest {self.messages.lowest}, recent {[*self.messages.recent]}"
            )
            for name, group in self.groups.items():
                failure.add_note(f"group {name!r}: at {group.position}, leases {list(group.leases)}")
            failure.add_note(f"producers: {list(self.producers.by_id)}, stages: {list(self.stages.by_token)}")
            raise


def _packed(numbers: array[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _unpacked(data: bytes) -> array[int]:
    return array("q", [number for (number,) in struct.iter_unpack("<q", data)])
