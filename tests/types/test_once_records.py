"""The records of ONCE against a model that forgets nothing until it is told to."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.types.once_records import MOST_REASONS, BelowFloor, OnceRecords, UnknownClient
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
        self.patience: dict[bytes, int] = {}
        self.connected: dict[bytes, int] = {}
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

    @rule(client=clients, patience=st.integers(0, 9))
    def meet(self, client: bytes, patience: int) -> None:
        self.now += 1
        is_changed = client not in self.kept or self.patience.get(client, 0) != patience
        assert self.once_records.meet(client, self.now, patience) == is_changed
        self.kept.setdefault(client, {})
        self.floors.setdefault(client, 1)
        self.used[client] = self.now
        self.patience[client] = patience

    @rule(client=clients, connection=st.integers(1, 2))
    def connect(self, client: bytes, connection: int) -> None:
        if client in self.kept:
            self.once_records.clients[client].connection = self.connected[client] = connection

    @rule(client=clients, connection=st.integers(1, 2))
    def disconnect(self, client: bytes, connection: int) -> None:
        self.now += 1
        self.once_records.disconnected(client, connection, self.now)
        if self.connected.get(client) == connection:
            del self.connected[client]
            self.used[client] = self.now

    @rule(client=clients)
    def end(self, client: bytes) -> None:
        assert self.once_records.end(client) == (client in self.kept)
        self._forgotten([client] if client in self.kept else [])

    @rule(ago=st.integers(0, 5))
    def forget(self, ago: int) -> None:
        idle = [client for client, used in self.used.items() if used < self.now - ago]
        assert self.once_records.forget_idle(self.now - ago) == len(idle)
        self._forgotten(idle)

    @rule(timeout=st.integers(0, 5))
    def forget_gone(self, timeout: int) -> None:
        gone = [
            client
            for client, used in self.used.items()
            if client not in self.connected and self.now - used > max(timeout, self.patience.get(client, 0))
        ]
        assert self.once_records.forget_gone(self.now, timeout) == len(gone)
        self._forgotten(gone)

    def _forgotten(self, clients: list[bytes]) -> None:
        for client in clients:
            del self.kept[client], self.floors[client], self.used[client]
            self.patience.pop(client, None)
            self.connected.pop(client, None)

    @rule()
    def restart(self) -> None:
        again = OnceRecords()
        for client in self.once_records.clients:
            again.load(client, self.once_records.dump(client))
            again.load(client, self.once_records.dump(client))  # a reload over what is there
        self.once_records = again
        self.connected.clear()

    @invariant()
    def same(self) -> None:
        self.once_records.check()
        assert self.once_records.clients.keys() == self.kept.keys()
        for client, record in self.once_records.clients.items():
            floor = self.floors[client]
            assert record.floor == floor
            assert record.last_used == self.used[client]
            assert record.patience == self.patience.get(client, 0)
            assert record.connection == self.connected.get(client)
            assert record.replies == {n: reply for n, reply in self.kept[client].items() if n >= floor}


TestOnceRecords = OnceRecordsMachine.TestCase


def test_an_enormous_step_of_the_floor_costs_what_is_kept() -> None:
    records = OnceRecords()
    for number in (1, 2, 1 << 62):
        records.keep(b"c", number, 1, (b":1\r\n", b":1\r\n"), 0)
    assert records.find(b"c", 1 << 62, 1 << 62, 0) == (b":1\r\n", b":1\r\n")
    assert records.replies == 1


def test_a_client_that_keeps_much_leaves_room_for_others() -> None:
    records, most = OnceRecords(), 10_000
    records.keep(b"much", 1, 1, (b"x" * most,) * 2, 0)
    assert not records.has_room(b"much", most) and records.has_room(b"little", most)
    for number in range(20):
        client = b"%d" % number
        while records.has_room(client, most):
            records.keep(client, records.clients[client].top + 1 if client in records.clients else 1, 1, (b"x",) * 2, 0)
    assert records.bytes < 4 * most, "the shares of all, what one client has kept, and a reply each"
    assert records.has_room(b"another", most) == (records.kept_for(b"another") <= most // 22)


def test_only_the_last_reasons_are_kept() -> None:
    records = OnceRecords()
    for number in range(2 * MOST_REASONS):
        records.meet(b"%d" % number, 0)
        records.end(b"%d" % number)
    assert "long ago" in records.why_unknown(b"0") and "goodbye" in records.why_unknown(b"%d" % (2 * MOST_REASONS - 1))
    assert len(records._reasons) == MOST_REASONS


def test_bytes_that_dump_did_not_write_are_refused() -> None:
    records = OnceRecords()
    records.keep(b"c", 1, 1, (b"$-1\r\n", b"_\r\n"), 7)
    whole = records.dump(b"c")
    for end in range(len(whole)):
        with pytest.raises(CorruptValue):
            OnceRecords().load(b"c", whole[:end])
