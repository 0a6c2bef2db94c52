"""Key permissions hold for every command with keys: tried on keys that its user may not touch, in every wrapping.

`CALLS` has a call of every command that has keys, written by hand, with a `$` before each word that is a key. So the
declarations are compared with hand-written facts, and a new command without a line here fails the first test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from penstock import Server
from penstock.engine.config import Config
from penstock.engine.declarations import REGISTRY, Access, Argv, Command, Effect, Flag, Reply, command, key
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import NoPerm, ReplyError
from penstock.protocol.resp import OK
from penstock.testing.clock import ManualClock
from penstock.types import codec
from penstock.types.stream.changes import Change
from penstock.types.stream.leases import Lease

CALLS = """
GET $s
SET $s 1 | SET $s 1 GET | SET $s 1 NX GET
SETNX $s 1
SETEX $s 10 1
PSETEX $s 10 1
GETSET $s 1
GETDEL $s
GETEX $s
MGET $s $s2
MSET $s 1 $s2 1
MSETNX $s 1 $s2 1
INCR $s
DECR $s
INCRBY $s 1
DECRBY $s 1
INCRBYFLOAT $s 1
APPEND $s 1
STRLEN $s
GETRANGE $s 0 1
SUBSTR $s 0 1
SETRANGE $s 0 1
LCS $s $s2
SETBIT $s 1 1
GETBIT $s 1
BITCOUNT $s
BITPOS $s 1
BITOP AND $s $s2 $s3
BITFIELD $s GET u4 0 | BITFIELD $s SET u4 0 1 | BITFIELD $s GET u4 0 INCRBY u4 0 1
BITFIELD_RO $s GET u4 0
LPUSH $l a
RPUSH $l a
LPUSHX $l a
RPUSHX $l a
LPOP $l
RPOP $l
LMPOP 2 $l $l2 LEFT
LMOVE $l $l2 LEFT LEFT
RPOPLPUSH $l $l2
LLEN $l
LINDEX $l 0
LRANGE $l 0 1
LPOS $l a
LSET $l 0 x
LINSERT $l BEFORE a x
LREM $l 1 a
LTRIM $l 0 0
BLPOP $l $l2 1
BRPOP $l $l2 1
BLMPOP 1 2 $l $l2 LEFT
BLMOVE $l $l2 LEFT LEFT 1
BRPOPLPUSH $l $l2 1
ZADD $z 1 a
ZINCRBY $z 1 a
ZREM $z a
ZSCORE $z a
ZMSCORE $z a
ZCARD $z
ZRANK $z a
ZREVRANK $z a
ZPOPMIN $z
ZPOPMAX $z
ZMPOP 2 $z $z2 MIN
ZRANDMEMBER $z
ZSCAN $z 0
BZPOPMIN $z $z2 1
BZPOPMAX $z $z2 1
BZMPOP 1 2 $z $z2 MIN
ZRANGE $z 0 1
ZREVRANGE $z 0 1
ZRANGEBYSCORE $z 0 1
ZREVRANGEBYSCORE $z 1 0
ZRANGEBYLEX $z - +
ZREVRANGEBYLEX $z + -
ZRANGESTORE $z $z2 0 1
ZCOUNT $z 0 1
ZLEXCOUNT $z - +
ZREMRANGEBYRANK $z 0 0
ZREMRANGEBYSCORE $z 0 9
ZREMRANGEBYLEX $z - +
ZUNION 2 $z $z2
ZINTER 2 $z $z2
ZDIFF 2 $z $z2
ZUNIONSTORE $z 2 $z2 $z3
ZINTERSTORE $z 2 $z2 $z3
ZDIFFSTORE $z 2 $z2 $z3
ZINTERCARD 2 $z $z2
OBJECT ENCODING $s
OBJECT REFCOUNT $s
OBJECT IDLETIME $s
OBJECT FREQ $s
MEMORY USAGE $s
PEEK $s 0 | PEEK $l 0 | PEEK $h 0 COUNT 1 BYTES 1
DEBUG OBJECT $s
DEBUG DIGEST-VALUE $s $l
DEBUG LOCK 1 READ $s | DEBUG LOCK 1 WRITE $s $s2
DEL $s $l
UNLINK $s $l
EXISTS $s $l
TOUCH $s $l
TYPE $s
RENAME $s $s2
RENAMENX $s $s2
COPY $s $s2 REPLACE
MOVE $s 1
DUMP $s
RESTORE $s 0 payload
EXPIRE $s 1
PEXPIRE $s 1
EXPIREAT $s 1
PEXPIREAT $s 1
TTL $s
PTTL $s
EXPIRETIME $s
PEXPIRETIME $s
PERSIST $s
WATCH $s $l
HSET $h f 1
HMSET $h f 1
HSETNX $h f 1
HINCRBY $h f 1
HINCRBYFLOAT $h f 1
HDEL $h f
HGET $h f
HMGET $h f
HGETALL $h
HKEYS $h
HVALS $h
HLEN $h
HSTRLEN $h f
HEXISTS $h f
HRANDFIELD $h
HSCAN $h 0
SADD $e a
SREM $e a
SMOVE $e $e2 a
SCARD $e
SISMEMBER $e a
SMISMEMBER $e a
SMEMBERS $e
SSCAN $e 0
SPOP $e
SRANDMEMBER $e
SINTER $e $e2
SINTERSTORE $e $e2 $e3
SINTERCARD 2 $e $e2
SUNION $e $e2
SUNIONSTORE $e $e2 $e3
SDIFF $e $e2
SDIFFSTORE $e $e2 $e3
SORT $l | SORT $l BY x LIMIT 0 1 STORE $l2 | SORT $l STORE x STORE $l2 DESC
SORT_RO $l
EVAL script 2 $s $l
EVALSHA script 2 $s $l
EVAL_RO script 2 $s $l
EVALSHA_RO script 2 $s $l
FCALL f 2 $s $l
FCALL_RO f 2 $s $l
TWRITE $t tag entry
TREAD $t 1 1 | TREAD $t 1 1 GROUP g | TREAD $t 1 1 GROUP g RETRY 1 2 DEADLETTER $t2 | TREAD $t 0 1 GROUP g ALSO 1 $t2
TACK $t g 1
TEVICT $t 1
TSTAGE $t token ENTRIES tag entry
TCOMMIT $t producer 1 token
TUNSTAGE $t token
TAPPLY $t UNSTAGE 1
TINFO $t
TSEEK $t TIME 1
TPRODUCER $t producer
TRETAIN $t COUNT 5
TGROUP LIST $t
TGROUP SET $t g 1
TGROUP DEL $t g
TGROUP PENDING $t g
TSCHEMA SET $t a:int | TSCHEMA SET $t a:int CHECK deadletter $t2
TSCHEMA GET $t
TSCHEMA VERSIONS $t
TSCHEMA DEL $t
TNACK $t g 1
TEXTEND $t g 5 1
TGIVEUP $t g 1
XADD $x * f 1
XTRIM $x MAXLEN 0
XDEL $x 1-1
XSETID $x 9-9
XLEN $x
XRANGE $x - +
XREVRANGE $x + -
XREAD COUNT 1 STREAMS $x $x2 0 0
XINFO STREAM $x
MINE.LOOK $s
MINE.PUT 1 $s2 $s
"""

WRAPPERS = {"LAZY", "ONCE"}
BEYOND = {
    "CONFIG SET": "an operator's: what it changes are directives",
    "DBSIZE": "counts keys, as in Redis",
    "MEMORY STATS": "counts keys, as in Redis",
    "DEBUG DIGEST": "an operator's: a hash of everything, as in Redis",
    "SAVE": "an operator's: what it tells is in a file",
    "BGSAVE": "like SAVE",
    "BGREWRITEAOF": "like SAVE",
    "DEBUG RELOAD": "an operator's: all data as it was saved",
    "DEBUG LOADAOF": "like DEBUG RELOAD",
    "SWAPDB": "dangerous, and names no key: as in Redis",
    "COPY": "into another database under the name that was checked",
    "MOVE": "into another database under the name that was checked",
    "KEYS": "tells names, as in Redis; not what is in them",
    "RANDOMKEY": "tells a name, as in Redis",
    "SCAN": "tells names, as in Redis",
    "SORT": "needs the permission to read every key: test_sort_follows_patterns_only_for_users_who_may_read_every_key",
    "SORT_RO": "like SORT",
}
"""Commands that reach beyond the keys of their arguments, and why that does not bypass permissions."""


FILL = {
    "s": "SET {} MARK5", "l": "RPUSH {} MARK a", "e": "SADD {} MARK a", "h": "HSET {} f MARK",
    "z": "ZADD {} 1 MARK 2 a", "x": "XADD {} 1-1 f MARK", "t": "TWRITE {} tag MARK",
}  # fmt: skip
"""How a key is made, by the letter that its name in CALLS begins with. MARK is only in keys of other users."""


class World:
    """An engine, and a user with some rules."""

    def __init__(self, rules: str) -> None:
        self.engine = Engine(Config(), ManualClock())
        self.admin = Session(self.engine)
        self.run(f"ACL SETUSER tess on nopass +@all &* {rules}")
        self.tess = Session(self.engine)
        self.execute(self.tess, [b"AUTH", b"tess", b"x"])

    def fill(self, call: list[str], other: int) -> Argv:
        """Make the keys of a call, of which one is another's, and no others; the call."""
        self.run("FLUSHALL")
        argv = [word.encode() for word in call]
        for at, word in enumerate(call):
            if word.startswith("$"):
                name = f"{'other' if at == other else 'mine'}:{word[1:]}"
                line = FILL[word[1]].format(name)
                self.run(line if at == other else line.replace("MARK5", "5").replace("MARK", "b"))
                argv[at] = name.encode()
        return argv

    def run(self, line: str) -> Reply:
        return self.execute(self.admin, line.encode().split())

    def execute(self, session: Session, argv: Argv) -> Reply:
        try:
            return self.engine.execute(session, argv)
        finally:
            if session.waiter is not None:
                self.engine.blocking.leave(session.waiter)
            self.engine.workers.abandon()  # DEBUG LOCK would hold its keys for good

    def held(self, place: bytes) -> dict[bytes, Reply]:
        """What the keys there hold, and when they expire."""
        db = self.engine.keyspace[0]
        names = sorted(name for name in db.data if name.startswith(place))
        return {name: (codec.dump(db.data[name]), db.expires_at(name)) for name in names}


