"""The lazy queue by itself: the order and the time of runs, and what is left in the log. No server, no waiting."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.support.commands.stream_world import World

from penstock.engine.concurrency import lazy_passive
from penstock.engine.concurrency.lazy_rules import never
from penstock.engine.declarations import REGISTRY, Argv, Reply
from penstock.engine.observe.statistics import HITS, MISSES
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError

ENQUEUED = b"LAZY-ENQUEUED"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.engine.lazy.check()
    world.engine.keyspace[0].check()


def status(world: World, name: str) -> int | str:
    return world.engine.lazy.status()[name]


def queued(world: World) -> list[str]:
    """The commands that wait, the oldest first."""
    return [b" ".join(each.argv).decode() for each in world.engine.lazy.pending.values()]


def lazily(world: World, *lines: str) -> None:
    for line in lines:
        assert world.run(f"LAZY {line}") == ENQUEUED
        world.engine.lazy.check()


def peek(world: World, key: bytes) -> object:
    """What is in memory, without a command that would have the queue run."""
    return world.engine.keyspace[0].data.get(key)


# -- the drain rule -------------------------------------------------------------------------------------------


def test_the_example_of_the_proposal(world: World) -> None:
    world.run("SADD bigset1 a b c")
    world.run("SADD bigset2 b c d")
    lazily(world, "SINTERSTORE result bigset1 bigset2")
    assert peek(world, b"result") is None
    assert world.run("SCARD result") == 2
    assert queued(world) == []


def test_a_read_of_a_key_that_a_queued_command_only_reads_lets_it_wait(world: World) -> None:
    world.run("SADD a x")
    lazily(world, "SUNIONSTORE r a")
    assert world.run("SCARD a") == 1
    assert queued(world) == ["SUNIONSTORE r a"]


def test_a_write_to_a_key_that_a_queued_command_reads_has_it_run_first(world: World) -> None:
    world.run("SADD a x")
    lazily(world, "SUNIONSTORE r a")
    world.run("SADD a y")
    assert peek(world, b"r") == {b"x"}


def test_a_command_on_other_keys_lets_the_queue_be(world: World) -> None:
    lazily(world, "SADD a x")
    world.run("SET b 1")
    world.run("GET c")
    assert queued(world) == ["SADD a x"]


def test_only_what_comes_before_is_run_and_in_order(world: World) -> None:
    lazily(world, "RPUSH a 1", "RPUSH z 1", "RPUSH a 2", "LMOVE a b LEFT LEFT", "RPUSH y 1", "COPY b c")
    assert world.run("LRANGE c 0 -1") == [b"1"]
    assert queued(world) == ["RPUSH z 1", "RPUSH y 1"]


def test_readers_between_two_writers_see_the_first_and_not_the_second(world: World) -> None:
    lazily(world, "SADD a x", "SUNIONSTORE r a", "SUNIONSTORE s a", "SADD a y")
    assert world.run("SMEMBERS a") and world.run("SMEMBERS r") == [b"x"] == world.run("SMEMBERS s")


def test_a_chain_of_thousands_needs_no_recursion(world: World) -> None:
    world.run("CONFIG SET lazy-max-queued 100000")
    world.run("RPUSH k0 x")
    for number in range(5_000):
        world.run(
            "LAZY",
            "RENAMENX" if number % 2 else "LMOVE",
            f"k{number}",
            f"k{number + 1}",
            *["LEFT"] * 2 * (1 - number % 2),
        )
    assert world.run("EXISTS", "k5000") == 1
    assert queued(world) == []


def test_what_has_run_is_let_go_although_later_ones_came_after_it(world: World) -> None:
    lazily(world, "RPUSH a 1", "RPUSH a 2", "RPUSH a 3")
    first, second, third = world.engine.lazy.pending.values()
    assert third.after == [second]
    world.engine.lazy._runner.run(first)
    world.engine.lazy._runner.run(second)
    assert second.after == []


def test_databases_are_apart(world: World) -> None:
    lazily(world, "SADD a x")
    world.run("SELECT 1")
    lazily(world, "SADD a y")
    assert world.run("SMEMBERS a") == [b"y"]
    assert world.run("DBSIZE") == 1
    assert queued(world) == ["SADD a x"]
    world.run("SELECT 0")
    assert world.run("SMEMBERS a") == [b"x"]


@pytest.mark.parametrize(
    "line",
    ["KEYS *", "SCAN 0", "DBSIZE", "MEMORY STATS", "RANDOMKEY", "SWAPDB 0 1", "MOVE other 1", "COPY other new DB 1",
        "DEBUG OBJECT a",
             "SORT other BY w_* GET a", "SORT_RO other BY w_*"],
)  # fmt: skip
def test_a_command_that_sees_all_keys_runs_the_whole_queue_first(world: World, line: str) -> None:
    world.run("RPUSH other 1")
    lazily(world, "SADD a x")
    world.run(line)
    assert queued(world) == []


def test_a_value_may_be_as_long_as_it_might_when_the_command_was_sent(world: World) -> None:
    world.run("CONFIG SET proto-max-bulk-len 2mb")
    lazily(world, "SETRANGE a 1500000 x")
    world.run("CONFIG SET proto-max-bulk-len 1mb")
    assert world.run("STRLEN a") == 1_500_001


def test_a_bad_flush_loses_nothing_and_a_good_one_forgets_the_queue(world: World) -> None:
    lazily(world, "SADD a x")
    assert "syntax error" in world.error("FLUSHALL NOW")
    assert queued(world) == ["SADD a x"]
    world.run("SELECT 1")
    lazily(world, "SADD b x")
    world.run("FLUSHDB")
    assert (queued(world), status(world, "discarded")) == (["SADD a x"], 1)
    world.run("FLUSHALL")
    assert (queued(world), status(world, "discarded"), world.run("DBSIZE")) == ([], 2, 0)


# -- the log --------------------------------------------------------------------------------------------------


def test_the_plain_command_is_logged_when_it_is_enqueued_and_nothing_when_it_runs(world: World) -> None:
    lazily(world, "SADD a x")
    assert world.logged == [(0, [b"SADD", b"a", b"x"])]
    world.run("SMEMBERS a")
    assert len(world.logged) == 1


def test_what_has_others_run_is_not_logged_for_their_changes(world: World) -> None:
    lazily(world, "SADD a x")
    assert world.run("SREM a y") == 0
    assert len(world.logged) == 1


def test_it_counts_as_one_change_when_it_is_enqueued(world: World) -> None:
    before = world.engine.keyspace.dirty
    lazily(world, "SADD a x y z")
    world.run("SMEMBERS a")
    assert world.engine.keyspace.dirty == before + 1


def test_in_a_transaction_it_is_enqueued_and_logged_at_exec(world: World) -> None:
    world.run("MULTI")
    assert world.run("LAZY SADD a x") == b"QUEUED"
    world.run("LAZY SADD b x")
    world.run("SCARD b")
    assert queued(world) == []
    assert world.run("EXEC") == [ENQUEUED, ENQUEUED, 1]
    assert queued(world) == ["SADD a x"]
    assert world.logged == [(0, [b"SADD", b"a", b"x"]), (0, [b"SADD", b"b", b"x"])]


def test_what_may_not_be_lazy_is_refused_at_exec_alone(world: World) -> None:
    world.run("MULTI")
    world.run("LAZY GET a")
    world.run("LAZY SET a 1")
    refused, enqueued = world.run("EXEC")
    assert "'get' may not be LAZY: it only reads" in str(refused)
    assert enqueued == ENQUEUED


def test_a_command_that_fails_is_counted_and_a_replay_fails_with_it(world: World) -> None:
    world.run("SET a text")
    lazily(world, "SADD a x")
    assert world.run("GET a") == b"text"
    assert status(world, "failed") == 1
    assert str(status(world, "last_error")).startswith("SADD: WRONGTYPE")
    assert status(world, "queued") == 0


def test_a_bug_in_a_queued_command_affects_no_other_command(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lazily(world, "SADD a x")

    def broken(session: Session, argv: Argv) -> Reply:
        raise ZeroDivisionError("of ours")

    (command,) = {each.command for each in world.engine.lazy.pending.values()}
    monkeypatch.setattr(command, "handler", broken)
    assert world.run("SCARD a") == 0
    assert "ZeroDivisionError" in str(status(world, "last_error"))


@pytest.mark.parametrize("line", ["SINTERSTORE r a b", "SINTERSTORE r a none", "SMOVE a b x", "HINCRBY a f 1"])
def test_lookups_are_counted_as_those_of_a_command_that_runs_at_once(line: str) -> None:
    plain, lazy = World(), World()
    for world in (plain, lazy):
        world.run("SADD a x y")
        world.run("SADD b y z")
    with suppress(ReplyError):
        plain.run(line)
    lazily(lazy, line)
    lazy.engine.lazy.drain()
    assert lazy.engine.stats.tally[HITS] == plain.engine.stats.tally[HITS]
    assert lazy.engine.stats.tally[MISSES] == plain.engine.stats.tally[MISSES]


def test_a_slow_one_is_seen_by_the_latency_monitor(world: World) -> None:
    lazily(world, "SADD a x")
    world.engine.latency.threshold = 0
    world.engine.lazy.drain()
    assert list(world.engine.latency.events) == ["fast-command"]


def test_a_slow_one_is_in_the_slow_log_under_its_own_name(world: World) -> None:
    world.run("CONFIG SET slowlog-log-slower-than 0")
    lazily(world, "SADD a x")
    world.run("SCARD a")
    assert [b"SADD", b"a", b"x"] in [row.argv for row in world.engine.slow_log.rows if row.name == b"lazy"]


# -- time -----------------------------------------------------------------------------------------------------


def test_a_key_that_expires_while_commands_wait_for_it_is_seen_by_them(world: World) -> None:
    world.run("SADD a x")
    world.run("PEXPIRE a 100")
    lazily(world, "SUNIONSTORE r a")
    world.clock.advance(200)
    assert world.run("EXISTS a") == 0
    assert peek(world, b"r") == {b"x"}
    assert [argv[0] for _, argv in world.logged] == [b"SADD", b"PEXPIREAT", b"SUNIONSTORE", b"DEL"]


def test_active_expiry_too_lets_the_queue_of_a_key_run_first(world: World) -> None:
    world.run("SADD a x")
    world.run("PEXPIRE a 100")
    lazily(world, "SUNIONSTORE r a", "SADD a y")
    world.clock.advance(1000)
    world.engine.keyspace.expire_cycle()
    assert peek(world, b"r") == {b"x"} and peek(world, b"a") is None


def test_a_key_whose_time_a_queued_command_takes_away_stays(world: World) -> None:
    world.run("SET a x")
    world.run("PEXPIRE a 100")
    world.run("SET b x")
    world.run("PEXPIRE b 100")
    lazily(world, "PERSIST a", "PERSIST b")
    world.clock.advance(1000)
    assert world.run("GET a") == b"x"
    world.engine.keyspace.expire_cycle()
    assert world.run("GET b") == b"x"
    assert b"DEL" not in [argv[0] for _, argv in world.logged]


def test_a_read_of_an_expired_key_answers_what_the_queue_left_there(world: World) -> None:
    world.run("SET a old")
    world.run("PEXPIRE a 100")
    lazily(world, "SET a new")
    world.clock.advance(200)
    database = world.engine.keyspace[0]
    assert database.get(b"a") == b"new"


def test_what_had_expired_when_a_command_was_enqueued_is_not_seen_by_it(world: World) -> None:
    world.run("SADD a x")
    world.run("PEXPIRE a 100")
    world.clock.advance(200)
    lazily(world, "SADD a y")
    assert [argv[0] for _, argv in world.logged] == [b"SADD", b"PEXPIREAT", b"DEL", b"SADD"]
    assert world.run("SMEMBERS a") == [b"y"]
    assert world.run("TTL a") == -1


def test_an_expiry_time_that_came_by_renaming_ends_before_the_next_lazy_command(world: World) -> None:
    world.run("SADD a x")
    world.run("PEXPIRE a 100")
    lazily(world, "RENAME a b")
    world.clock.advance(200)
    lazily(world, "SADD b y")
    assert [argv[0] for _, argv in world.logged] == [b"SADD", b"PEXPIREAT", b"RENAME", b"DEL", b"SADD"]
    assert world.run("SMEMBERS b") == [b"y"]


def test_the_clock_is_that_of_the_enqueueing_and_right_again_afterwards(world: World) -> None:
    world.run("SET a x")
    world.run("PEXPIRE a 100")
    lazily(world, "COPY a b")
    world.clock.advance(50)
    now = world.clock.now
    assert world.run("PTTL b") == 50
    assert world.clock.now == now


# -- who cannot wait ------------------------------------------------------------------------------------------


def test_a_client_that_is_blocked_on_a_key_is_served_at_once(world: World) -> None:
    waiting = world.client("BLPOP", "a", "0")
    lazily(world, "RPUSH a x")
    assert waiting.replies == [[b"a", b"x"]]
    assert world.logged == [(0, [b"RPUSH", b"a", b"x"]), (0, [b"LPOP", b"a"])]
    assert status(world, "ran_inline") == 1


def test_a_client_that_comes_to_wait_finds_what_is_queued(world: World) -> None:
    lazily(world, "RPUSH a x")
    assert world.run("BLPOP a 0") == [b"a", b"x"]


def test_a_watched_key_is_changed_when_the_queued_command_changes_it(world: World) -> None:
    lazily(world, "SADD a x")
    watcher = world.client()
    watcher.run("WATCH a")  # the queue has run: what came before WATCH breaks nothing
    lazily(world, "SADD a y")
    watcher.run("MULTI")
    watcher.run("PING")
    assert watcher.run("EXEC") is None


def test_a_watched_key_that_the_queued_command_leaves_alone_is_unchanged(world: World) -> None:
    world.run("SADD a x")
    watcher = world.client()
    watcher.run("WATCH a")
    lazily(world, "SADD a x")
    watcher.run("MULTI")
    watcher.run("PING")
    assert watcher.run("EXEC") == [b"PONG"]


def test_a_watcher_learns_of_a_change_that_a_flush_forgot(world: World) -> None:
    watcher = world.client()
    watcher.run("WATCH a")
    lazily(world, "SADD a x")
    world.run("FLUSHALL")
    watcher.run("MULTI")
    assert watcher.run("EXEC") is None


def test_a_script_sees_what_is_queued(world: World) -> None:
    lazily(world, "SADD a x")
    assert world.run("EVAL", "return redis.call('SCARD', 'a')", 0) == 1


def test_a_script_may_not_enqueue(world: World) -> None:
    assert "not allowed from script" in world.error("EVAL", "return redis.call('LAZY', 'SADD', 'a', 'x')", 0)


def test_an_acknowledgement_counts_from_when_it_was_sent(world: World) -> None:
    world.run("CONFIG SET lazy-queue-enabled 0 lazy-max-age 0")
    world.write("k", "one")
    world.run("TREAD k 0 1 GROUP g RETRY 100 200 DEADLETTER dead")
    lazily(world, "TACK k g 1")
    world.pass_time(1000)
    assert world.run("EXISTS dead") == 0
    assert world.run("TGROUP PENDING k g") == []


def test_dead_letters_go_where_a_queued_command_has_made_room(world: World) -> None:
    world.run("CONFIG SET lazy-queue-enabled 0 lazy-max-age 0")
    world.write("k", "one")
    world.run("TREAD k 0 1 GROUP g RETRY 100 200 DEADLETTER dead")
    world.run("SET dead taken")
    lazily(world, "DEL dead")
    world.pass_time(1000)
    assert len(world.run("TREAD dead 1 10")) == 1


def test_without_memory_what_is_queued_runs_before_anybody_is_refused(world: World) -> None:
    world.run("SETRANGE big 8388607 x")
    world.engine.memory.measure()
    lazily(world, "DEL big")
    world.engine.memory.measure()
    world.run("CONFIG", "SET", "maxmemory", world.engine.memory.used_memory - (4 << 20))
    assert world.engine.over_memory
    assert world.run("SET small x") == b"OK"
    assert queued(world) == []


def test_without_memory_a_command_that_may_grow_is_refused_when_it_is_enqueued(world: World) -> None:
    world.run("CONFIG SET maxmemory 1")
    assert world.error("LAZY SADD a x").startswith("OOM")
    lazily(world, "DEL a")


# -- bounds and passive execution -----------------------------------------------------------------------------


def test_one_too_many_runs_at_once_with_those_before_it(world: World) -> None:
    world.run("CONFIG SET lazy-max-queued 2")
    lazily(world, "SADD a x", "SADD b x", "SADD b y")
    assert queued(world) == ["SADD a x"]
    assert peek(world, b"b") == {b"x", b"y"}
    assert status(world, "ran_inline") == 2


def test_too_many_bytes_run_at_once(world: World) -> None:
    world.run("CONFIG SET lazy-max-bytes 1000")
    assert world.run("LAZY", "SET", "a", b"x" * 1000) == ENQUEUED
    lazily(world, "SET b 1")
    assert queued(world) == ["SET b 1"]


def test_an_idle_server_runs_the_queue_the_oldest_first(world: World) -> None:
    lazily(world, "RPUSH a 1", "RPUSH b 1")
    world.timers.advance(20)
    assert queued(world) == [] and status(world, "ran_passively") == 2


def test_a_server_that_receives_commands_is_not_idle(world: World) -> None:
    lazily(world, "RPUSH a 1")
    for _ in range(50):
        world.engine.stats.input_bytes += 1
        world.timers.advance(4)
    assert queued(world) == ["RPUSH a 1"]
    world.timers.advance(20)
    assert queued(world) == []


def test_idle_work_comes_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_passive, "SLICE", 0)
    lazily(world, "RPUSH a 1", "RPUSH a 2")
    world.engine.lazy._passive.look()
    assert len(queued(world)) == 2, "nobody knows yet whether clients are at it"
    world.engine.lazy._passive.look()
    assert len(queued(world)) == 1
    world.engine.stats.input_bytes += 1
    world.engine.lazy._passive.look()
    assert len(queued(world)) == 1, "a client came in between"


def test_turned_off_nothing_runs_in_idle_moments(world: World) -> None:
    world.run("CONFIG SET lazy-queue-enabled 0 lazy-max-age 0")
    lazily(world, "RPUSH a 1")
    world.timers.advance(1_000_000)
    assert queued(world) == ["RPUSH a 1"] and status(world, "oldest_age_ms") == 1_000_000
    world.run("CONFIG SET lazy-queue-enabled 1")
    world.timers.advance(20)
    assert queued(world) == []


@pytest.mark.parametrize("enabled", [0, 1])
def test_what_is_too_old_runs_although_the_server_is_never_idle(world: World, enabled: int) -> None:
    world.run("CONFIG", "SET", "lazy-max-age", 1000, "lazy-queue-enabled", enabled)
    lazily(world, "RPUSH a 1")
    for _ in range(490):
        world.engine.stats.input_bytes += 1
        world.timers.advance(2)
    lazily(world, "RPUSH b 1")
    assert len(queued(world)) == 2
    for _ in range(15):
        world.engine.stats.input_bytes += 1
        world.timers.advance(2)
    assert queued(world) == ["RPUSH b 1"]


@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
def test_what_is_too_old_runs_when_its_time_has_passed_however_the_clock_is_set(world: World, jump: int) -> None:
    world.run("CONFIG SET lazy-max-age 1000 lazy-queue-enabled 0")
    lazily(world, "RPUSH a 1")
    world.clock.jump(jump)
    world.run("CONFIG SET lazy-max-age 1001")  # has the age looked at again
    world.timers.advance(1000)
    assert queued(world) == ["RPUSH a 1"] and status(world, "oldest_age_ms") == 1000
    world.timers.advance(10)
    assert queued(world) == []


def test_a_client_that_waits_for_one_key_is_served_by_a_command_that_takes_it_from_another(world: World) -> None:
    lazily(world, "RPUSH b 1")
    waiting = world.client("BLPOP", "a", "0")
    lazily(world, "LMOVE b a LEFT LEFT")
    assert waiting.replies == [[b"a", b"1"]]


WRONG = [
    "MSET a 1 b", "msetnx a 1 b 2 c", "HSET h f v g", "HMSET h f v g", "LPOP l 1 2", "RPOP l -1",
    "ZADD z 1 a 2", "ZADD z NX", "ZADD z NX XX 1 a", "ZADD z INCR 1 a 2 b", "ZADD z one a", "ZINCRBY z one a",
    "BITOP NOT d a b", "BITOP NEITHER d a", "BITFIELD b SET u8", "BITFIELD b SET u99 0 1", "BITFIELD b INCRBY u8 0 x",
    "ZINTERSTORE x 0 a", "ZINTERSTORE x q a", "ZUNIONSTORE x 2 a", "ZUNIONSTORE x 1 a WEIGHTS", "ZDIFFSTORE x 2 a",
    "ZUNIONSTORE x 1 a WEIGHTS one", "ZUNIONSTORE x 1 a AGGREGATE AVG", "ZDIFFSTORE x 1 a WEIGHTS 1",
    "ZRANGESTORE x z 0 one", "ZRANGESTORE x z 0 1 LIMIT 1", "ZRANGESTORE x z 0 1 BYLEX", "ZPOPMIN z 1 2",
    "ZPOPMAX z one", "ZMPOP 1 z MIDDLE", "ZMPOP 2 z MIN", "ZMPOP 1 z MIN COUNT", "LMPOP 0 l LEFT", "LMPOP 1 l SIDEWAYS",
    "LMPOP 1 l LEFT COUNT 0", "LMOVE a b LEFT UP", "LINSERT l BESIDE a b", "LREM l one a", "LTRIM l 0 one",
    "ZREMRANGEBYRANK z 0 one", "ZREMRANGEBYSCORE z 0 one", "ZREMRANGEBYLEX z 0 1", "SET k v NX XX", "SET k v EVER",
    "SET k v EX", "SETRANGE k -1 v", "SETRANGE k 536870912 v", "SETBIT k 4294967296 1",
    "BITFIELD k SET u8 4294967296 1", "SETBIT k 0 2", "SETBIT k x 1", "INCRBY k one", "DECRBY k 1.5",
    "INCRBYFLOAT k one", "HINCRBY h f one", "HINCRBYFLOAT h f one", "COPY a a", "COPY a b DB", "COPY a b OVER",
    "XTRIM x MAXLEN", "XTRIM x MAXLEN -1", "XTRIM x MAXLEN 1 LIMIT 2", "XSETID x 1-1 ENTRIESADDED", "XSETID x one",
    "TACK t g one", "TACK t g TOKEN x 1", "TEVICT t one", "SORT l LIMIT 1 STORE x", "SORT l STORE",
]  # fmt: skip


@pytest.mark.parametrize("line", WRONG)
def test_wrong_words_are_refused_when_a_command_is_enqueued_as_when_it_runs(world: World, line: str) -> None:
    plain = world.error(line)
    assert world.error(f"LAZY {line}") == plain
    assert queued(world) == [] and world.logged == []


WORDS = [b"1", b"0", b"-1", b"a", b"1-1", b"u8", b"(1", b"[a", b"LEFT", b"MIN", b"MAXLEN", b"NX", b"XX", b"GET", b"SET"]
WORDS += [b"LIMIT", b"COUNT", b"BYLEX", b"WEIGHTS", b"AND", b"NOT", b"REPLACE", b"STORE", b"TOKEN", b"BEFORE", b"#1"]
WORDS += [b"600000000", b"9223372036854775807", b"99999999999999999999", b"1e400", b"nan", b""]
OF_VALUES = ("no such key", "UNKNOWNGROUP", "NOGROUP", "index out of range")
"""Errors that depend on what is at the keys, which a queued command looks at when it runs."""


def test_a_command_is_enqueued_if_and_only_if_its_words_are_right(world: World) -> None:
    """So every command that looks at its words in its handler declares that (`check_words`)."""
    chance, refused = random.Random(12), 0
    session = Session(world.engine)

    def problem(argv: list[bytes]) -> str:
        try:
            world.engine.execute(session, argv)
        except ReplyError as error:
            return str(error)
        finally:
            world.run("FLUSHALL")
        return ""

    for declared in [declared for declared in REGISTRY.walk() if never(declared) is None]:
        name = declared.name.encode().split()
        for count in range(declared.low, min(declared.high, declared.low + 5) + 1):
            for _ in range(40):
                argv = name + [chance.choice(WORDS) for _ in range(count - len(name))]
                plain, lazy = problem(argv), problem([b"LAZY", *argv])
                if "may not be LAZY" in lazy or plain.startswith(OF_VALUES):
                    continue
                assert lazy == plain, argv
                refused += bool(lazy)
    assert refused >= 1000


def test_an_empty_queue_costs_nothing(world: World) -> None:
    engine = world.engine
    engine.log_to(None)
    lazily(world, "SADD a x")
    assert engine.busy_names.table == {b"a": 1} and engine.keyspace.before_expiry is not None
    world.run("SCARD a")
    assert not engine.busy_names.table and engine.keyspace.before_expiry is None


def test_the_queue_survives_what_was_put_in_it(world: World) -> None:
    """A command that fails when it runs does not stop the others."""
    world.run("RPUSH a 1")
    lazily(world, "INCR a", "HSET a f v")
    assert world.run("TYPE a") == b"list"
    world.engine.lazy.drain()
    assert status(world, "failed") == 2
