"""A load whose figure is requests for a second of the server's processor time, and streams for it to have.

What costs one part in a hundred is measured so: other processes on the machine do more than that to the time that
passes.
"""

from __future__ import annotations

from penstock.bench.load import WORKS, requests_per_second
from penstock.bench.servers import Running

_REQUESTS = {1: 120_000, 50: 2_000_000}


def requests_per_processor_second(server: Running, scale: float, depth: int) -> float:
    work = WORKS["get"]
    work.prepare(server.port)
    requests = int(_REQUESTS[depth] * scale)
    before = server.processor_time()
    requests_per_second(server.port, work, clients=50, depth=depth, requests=requests)
    return requests / (server.processor_time() - before)


def fill_streams(server: Running, streams: int) -> None:
    """Streams with a group each."""
    with server.client() as client:
        for start in range(0, streams, 1000):
            pipe = client.pipeline(transaction=False)
            for number in range(start, start + 1000):
                pipe.execute_command("TWRITE", f"stream:{number}", "tag", "entry")
                pipe.execute_command("TGROUP", "SET", f"stream:{number}", "group", 1)
            pipe.execute()
