"""The records of ONCE against a model that forgets nothing until it is told to."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.types.once_records import BelowFloor, OnceRecords, UnknownClient
from penstock.types.packing import CorruptValue

clients = st.sampled_from([b"a", b"b", b""])
numbers = st.integers(1, 12)
replies = st.sampled_from([(b"+OK\r\n", b"+OK\r\n"), (b"$-1\r\n", b"_\r\n"), (b":1\r\n", b":1\r\n")])


class OnceRecordsMachine(RuleBasedStateMachine):
    """The model: for each client its floor, and every reply that was ever kept."""

    def __init__(self) -> None:
        super().__init__()
        self.once_records = OnceRecords()
        self.kept: dict[bytes, dict[int, tuple[bytes, bytes]]] = {}
        self.floors: dict[bytes, int] = {}
        self.used: dict[bytes, int] = {}
        self.now = 0

    @rule(client=clients, number=numbers, back=st.integers(0, 11), reply=replies)
    def send(self, client: bytes, number: int, back: int, reply: tuple[bytes, bytes]) -> None:
        floor = max(number - back, 1)
        self.now += 1
        if client not in self.kept and floor > 1:
            with pytest.raises(UnknownClient):
                self.once_records.find(client, number, floor, self.now)
            return
        if client in self.kept:
            self.floors[client] = max(self.floors[client], floor)
            self.used[client] = self.now
            if number < self.floors[client]:
                with pytest.raises(BelowFloor, match=f"{number} is below the floor {self.floors[client]}"):
                    self.once_records.find(client, number, floor, self.now)
                return
        found = self.once_records.find(client, number, floor, self.now)
        assert found == self.kept.get(client, {}).get(number)
        if found is None:
            self.once_records.keep(client, number, floor, reply, self.now)
            self.kept.setdefault(client, {})[number] = reply
            self.floors.setdefault(client, floor)
            self.used[client] = self.now

    @rule(client=clients)
    def meet(self, client: bytes) -> None:
        self.now += 1
        assert self.once_records.meet(client, self.now) == (client not in self.kept)
        self.kept.setdefault(client, {})
        self.floors.setdefault(client, 1)
        self.used[client] = self.now

    @rule(ago=st.integers(0, 5))
    def forget(self, ago: int) -> None:
        idle = [client for client, used in self.used.items() if used < self.now - ago]
        assert self.once_records.forget_idle(self.now - ago) == len(idle)
        for client in idle:
            del self.kept[client], self.floors[client], self.used[client]

    @rule()
    def restart(self) -> None:
        again = OnceRecords()
        for client in self.once_records.clients:
            again.load(client, self.once_records.dump(client))
            again.load(client, self.once_records.dump(client))  # a reload over what is there
        self.once_records = again

    @invariant()
    def same(self) -> None:
        self.once_records.check()
        assert self.once_records.clients.keys() == self.kept.keys()
        for client, record in self.once_records.clients.items():
            floor = self.floors[client]
            assert record.floor == floor
            assert record.last_used == self.used[client]
            assert record.replies == {n: reply for n, reply in self.kept[client].items() if n >= floor}


TestOnceRecords = OnceRecordsMachine.TestCase


def test_an_enormous_step_of_the_floor_costs_what_is_kept() -> None:
    records = OnceRecords()
    for number in (1, 2, 1 << 62):
        records.keep(b"c", number, 1, (b":1\r\n", b":1\r\n"), 0)
    assert records.find(b"c", 1 << 62, 1 << 62, 0) == (b":1\r\n", b":1\r\n")
    assert records.replies == 1


def test_bytes_that_dump_did_not_write_are_refused() -> None:
    records = OnceRecords()
    records.keep(b"c", 1, 1, (b"$-1\r\n", b"_\r\n"), 7)
    whole = records.dump(b"c")
    for end in range(len(whole)):
        with pytest.raises(CorruptValue):
            OnceRecords().load(b"c", whole[:end])
