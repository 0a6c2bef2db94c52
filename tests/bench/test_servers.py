"""The servers of a comparison run where the load does not."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import os
from penstock.bench.run import _leave_a_core_to_the_servers
from penstock.bench.servers import redis_server
_leave_a_core_to_the_servers()
with redis_server() as server:
    print(os.sched_getaffinity(0) & os.sched_getaffinity(server.pid))
"""


def test_the_load_and_the_server_share_no_core() -> None:
    """In a process of its own, which keeps to a part of its cores from then on; with a single core they share it."""
    shared = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout.strip()
    cores = os.sched_getaffinity(0)
    assert shared == ("set()" if len(cores) > 1 else str(cores))