@pytest.fixture(scope="module", autouse=True)
def _module() -> Iterator[None]:
    """Commands of a module, declared as modules do."""
    before = REGISTRY.saved()

    @command("MINE.LOOK", arity=2, flags=Flag.READONLY, keys=key(1, Access.READ), group="module", syntax="key")
    def look(session: Session, argv: Argv) -> Reply:
        """Look at a key."""
        return session.db.get(argv[1])

    @command(
        "MINE.PUT", arity=4, flags=Flag.WRITE, group="module", syntax="how destination source",
        keys=key(2, Access.WRITE, Effect.OVERWRITE) + key(3, Access.READ),
    )  # fmt: skip
    def put(session: Session, argv: Argv) -> Reply:
        """Copy a key."""
        session.db.set(argv[2], session.db.get(argv[3]))
        return OK

    yield
    REGISTRY.restore(before)


def calls() -> list[list[str]]:
    return [call.split() for line in CALLS.strip().splitlines() for call in line.split(" | ")]


def found(argv: Argv) -> Command:
    called = REGISTRY.find(argv)
    assert called is not None, argv
    return called


def trespasses() -> list[tuple[list[str], int]]:
    """Every call with every one of its keys: that one is to be another's."""
    return [(call, at) for call in calls() for at, word in enumerate(call) if word.startswith("$")]


