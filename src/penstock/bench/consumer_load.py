"""One process of the consumer rows: `python -m penstock.bench.consumer_load PORT GROUP SECONDS`.

Its body sleeps, so that eight processes are limited by what the consumer adds and not by two cores. With the group
`-` there is no consumer: it sleeps as many times as its standard input says, which is the ideal.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from penstock.bench.messages import KEY
from penstock.client.api.sync import Client


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(port: int, group: str, seconds: float) -> None:
    def body(message: Any) -> None:
        time.sleep(seconds)

    if group == "-":
        _say("ready")
        for _ in range(int(sys.stdin.readline())):
            body(None)
        _say("done")
        return
    with Client(port=port) as client:
        consumer = client.consumer(KEY, group, start=1, block_ms=100)
        _say("ready")
        sys.stdin.readline()
        consumer.run(body)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
