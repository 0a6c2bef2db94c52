"""Says what a Python process finds in itself: python -m tests.support.spark.forked tell CODE | stay | ignore

`tell` prints it as JSON, complains on standard error and exits with the code. `stay` prints its process id and stays.
`ignore` does so too, and pays no attention to SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(what: str, *words: str) -> None:
    if what in ("stay", "ignore"):
        if what == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.write(f"{os.getpid()}\n")
        sys.stdout.flush()
        signal.pause()
    found = {
        "words": sys.argv[1:], "folder": str(Path.cwd()), "environment": dict(os.environ), "path": sys.path[:2],
        "input": sys.stdin.read(), "hash": hash("a"), "noon": time.localtime(0).tm_hour, "package": __spec__.name,
    }  # fmt: skip
    sys.stdout.write(json.dumps(found))
    sys.stderr.write("complaint\n")
    sys.exit(int(words[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