def test_every_command_with_keys_is_tried_here_and_declares_just_them() -> None:
    plain = [[word.encode() for word in call] for call in calls()]
    declared = {each.name for each in REGISTRY.walk() if each.keys and each.name not in WRAPPERS}
    assert {found(argv).name for argv in plain} == declared
    for argv in plain:
        keys = [at for at, word in enumerate(argv) if word.startswith(b"$")]
        assert sorted({at for at, _ in found(argv).key_positions(argv)}) == keys, argv


def test_what_reaches_beyond_the_keys_it_names_was_thought_about() -> None:
    assert {each.name for each in REGISTRY.walk() if each.beyond is not None} == BEYOND.keys()


def test_no_command_touches_keys_outside_of_its_users_in_any_wrapping() -> None:
    world = World("~mine:*")
    for number, (call, at) in enumerate(trespasses(), 1):
        argv = world.fill(call, at)
        before = world.held(b"other:")
        for words in (argv, [b"LAZY", *argv], [b"ONCE", b"me", b"%d" % number, b"1", *argv]):
            with pytest.raises(NoPerm):
                world.execute(world.tess, words)
        with pytest.raises(ReplyError, match=r"can't access at least one of the keys|not allowed from script"):
            world.execute(world.tess, [b"EVAL", b"return redis.call(unpack(ARGV))", b"0", *argv])
        world.execute(world.tess, [b"MULTI"])
        with pytest.raises(NoPerm):
            world.execute(world.tess, argv)
        world.execute(world.tess, [b"DISCARD"])
        assert world.held(b"other:") == before
    assert world.engine.keyspace.once_records.replies == 0


