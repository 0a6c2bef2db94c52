"""A giant value is freed in small steps after its last reference is gone, and not before."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from penstock import freeing
from penstock.engine.keyspace.databases import Keyspace
from penstock.freeing import GIANT, SLICE, drain, take_apart
from penstock.types import xstream
from penstock.types.hash import Hash
from penstock.types.kernels import finish
from penstock.types.list import List
from penstock.types.set import Set
from penstock.types.xstream import Row, XStream
from penstock.types.zset import SortedSet

Value = Set | Hash | List | SortedSet

MANY = [b"%d" % number for number in range(GIANT + 1)]
MAKE: dict[str, Callable[[list[bytes]], Value]] = {
    "set": Set,
    "hash": lambda names: Hash.fromkeys(names, b"value"),
    "list": List,
    "zset": lambda names: SortedSet(dict.fromkeys(names, 1.0)),
}


class Noticed(bytes):
    """An element that leaves a note when it goes."""

    notes: list[bytes] = []

    def __del__(self) -> None:
        self.notes.append(bytes(self))


@pytest.fixture(autouse=True)
def _no_notes() -> None:
    Noticed.notes.clear()


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("elements", [MANY, MANY[:10]], ids=["giant", "small"])
def test_everything_in_a_value_is_freed(kind: str, elements: list[bytes]) -> None:
    value = MAKE[kind]([*elements, Noticed(b"witness")])
    assert Noticed.notes == []
    del value
    drain()
    assert Noticed.notes == [b"witness"]


@pytest.mark.parametrize("kind", MAKE)
def test_a_value_with_a_reference_is_not_freed(kind: str) -> None:
    keyspace = Keyspace()
    keyspace[0].set(b"key", MAKE[kind](MANY))
    reader = keyspace[0].get(b"key")
    assert keyspace[0].delete(b"key")
    drain()
    assert reader is not None and sorted(reader) == sorted(MANY)


def test_a_list_inside_a_value_counts_as_many_elements_as_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(freeing.time, "sleep", rests.append)
    value = [[None] * SLICE for _ in range(10)]
    take_apart(value)
    assert value == []
    assert len(rests) == 10


def test_entries_of_a_redis_stream_are_freed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[list[Row]]] = []
    monkeypatch.setattr(xstream, "dispose", given.append)
    stream = XStream()
    for number in range(1, 3 * len(MANY) + 1):
        stream.append((number, 0), (b"field", b"value"))
    assert stream.keep_newest(len(MANY)) == 2 * len(MANY)
    assert len(stream) == len(MANY)
    stream.check()
    (trimmed,) = given
    assert GIANT < sum(map(len, trimmed)) <= 2 * len(MANY)
    del stream
    assert sum(map(len, given[1])) == len(MANY)


def test_an_order_that_two_reads_have_made_is_freed_in_steps_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    zset = SortedSet({member: float(rank) for rank, member in enumerate(MANY)})
    first, second = zset.put_in_order(), zset.put_in_order()
    next(second)
    finish(first)
    order = zset._order
    given: list[list[Any]] = []
    monkeypatch.setattr("penstock.types.zset.dispose", given.append)
    finish(second)
    assert zset._order is order
    assert sum(map(len, given[0])) == len(MANY)


def test_an_order_that_is_given_up_goes_without_the_set() -> None:
    zset = SortedSet({member: float(rank) for rank, member in enumerate(MANY)})
    finish(zset.put_in_order())
    for round_ in range(len(MANY)):
        zset.put(MANY[round_], -1.0)
        if zset.disorder:
            break
    drain()
    assert zset.disorder == len(MANY)
    assert zset.rows(0, 1) == [(-1.0, b"0")]
    zset.check()


def test_a_flushed_database_frees_its_values() -> None:
    keyspace = Keyspace()
    for name in MANY:
        keyspace[0].set(name, b"value")
        keyspace[0].expire_at(name, 1 << 50)
    keyspace[0].set(b"witness", Set([Noticed(b"witness")]))
    keyspace[0].clear()
    assert len(keyspace[0]) == 0
    keyspace[0].check()
    drain()
    assert Noticed.notes == [b"witness"]


def test_a_forked_child_has_a_thread_of_its_own() -> None:
    value = Set(MANY)
    del value
    drain()  # so there is a thread here that the child has not
    child = os.fork()
    if child == 0:
        value = Set([*MANY, Noticed(b"witness")])
        del value
        drain()
        os._exit(0 if Noticed.notes == [b"witness"] else 1)
    assert os.waitpid(child, 0)[1] == 0
