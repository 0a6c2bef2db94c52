"""Stream commands against a model of dictionaries, with restarts from the log and from snapshots in between; in memory,
and with nearly all messages in files.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support import memory_files
from tests.support.commands.stream_world import Word, World, arrow, lasting, visible
from tests.support.memory_files import MemoryFiles
from tests.support.model_lease import ModelLease

from penstock.commands import streams
from penstock.protocol.errors import Fenced, ReplyError
from penstock.storage import snapshot
from penstock.types import codec
from penstock.types.stream import active, compaction, nodes, reading, retention, seeking, segments, stored_nodes
from penstock.types.stream import messages as messages_by_offset
from penstock.types.stream.compaction import compact
from penstock.types.stream.stored_nodes import coldest, store
from penstock.types.stream.stream import Stream

SMALL_NODE = 8  # so that a few writes seal nodes
CAP = 6
STAGE_TIMEOUT = 5000

tags = st.sampled_from([b"", b"a", b"b", b"c"])
messages = st.lists(st.tuples(tags, st.binary(max_size=5)), min_size=1, max_size=12)
group_names = st.sampled_from([b"g", b"h"])
counts = st.integers(0, 6)
offsets = st.integers(1, 40)


@dataclass
class Member:
    """A group."""

    position: int
    lost: int = 0
    acknowledged: int = 0
    pending: dict[int, ModelLease] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)  # messages that it has passed by, and when they are visible


class StreamCommands(RuleBasedStateMachine):
    """One stream, `k`, and its dead letters in `dead`."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module in (
            active, compaction, memory_files, messages_by_offset, nodes, reading, retention, seeking, segments,
            stored_nodes, streams,
        ):  # fmt: skip
            self.patch.setattr(module, "NODE", SMALL_NODE)
        self.folder = tempfile.TemporaryDirectory()
        self.base: Path | None = None
        self.world = self.begin()
        self.restore_settings()
        self.messages: dict[int, tuple[bytes, bytes]] = {}
        self.first, self.last = 1, 0
        self.groups: dict[bytes, Member] = {}
        self.answers: dict[bytes, dict[int, int]] = {}  # producer -> sequence -> first offset
        self.epochs: dict[bytes, tuple[int, list[int]]] = {}
        self.stages: dict[bytes, tuple[int, list[tuple[bytes, bytes]]]] = {}
        self.letters: list[tuple[str, int, int]] = []  # group, offset, attempts
        self.compact = False
        self.visible_at: dict[int, int] = {}
        self.token = 0  # of the last delivery, in any group
        self.write([(b"", b"first")])

    def begin(self) -> World:
        """The first world."""
        return World()

    def restore_settings(self) -> None:
        """Settings of a new server that are not in the log."""
        self.world.run("CONFIG", "SET", "stream-max-pending", CAP)
        self.world.run("CONFIG", "SET", "stream-stage-timeout", STAGE_TIMEOUT)

    def teardown(self) -> None:
        self.patch.undo()
        self.folder.cleanup()

    @property
    def now(self) -> int:
        return self.world.clock.now

    # -- the model ------------------------------------------------------------------------------------------------

    def appended(self, entries: list[tuple[bytes, bytes]]) -> int:
        first = self.last + 1
        for pair in entries:
            self.last += 1
            self.messages[self.last] = pair
        return first

    def evicted(self, exactly: int | None = None, at_least: int = 0) -> int:
        """Take over how far the stream was evicted; how many messages that were there went."""
        self.first, last = self.world.run("TREAD k 1 0 WITHINFO")[0]
        assert last == self.last
        gone = [offset for offset in self.messages if offset < self.first]
        if exactly is None:
            kept = self.world.stream().retention
            in_a_node = (kept.age_ms and self.first == self.last + 1) or kept.bytes
            assert self.first == 1 or (self.first - 1) % SMALL_NODE == 0 or not gone or in_a_node
        else:
            assert len(self.messages) - len(gone) == exactly
        assert len(self.messages) - len(gone) >= min(at_least, len(self.messages))
        for offset in gone:
            del self.messages[offset]
        return len(gone)

    def compacted(self) -> None:
        sealed = self.last // SMALL_NODE * SMALL_NODE
        newest = {tag: offset for offset, (tag, _) in sorted(self.messages.items()) if tag and offset <= sealed}
        for offset, (tag, _) in list(self.messages.items()):
            if tag and offset <= sealed and newest[tag] != offset:
                del self.messages[offset]

    def expired(self, name: bytes) -> None:
        group = self.groups[name]
        for offset, pending in list(group.pending.items()):
            if pending.is_over(self.now):
                self.given_up(name, offset)

    def given_up(self, name: bytes, offset: int) -> None:
        pending = self.groups[name].pending.pop(offset)
        self.groups[name].lost += offset < self.first
        if pending.dead_letter and offset in self.messages:
            self.letters.append((name.decode(), offset, pending.attempts))

    def taken(self, group: Member, count: int) -> list[int]:
        """What was passed by and is visible now, then new messages."""
        found: list[int] = []
        for offset in [offset for offset in group.waiting if offset < self.first]:
            del group.waiting[offset]
            group.lost += 1
        for at, offset in sorted((at, offset) for offset, at in group.waiting.items()):
            if at > self.now or len(found) >= count:
                break
            del group.waiting[offset]
            if offset in self.messages:
                found.append(offset)
        while group.position <= self.last and len(found) < count:
            offset = group.position
            if offset >= self.first and self.visible_at.get(offset, 0) > self.now:
                group.waiting[offset] = self.visible_at[offset]
            elif offset in self.messages:
                found.append(offset)
                group.waiting.pop(offset, None)
            else:
                group.lost += offset < self.first
            group.position += 1
        return found

    def retried(self, name: bytes, count: int, terms: ModelLease | None) -> list[int]:
        group = self.groups[name]
        for offset in [offset for offset in group.pending if offset < self.first]:
            del group.pending[offset]
            group.lost += 1
        found: list[int] = []
        for offset in sorted(group.pending, key=lambda offset: (group.pending[offset].retry_at, offset)):
            pending = group.pending[offset]
            if len(found) == count or pending.retry_at > self.now:
                break
            if terms is not None:
                pending.dead_letter |= terms.dead_letter
            if pending.is_over(self.now, terms.limit if terms is not None else 0):
                self.given_up(name, offset)
            elif offset in self.messages and terms is None:
                del group.pending[offset]
                found.append(offset)
            elif offset in self.messages and terms is not None:
                pending.retry_at, pending.token = terms.retry_at, terms.token
                pending.limit, pending.reserved = terms.limit or pending.limit, True
                if not terms.reserved:
                    pending.begin(self.now)
                found.append(offset)
            else:
                del group.pending[offset]
        return found

    # -- writing --------------------------------------------------------------------------------------------------

    @rule(entries=messages)
    def write(self, entries: list[tuple[bytes, bytes]]) -> None:
        if len(entries) == 1:
            first = self.world.run("TWRITE", "k", *entries[0])
        else:
            first = self.world.run("TWRITE", "k", "ENTRIES", *[word for pair in entries for word in pair])
        assert first == self.appended(entries)
        self.evicted()

    @rule(entries=messages, delay=st.sampled_from([0, 50, 150, 1000]), absolute=st.booleans())
    def write_delayed(self, entries: list[tuple[bytes, bytes]], delay: int, absolute: bool) -> None:
        words: list[Word] = ["AT", self.now + delay] if absolute else ["DELAY", delay]
        first = self.world.run("TWRITE", "k", *words, "ENTRIES", *[word for pair in entries for word in pair])
        assert first == self.appended(entries)
        self.visible_at |= dict.fromkeys(range(first, self.last + 1), self.now + delay)
        self.evicted()

    @rule(offset=offsets, count=counts)
    def read_with_times(self, offset: int, count: int) -> None:
        wanted = range(offset, min(offset + count, self.last + 1))
        times = {at: time if time > self.now else 0 for at, time in self.visible_at.items()}
        rows = self.world.run("TREAD", "k", offset, count, "WITHTIME")
        assert [None if row is None else [*row[:3], row[4]] for row in rows] == [
            [at, *self.messages[at], times.get(at, 0)] if at in self.messages else None for at in wanted
        ]

    @rule(entries=messages, backlog=st.integers(1, 20))
    def write_arrow(self, entries: list[tuple[bytes, bytes]], backlog: int) -> None:
        payload = arrow([tag for tag, _ in entries], [entry for _, entry in entries])
        assert self.world.run("TWRITE", "k", "BACKLOG", backlog, "FORMAT", "ARROW", payload) == self.appended(entries)
        kept = self.world.stream().retention
        self.evicted(at_least=0 if kept.count or kept.age_ms or kept.bytes else backlog)

    @rule(entries=messages, producer=st.sampled_from([b"p", b"q"]), sequence=st.integers(0, 5))
    def write_numbered(self, entries: list[tuple[bytes, bytes]], producer: bytes, sequence: int) -> None:
        answers = self.answers.setdefault(producer, {})
        words: list[Word] = [
            "TWRITE",
            "k",
            "PRODUCER",
            producer,
            sequence,
            "ENTRIES",
            *[word for pair in entries for word in pair],
        ]
        if sequence in answers:
            assert self.world.run(*words) == answers[sequence]
        elif answers and sequence < max(answers):
            with pytest.raises(Fenced):
                self.world.run(*words)
        else:
            answers[sequence] = self.appended(entries)
            assert self.world.run(*words) == answers[sequence]
            self.evicted()

    @rule(entries=messages, token=st.sampled_from([b"x", b"y"]))
    def stage(self, entries: list[tuple[bytes, bytes]], token: bytes) -> None:
        staged = [*self.stages.get(token, (0, []))[1], *entries]
        self.stages[token] = (self.now, staged)
        words = [word for pair in entries for word in pair]
        assert self.world.run("TSTAGE", "k", token, "ENTRIES", *words) == len(staged)

    @rule(
        producer=st.sampled_from([b"p", b"q"]),
        epoch=st.integers(0, 4),
        tokens=st.lists(st.sampled_from([b"x", b"y"]), min_size=1, max_size=2, unique=True),
    )
    def commit(self, producer: bytes, epoch: int, tokens: list[bytes]) -> None:
        words: list[Word] = ["TCOMMIT", "k", producer, epoch, *tokens]
        last, answer = self.epochs.get(producer, (-1, []))
        if epoch < last:
            with pytest.raises(Fenced):
                self.world.run(*words)
        elif epoch == last:
            assert self.world.run(*words) == answer
        elif not self.stages.keys() >= set(tokens):
            with pytest.raises(ReplyError, match="nothing is staged"):
                self.world.run(*words)
        else:
            entries = [pair for token in tokens for pair in self.stages.pop(token)[1]]
            self.epochs[producer] = (epoch, [self.appended(entries), len(entries)])
            assert self.world.run(*words) == self.epochs[producer][1]
            self.evicted()

    # -- reading --------------------------------------------------------------------------------------------------

    @rule(offset=offsets, count=counts)
    def read(self, offset: int, count: int) -> None:
        wanted = range(offset, min(offset + count, self.last + 1))
        expected = [[at, *self.messages[at]] if at in self.messages else None for at in wanted]
        assert self.world.run("TREAD", "k", offset, count) == expected

    @rule(
        name=group_names,
        place=st.sampled_from(["0", "3", "$"]),
        count=counts,
        retry=st.none() | st.tuples(st.sampled_from([1, 100, 300]), st.sampled_from([0, 300, 700])),
        dead_letter=st.booleans(),
        limit=st.sampled_from([0, 0, 1, 2]),
        reserve=st.booleans(),
    )
    def read_as_member(
        self,
        name: bytes,
        place: str,
        count: int,
        retry: tuple[int, int] | None,
        dead_letter: bool,
        limit: int,
        reserve: bool,
    ) -> None:
        group = self.groups.get(name)
        if group is None:
            position = {"0": self.first, "3": 3, "$": self.last + 1}[place]
            group = self.groups[name] = Member(position)
        words: list[Word] = ["TREAD", "k", place, count, "GROUP", name]
        if retry is None:
            self.expired(name)
            expected = self.retried(name, count, None)
            new = self.taken(group, count - len(expected) if len(group.pending) < CAP else 0)
            expected += [
                offset for offset in dict.fromkeys(new) if offset not in expected
            ]  # of a group that was moved back
            group.acknowledged += len(expected)
            assert self.world.run(*words) == [[offset, *self.messages[offset]] for offset in expected]
            return
        words += ["RETRY", *retry, "WITHLEASE"]
        words += ["DEADLETTER", "dead"] if dead_letter else []
        words += ["MAXATTEMPTS", limit] if limit else []
        words += ["RESERVE"] if reserve else []
        token, *rows = self.world.run(*words)
        assert (token > self.token) if rows else token == 0
        self.token = max(self.token, token)
        terms = ModelLease(self.now + retry[0], -retry[1], self.now, 0, dead_letter, token, limit, reserve)
        self.expired(name)
        expected = self.retried(name, count, terms)
        new = self.taken(group, max(min(count - len(expected), CAP - len(group.pending)), 0))
        new = [offset for offset in dict.fromkeys(new) if offset not in expected]
        for offset in new:
            group.pending[offset] = replace(terms, reserved=True)
            if not reserve:
                group.pending[offset].begin(self.now)
        assert [(offset, tag, entry, attempts) for offset, tag, entry, _, attempts in rows] == [
            (offset, *self.messages[offset], group.pending[offset].attempts) for offset in expected + new
        ]

    def held(self, name: bytes, start: int, length: int, token: int | None) -> list[int]:
        pending = self.groups[name].pending if name in self.groups else {}
        return [
            offset
            for offset in range(start, start + length + 1)
            if offset in pending and token in (None, pending[offset].token)
        ]

    def a_token(self, data: st.DataObject, name: bytes) -> int | None:
        """One that a member may have, or none."""
        pending = self.groups[name].pending.values() if name in self.groups else ()
        return data.draw(
            st.none() | st.sampled_from(sorted({max(self.token, 1), *(each.token for each in pending if each.token)}))
        )

    @rule(data=st.data(), name=group_names, start=offsets, length=st.integers(0, 5))
    def acknowledge(self, data: st.DataObject, name: bytes, start: int, length: int) -> None:
        token = self.a_token(data, name)
        found = self.held(name, start, length, token)
        words: list[Word] = [] if token is None else ["TOKEN", token]
        assert self.world.run("TACK", "k", name, *words, f"{start}-{start + length}") == len(found)
        for offset in found:
            del self.groups[name].pending[offset]
            self.groups[name].acknowledged += 1

    @rule(
        data=st.data(),
        name=group_names,
        start=offsets,
        length=st.integers(0, 5),
        delay=st.sampled_from([0, 50, 1000]),
    )
    def refuse(self, data: st.DataObject, name: bytes, start: int, length: int, delay: int) -> None:
        token = self.a_token(data, name)
        found = self.held(name, start, length, token)
        words: list[Word] = [] if token is None else ["TOKEN", token]
        count = self.world.run("TNACK", "k", name, *words, f"{start}-{start + length}", "DELAY", delay)
        assert count == len(found)
        for offset in found:
            pending = self.groups[name].pending[offset]
            pending.retry_at, pending.token = self.now + delay, 0

    @rule(
        data=st.data(),
        name=group_names,
        start=offsets,
        length=st.integers(0, 5),
        wait=st.sampled_from([1, 50, 1000]),
        begin=st.booleans(),
    )
    def extend(self, data: st.DataObject, name: bytes, start: int, length: int, wait: int, begin: bool) -> None:
        token = self.a_token(data, name)
        found = self.held(name, start, length, token)
        words: list[Word] = [] if token is None else ["TOKEN", token]
        words += ["BEGIN"] if begin else []
        assert self.world.run("TEXTEND", "k", name, wait, *words, f"{start}-{start + length}") == len(found)
        for offset in found:
            pending = self.groups[name].pending[offset]
            pending.retry_at = self.now + wait
            if begin and pending.reserved:
                pending.begin(self.now)

    @rule(name=group_names, offset=offsets)
    def move_group(self, name: bytes, offset: int) -> None:
        self.world.run("TGROUP", "SET", "k", name, offset)
        self.groups.setdefault(name, Member(offset)).position = offset

    @rule(name=group_names)
    def forget_group(self, name: bytes) -> None:
        assert self.world.run("TGROUP", "DEL", "k", name) == (self.groups.pop(name, None) is not None)

    # -- time and eviction ----------------------------------------------------------------------------------------

    @rule(milliseconds=st.sampled_from([1, 99, 100, 301, 2600]))
    def pass_time(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds)
        for name in self.groups:
            self.expired(name)
        stale = self.now - STAGE_TIMEOUT
        self.stages = {token: stage for token, stage in self.stages.items() if stage[0] >= stale}
        self.evicted()
        while self.compact and compact(self.world.stream().messages, 0).more:
            self.world.pass_time(0)
        if self.compact:
            self.compacted()

    @rule(offset=st.integers(0, 40))
    def evict(self, offset: int) -> None:
        left = len([at for at in self.messages if at > offset])
        removed = self.world.run("TEVICT", "k", offset)
        assert removed == self.evicted(exactly=left)

    @rule(count=st.integers(1, 20))
    def evict_all_but(self, count: int) -> None:
        removed = self.world.run("TEVICT", "k", -count)
        assert removed == self.evicted(exactly=min(count, len(self.messages)))

    @rule(
        count=st.sampled_from([0, 0, 10]),
        age=st.sampled_from([0, 0, 500]),
        size=st.sampled_from([0, 0, 400]),
        compact=st.booleans(),
    )
    def retain(self, count: int, age: int, size: int, compact: bool) -> None:
        self.world.run("TRETAIN", "k", "COUNT", count, "AGE", age, "BYTES", size, "COMPACT", ["no", "yes"][compact])
        self.compact = compact
        self.evicted(at_least=0 if age or size else count)

    # -- restarts -------------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        again = self.world.restarted(self.base, later=0)
        for key in (b"k", b"dead"):
            assert visible(again, key) == visible(self.world, key)
        self.world = again
        self.world.clock.advance(1)  # a restart takes longer than that, so no token comes again
        self.restore_settings()

    @rule()
    def take_a_snapshot(self) -> None:
        self.base = Path(self.folder.name) / "snapshot"
        snapshot.save(self.base, self.world.engine.keyspace)
        self.world.logged.clear()

    @rule()
    def restore_a_dump(self) -> None:
        stream = self.world.stream()
        loaded = codec.load(codec.dump(stream))
        assert codec.dump(loaded) == codec.dump(stream)
        loaded.check()

    # -- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def every_stream_is_sound(self) -> None:
        for value in self.world.engine.keyspace[0].data.values():
            assert type(value) is Stream
            value.check()

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        state = visible(self.world)
        assert {message[0]: tuple(message[1:]) for message in state["messages"] if message} == self.messages
        assert state["info"][b"length"] == len(self.messages)
        assert {name: lasting(self.world.group(name)) for name in self.groups} == {
            name: {
                b"name": name,
                b"position": group.position,
                b"lag": len([offset for offset in self.messages if offset >= group.position]),
                b"pending": len(group.pending),
                b"delayed": len(group.waiting),
                b"acknowledged": group.acknowledged,
                b"done-through": min([group.position, *group.pending, *group.waiting]) - 1,
                b"lost": group.lost,
                b"next-retry": min((pending.retry_at for pending in group.pending.values()), default=None),
                b"consumers": [],
            }
            for name, group in self.groups.items()
        }
        assert state["info"][b"stages"] == len(self.stages)

    @invariant()
    def pending_messages_are_those_of_the_model(self) -> None:
        for name, group in self.groups.items():
            listed = {
                offset: (attempts, first_delivered, retry_at, expire_at)
                for first, last, attempts, first_delivered, retry_at, expire_at in self.world.run(
                    "TGROUP", "PENDING", "k", name
                )
                for offset in range(first, last + 1)
            }
            expected = {
                offset: (pending.attempts, pending.first_delivered, pending.retry_at, max(pending.expire_at, 0))
                for offset, pending in group.pending.items()
            }
            assert listed == expected
            leases = {
                offset: (lease.token, lease.limit, lease.reserved)
                for lease in self.world.stream().groups[name].leases
                for offset in range(lease.start, lease.end)
            }
            assert leases == {at: (one.token, one.limit, one.reserved) for at, one in group.pending.items()}

    @invariant()
    @precondition(lambda self: self.letters)
    def dead_letters_are_those_of_the_model(self) -> None:
        letters = [json.loads(entry) for _, _, entry in self.world.run("TREAD dead 1 10000")]
        assert sorted((row["group"], row["offset"], row["attempts"]) for row in letters) == sorted(self.letters)


TestStreamCommands = StreamCommands.TestCase
TestStreamCommands.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class StreamCommandsWithHistory(StreamCommands):
    """What is not hot goes to a file after every step; no node is hot."""

    def begin(self) -> World:
        self.files = MemoryFiles()
        return World(files=self.files)

    def restore_settings(self) -> None:
        super().restore_settings()
        self.world.run("CONFIG", "SET", "stream-hot-nodes", 0)

    @invariant()
    def what_is_cold_goes_to_files(self) -> None:
        engine = self.world.engine
        for key, value in list(engine.keyspace[0].data.items()):
            assert type(value) is Stream
            messages = value.messages
            while messages.cooling.do_deferred():
                pass
            while nodes := coldest(messages, 1 << 30):
                segment = self.files.write(nodes)
                assert store(messages, segment)
                engine.propagate(engine.keyspace[0], [[b"TAPPLY", key, b"HISTORY", segment.dump()]])


TestStreamCommandsWithHistory = StreamCommandsWithHistory.TestCase
TestStreamCommandsWithHistory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