def test_a_transaction_runs_nothing_that_was_forbidden_since_it_was_queued() -> None:
    world = World("~mine:* ~other:*")
    for call, at in trespasses():
        argv = world.fill(call, at)
        if found(argv).flags & (Flag.CONTROL | Flag.NO_MULTI):
            continue
        before = world.held(b"other:")
        world.execute(world.tess, [b"MULTI"])
        world.execute(world.tess, argv)
        world.run("ACL SETUSER tess resetkeys ~mine:*")
        (reply,) = world.execute(world.tess, [b"EXEC"])
        assert isinstance(reply, NoPerm), argv
        assert world.held(b"other:") == before
        world.run("ACL SETUSER tess ~other:*")


@pytest.mark.parametrize("wrapping", ["", "LAZY", "ONCE"])
def test_who_may_only_read_a_key_changes_nothing_of_it(wrapping: str) -> None:
    world = World("~mine:* %R~other:*")
    allowed = 0
    for number, (call, at) in enumerate(trespasses(), 1):
        argv = world.fill(call, at)
        before = world.held(b"other:")
        head = {"": [], "LAZY": [b"LAZY"], "ONCE": [b"ONCE", b"me", b"%d" % number, b"1"]}[wrapping]
        with suppress(ReplyError):
            world.execute(world.tess, [*head, *argv])
            allowed += 1
        world.engine.lazy.drain()
        assert world.held(b"other:") == before, argv
    assert allowed > 10, "commands that only read it, or take it for a source, are allowed"


def test_who_may_only_write_a_key_is_not_told_what_it_holds() -> None:
    world = World("~mine:* %W~other:*")
    allowed = 0
    for call, at in trespasses():
        argv = world.fill(call, at)
        try:
            reply = world.execute(world.tess, argv)
        except ReplyError:
            continue
        allowed += 1
        assert "MARK" not in repr(reply), argv
        assert "MARK" not in repr(world.held(b"mine:")), argv
    assert allowed > 50


# -- keys that no argument names -------------------------------------------------------------------------------


def dumped_group(world: World, letters: str) -> bytes:
    """DUMP of a stream whose group has leased a message that expires to this key."""
    world.run("TWRITE source tag entry")
    world.run(f"TREAD source 1 1 GROUP g RETRY 10 20 DEADLETTER {letters}")
    payload = world.run("DUMP source")
    assert isinstance(payload, bytes)
    return payload


def change_of(world: World, letters: bytes) -> bytes:
    """What TAPPLY would be given in the log for such a group."""
    return Change(2, 0, (), (Lease(1, 2, 10, 20, 0, 1, letters),)).encode()


