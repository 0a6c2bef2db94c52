"""Nobody can tell LAZY from immediate execution: two servers, one clock, the same program on both.

One of them runs every write LAZY that may be. Every other reply must be equal, whatever clients watch and wait for, however
keys expire and the idle moments fall; and so must everything in memory, in the log and in the snapshots.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.commands.stream_world import Client
from tests.comparison import comparison_machine
from tests.integration.test_replay import FORMS, NOW, Life

from penstock.commands.dumping import to_payload
from penstock.engine.lazy_rules import refusal
from penstock.engine.spec import REGISTRY, Flag
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import Raw, RawPieces, encode
from penstock.testing.clock import ManualClock, ManualTimers
from penstock.types import codec
from penstock.types.stream.stream import Stream

Argv = list[bytes]

READS = """
GET {k}                       | STRLEN {k}               | TYPE {k}                    | EXISTS {k} {k}
PTTL {k}                      | LRANGE {k} 0 -1          | LLEN {k}                    | SMEMBERS {k}
SCARD {k}                     | HGETALL {k}              | ZRANGE {k} 0 -1 WITHSCORES  | ZCARD {k}
SINTER {k} {k}                | SUNION {k} {k} {k}       | ZUNION 2 {k} {k} WITHSCORES | MGET {k} {k}
SORT {k} ALPHA                | SORT {k} BY {k}* ALPHA   | KEYS *                      | DBSIZE
XRANGE {k} - +                | OBJECT ENCODING {k}      | MEMORY USAGE {k}            | BITCOUNT {k}
TREAD {k} 1 10 WITHINFO       | TGROUP LIST {k}          | TGROUP PENDING {k} g        | GETRANGE {k} 0 -1
"""
STREAMS = """
TWRITE {k} {m} {v}            | TWRITE {k} ENTRIES {m} {v} {m} {v}                     | TEVICT {k} [1|2|3]
TREAD {k} 0 [1|2] GROUP g     | TREAD {k} 0 [1|2] GROUP g RETRY [100|5000] 5000 DEADLETTER {k}
TACK {k} g 1-[1|2|4]          | TNACK {k} g 1-3          | TGROUP DEL {k} g            | TGROUP SET {k} g [0|2]
TRETAIN {k} COUNT 2
"""
REST = """
DEBUG RELOAD                  | DEBUG LOADAOF            | SAVE                        | FLUSHDB BADLY
"""
ORDERLESS = (b"KEYS", b"SORT")  # SORT ... BY of elements that weigh the same


def forms(text: str) -> list[str]:
    return [form.strip() for line in text.strip().splitlines() for form in re.split(r"\s\|\s", line)]


WORDS = {
    "k": ["a", "b", "c", "d"],
    "m": ["x", "y", "1", "2"],
    "v": ["", "x", "1", "-3", "2.5"],
    "n": ["-2", "-1", "0", "1", "2", "5"],
    "db": ["0", "1"],
    "float": ["0.1", "1.7", "-3", "1e17"],
    "score": ["1", "-1", "0.1", "inf"],
    "side": ["LEFT", "RIGHT"],
    "ms": ["1", "30", "2000", "900000"],
    "seconds": ["-1", "1", "500"],
    "date": ["5000", str(NOW + 1), str(NOW + 400)],
    "dump": ["\0"],  # stands for a payload
}
PAYLOAD = to_payload(b"restored")


@st.composite
def filled(draw: st.DrawFn, chosen: list[str]) -> Argv:
    """A command of one of these forms."""
    form = draw(st.sampled_from(chosen))
    form = re.sub(r"\[([^]]*)]", lambda found: draw(st.sampled_from(found[1].split("|"))), form)
    words = []
    for word in form.split():
        pieces = re.split(r"{(\w+)}", word)
        text = "".join(draw(st.sampled_from(WORDS[piece])) if at % 2 else piece for at, piece in enumerate(pieces))
        words.append(PAYLOAD if text == "\0" else text.encode())
    return words


def _is_lazy(argv: Argv) -> bool:
    """Whether a command may be LAZY as it is."""
    try:
        return refusal(REGISTRY.resolve(argv), argv) is None
    except ReplyError:
        return False


PLAIN_FORMS = [form for form in FORMS if not form.startswith(("SPOP", "FLUSH", "B"))]
LAZY_FORMS = [form for form in (*PLAIN_FORMS, *forms(STREAMS)) if REGISTRY.by_name[form.split()[0].encode()].writes]
ANY = [*LAZY_FORMS, *LAZY_FORMS, *forms(READS)]


def normal(argv: Argv, reply: Any) -> Any:
    """A reply as something that compares by content."""
    if isinstance(reply, ReplyError):
        return reply.wire()
    if isinstance(reply, Raw | RawPieces):
        return encode(reply)
    if isinstance(reply, list | tuple):
        items = [normal(argv, item) for item in reply]
        return sorted(items, key=repr) if argv[0] in ORDERLESS else items
    return reply


class Side(Life):
    """One of the two servers: a client that works, one that watches, one that waits."""

    def __init__(self, folder: Path, clock: ManualClock, lazy: bool) -> None:
        self.folder, self.clock, self.lazy = folder, clock, lazy
        self.timers = ManualTimers(clock)
        super().__init__(folder, clock, self.timers)
        self.engine.streams.find_all()
        self.watching, self.waiting = Client(self.engine), Client(self.engine)

    def sent(self, argv: Argv) -> Argv:
        return [b"LAZY", *argv] if self.lazy and _is_lazy(argv) else argv

    def reply(self, argv: Argv) -> Any:
        """What the client gets; nothing for a command that is LAZY on one of the sides."""
        try:
            reply = self.engine.execute(self.session, self.sent(argv))
        except ReplyError as error:
            reply = error
        self.engine.blocking.serve()
        hidden = self.session.transaction is None and _is_lazy(argv)
        return None if hidden else normal(argv, reply)

    def restarted(self) -> Side:
        self.persistence.close()
        return Side(self.folder, self.clock, self.lazy)

    def crashed(self) -> Side:
        """Another server, made from what is on disk at this moment."""
        assert self.persistence._aof.writer is not None
        self.persistence._aof.writer.drain()
        copy = self.folder.with_name("crashed")
        shutil.copytree(self.folder, copy)
        (copy / "penstock.lock").unlink(missing_ok=True)
        return Side(copy, ManualClock(self.clock.now), self.lazy)

    @property
    def everything(self) -> dict[tuple[int, bytes], object]:
        return {
            key: (codec.dump(value), when) if type(value) is Stream else (value, when)
            for key, (value, when) in self.data.items()
        }


class LazyAndPlain(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.sides = [
            Side(Path(self.folder.name) / name, ManualClock(NOW * 1000), lazy=name == "lazy")
            for name in ("lazy", "plain")
        ]
        self.history: list[object] = []

    @property
    def lazy(self) -> Side:
        return self.sides[0]

    def both(self, argv: Argv) -> None:
        self.history.append(b" ".join(argv))
        lazy, plainly = (side.reply(argv) for side in self.sides)
        assert lazy == plainly, self.history

    @rule(argv=filled(ANY))
    def command(self, argv: Argv) -> None:
        self.both(argv)

    @rule(argv=filled(LAZY_FORMS), again=filled(LAZY_FORMS), asked=filled(ANY))
    def commands(self, argv: Argv, again: Argv, asked: Argv) -> None:
        for each in (argv, again, asked):
            self.both(each)

    @rule(queue=st.lists(filled(ANY), min_size=1, max_size=4))
    def transaction(self, queue: list[Argv]) -> None:
        self.both([b"MULTI"])
        for argv in queue:
            self.both(argv)
        self.history.append(b"EXEC")
        replies = []
        for side in self.sides:
            answers = side.engine.execute(side.session, [b"EXEC"])
            side.engine.blocking.serve()
            pairs = zip(queue, answers, strict=True)
            replies.append([None if _is_lazy(argv) else normal(argv, answer) for argv, answer in pairs])
        assert replies[0] == replies[1], self.history

    @rule(queue=st.lists(filled([form for form in ANY if "MEMORY" not in form]), min_size=1, max_size=3))
    def script(self, queue: list[Argv]) -> None:
        allowed = [
            argv for argv in queue if Flag.NOSCRIPT not in REGISTRY.resolve(argv).flags and argv[0] not in ORDERLESS
        ]
        calls = [
            "redis.pcall(" + ",".join(f"ARGV[{at}]" for at in _numbers(allowed, each)) + ")"
            for each in range(len(allowed))
        ]
        self.both([b"EVAL", " ".join(calls).encode(), b"0", *(word for argv in allowed for word in argv)])

    @rule(milliseconds=st.sampled_from([0, 1, 50, 2000, 600_000]), active=st.booleans())
    def time_passes(self, milliseconds: int, active: bool) -> None:
        self.history.append((milliseconds, active))
        for side in self.sides:
            if active:
                side.timers.advance(milliseconds)  # idle moments too
                side.engine.keyspace.expire_cycle()
                side.engine.streams.tick()
            else:
                side.clock.advance(milliseconds)

    @rule(index=st.sampled_from([b"0", b"1"]))
    def select(self, index: bytes) -> None:
        self.both([b"SELECT", index])

    @rule(argv=filled(["FLUSHDB", "FLUSHALL", *forms(REST)]))
    def everything_at_once(self, argv: Argv) -> None:
        self.both(argv)

    @rule(key=st.sampled_from([b"a", b"b"]))
    def watch(self, key: bytes) -> None:
        self.history.append(b"watch " + key)
        for side in self.sides:
            side.watching.run("WATCH", key)

    @rule()
    def execute_if_unchanged(self) -> None:
        self.history.append("exec of the watcher")
        outcomes = [
            (side.watching.run("MULTI"), side.watching.run("PING"), side.watching.run("EXEC")) for side in self.sides
        ]
        assert outcomes[0] == outcomes[1], self.history

    @precondition(lambda self: not self.lazy.waiting.blocked)
    @rule(argv=filled(["BLPOP {k} {k} 0", "BLMOVE {k} {k} LEFT LEFT 0", "BZPOPMIN {k} 0", "TREAD {k} 2 1 BLOCK 0"]))
    def wait(self, argv: Argv) -> None:
        self.history.append(argv)
        replies = []
        for side in self.sides:
            try:
                replies.append(repr(side.waiting.run(*argv)))
            except ReplyError as error:
                replies.append(repr(error))
        assert replies[0] == replies[1], self.history

    @invariant()
    def those_who_wait_got_the_same(self) -> None:
        lazy, plainly = (repr(side.waiting.replies) for side in self.sides)  # errors do not compare
        assert lazy == plainly, self.history
        self.lazy.engine.lazy.check()

    @rule()
    def restart(self) -> None:
        self.history.append("restart")
        self.sides = [side.restarted() for side in self.sides]
        self.compare()

    @rule()
    def crash(self) -> None:
        """What the log holds while commands are queued gives what immediate execution gave."""
        other = self.lazy.crashed()
        try:
            assert other.everything == self.sides[1].everything, self.history
        finally:
            other.persistence.close()
            shutil.rmtree(other.folder)

    def compare(self) -> None:
        lazy, plainly = (side.everything for side in self.sides)
        assert lazy == plainly, self.history

    def teardown(self) -> None:
        self.lazy.engine.lazy.drain()
        self.compare()
        for side in self.sides:
            for database in side.engine.keyspace.databases:
                database.check()
            side.persistence.close()
        self.folder.cleanup()


def _numbers(queue: list[Argv], each: int) -> range:
    """Which numbers the words of a command have among those of all."""
    first = 1 + sum(map(len, queue[:each]))
    return range(first, first + len(queue[each]))


TestLazyAndPlain = LazyAndPlain.TestCase
TestLazyAndPlain.settings = settings(
    phases=[phase for phase in Phase if phase is not Phase.explain],
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# -- against a real Redis -------------------------------------------------------------------------------------

_TIMED = ("{ms}", "{seconds}", "{date}", "{dump}", "PTTL", "XADD", "XSETID")
_OURS_ALONE = ("T", "DEBUG", "MEMORY", "OBJECT", "SORT", "SWAPDB", "MOVE", "COPY")
_REDIS_FORMS = [
    form
    for form in ANY
    if not any(word in form for word in _TIMED) and (not form.startswith(_OURS_ALONE) or form == "TYPE {k}")
]


def _hidden(argv: Argv, reply: Any) -> Any:
    if _is_lazy(argv):
        return None
    return sorted(reply, key=repr) if isinstance(reply, list) and argv[0] in _SETS else reply


_SETS = (b"KEYS", b"SMEMBERS", b"SINTER", b"SUNION", b"HGETALL")

TestLazyAndRedis = comparison_machine(
    filled(_REDIS_FORMS), normal=_hidden, ask_ours=lambda argv: [b"LAZY", *argv] if _is_lazy(argv) else argv
)
