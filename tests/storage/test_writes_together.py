"""TWRITEs that come in a pipeline run as one append, and with a log they are one entry of it."""

from __future__ import annotations

from pathlib import Path

from tests.support.raw_client import RawClient

from penstock import Server
from penstock.protocol.resp import pack
from penstock.server.inner_loop import COMPILED


def test_pipelined_writes_are_logged_together_and_are_the_same_after_a_restart(tmp_path: Path) -> None:
    keys = [b"a"] * 2500 + [b"b", b"a"] + [b"b"] * 700
    writes = b"".join(pack(b"TWRITE", key, b"t%d" % at, b"e%d" % at) for at, key in enumerate(keys))
    with Server(dir=tmp_path, appendonly=True) as server, RawClient(server.port) as client:
        client.ask("TWRITE a t first")
        client.ask("TRETAIN a COUNT 100")
        client.send(writes)
        replies = [client.read() for _ in keys]
        assert replies == [*range(2, 2502), 1, 2502, *range(2, 702)]
        before = [client.ask(f"TREAD {key} 1 5000 WITHINFO") for key in "ab"]
        times = [client.ask(f"TREAD {key} 1 5000 FORMAT ARROW") for key in "ab"]
    logged = b"".join(path.read_bytes() for path in tmp_path.rglob("*.incr.aof"))
    assert logged.count(b"TWRITE") < (100 if COMPILED else len(keys) + 2)
    with Server(dir=tmp_path, appendonly=True) as server, RawClient(server.port) as client:
        assert [client.ask(f"TREAD {key} 1 5000 WITHINFO") for key in "ab"] == before
        assert [client.ask(f"TREAD {key} 1 5000 FORMAT ARROW") for key in "ab"] == times
    assert before[0][0] in ([1001, 2502], [2001, 2502])  # what went is logged too