def test_a_restored_group_sends_dead_letters_only_where_its_user_may_write() -> None:
    world = World("~mine:* %R~readable:*")
    for letters, allowed in (("other:orders", False), ("readable:orders", False), ("mine:orders", True)):
        world.run("FLUSHALL")
        payload = dumped_group(world, letters)
        script = b"return redis.call('RESTORE', KEYS[1], '0', ARGV[1])"
        for number, words in enumerate([
            [b"RESTORE", b"mine:a", b"0", payload],
            [b"ONCE", letters.encode(), b"1", b"1", b"RESTORE", b"mine:b", b"0", payload],
            [b"EVAL", script, b"1", b"mine:c", payload],
        ]):  # fmt: skip
            name = b"mine:" + b"abc"[number : number + 1]
            if allowed:
                world.execute(world.tess, words)
            else:
                with pytest.raises(ReplyError, match="dead letters would go to"):
                    world.execute(world.tess, words)
            assert (name in world.engine.keyspace[0].data) is allowed
    world.execute(world.tess, [b"MULTI"])
    world.execute(world.tess, [b"RESTORE", b"mine:d", b"0", dumped_group(world, "other:orders")])
    (reply,) = world.execute(world.tess, [b"EXEC"])
    assert isinstance(reply, NoPerm)


@pytest.mark.parametrize("wrapping", [[], [b"LAZY"], [b"ONCE", b"me", b"1", b"1"]])
def test_a_copied_group_sends_dead_letters_only_where_its_user_may_write(wrapping: Argv) -> None:
    world = World("~mine:*")
    payload = dumped_group(world, "other:orders")
    world.execute(world.admin, [b"RESTORE", b"mine:s", b"0", payload])
    with pytest.raises(NoPerm, match="dead letters would go to"):
        world.execute(world.tess, [*wrapping, b"COPY", b"mine:s", b"mine:t"])
    world.engine.lazy.drain()
    assert world.run("EXISTS mine:t") == 0
    assert world.execute(world.tess, [b"RENAME", b"mine:s", b"mine:u"]) is OK, "it sends no more letters than before"


def test_a_queued_copy_is_asked_about_what_is_queued_before_it() -> None:
    world = World("~mine:*")
    world.execute(world.admin, [b"RESTORE", b"mine:s", b"0", dumped_group(world, "other:orders")])
    world.run("LAZY RENAME mine:s mine:r")
    with pytest.raises(NoPerm, match="dead letters would go to"):
        world.execute(world.tess, [b"LAZY", b"COPY", b"mine:r", b"mine:t"])


def test_an_applied_group_sends_dead_letters_only_where_its_user_may_write() -> None:
    world = World("~mine:*")
    world.run("TWRITE mine:s tag entry")
    with pytest.raises(NoPerm, match="dead letters would go to"):
        world.execute(world.tess, [b"TAPPLY", b"mine:s", b"GROUP", b"g", change_of(world, b"other:orders")])
    world.execute(world.tess, [b"TAPPLY", b"mine:s", b"GROUP", b"g", change_of(world, b"mine:orders")])


def test_the_log_is_replayed_whatever_the_default_user_may_do(tmp_path: Path) -> None:
    with Server(dir=tmp_path, appendonly="yes") as server, redis.Redis.from_url(server.url) as client:
        client.rpush("l", 2, 1)
        client.mset({"w1": 20, "w2": 10})
        client.sort("l", by="w*", get="w*", store="sorted")
        client.execute_command("LAZY", "COPY", "l", "copied")
        client.execute_command("ACL", "SETUSER", "root", "on", "nopass", "+@all", "~*", "&*")
    rules = ["root on nopass +@all ~* &*", "default on nopass resetkeys ~mine:* +@all"]
    with (
        Server(dir=tmp_path, appendonly="yes", user=rules) as server,
        redis.Redis.from_url(server.url, username="root", password="x") as client,
    ):
        assert client.lrange("sorted", 0, -1) == [b"10", b"20"]
        assert client.lrange("copied", 0, -1) == [b"2", b"1"]
