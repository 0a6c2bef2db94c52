"""A worker of the fleet tests, in a process of its own: `python -m` this module `URL LOG OPTIONS`.

The entry of a message says what its body does; a line in the log says when a body began and ended:

    began|ended  offset  tag  process  seconds

A body of the kind `turn` ends when the test has appended something to the list `turns:PROCESS`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import redis

from penstock import Client


def main(url: str, log: str, options: dict[str, Any]) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, message: Any) -> None:
        line = f"{what} {message.offset} {message.tag.decode()} {os.getpid()} {time.time():.4f}\n"
        os.write(file, line.encode())  # whole, whatever kills the process

    def body(message: Any) -> None:
        note("began", message)
        kind, _, seconds = message.entry.decode().partition(" ")
        if kind == "poison":
            os.kill(os.getpid(), 9)
        if kind == "fails" or (kind == "flaky" and message.attempts == 1):
            raise ValueError(kind)
        if kind == "turn":
            turns.blpop(f"turns:{os.getpid()}")
        if seconds:
            time.sleep(float(seconds))
        note("ended", message)

    workers = options.pop("workers", 1)
    # A silent connection counts as lost after half a second instead of five: the clock of these tests is scaled.
    with Client.from_url(url, socket_timeout=0.5) as client, redis.Redis.from_url(url) as turns:
        consumer = client.consumer("s", "g", block_ms=100, **options)
        consumer.run(body, workers=workers, on_error=lambda message, error: None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
