"""A server in a process of its own that prints its port and runs until its standard input ends.

python -m tests.support.storage.serve_until_input_ends FOLDER APPENDFSYNC APPENDONLY
"""

from __future__ import annotations

import sys

from penstock import Server

if __name__ == "__main__":
    with Server(dir=sys.argv[1], appendfsync=sys.argv[2], appendonly=sys.argv[3]) as server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        sys.stdin.read()
