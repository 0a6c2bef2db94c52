"""Runs scripts in a process of its own: a line of JSON in, a line of JSON out. For scripts that may end the process.

A list is a command.
"""

from __future__ import annotations

import json
import sys

from tests.support.commands.bench import Bench

from penstock.engine.lua import interpreter
from penstock.protocol.errors import ReplyError


def main() -> None:
    interpreter.MEMORY_LIMIT = 1 << 26
    bench = Bench()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if isinstance(asked, list):
                answer = str(bench.run(*asked))
            else:
                answer = bench.eval(asked.encode("latin-1")).decode("latin-1")
        except ReplyError as error:
            answer = f"-{error}"
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
