"""The whole stream against a model of dictionaries; dumps, copies and damage."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.model_lease import ModelLease
from tests.support.stream_reading import NULL, read, read_runs

from penstock.types.packing import CorruptValue, pack_many, unpack_many
from penstock.types.stream import active, compaction, messages, nodes, reading, retention, seeking
from penstock.types.stream.active import Active
from penstock.types.stream.changes import Change
from penstock.types.stream.compaction import compact
from penstock.types.stream.groups import Group
from penstock.types.stream.messages import MOST
from penstock.types.stream.nodes import NODE, Storage
from penstock.types.stream.producers import ProducerFenced, UnknownStage
from penstock.types.stream.reading import each, read_arrow, read_arrow_runs
from penstock.types.stream.retention import Retention, apply_retention, keep_last
from penstock.types.stream.seeking import seek_time
from penstock.types.stream.stream import Stream

SMALL_NODE = 8


def batch_of(tags: list[bytes], entries: list[bytes]) -> Any:
    return pa.record_batch([pa.array(tags, pa.binary()), pa.array(entries, pa.binary())], names=["tag", "entry"])


def resp(offset: int, tag: bytes, entry: bytes) -> bytes:
    return b"*3\r\n:%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (offset, len(tag), tag, len(entry), entry)


@dataclass
class ModelGroup:
    position: int
    lost: int = 0
    token: int = 0
    acknowledged: int = 0
    pending: dict[int, ModelLease] = field(default_factory=dict)


class StreamMachine(RuleBasedStateMachine):
    """Random use of a stream whose nodes are small, so that every boundary is met often."""

    tags = st.sampled_from([b"", b"a", b"b", b"cc"])
    pairs = st.lists(st.tuples(tags, st.sampled_from([b"", b"x", b"entry", b"y" * 40])), max_size=30)
    names = st.sampled_from([b"g", b"h"])
    limits = st.one_of(st.none(), st.integers(1, 300))

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module in (active, compaction, messages, nodes, reading, retention, seeking):
            self.patch.setattr(module, "NODE", SMALL_NODE)
        self.now = 1000
        self.first, self.last = 1, 0
        self.messages: dict[int, tuple[int, bytes, bytes]] = {}
        self.groups: dict[bytes, ModelGroup] = {}
        self.replicas: dict[bytes, Group] = {}
        self.staged: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self.epochs: dict[bytes, tuple[int, tuple[int, int]]] = {}

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(
        compression=st.sampled_from(["none", "lz4", "zstd"]),
        hot=st.integers(0, 3),
        backlog=st.sampled_from([0, 300, 10_000]),
        compact=st.booleans(),
        tags=st.lists(tags, max_size=60),
    )
    def begin(self, compression: Any, hot: int, backlog: int, compact: bool, tags: list[bytes]) -> None:
        self.storage = Storage(compression, hot, backlog)
        self.stream = Stream(self.storage)
        self.stream.retain(Retention(compact=compact))
        self.append_many([(tag, b"first") for tag in tags], False)

    def wrote(self, pairs: list[tuple[bytes, bytes]]) -> int:
        first = self.last + 1
        for tag, entry in pairs:
            self.last += 1
            self.messages[self.last] = (self.now, tag, entry)
        return first

    def forget_below(self, first: int) -> int:
        gone = [offset for offset in self.messages if offset < first]
        for offset in gone:
            del self.messages[offset]
        self.first = max(self.first, first)
        return len(gone)

    @rule(elapsed=st.integers(0, 50))
    def time_passes(self, elapsed: int) -> None:
        self.now += elapsed

    @rule(tag=tags)
    def append(self, tag: bytes) -> None:
        assert self.stream.messages.append(self.now, tag, b"one") == self.wrote([(tag, b"one")])

    @rule(pairs=pairs, arrow=st.booleans())
    def appends(self, pairs: list[tuple[bytes, bytes]], arrow: bool) -> None:
        self.append_many(pairs, arrow)

    def append_many(self, pairs: list[tuple[bytes, bytes]], arrow: bool) -> None:
        tags, entries = [tag for tag, _ in pairs], [entry for _, entry in pairs]
        if arrow:
            first = self.stream.messages.append_arrow(self.now, [batch_of(tags, entries)])
        else:
            first = self.stream.messages.append_many(self.now, tags, entries)
        assert first == self.wrote(pairs)

    @rule(token=names, pairs=pairs.filter(bool), arrow=st.booleans())
    def stage(self, token: bytes, pairs: list[tuple[bytes, bytes]], arrow: bool) -> None:
        tags, entries = [tag for tag, _ in pairs], [entry for _, entry in pairs]
        if arrow:
            count = self.stream.stages.stage(token, [batch_of(tags, entries)], self.now)
        else:
            count = self.stream.stages.stage_entries(token, tags, entries, self.now)
        self.staged.setdefault(token, []).extend(pairs)
        assert count == len(self.staged[token])

    @rule(producer=names, epoch=st.integers(0, 5), tokens=st.lists(names, max_size=2))
    def commit(self, producer: bytes, epoch: int, tokens: list[bytes]) -> None:
        last_epoch, answer = self.epochs.get(producer, (-1, (0, 0)))
        if epoch < last_epoch:
            with pytest.raises(ProducerFenced):
                self.stream.commit(producer, epoch, tokens, self.now)
        elif epoch == last_epoch:
            assert self.stream.commit(producer, epoch, tokens, self.now) == answer
        elif len(set(tokens)) < len(tokens) or not set(tokens) <= set(self.staged):
            with pytest.raises(UnknownStage):
                self.stream.commit(producer, epoch, tokens, self.now)
        else:
            pairs = [pair for token in tokens for pair in self.staged.pop(token)]
            answer = (self.wrote(pairs), len(pairs))
            assert self.stream.commit(producer, epoch, tokens, self.now) == answer
            self.epochs[producer] = (epoch, answer)

    @rule(offset=st.integers(1, 120), count=st.integers(0, 60), max_bytes=limits)
    def read(self, offset: int, count: int, max_bytes: int | None) -> None:
        expected, cost = [], 0
        for at in range(offset, min(offset + count, self.last + 1)):
            if max_bytes is not None and cost >= max_bytes:
                break
            _, tag, entry = self.messages.get(at, (0, b"", b""))
            expected.append(resp(at, tag, entry) if at in self.messages else NULL)
            cost += 16 + len(tag) + len(entry)
        assert read(self.stream.messages, offset, count, max_bytes) == (b"".join(expected), len(expected))

    @rule(offset=st.integers(1, 120), count=st.integers(0, 60), max_bytes=limits)
    def read_messages(self, offset: int, count: int, max_bytes: int | None) -> None:
        expected: list[tuple[int, int, bytes, bytes]] = []
        cost = 0
        for at in sorted(self.messages):
            if at >= offset and len(expected) < count and (max_bytes is None or cost < max_bytes):
                expected.append((at, *self.messages[at]))
                cost += 16 + len(self.messages[at][1]) + len(self.messages[at][2])
        assert [*each(self.stream.messages, offset, count, max_bytes)] == expected

    @rule(offset=st.integers(1, 120), count=st.integers(0, 60), compressed=st.booleans())
    def read_arrow(self, offset: int, count: int, compressed: bool) -> None:
        found = read_arrow(self.stream.messages, offset, count, compressed=compressed)
        table = pa.ipc.open_stream(b"".join(found.pieces)).read_all()
        expected = [(at, *self.messages[at]) for at in range(offset, offset + count) if at in self.messages]
        assert [*zip(*(column.to_pylist() for column in table.columns), strict=True)] == expected

    @rule(back=st.integers(-10, 100))
    def seek_time(self, back: int) -> None:
        expected = (at for at in sorted(self.messages) if self.messages[at][0] >= self.now - back)
        assert seek_time(self.stream.messages, self.now - back) == next(expected, self.last + 1)

    @rule(offset=st.integers(0, 120))
    def evict(self, offset: int) -> None:
        gone = self.forget_below(min(offset, self.last) + 1)
        assert self.stream.messages.evict_through(offset) == gone

    @rule(count=st.integers(0, 40))
    def keep_last(self, count: int) -> None:
        offsets = sorted(self.messages)
        spare = len(offsets) - count
        if spare > 0:
            keep_last(self.stream.messages, count)
            assert len(self.stream.messages) == count
            first = self.stream.messages.first
            assert offsets[spare - 1] < first <= (offsets[spare] if count else self.last + 1)
            self.forget_below(first)
        else:
            keep_last(self.stream.messages, count)
            self.forget_below(self.stream.messages.first)  # past empty nodes only
            assert len(self.messages) == len(offsets)

    @rule(
        count=st.sampled_from([0, 0, 5, 20]),
        age=st.sampled_from([0, 0, 30]),
        size=st.sampled_from([0, 0, 600]),
        compact=st.booleans(),
    )
    def retain(self, count: int, age: int, size: int, compact: bool) -> None:
        before = len(self.messages)
        self.stream.retain(Retention(count, age, size, compact))
        evicted = apply_retention(self.stream.messages, self.stream.retention, self.now)
        stream = self.stream.messages
        assert evicted == self.forget_below(stream.first)
        assert stream.first % SMALL_NODE == 1 or not evicted or (age and not self.messages) or size
        if count and not age and not size:
            assert len(self.messages) >= min(count, before)
        sealed = stream.last // SMALL_NODE * SMALL_NODE
        if age:
            front = range(stream.lowest * SMALL_NODE + 1, (stream.lowest + 1) * SMALL_NODE + 1)
            assert front[-1] > sealed or stream.nodes[stream.lowest].newest >= self.now - age
            assert not self.messages or max(time for time, _, _ in self.messages.values()) >= self.now - age
        if size:
            held = sum(16 + len(tag) + len(entry) for _, tag, entry in self.messages.values())
            assert held <= size or len(self.messages) == 1
            assert self.messages or age or not before
            assert stream.info().raw_bytes <= size or len(self.messages) == 1

    @rule()
    def do_deferred(self) -> None:
        messages = self.stream.messages
        before = messages.cooling.waiting
        assert messages.cooling.do_deferred() == messages.cooling.has_deferred
        assert messages.cooling.waiting <= before

    @precondition(lambda self: self.stream.messages.compactor)
    @rule(nodes=st.integers(1, 3))
    def compact(self, nodes: int) -> None:
        while compact(self.stream.messages, nodes).more:
            self.stream.check()
        newest: dict[bytes, int] = {}
        sealed = self.last // SMALL_NODE * SMALL_NODE
        for offset in sorted(self.messages):
            if offset <= sealed:
                newest[self.messages[offset][1]] = offset
        for offset, (_, tag, _) in [*self.messages.items()]:
            if tag and offset <= sealed and newest[tag] != offset:
                del self.messages[offset]

    @rule(
        name=names,
        count=st.integers(0, 20),
        retry=st.one_of(st.none(), st.tuples(st.integers(0, 40), st.integers(0, 90))),
        cap=st.sampled_from([5, 12, 1000]),
        max_bytes=limits,
        dead=st.sampled_from([None, b"dead"]),
        limit=st.sampled_from([0, 0, 1, 2]),
        reserve=st.booleans(),
    )
    def group_read(
        self,
        name: bytes,
        count: int,
        retry: Any,
        cap: int,
        max_bytes: int | None,
        dead: Any,
        limit: int,
        reserve: bool,
    ) -> None:
        if name not in self.groups:
            self.groups[name] = ModelGroup(self.first)
            self.replicas[name] = Group(self.first)
        model = self.groups[name]
        group = self.stream.group(name, self.first)
        has_work = group.has_work(self.stream.messages, self.now, cap)
        delivery = group.deliver(self.stream.messages, self.now, count, retry, cap, max_bytes, dead, limit, reserve)
        token = model.token + 1
        assert has_work == (delivery.change is not None) or not count
        if delivery.change is not None:
            self.replicas[name].apply(Change.decode(delivery.change.encode()))
        expired: list[int] = []
        delivered: list[int] = []
        cost = 0

        def room() -> bool:
            return len(delivered) < count and (max_bytes is None or cost < max_bytes)

        def give(offset: int) -> int:
            delivered.append(offset)
            return 16 + len(self.messages[offset][1]) + len(self.messages[offset][2])

        if model.pending:
            expired = [at for at, lease in model.pending.items() if lease.is_over(self.now)]
            for offset in expired:
                del model.pending[offset]
                model.lost += offset < self.first
            for offset in [offset for offset in model.pending if offset < self.first]:
                del model.pending[offset]
                model.lost += 1
            for _, offset in sorted((lease.retry_at, at) for at, lease in model.pending.items()):
                if model.pending[offset].retry_at > self.now or not room():
                    break
                lease = model.pending[offset]
                if lease.is_over(self.now, limit if retry else 0):
                    expired.append(offset)
                    del model.pending[offset]
                    model.lost += offset < self.first
                elif offset in self.messages:
                    cost += give(offset)
                    if not retry:
                        del model.pending[offset]
                        model.acknowledged += 1
                        continue
                    lease.retry_at = self.now + max(retry[0], 1)
                    lease.dead_letter = dead if lease.dead_letter is None else lease.dead_letter
                    lease.token, lease.limit, lease.reserved = token, limit or lease.limit, True
                    if not reserve:
                        lease.begin(self.now)
                else:
                    del model.pending[offset]
        spare = cap - len(model.pending) if retry or len(model.pending) >= cap else count
        while spare > 0 and room() and model.position <= self.last:
            if model.position in self.messages:
                cost += give(model.position)
                spare -= 1
                if retry:
                    at = self.now + max(retry[0], 1)
                    lease = ModelLease(at, -retry[1], self.now, 0, dead, token, limit, True)
                    model.pending[model.position] = lease
                    if not reserve:
                        lease.begin(self.now)
                else:
                    model.acknowledged += 1
            else:
                model.lost += model.position < self.first
            model.position += 1
        if retry and delivered:
            model.token = token
        assert [offset for run in delivery.runs for offset in range(*run)] == delivered
        assert sorted(offset for lease in delivery.expired for offset in range(*lease[:2])) == sorted(expired)
        assert read_runs(self.stream.messages, delivery.runs) == b"".join(
            resp(at, self.messages[at][1], self.messages[at][2]) for at in delivered
        )
        table = pa.ipc.open_stream(b"".join(read_arrow_runs(self.stream.messages, delivery.runs).pieces)).read_all()
        assert table.column("offset").to_pylist() == delivered

    @precondition(lambda self: self.groups)
    @rule(
        data=st.data(),
        start=st.integers(1, 120),
        length=st.integers(0, 30),
        at=st.integers(-20, 60),
        action=st.sampled_from(["ack", "nack", "extend", "begin"]),
    )
    def answer(self, data: st.DataObject, start: int, length: int, at: int, action: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        model, group, replica = self.groups[name], self.stream.groups[name], self.replicas[name]
        token = data.draw(st.none() | st.integers(max(model.token - 2, 0), model.token))
        known = [
            offset
            for offset in range(start, start + length)
            if offset in model.pending and token in (None, model.pending[offset].token)
        ]
        ranges = [(start, start + length)]
        for one in (group, replica):
            if action == "ack":
                assert one.ack(ranges, token) == len(known)
            elif action == "nack":
                assert one.nack(ranges, self.now + at, token) == len(known)
            elif action == "extend":
                assert one.extend(ranges, self.now + at, token) == len(known)
            else:
                one.begin(ranges, self.now, token)
        for offset in known:
            lease = model.pending[offset]
            if action == "ack":
                del model.pending[offset]
                model.acknowledged += 1
            elif action == "begin" and lease.reserved:
                lease.begin(self.now)
            elif action != "begin":
                lease.retry_at = self.now + at
                lease.token = 0 if action == "nack" else lease.token

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        model = self.groups[name]
        expired = [at for at, lease in model.pending.items() if lease.is_over(self.now)]
        leases, change = self.stream.groups[name].expire(self.stream.messages, self.now)
        assert sorted(offset for lease in leases for offset in range(*lease[:2])) == sorted(expired)
        assert (change is None) == (not expired)
        if change is not None:
            self.replicas[name].apply(Change.decode(change.encode()))
        for offset in expired:
            del model.pending[offset]
            model.lost += offset < self.first

    @rule(copy=st.booleans())
    def restart(self, copy: bool) -> None:
        before = self.stream.dump()
        stream = self.stream.copy() if copy else Stream.load(before)
        assert stream.dump() == before
        self.stream = stream
        self.stream.messages.cooling.storage = self.storage

    @invariant()
    def agrees_with_the_model(self) -> None:
        stream = self.stream
        stream.check()
        assert (stream.messages.first, stream.messages.last, len(stream.messages)) == (
            self.first,
            self.last,
            len(self.messages),
        )
        assert stream.size() > 0
        for name, model in self.groups.items():
            group = stream.groups[name]
            counters = (model.position, model.lost, model.token, model.acknowledged)
            assert (group.position, group.lost, group.token, group.acknowledged) == counters
            assert group.pending_count == len(model.pending)
            listed = {at: ModelLease(*lease[2:]) for lease in group.pending(1, 10**9) for at in range(*lease[:2])}
            assert listed == model.pending
            assert group.lag(stream.messages) == sum(1 for offset in self.messages if offset >= model.position)
            assert group.done_through == min([model.position, *model.pending]) - 1
            deadlines = [
                at
                for lease in model.pending.values()
                for at in (lease.retry_at, lease.expire_at if lease.expire_at > 0 else 10**9)
            ]
            assert group.next_deadline() == min(deadlines, default=None)
            assert self.replicas[name].dump() == group.dump()


TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def a_stream_with_everything() -> Stream:
    stream = Stream(Storage("zstd", hot_nodes=1))
    numbers = range(4300)
    stream.messages.append_many(5, [b"t%d" % (n % 7) for n in numbers], [b"entry %d" % n for n in numbers])
    stream.retain(Retention(compact=True))
    stream.messages.evict_through(1100)
    while compact(stream.messages).more:
        pass
    stream.group(b"g", 1).deliver(stream.messages, 10, 500, (100, 1000), dead_letter=b"dead")
    stream.groups[b"g"].ack([(4150, 4160)])
    stream.producers.remember(b"p", 3, 4200, 10)
    stream.stages.stage_entries(b"token", [b"a", b"b"], [b"1", b"2"], 10)
    stream.commit(b"q", 0, [b"token"], 11)
    stream.stages.stage_entries(b"token", [b"a"], [b"3"], 12)
    stream.check()
    return stream


def test_a_dumped_stream_loads_as_it_was() -> None:
    stream = a_stream_with_everything()
    loaded = Stream.load(stream.dump())
    loaded.check()
    assert loaded.dump() == stream.dump()
    assert read(loaded.messages, 1, 5000) == read(stream.messages, 1, 5000)
    assert loaded.producers.repeated(b"p", 3) == 4200
    assert loaded.commit(b"q", 0, [], 20) == (4301, 2)
    assert loaded.commit(b"q", 1, [b"token"], 20) == (4303, 1)


def test_a_dump_writes_compressed_nodes_as_they_are() -> None:
    stream = Stream(Storage("lz4", hot_nodes=0))
    stream.messages.append_many(5, [b""] * 1000, [b"entry"] * 1000)
    assert stream.messages.nodes[0].compressed
    assert bytes(stream.messages.nodes[0].payload) in stream.dump()


def test_a_copy_goes_its_own_way() -> None:
    stream = a_stream_with_everything()
    before = stream.dump()
    copy = stream.copy()
    copy.messages.append(50, b"t1", b"more")
    keep_last(copy.messages, 10)
    copy.groups[b"g"].ack([(1, 10_000)])
    copy.producers.remember(b"p", 4, 1, 60)
    copy.stages.stage_entries(b"token", [b""], [b""], 60)
    copy.stages.take([b"token"])
    copy.check()
    assert stream.dump() == before


def test_damage_to_any_part_of_a_dump_is_refused_or_harmless() -> None:
    parts = unpack_many(a_stream_with_everything().dump())
    rng = random.Random(4)
    refused = 0
    for _ in range(400):
        damaged = [*parts]
        at = rng.randrange(len(parts))
        part = bytearray(damaged[at])
        if part and rng.random() < 0.8:
            part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
        else:
            del part[rng.randrange(len(part) + 1) :]
        damaged[at] = bytes(part)
        try:
            stream = Stream.load(pack_many(damaged))
        except CorruptValue:
            refused += 1
        else:
            stream.check()
            read(stream.messages, 1, 5000)
            size, pieces = read_arrow(stream.messages, 1, 5000)
            assert len(b"".join(pieces)) == size
            stream.groups and next(iter(stream.groups.values())).deliver(stream.messages, 10**6, 100, (1, 0))
    assert refused > 100


@given(st.binary(max_size=200))
def test_bytes_that_are_no_dump_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptValue):
        Stream.load(data)


def test_a_missing_or_an_extra_part_is_refused() -> None:
    parts = unpack_many(a_stream_with_everything().dump())
    for damaged in (parts[:-1], [*parts, b""], [], parts[1:], [b"\x02" + parts[0][1:], *parts[1:]]):
        with pytest.raises(CorruptValue):
            Stream.load(pack_many(damaged))


def test_a_failed_check_tells_what_the_stream_looked_like() -> None:
    stream = a_stream_with_everything()
    stream.messages.sealed_rows += 1
    with pytest.raises(AssertionError) as failure:
        stream.check()
    assert any("group b'g'" in note for note in failure.value.__notes__)


def test_the_size_grows_with_messages_leases_and_stages() -> None:
    stream = Stream(Storage())
    sizes = [stream.size()]
    stream.messages.append(1, b"", b"x" * 10_000)
    sizes.append(stream.size())
    stream.messages.append_many(1, [b""] * 3000, [b"y" * 100] * 3000)
    sizes.append(stream.size())
    stream.stages.stage_entries(b"t", [b""], [b"z" * 5000], 1)
    sizes.append(stream.size())
    stream.group(b"g", 1).deliver(stream.messages, 1, 10, (1, 1))
    sizes.append(stream.size())
    growth = [b - a for a, b in pairwise(sizes)]
    assert growth[0] > 10_000
    assert growth[1] > 3000 * 100
    assert growth[2] > 5000
    assert growth[3] > 100


def test_an_emptied_stream_keeps_its_counter_and_gives_its_memory_back() -> None:
    stream = Stream(Storage())
    stream.messages.append_many(1, [b""] * 500, [b"x" * 1000] * 500)
    stream.messages.evict_through(500)
    stream = Stream.load(stream.dump())
    assert (stream.messages.first, stream.messages.last, len(stream.messages)) == (501, 500, 0)
    assert stream.size() < 5000
    assert stream.messages.append(2, b"", b"") == 501


def test_a_group_position_survives_a_restart() -> None:
    """redis#7105: the position was lost when the log was rewritten."""
    stream = Stream(Storage())
    stream.messages.append_many(1, [b""] * 10, [b"x"] * 10)
    stream.group(b"g", 1).deliver(stream.messages, 1, 4)
    stream = Stream.load(stream.dump())
    assert stream.group(b"g", 1).deliver(stream.messages, 1, 10).runs == [(5, 11)]


def test_what_compaction_remembers_of_tags_counts_in_the_size() -> None:
    stream = Stream(Storage())
    stream.messages.append_many(0, [b"tag %d" % number for number in range(5000)], [b""] * 5000)
    before = stream.size()
    stream.retain(Retention(compact=True))
    while compact(stream.messages).more:
        pass
    assert stream.size() - before > 5000 * 100


def test_a_dump_whose_offsets_are_nearly_used_up_is_refused() -> None:
    """Beyond 64 bits nothing could be written any more: neither the stream nor a snapshot of the others."""
    for last, refused in ((MOST, False), (MOST + 1, True), (2**63 - 2, True)):
        stream = Stream(Storage())
        stream.messages.last, stream.messages.first = last, last + 1
        stream.messages.lowest, stream.messages.active = last // NODE, Active(last + 1, 0)
        assert len(stream.messages) == 0
        with pytest.raises(CorruptValue, match="more was written") if refused else nullcontext():
            assert Stream.load(stream.dump()).messages.append(0, b"", b"") == last + 1
