"""A client cannot tell LAZY from immediate execution: two servers, one clock, the same program on both.

On one of them most writes that may be LAZY are LAZY. All other replies must be equal, whatever clients watch and wait
for, and whenever keys expire and idle moments come; and so must memory, the log and the snapshots.

The same with threads: work that begins in an idle moment goes to a thread if there are elements to read, and the test
plays that thread, so that anything may happen before it is done.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support.commands.stream_world import BLOCKED, Client, decoded
from tests.support.comparison import comparison_machine
from tests.support.everything_long import everything_long
from tests.support.integration.replay import FORMS, NOW, Life

from penstock.commands.dumping import to_payload
from penstock.engine.concurrency.lazy_rules import refusal
from penstock.engine.concurrency.workers import Job
from penstock.engine.declarations import REGISTRY
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import Raw, RawPieces, encode
from penstock.testing.clock import ManualClock, ManualTimers
from penstock.types import codec
from penstock.types.stream.stream import Stream

Argv = list[bytes]
Choose = Callable[[list[str]], str]

# Not DBSIZE: it counts expired keys until a command looks at them, and LAZY looks at keys that a bad command may not.
READS = """
GET {k}                       | STRLEN {k}               | TYPE {k}                    | EXISTS {k} {k}
PTTL {k}                      | LRANGE {k} 0 -1          | LLEN {k}                    | SMEMBERS {k}
SCARD {k}                     | HGETALL {k}              | ZRANGE {k} 0 -1 WITHSCORES  | ZCARD {k}
SINTER {k} {k}                | SUNION {k} {k} {k}       | ZUNION 2 {k} {k} WITHSCORES | MGET {k} {k}
SORT {k} ALPHA                | SORT {k} BY {k}* ALPHA   | KEYS *                      | SCAN 0 COUNT 100
XRANGE {k} - +                | OBJECT ENCODING {k}      | HLEN {k}                    | BITCOUNT {k}
TREAD {k} 1 10 WITHINFO       | TGROUP LIST {k}          | TGROUP PENDING {k} g        | GETRANGE {k} 0 -1
"""
STREAMS = """
TWRITE {k} {m} {v}            | TWRITE {k} ENTRIES {m} {v} {m} {v}                     | TEVICT {k} [1|2|3]
TREAD {k} 0 [1|2] GROUP g     | TREAD {k} 0 [1|2] GROUP g RETRY [100|5000] 5000 DEADLETTER {k}
TACK {k} g 1-[1|2|4]          | TNACK {k} g 1-3          | TGROUP DEL {k} g            | TGROUP SET {k} g [0|2]
TRETAIN {k} COUNT 2           | TEXTEND {k} g 900 BEGIN 1-2                            | TACK {k} g TOKEN 1 1-4
TREAD {k} 0 [1|2] GROUP g RETRY 100 900 MAXATTEMPTS 2 RESERVE
"""
_SETS = (b"KEYS", b"SMEMBERS", b"SINTER", b"SUNION", b"HGETALL")
ORDERLESS = (*_SETS, b"SCAN", b"SORT")  # SORT ... BY of elements that weigh the same


def forms(text: str) -> list[str]:
    return [form.strip() for line in text.strip().splitlines() for form in re.split(r"\s\|\s", line)]


ALL_KEYS = ["s", "t", "l", "m", "a", "b", "z", "h", "x", "k"]
KEYS_OF = {  # each type has keys of its own, so that commands mostly meet values that they can use
    "string": ["s", "t"], "bitmap": ["s", "t"], "list": ["l", "m"], "set": ["a", "b"], "sorted-set": ["z", "a"],
    "hash": ["h"], "xstream": ["x"], "stream": ["k"], "generic": ["a", "b", "s"],
}  # fmt: skip
WORDS = {
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


def filled(form: str, choose: Choose) -> Argv:
    """A command of this form."""
    form = re.sub(r"\[([^]]*)]", lambda found: choose(found[1].split("|")), form)
    own_keys = KEYS_OF.get(REGISTRY.by_name[form.split()[0].encode()].group, ALL_KEYS)
    domains = {**WORDS, "k": [*own_keys * 8, *ALL_KEYS]}
    words = []
    for word in form.split():
        pieces = re.split(r"{(\w+)}", word)
        text = "".join(choose(domains[piece]) if at % 2 else piece for at, piece in enumerate(pieces))
        words.append(PAYLOAD if text == "\0" else text.encode())
    return words


def _is_lazy(argv: Argv) -> bool:
    """Whether a command may be LAZY as it is."""
    try:
        return refusal(REGISTRY.resolve(argv), argv) is None
    except ReplyError:
        return False


PLAIN_FORMS = [form for form in FORMS if not form.startswith(("SPOP", "FLUSH", "B"))]
WRITES = [form for form in (*PLAIN_FORMS, *forms(STREAMS)) if REGISTRY.by_name[form.split()[0].encode()].writes]
LONG_WRITES = [form for form in WRITES if re.match(r"\w+STORE|COPY|BITOP|SORT", form)]
ANY = [*WRITES, *WRITES, *forms(READS)]


def normal(argv: Argv, reply: Any) -> Any:
    """A reply as something that compares by content."""
    if isinstance(reply, ReplyError):
        return reply.wire()
    if isinstance(reply, Raw | RawPieces):
        return normal(argv, decoded(encode(reply)))
    if isinstance(reply, list | tuple):
        items = [normal(argv, item) for item in reply]
        return sorted(items, key=repr) if argv[0] in ORDERLESS else items
    return reply


class Side(Life):
    """One of the two servers: a client that works, one that watches, one that waits."""

    began = 0  # threads, in all of its lives

    def __init__(self, folder: Path, clock: ManualClock, lazy: bool, threads: bool = False) -> None:
        self.folder, self.clock, self.lazy, self.threads = folder, clock, lazy, threads
        self.timers = ManualTimers(clock)
        super().__init__(folder, clock, self.timers)
        self.engine.streams.find_all()
        self.jobs: list[Job] = []
        if threads:
            workers = self.engine.workers
            workers.start(lambda _: None)
            workers._submit = self._submit  # type: ignore[method-assign]
            workers.threshold = 1
        self.watching, self.waiting = Client(self.engine), Client(self.engine)

    def _submit(self, job: Job) -> None:
        self.jobs.append(job)
        self.began += 1

    def reply(self, argv: Argv, lazily: bool) -> Any:
        """What the client gets; nothing for a command that is LAZY on one of the sides."""
        try:
            reply = self.engine.execute(self.session, [b"LAZY", *argv] if self.lazy and lazily else argv)
            while (held_back := self.after_the_thread(self.session)) is not None:
                reply = self.engine.execute(self.session, held_back)
        except ReplyError as error:
            reply = error
        self.engine.blocking.serve()
        return None if lazily and self.session.transaction is None else normal(argv, reply)

    def ask(self, client: Client, *words: str | bytes) -> Any:
        """What another client gets."""
        reply = client.run(*words)
        while reply == BLOCKED and (held_back := self.after_the_thread(client.session)) is not None:
            reply = client.run(*held_back)
        while reply == BLOCKED and self.engine.workers.job_of(client.session) is not None:  # its own
            self.thread_is_done()
            if client.session.waiter is None:
                reply = client.replies.pop()
        return reply

    def after_the_thread(self, session: Session) -> Argv | None:
        """What a session has to run once more because of threads, which are done by then."""
        held_back = session.postponed
        while held_back is not None and session.waiter is not None:
            assert self.engine.workers.jobs, "it waits for nothing"
            self.thread_is_done()
        session.postponed = None
        return held_back

    def thread_is_done(self) -> None:
        self.jobs = [
            job for job in self.jobs if job in self.engine.workers.jobs
        ]  # without what the loop has done itself
        if self.jobs:
            job = self.jobs.pop(0)
            job.run()
            self.engine.workers._finished(job)

    def restarted(self) -> Side:
        self.persistence.close()
        again = Side(self.folder, self.clock, self.lazy, self.threads)
        again.began = self.began
        return again

    def crashed(self) -> Side:
        """Another server, made from what is on disk at this moment."""
        assert self.persistence.aof.writer is not None
        self.persistence.aof.writer.drain()
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


class Pair:
    """Both servers, and what was done to them."""

    def __init__(self, folder: Path, chance: random.Random, threads: bool = False) -> None:
        self.chance = chance
        clocks = [ManualClock(NOW * 1000) for _ in range(2)]
        self.sides = [Side(folder / "lazy", clocks[0], True, threads), Side(folder / "plain", clocks[1], False)]
        self.history: list[object] = []

    def draw(self, chosen: list[str]) -> Argv:
        return filled(self.chance.choice(chosen), self.chance.choice)

    def both(self, argv: Argv, plain: bool = False) -> None:
        lazily = not plain and _is_lazy(argv)
        self.history.append(b" ".join([b"LAZY", *argv] if lazily else argv))
        lazy, plainly = (side.reply(argv, lazily) for side in self.sides)
        assert lazy == plainly, self.history

    def step(self) -> None:
        action, *_ = self.chance.choices(list(ACTIONS), list(ACTIONS.values()))
        action(self)
        if self.sides[0].engine.lock_gate._put_off:  # a client is served later, and that must not show
            self.sides[0].thread_is_done()
        while self.sides[0].engine.lazy._order.hurried:
            assert self.sides[0].jobs, "what a client waits for is not under way"
            self.sides[0].thread_is_done()
        lazy, plainly = (repr(side.waiting.replies) for side in self.sides)  # errors do not compare
        assert lazy == plainly, self.history
        self.sides[0].engine.lazy.check()

    # -- what may happen --------------------------------------------------------------------------------------

    def write(self) -> None:
        self.both(self.draw(WRITES), plain=self.chance.random() < 0.2)

    def write_long(self) -> None:
        """Something that there is much to do for, and a chance to do it."""
        self.both(self.draw(["SADD [a|b] {m} {m} {m}", "ZADD z 1 {m} 2 {m}", "RPUSH l {m} {m}", "SET s {v}{v}"]))
        self.both(self.draw(LONG_WRITES))
        self.be_idle()

    def read(self) -> None:
        self.both(self.draw(forms(READS)))

    def expire(self) -> None:
        self.both(self.draw(["PEXPIRE {k} [30|100|2000]"]))

    def transaction(self) -> None:
        queue = [self.draw(ANY) for _ in range(self.chance.randint(1, 4))]
        self.both([b"MULTI"])
        for argv in queue:
            self.both(argv)
        self.history.append(b"EXEC")
        replies = []
        for side in self.sides:
            answers: Any = side.engine.execute(side.session, [b"EXEC"])
            while (held_back := side.after_the_thread(side.session)) is not None:
                answers = side.engine.execute(side.session, held_back)
            side.engine.blocking.serve()
            pairs = zip(queue, answers, strict=True)
            replies.append([None if _is_lazy(argv) else normal(argv, answer) for argv, answer in pairs])
        assert replies[0] == replies[1], self.history

    def script(self) -> None:
        queue = [self.draw(ANY) for _ in range(self.chance.randint(1, 3))]
        calls = [
            "redis.pcall(" + ",".join(f"ARGV[{at}]" for at in _numbers(queue, each)) + ")" for each in range(len(queue))
        ]
        self.both([b"EVAL", " ".join(calls).encode(), b"0", *(word for argv in queue for word in argv)])

    def pass_time(self) -> None:
        """With or without idle moments, active expiry and the upkeep of streams."""
        milliseconds = self.chance.choice([0, 1, 50, 50, 2000, 600_000])
        idle, upkeep = self.chance.random() < 0.3, self.chance.random() < 0.4
        self.history.append(f"{milliseconds} ms{', idle' * idle}{', upkeep' * upkeep}")
        for side in self.sides:
            (side.timers.advance if idle else side.clock.advance)(milliseconds)
            if upkeep:
                side.engine.keyspace.expire_cycle()
                side.engine.streams.tick()

    def be_idle(self) -> None:
        """Long enough for the queue to be looked at."""
        self.history.append("idle")
        for side in self.sides:
            side.timers.advance(12)

    def end_of_thread(self) -> None:
        if self.sides[0].jobs:
            self.history.append("a thread is done")
            self.sides[0].thread_is_done()

    def select(self) -> None:
        self.both([b"SELECT", self.chance.choice([b"0", b"0", b"1"])])

    def do_to_everything(self) -> None:
        self.both(self.draw(["FLUSHDB", "FLUSHALL", "FLUSHDB BADLY", "DEBUG RELOAD", "DEBUG LOADAOF", "SAVE"]))

    def watch(self) -> None:
        key = self.chance.choice(ALL_KEYS)
        self.history.append(f"the watcher: WATCH {key}")
        for side in self.sides:
            side.ask(side.watching, "WATCH", key)

    def execute_if_unchanged(self) -> None:
        self.history.append("the watcher: EXEC")
        outcomes = [[side.ask(side.watching, word) for word in ("MULTI", "PING", "EXEC")] for side in self.sides]
        assert outcomes[0] == outcomes[1], self.history

    def wait(self) -> None:
        argv = self.draw(
            ["BLPOP {k} {k} 0", "BLMOVE {k} {k} LEFT LEFT 0", "BZPOPMIN {k} 0", "TREAD {k} [2|5] 1 BLOCK 0"]
        )
        if self.sides[0].waiting.blocked:
            return
        self.history.append(b"the one who waits: " + b" ".join(argv))
        replies = []
        for side in self.sides:
            try:
                replies.append(repr(side.ask(side.waiting, *argv)))
            except ReplyError as error:
                replies.append(repr(error))
        assert replies[0] == replies[1], self.history

    def restart(self) -> None:
        self.history.append("restart")
        self.sides = [side.restarted() for side in self.sides]
        self.compare()

    def crash(self) -> None:
        """What the log holds while commands are queued gives what immediate execution gave."""
        other = self.sides[0].crashed()
        assert other.everything == self.sides[1].everything, self.history
        other.persistence.close()
        shutil.rmtree(other.folder)

    # -- the end ----------------------------------------------------------------------------------------------

    def compare(self) -> None:
        lazy, plainly = (side.everything for side in self.sides)
        assert lazy == plainly, self.history

    def end(self) -> None:
        self.sides[0].engine.lazy.drain()
        self.compare()
        for side in self.sides:
            for database in side.engine.keyspace.databases:
                database.check()
            side.persistence.close()


ACTIONS: dict[Callable[[Pair], None], int] = {
    Pair.write: 100, Pair.read: 12, Pair.expire: 8, Pair.pass_time: 12, Pair.transaction: 4, Pair.script: 2,
    Pair.select: 2, Pair.watch: 4, Pair.execute_if_unchanged: 3, Pair.wait: 4, Pair.do_to_everything: 1,
    Pair.restart: 1, Pair.crash: 2, Pair.write_long: 25, Pair.be_idle: 5, Pair.end_of_thread: 5,
}  # fmt: skip
"""What happens, and how often."""


_SETTINGS = settings(max_examples=30, deadline=None, phases=[phase for phase in Phase if phase is not Phase.explain])
_SEEDS, _STEPS = st.integers(0, 1 << 32), st.integers(50, 300)


def _run(seed: int, steps: int, threads: bool) -> int:
    """A failure shrinks to the shortest program of its seed, and shows it. Answers how many threads there were."""
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder), random.Random(seed), threads)
        for _ in range(steps):
            pair.step()
        pair.end()
        return pair.sides[0].began


@_SETTINGS
@given(seed=_SEEDS, steps=_STEPS)
def test_clients_cannot_tell_lazy_from_immediate_execution(seed: int, steps: int) -> None:
    _run(seed, steps, threads=False)


@_SETTINGS
@given(seed=_SEEDS, steps=_STEPS)
def test_clients_cannot_tell_whether_a_thread_ran_the_command(seed: int, steps: int) -> None:
    with everything_long():
        _run(seed, steps, threads=True)


def test_programs_do_have_threads_work() -> None:
    with everything_long():
        assert _run(seed=1, steps=300, threads=True) >= 3


def _numbers(queue: list[Argv], each: int) -> range:
    """Which numbers the words of a command have among those of all."""
    first = 1 + sum(map(len, queue[:each]))
    return range(first, first + len(queue[each]))


# -- against a real Redis -------------------------------------------------------------------------------------

_TIMED = ("{ms}", "{seconds}", "{date}", "{dump}", "PTTL", "XADD", "XSETID")
_LEFT_OUT = ("T", "OBJECT", "SORT", "SCAN", "LMPOP", "ZMPOP")  # of our own, in free order, or new in 7.0
_REDIS_FORMS = [
    form
    for form in ANY
    if not any(word in form for word in _TIMED) and (not form.startswith(_LEFT_OUT) or form == "TYPE {k}")
]


def _hidden(argv: Argv, reply: Any) -> Any:
    if _is_lazy(argv):
        return None
    return sorted(reply, key=repr) if isinstance(reply, list) and argv[0] in _SETS else reply


TestLazyAndRedis = comparison_machine(
    st.sampled_from(_REDIS_FORMS).flatmap(
        lambda form: st.builds(lambda seed: filled(form, random.Random(seed).choice), st.integers(0, 1 << 32))
    ),
    normal=_hidden,
    ask_ours=lambda argv: [b"LAZY", *argv] if _is_lazy(argv) else argv,
)
