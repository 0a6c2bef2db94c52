"""Fleets of real worker processes through kills, stalls and outages; checked for each message.

The clock is scaled by about twenty: retry_ms is 1.5 s instead of 30, a silent connection counts as lost after 0.5 s
instead of 5, and an outage of 4.5 s stands for one of 90.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import redis
from tests.support.integration.fleet import Fleet, fleet_of
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock.protocol.dead_letters import Letter
from penstock.testing.redis import free_port

RETRY_MS = 1500


def url_of(server: Process) -> str:
    return f"redis://127.0.0.1:{server.port}"


def write(server: Process, entries: list[tuple[str, str]]) -> None:
    with redis.Redis(port=server.port) as client:
        client.execute_command("TWRITE", "s", "ENTRIES", *(word for pair in entries for word in pair))


def is_drained(server: Process) -> bool:
    """Whether everything was delivered and settled."""
    with redis.Redis(port=server.port, protocol=3) as client:
        (group,) = client.execute_command("TGROUP", "LIST", "s")
    return group[b"lag"] == 0 and group[b"pending"] == 0


def letters(server: Process) -> list[int]:
    with redis.Redis(port=server.port) as client:
        rows = client.execute_command("TREAD", "dead", 1, 1000)
    return sorted(Letter.decode(row[2]).offset or 0 for row in rows)


def test_kills_stalls_and_outages_lose_no_message_and_give_up_only_those_that_fail(tmp_path: Path) -> None:
    chance = random.Random(7)
    kinds = ["ok"] * 1200 + ["ok 0.003"] * 600 + ["ok 0.4"] * 12 + ["flaky"] * 20 + ["fails"] * 5 + ["poison"] * 3
    chance.shuffle(kinds)
    entries = [(f"t{number % 20}", kind) for number, kind in enumerate(kinds)]
    bad = {number + 1 for number, kind in enumerate(kinds) if kind in ("fails", "poison")}
    server = Process(tmp_path, free_port())
    try:
        write(server, entries[:1000])
        terms = {"retry_ms": RETRY_MS, "retry_delay_ms": 50, "max_attempts": 4, "dead_letter": "dead"}
        with fleet_of(url_of(server), tmp_path, 5, **terms) as fleet:
            wait_until(lambda: fleet.revive() or len(fleet.ended()) > 100)
            for number in (0, 3):  # workers die
                fleet.kill(number)
            fleet.revive()
            fleet.send(1, signal.SIGSTOP)  # one stalls, for longer than its leases
            server.process.send_signal(signal.SIGSTOP)  # the server stalls, for longer than connections wait
            time.sleep(2)
            server.process.send_signal(signal.SIGCONT)
            write(server, entries[1000:])
            fleet.send(1, signal.SIGCONT)
            fleet.add()  # a late joiner
            wait_until(lambda: fleet.revive() or len(fleet.ended()) > 400)
            server.kill()  # an outage of 90 seconds, scaled
            time.sleep(4.5)
            server = Process(tmp_path, server.port)
            fleet.kill(2)
            fleet.revive()
            fleet.roll()  # a new version is rolled out

            def is_done() -> bool:
                fleet.revive()
                return is_drained(server)

            wait_until(is_done)
            assert fleet.ended() == set(range(1, len(kinds) + 1)) - bad, "each body came to its end, none was lost"
            assert letters(server) == sorted(bad), "and only those that fail were given up"
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.kill()


def test_late_joiners_get_their_share(tmp_path: Path) -> None:
    """Bodies end when the test lets them, so the speed of the machine does not matter.

    Three workers whose bodies are quick fetch much in advance. Then three more come, and all bodies take turns: in
    every round each of the six ends one message, also when all messages that are left had been fetched by the first.
    """
    server = Process(tmp_path, free_port())
    alone, rounds = 100, 5
    try:
        write(server, [("t", "turn")] * (3 * alone + 6 * rounds + 6))  # at the end each is in the middle of one

        def let_end(count: int) -> None:
            """Let each process end so many more bodies, and wait until it has."""
            goal = {process.pid: ended_by(fleet)[process.pid] + count for process in fleet.processes}
            with redis.Redis(port=server.port) as client:
                for process in goal:
                    client.rpush(f"turns:{process}", *["now"] * count)
            wait_until(lambda: ended_by(fleet) >= Counter(goal))

        with fleet_of(url_of(server), tmp_path, 3) as fleet:
            let_end(alone)
            fleet.add(3)
            for _ in range(rounds):
                let_end(1)
            ended = ended_by(fleet)
            assert [ended[process.pid] for process in fleet.processes] == [alone + rounds] * 3 + [rounds] * 3
    finally:
        server.kill()


def ended_by(fleet: Fleet) -> Counter[int]:
    """How many bodies each process has ended."""
    return Counter(line.process for line in fleet.lines() if line.what == "ended")


def test_the_order_of_a_tag_survives_kills_of_its_worker_and_of_the_server(tmp_path: Path) -> None:
    server = Process(tmp_path, free_port())
    try:
        write(server, [(f"t{number % 12}", "flaky" if number % 50 == 0 else "ok 0.004") for number in range(1200)])
        terms = {"ordered_by": "tag", "workers": 4, "retry_ms": RETRY_MS, "retry_delay_ms": 20}
        with fleet_of(url_of(server), tmp_path, 1, **terms) as fleet:
            for done in (150, 400):
                wait_until(lambda done=done: len(fleet.ended()) > done)  # type: ignore[misc]
                fleet.kill(0)
                fleet.revive()
            wait_until(lambda: len(fleet.ended()) > 650)
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(2)
            server.process.send_signal(signal.SIGCONT)
            wait_until(lambda: len(fleet.ended()) > 800)
            server.kill()
            server = Process(tmp_path, server.port)
            fleet.roll()
            wait_until(lambda: len(fleet.ended()) == 1200)
            assert_ordered(fleet)
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.kill()


def assert_ordered(fleet: Fleet) -> None:
    orders = fleet.orders()
    assert len(orders) == 12
    for tag, offsets in orders.items():
        assert offsets == sorted(offsets), f"{tag}: {offsets}"
