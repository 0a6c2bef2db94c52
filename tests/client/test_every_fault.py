"""Every fault of the proxy, at every level, for every form of a call: how often it ran, and which error it got."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from tests.support.client.clients import Connect, result_of_silence

from penstock import State
from penstock.client.errors import NoReplyInTime, NotSent, OutcomeUnknown
from penstock.testing.proxy import Fault, FaultProxy

FAULTS: dict[str, tuple[Callable[[FaultProxy, bytes, int], Fault], int, bool]] = {
    # name: (fault, how often the server runs the command before the client notices, whether it notices only that
    # nothing comes)
    "cut before forwarding": (lambda proxy, name, nth: proxy.cut_before_forwarding(name, nth), 0, False),
    "cut in the request": (lambda proxy, name, nth: proxy.cut_mid_request(9, name, nth), 0, False),
    "cut after execution": (lambda proxy, name, nth: proxy.cut_after_execution(name, nth), 1, False),
    "cut in the reply": (lambda proxy, name, nth: proxy.cut_mid_reply(1, name, nth), 1, False),
    "nonsense for a reply": (lambda proxy, name, nth: proxy.replace_reply(b"\x00?\r\n", name, nth), 1, False),
    "silence before execution": (lambda proxy, name, nth: proxy.swallow(name, nth), 0, True),
    "silence after execution": (lambda proxy, name, nth: proxy.swallow(name, nth, executed=True), 1, True),
}


def ping(client: Any) -> bool:
    """As often as it takes: at-most-once holds nothing until there is a connection again."""
    while True:
        try:
            return bool(client.ping())
        except NotSent:
            time.sleep(0.01)


def command(client: Any) -> None:
    client.execute_command("LMOVE", "from", "to", "LEFT", "LEFT")


def blocking(client: Any) -> None:
    client.execute_command("BLMOVE", "from", "to", "LEFT", "LEFT", 0.1)


def pipeline(client: Any) -> None:
    with client.pipeline(transaction=False) as pipe:
        pipe.set("a", 1).execute_command("LMOVE", "from", "to", "LEFT", "LEFT").set("b", 1).execute()


def transaction(client: Any) -> None:
    with client.pipeline() as pipe:
        pipe.set("a", 1).execute_command("LMOVE", "from", "to", "LEFT", "LEFT").set("b", 1).execute()


# Which request the fault hits, as the server sees it: without and with ONCE around it.
WAYS: dict[str, tuple[Callable[[Any], None], tuple[bytes, int], tuple[bytes, int]]] = {
    "command": (command, (b"LMOVE", 1), (b"ONCE", 1)),
    "blocking": (blocking, (b"BLMOVE", 1), (b"ONCE", 1)),
    "pipeline": (pipeline, (b"LMOVE", 1), (b"ONCE", 2)),
    "transaction": (transaction, (b"EXEC", 1), (b"EXEC", 1)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("level", ["at-most-once", "at-least-once", "exactly-once"])
def test_a_fault_at_each_level(
    level: str, fault: str, way: str, connect: Connect, proxy: FaultProxy, witness: redis.Redis
) -> None:
    (arm, ran, is_silent), (run, bare, numbered) = FAULTS[fault], WAYS[way]
    witness.rpush("from", *range(9))
    client = connect(
        f"redis://127.0.0.1:{proxy.port}", delivery=level, socket_timeout=60, backoff_base=0.01, backoff_cap=0.05
    )
    assert ping(client)
    armed = arm(proxy, *(numbered if level == "exactly-once" else bare))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, client)
        if is_silent:
            assert armed.wait(60)
            with pytest.raises(NoReplyInTime) as failure:
                result_of_silence(client, running)
            expected = ran
        elif level == "at-most-once":
            with pytest.raises(OutcomeUnknown) as failure:
                running.result()
            expected = ran
        else:
            running.result()
            expected = 1 if level == "exactly-once" else ran + 1
    if level == "at-most-once" or is_silent:
        assert failure.value.state in (State.WRITTEN, State.WRITING)
    assert armed.has_fired and witness.llen("to") == expected
    assert ping(client) and client.counters.buffered_commands == 0  # and it goes on
