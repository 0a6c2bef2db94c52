"""What is logged gives what was done: memory after a random program of writes is memory after a restart from its log.

Every command that writes has a line here, and `test_every_command_that_writes_has_a_line` keeps it so: what a command
logs instead of itself (an absolute time, the members that chance took) is easily wrong and never seen until a restart.
Streams have a log of their own making and their own test of it, tests/commands/test_streams.py; so has LAZY.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.integration.replay import FORMS, NOW, Life

from penstock import commands
from penstock.commands.dumping import to_payload
from penstock.engine.declarations import REGISTRY
from penstock.testing.clock import ManualClock

commands.load()

PROGRAMS = 12
STEPS = 600


RARE = ("FLUSHALL", "FLUSHDB", "SWAPDB")


class Program:
    """Commands drawn from FORMS. Few names and values, so that they meet."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.dumps = [to_payload(b"first")]
        self._words: dict[str, Callable[[], bytes]] = {
            "k": self._one_of(b"a", b"b", b"c", b"d", b"e"),
            "m": self._one_of(b"x", b"y", b"z", b"1", b"2"),
            "v": self._one_of(b"", b"x", b"y", b"1", b"-3", b"2.5", b"\r\n", b"\x00\xff", b"9223372036854775807"),
            "n": self._one_of(b"-2", b"-1", b"0", b"1", b"2", b"5"),
            "db": self._one_of(b"0", b"1", b"2"),
            "float": self._one_of(b"0.1", b"1.7", b"-3", b"1e17"),
            "score": self._one_of(b"1", b"-1", b"0.1", b"inf", b"1e-5"),
            "side": self._one_of(b"LEFT", b"RIGHT"),
            "ms": self._one_of(b"1", b"30", b"500000", b"900000"),
            "seconds": self._one_of(b"-1", b"1", b"500", b"900"),
            "date": self._one_of(b"5000", b"%d" % (NOW + 400), b"%d" % (NOW + 800)),
            "dump": lambda: self.chance.choice(self.dumps),
        }

    def _one_of(self, *words: bytes) -> Callable[[], bytes]:
        return lambda: self.chance.choice(words)

    def command(self) -> list[bytes]:
        form = self.chance.choice(FORMS)
        if form.startswith(RARE) and self.chance.random() < 0.8:
            return self.command()
        form = re.sub(r"\[([^]]*)]", lambda found: self.chance.choice(found[1].split("|")), form)
        return [self._word(word) for word in form.split()]

    def _word(self, word: str) -> bytes:
        pieces = re.split(r"{(\w+)}", word)
        return b"".join(self._words[piece]() if at % 2 else piece.encode() for at, piece in enumerate(pieces))


def test_every_command_that_writes_has_a_line() -> None:
    named = {form.split()[0].encode() for form in FORMS}
    writing = {name for name, command in REGISTRY.by_name.items() if command.writes and command.group != "stream"}
    assert named == writing - {b"LAZY", b"ONCE", b"ONCEBEGIN", b"ONCEEND"}, (
        "these have test_lazy_invariant.py and test_once.py"
    )


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_memory_after_a_program_is_memory_after_a_restart(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    program, clock = Program(seed), ManualClock(NOW * 1000)
    life = Life(tmp_path, clock)
    for step in range(STEPS):
        argv = program.command()
        shape = program.chance.random()
        if shape < 0.1:
            words = ",".join(f"ARGV[{number + 1}]" for number in range(len(argv)))
            script = f"redis.pcall({words}) return redis.pcall({words})"
            life.run([b"EVAL", script.encode(), b"0", *argv])
        elif shape < 0.2:
            for queued in ([b"MULTI"], argv, program.command(), [b"EXEC"]):
                life.run(queued)
        else:
            life.run(argv)
        if shape > 0.97:
            clock.advance(program.chance.choice([1, 50, 2000]))
            life.engine.keyspace.expire_cycle()
        if shape > 0.95:
            life.run([b"SELECT", program.chance.choice([b"0", b"1", b"2"])])
            dump = life.run([b"DUMP", program.chance.choice([b"a", b"b", b"c"])])
            program.dumps += [dump] if isinstance(dump, bytes) else []
        if step % 150 == 149:
            before = life.data
            life.persistence.close()
            life = Life(tmp_path, clock)
            assert life.data == before, f"after step {step}"
    life.persistence.close()
    assert "failed when replayed" not in caplog.text
