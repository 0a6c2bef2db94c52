"""A giant value is freed in small steps after its last reference is gone, and not before."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from penstock.engine.keyspace.databases import Keyspace
from penstock.freeing import GIANT, drain
from penstock.types.hash import Hash
from penstock.types.kernels import finish
from penstock.types.list import List
from penstock.types.set import Set
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
