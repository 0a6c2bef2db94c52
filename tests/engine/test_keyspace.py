"""Expiry by a clock that moves only when told to: lazily on access, actively in slices, logged once."""

from __future__ import annotations

import pytest

from penstock import commands
from penstock.engine.dispatch import Engine
from penstock.engine.keyspace.databases import Database, Keyspace
from penstock.engine.keyspace.random_keys import DRAWS
from penstock.engine.session import Session
from penstock.testing.clock import ManualClock

commands.load()


class Bench:
    """An engine on a manual clock that records its log."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = Engine(clock=self.clock)
        self.logged: list[list[bytes]] = []
        self.engine.log = lambda entries: self.logged.extend(argv for _, argv in entries)
        self.session = Session(self.engine)
        self.db = self.engine.keyspace[0]

    def run(self, line: str) -> object:
        return self.engine.execute(self.session, [word.encode() for word in line.split()])

    def volatile(self, name: bytes, milliseconds: int, value: object = b"v") -> None:
        self.db.set(name, value)
        self.db.expire_at(name, self.clock.now + milliseconds)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_key_is_there_until_its_millisecond_and_gone_in_it(bench: Bench) -> None:
    bench.volatile(b"k", 100)
    bench.clock.advance(99)
    assert bench.db.get(b"k") == b"v"
    assert not bench.db.is_expired(b"k")
    bench.clock.advance(1)
    assert bench.db.is_expired(b"k")
    assert bench.db.get(b"k") is None
    assert b"k" not in bench.db.data
    bench.db.check()


@pytest.mark.parametrize(
    "line", ["GET k", "DEL k", "EXISTS k", "TYPE k", "TTL k", "PERSIST k", "EXPIRE k 10", "UNLINK k k", "COPY k j"]
)
def test_an_expired_key_is_logged_as_deleted_once(bench: Bench, line: str) -> None:
    bench.volatile(b"k", 100)
    bench.clock.advance(100)
    bench.run(line)
    bench.run(line)
    assert bench.logged == [[b"DEL", b"k"]]
    assert bench.engine.keyspace.expired_count == 1


@pytest.mark.parametrize("options", ["", " COUNT 1000", " COUNT 1000 TYPE string", " COUNT 1000 MATCH k*"])
def test_scan_passes_over_keys_that_it_finds_expired(bench: Bench, options: str) -> None:
    for number in range(9):
        bench.volatile(b"k%d" % number, 100 if number % 2 else 60_000)
    bench.clock.advance(100)
    assert sorted(bench.run(f"SCAN 0{options}")[1]) == [b"k0", b"k2", b"k4", b"k6", b"k8"]  # type: ignore[index]
    assert len(bench.db) == 5


def test_the_deletion_is_logged_before_the_command_that_found_it(bench: Bench) -> None:
    bench.volatile(b"k", 100, 41)
    bench.clock.advance(100)
    assert bench.run("INCR k") == 1
    assert bench.logged == [[b"DEL", b"k"], [b"INCR", b"k"]]


def test_active_expiry_deletes_and_logs_keys_that_no_client_reads(bench: Bench) -> None:
    for number in range(5):
        bench.volatile(b"%d" % number, 100)
    bench.volatile(b"later", 60_000)
    bench.clock.advance(1000)
    assert bench.run("DBSIZE") == 6
    assert bench.engine.keyspace.expire_cycle() is False
    assert bench.run("DBSIZE") == 1
    assert sorted(bench.logged) == [[b"DEL", b"%d" % number] for number in range(5)]
    bench.db.check()


def test_a_slice_of_active_expiry_is_bounded_and_says_that_more_is_due(bench: Bench) -> None:
    for number in range(1000):
        bench.volatile(b"%d" % number, 100)
    bench.clock.advance(1000)
    assert bench.engine.keyspace.expire_cycle(0) is True
    assert 900 < len(bench.db) < 1000
    slices = 1
    while bench.engine.keyspace.expire_cycle(0):
        slices += 1
    assert len(bench.db) == 0
    assert slices < 100


def test_databases_take_turns_in_active_expiry(bench: Bench) -> None:
    other = bench.engine.keyspace[1]
    for db in (bench.db, other):
        for number in range(1000):
            db.set(b"%d" % number, b"v")
            db.expire_at(b"%d" % number, bench.clock.now)
    bench.clock.advance(1000)
    for _ in range(2 * len(bench.engine.keyspace)):
        bench.engine.keyspace.expire_cycle(0)
    assert len(bench.db) < 1000
    assert len(other) < 1000


def test_nothing_expires_while_loading_and_all_of_it_afterwards(bench: Bench) -> None:
    keyspace = bench.engine.keyspace
    keyspace.expiring = False
    bench.db.set(b"k", b"v")
    assert bench.run("PEXPIREAT k 1") == 1
    assert bench.db.get(b"k") == b"v"
    assert list(bench.db.live_keys()) == [b"k"]
    assert bench.db.random_key() == b"k"
    assert keyspace.expire_cycle() is False
    assert len(bench.db) == 1
    keyspace.expiring = True
    assert list(bench.db.live_keys()) == []
    keyspace.expire_cycle()
    assert len(bench.db) == 0
    assert [b"DEL", b"k"] in bench.logged


def test_a_replayed_expiry_in_the_past_deletes_nothing_until_the_log_says_so(bench: Bench) -> None:
    bench.engine.keyspace.expiring = False
    bench.run("SET k v")
    bench.run("PEXPIREAT k 1")
    bench.run("RENAME k j")
    assert bench.run("EXISTS j") == 1
    assert bench.run("PEXPIRETIME j") == 1


def test_keys_shows_live_keys_only_and_dbsize_counts_all(bench: Bench) -> None:
    bench.db.set(b"stays", b"v")
    bench.volatile(b"goes", 100)
    bench.clock.advance(100)
    assert bench.run("KEYS *") == [b"stays"]
    assert bench.run("DBSIZE") == 2
    assert bench.run("RANDOMKEY") == b"stays"
    assert bench.run("SCAN 0") == [b"0", [b"stays"]]
    assert bench.run("DBSIZE") == 1


def test_randomkey_of_only_expired_keys_is_null_and_removes_them(bench: Bench) -> None:
    for number in range(50):
        bench.volatile(b"%d" % number, 100)
    bench.clock.advance(100)
    assert bench.run("RANDOMKEY") is None
    assert len(bench.db) == 0
    assert len(bench.logged) == 50


def test_a_clock_that_jumps_back_keeps_the_dead_dead_and_the_living_alive(bench: Bench) -> None:
    bench.volatile(b"early", 100)
    bench.volatile(b"late", 10_000)
    bench.clock.advance(5000)
    assert bench.db.get(b"early") is None
    bench.clock.advance(-60_000)
    assert bench.db.get(b"early") is None
    assert bench.run("PTTL late") == 65_000
    assert bench.engine.keyspace.expire_cycle() is False
    assert b"late" in bench.db
    bench.clock.advance(66_000)
    bench.engine.keyspace.expire_cycle()
    assert len(bench.db) == 0


def test_expire_is_logged_as_an_absolute_time(bench: Bench) -> None:
    at = bench.clock.now + 5000
    bench.run("SET k v")
    for line in ("EXPIRE k 5", "PEXPIRE k 5000", f"PEXPIREAT k {at} XX", "EXPIRE k 5 NX"):
        bench.run(line)
    assert bench.logged[1:] == [[b"PEXPIREAT", b"k", b"%d" % at]] * 3
    bench.logged.clear()
    bench.run("PERSIST k")
    bench.run("PERSIST k")
    assert bench.logged == [[b"PERSIST", b"k"]]


@pytest.mark.parametrize("line", ["EXPIRE k -1", "PEXPIRE k 0", "EXPIREAT k 1", "PEXPIREAT k -5"])
def test_a_time_in_the_past_deletes_at_once_and_is_logged_as_that(bench: Bench, line: str) -> None:
    bench.run("SET k v")
    assert bench.run(line) == 1
    assert b"k" not in bench.db.data
    assert bench.logged[1:] == [[b"DEL", b"k"]]
    assert bench.engine.keyspace.expired_count == 0


def test_times_travel_with_rename_copy_move_and_swapdb_and_end_with_set(bench: Bench) -> None:
    at = bench.clock.now + 5000
    bench.volatile(b"k", 5000)
    bench.run("RENAME k j")
    bench.run("COPY j copy DB 1")
    bench.run("MOVE j 2")
    bench.run("SWAPDB 1 3")
    three, two = bench.engine.keyspace[3], bench.engine.keyspace[2]
    assert three.expires == {b"copy": at}
    assert two.expires == {b"j": at}
    bench.run("SELECT 3")
    bench.run("SET copy new")
    assert bench.run("TTL copy") == -1
    bench.run("SELECT 2")
    bench.clock.advance(5200)
    bench.engine.keyspace.expire_cycle()
    assert len(two) == 0
    assert len(three) == 1
    for database in bench.engine.keyspace.databases:
        database.check()


def test_rename_over_a_volatile_key_forgets_that_keys_time(bench: Bench) -> None:
    bench.db.set(b"stays", b"v")
    bench.volatile(b"goes", 100)
    bench.run("RENAME stays goes")
    bench.clock.advance(1000)
    assert bench.run("GET goes") == b"v"


def test_many_keys_given_new_times_again_and_again_leave_nothing_behind() -> None:
    clock = ManualClock()
    db = Keyspace(1, clock)[0]
    for number in range(1000):
        db.set(b"%d" % number, b"v")
    for turn in range(50):
        for number in range(1000):
            db.expire_at(b"%d" % number, clock.now + 10_000 * turn + 7 * number)
    db.check()
    assert len(db._deadlines._order) < 4000
    clock.advance(60_000 * 60)
    assert db.expire_due(1 << 62) is False
    assert len(db) == 0
    assert db.get == db.data.get, "reads pay for expiry only while something expires"


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_random_key_among_very_many_expired_ones_takes_few_passes(
    is_frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[Database] = []
    live_keys = Database.live_keys
    monkeypatch.setattr(Database, "live_keys", lambda self: passes.append(self) or live_keys(self))
    clock = ManualClock()
    keyspace = Keyspace(1, clock)
    db = keyspace[0]
    for number in range(20_000):
        db.set(b"%d" % number, b"v")
        db.expire_at(b"%d" % number, clock.now + 100)
    db.set(b"one", b"v")
    db.set(b"other", b"v")
    clock.advance(100)
    keyspace.frozen = is_frozen
    assert {db.random_key() for _ in range(100)} == {b"one", b"other"}
    assert len(passes) == 1
    db.delete(b"one")
    db.delete(b"other")
    before = len(db)
    assert {db.random_key() for _ in range(100)} == {None}
    assert len(passes) == 2
    assert before - len(db) <= 2 * DRAWS
    db.set(b"new", b"v")
    assert db.random_key() == b"new"


def test_random_keys_of_a_large_database_are_even_and_follow_changes() -> None:
    db = Keyspace(1, ManualClock())[0]
    for number in range(20_000):
        db.set(b"%d" % number, b"v")
    low = sum(int(db.random_key() or b"") < 10_000 for _ in range(3000))
    assert 1200 < low < 1800  # eleven standard deviations
    for number in range(10_000):
        db.delete(b"%d" % number)
    assert all(int(db.random_key() or b"") >= 10_000 for _ in range(100))
    for number in range(20_000, 20_000 + 10_000):
        db.set(b"%d" % number, b"v")
    assert any(int(db.random_key() or b"") >= 20_000 for _ in range(200))
