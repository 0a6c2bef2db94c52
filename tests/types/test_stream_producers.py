"""Writes that happen once: sequence numbers, stages and epochs."""

from __future__ import annotations

import pytest

from penstock.types.packing import CorruptValue
from penstock.types.stream import producers
from penstock.types.stream.column_buffers import column_of
from penstock.types.stream.encoding import Column
from penstock.types.stream.nodes import Storage
from penstock.types.stream.producers import Commit, ProducerFenced, Producers, Stages, UnknownStage
from penstock.types.stream.reading import each
from penstock.types.stream.stream import Stream


def staged(stream: Stream, token: bytes, *entries: bytes) -> None:
    stream.stages.stage_entries(token, [b"tag"] * len(entries), list(entries), now=5)


def entries_of(stream: Stream) -> list[bytes]:
    return [message.entry for message in each(stream.messages, 1, 10**6)]


def test_a_repeated_write_is_answered_with_its_first_offset() -> None:
    producers = Producers()
    assert producers.repeated(b"p", 1) is None
    producers.remember(b"p", 1, first=10, now=0)
    assert producers.repeated(b"p", 1) == 10
    assert producers.repeated(b"p", 2) is None
    assert producers.repeated(b"other", 1) is None


def test_the_last_eight_writes_can_be_repeated_and_older_ones_are_refused() -> None:
    producers = Producers()
    for sequence in range(10, 20):
        producers.remember(b"p", sequence, first=sequence * 100, now=0)
    assert [producers.repeated(b"p", sequence) for sequence in (12, 19)] == [1200, 1900]
    with pytest.raises(ProducerFenced, match="sequence 11 is older than 19"):
        producers.repeated(b"p", 11)
    producers.check()


def test_a_number_that_was_skipped_is_refused() -> None:
    producers = Producers()
    producers.remember(b"p", 1, first=1, now=0)
    producers.remember(b"p", 5, first=2, now=0)
    with pytest.raises(ProducerFenced):
        producers.repeated(b"p", 3)


def test_the_producer_not_used_for_longest_is_forgotten() -> None:
    producers = Producers(limit=2)
    producers.remember(b"a", 1, first=1, now=1)
    producers.remember(b"b", 1, first=2, now=2)
    producers.remember(b"a", 2, first=3, now=3)
    producers.remember(b"c", 1, first=4, now=4)
    assert list(producers.by_id) == [b"a", b"c"]


def test_a_repeat_leaves_no_trace_that_a_replica_would_miss() -> None:
    producers = Producers()
    producers.remember(b"a", 1, first=1, now=1)
    producers.remember(b"b", 1, first=2, now=2)
    before = [*producers.dump()]
    producers.repeated(b"a", 1)
    assert [*producers.dump()] == before


def test_staged_entries_are_not_visible_until_they_are_committed() -> None:
    stream = Stream(Storage())
    staged(stream, b"one", b"a", b"b")
    assert len(stream.messages) == 0
    assert stream.commit(b"p", 0, [b"one"], now=9) == Commit(1, 2)
    assert [message[1:] for message in each(stream.messages, 1, 9)] == [(9, b"tag", b"a"), (9, b"tag", b"b")]
    stream.check()


def test_tokens_are_committed_in_the_order_given_and_contiguously() -> None:
    stream = Stream(Storage())
    stream.messages.append(0, b"", b"before")
    staged(stream, b"one", b"1")
    staged(stream, b"two", b"2a", b"2b")
    staged(stream, b"one", b"1 more")
    assert stream.commit(b"p", 0, [b"two", b"one"], now=9) == (2, 4)
    assert entries_of(stream) == [b"before", b"2a", b"2b", b"1", b"1 more"]


def test_a_repeated_commit_appends_nothing_and_answers_the_same() -> None:
    stream = Stream(Storage())
    staged(stream, b"one", b"a")
    first = stream.commit(b"p", 7, [b"one"], now=9)
    staged(stream, b"retried", b"a")
    assert stream.commit(b"p", 7, [b"retried"], now=10) == first
    assert entries_of(stream) == [b"a"]


def test_an_older_epoch_is_fenced() -> None:
    stream = Stream(Storage())
    stream.commit(b"p", 7, [], now=9)
    staged(stream, b"late", b"a")
    with pytest.raises(ProducerFenced, match="epoch 6 is older than 7"):
        stream.commit(b"p", 6, [b"late"], now=9)
    assert entries_of(stream) == []
    assert stream.commit(b"another", 0, [b"late"], now=9) == (1, 1)


@pytest.mark.parametrize("tokens", [[b"one", b"unknown"], [b"one", b"one"]])
def test_a_commit_with_a_token_it_cannot_have_changes_nothing(tokens: list[bytes]) -> None:
    stream = Stream(Storage())
    staged(stream, b"one", b"a")
    with pytest.raises(UnknownStage):
        stream.commit(b"p", 0, tokens, now=9)
    assert entries_of(stream) == []
    assert stream.commit(b"p", 0, [b"one"], now=9) == (1, 1)


def test_stale_stages_expire_and_those_still_growing_do_not() -> None:
    stages = Stages()
    stages.stage_entries(b"growing", [b""], [b""], now=10)
    stages.stage_entries(b"stale", [b""], [b""], now=10)
    stages.stage_entries(b"just in time", [b""], [b""], now=15)
    assert stages.stage_entries(b"growing", [b"", b""], [b"", b""], now=20) == 3
    stages.check()
    assert stages.expire(before=15) == [b"stale"]
    assert list(stages.by_token) == [b"just in time", b"growing"]


def test_staged_entries_count_in_the_size() -> None:
    stream = Stream(Storage())
    before = stream.size()
    staged(stream, b"one", b"x" * 10_000)
    assert stream.size() > before + 10_000


def test_damaged_records_are_refused() -> None:
    producers = Producers()
    producers.remember(b"p", 1, first=1, now=1)
    producers.remember(b"p", 2, first=2, now=1)
    name, record = producers.dump()
    swapped = record[:-32] + record[-16:] + record[-32:-16]
    for damaged in (record[:-1], b"", swapped):
        with pytest.raises(CorruptValue):
            Producers().load_one(name, damaged)
    with pytest.raises(CorruptValue):
        producers.load_one(name, record)


def test_entries_that_are_too_many_bytes_for_one_batch_are_staged_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    def short_columns(values: list[bytes], wide: bool) -> Column:
        if len(values) > 2:
            raise OverflowError
        return column_of(values, wide)

    monkeypatch.setattr(producers, "column_of", short_columns)
    stream = Stream(Storage())
    entries = [b"%d" % number for number in range(7)]
    assert stream.stages.stage_entries(b"token", [b"tag"] * 7, entries, now=5) == 7
    stream.check()
    assert stream.commit(b"p", 1, [b"token"], now=9) == (1, 7)
    assert [message.entry for message in each(stream.messages, 1, 10)] == entries
    monkeypatch.setattr(producers, "column_of", lambda values, wide: short_columns(values * 3, wide))
    with pytest.raises(OverflowError):
        stream.stages.stage_entries(b"token", [b"tag"] * 7, entries, now=5)
