"""Signals and cancellations: what is at hand is finished or given back, and nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest
import redis
from tests.support.client.consuming import fill

from penstock import Client, Server, aio

PROGRAM = """
import asyncio, sys, threading, time
from penstock import Client, aio
url = sys.argv[1]
def say(word):
    print(word, flush=True)
"""


RUN_IN_TASKS = """
async def main():
    global consumer
    async with aio.Client.from_url(url) as client:
        consumer = client.consumer("s", "g", block_ms=50)
        await consumer.run(body)
        await asyncio.sleep(0)
        say("the program went on")
asyncio.run(main())
"""


def program(ours: Server, text: str, *signals: signal.Signals) -> tuple[list[str], int]:
    """What a program says that gets a signal for each "now" that it says, and its exit code."""
    words = [sys.executable, "-c", PROGRAM + text, ours.url]
    said: list[str] = []
    left = list(signals)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        for line in child.stdout:
            said.append(line.strip())
            if said[-1] == "now":
                child.send_signal(left.pop(0))
        error = child.stderr.read()
        assert child.wait(60) in (0, -signal.SIGINT) or not error, error
    assert not left
    return [word for word in said if word != "now"], child.returncode


def held(url: str) -> int:
    with Client.from_url(url) as client:
        return client.tgroup_list("s")[0].pending


def again(url: str) -> list[int]:
    """The offsets that the group delivers at once."""
    with redis.Redis.from_url(url) as plain:
        return [row[0] for row in plain.execute_command("TREAD", "s", 0, 100, "GROUP", "g", "RETRY", 1000, 0)]


def test_ctrl_c_under_asyncio_lets_bodies_finish(ours: Server) -> None:
    fill(ours.url, 3)
    said, code = program(
        ours,
        """
async def body(message):
    say("now")
    await asyncio.sleep(1)
    say(f"done {message.offset}")
"""
        + RUN_IN_TASKS,
        signal.SIGINT,
    )
    assert (said, code) == (["done 1"], -signal.SIGINT)
    assert held(ours.url) == 0 and again(ours.url) == [2, 3]


def test_a_second_ctrl_c_cancels_bodies_and_gives_their_messages_back(ours: Server) -> None:
    fill(ours.url, 3)
    said, code = program(
        ours,
        """
async def body(message):
    say("now")
    while not consumer._core.is_stopping:
        await asyncio.sleep(0.01)
    say("now")
    await asyncio.sleep(600)
"""
        + RUN_IN_TASKS,
        signal.SIGINT,
        signal.SIGINT,
    )
    assert (said, code) == ([], -signal.SIGINT)
    assert again(ours.url) == [1, 2, 3]


def test_a_second_ctrl_c_gives_back_what_threads_hold(ours: Server) -> None:
    fill(ours.url, 3)
    said, code = program(
        ours,
        """
def body(message):
    say("now")
    main = threading.main_thread().ident
    while not consumer._core.is_stopping or sys._current_frames()[main].f_code.co_name != "wait":
        time.sleep(0.01)
    say("now")  # the main thread waits for this one
    time.sleep(600)
with Client.from_url(url) as client:
    consumer = client.consumer("s", "g", block_ms=50)
    consumer.run(body)
""",
        signal.SIGINT,
        signal.SIGINT,
    )
    assert (said, code) == ([], -signal.SIGINT)
    assert again(ours.url) == [1, 2, 3]


BOTH_IN_TASKS = """
async def main():
    async with aio.Client.from_url(url) as client:
        first, second = (client.consumer("s", group, block_ms=50) for group in ("g", "h"))
        async def body(message):
            if message.offset == 1:
                begun.append(message)
                if len(begun) == 2:
                    say("now")
        begun = []
        await asyncio.gather(first.run(body), second.run(body))
        say("over")
asyncio.run(main())
"""
BOTH_IN_THREADS = """
begun = []
def body(message):
    if message.offset == 1:
        begun.append(message)
        if len(begun) == 2:
            say("now")
with Client.from_url(url) as client:
    first, second = (client.consumer("s", group, block_ms=50) for group in ("g", "h"))
    other = threading.Thread(target=second.run, args=(body,))
    other.start()
    first.run(body)
    other.join()
    say("over")
"""


@pytest.mark.parametrize("text", [BOTH_IN_TASKS, BOTH_IN_THREADS], ids=["tasks", "threads"])
def test_sigterm_stops_all_consumers_of_a_program(ours: Server, text: str) -> None:
    fill(ours.url, 3)
    assert program(ours, text, signal.SIGTERM) == (["over"], 0)


def test_sigterm_stops_an_iteration_of_tasks(ours: Server) -> None:
    fill(ours.url, 3)
    said, code = program(
        ours,
        """
async def main():
    async with aio.Client.from_url(url) as client:
        async with client.consumer("s", "g", block_ms=50) as consumer:
            async for message in consumer:
                say("now")
                while not consumer._core.is_stopping:
                    await asyncio.sleep(0.01)
                say(message.offset)
asyncio.run(main())
""",
        signal.SIGTERM,
    )
    assert (said, code) == (["1"], 0)
    assert held(ours.url) == 0 and again(ours.url) == [2, 3]


def test_the_handler_of_sigterm_is_gone_with_the_last_consumer(ours: Server) -> None:
    with Client.from_url(ours.url) as client:
        with client.consumer("s", "g"):
            with client.consumer("s", "h"):
                pass
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_run_that_is_cancelled_twice_leaves_no_task_and_holds_nothing(ours: Server) -> None:
    fill(ours.url, 3)

    async def main() -> None:
        begun, let = asyncio.Event(), asyncio.Event()

        async def body(_: Any) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await let.wait()  # it does not end at the first cancellation

        async with aio.Client.from_url(ours.url) as client:
            run = asyncio.create_task(client.consumer("s", "g", block_ms=50).run(body))
            await begun.wait()
            run.cancel()
            await asyncio.sleep(0.05)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert again(ours.url) == [1, 2, 3]


@pytest.mark.parametrize("batch", [0, 10])
def test_a_body_that_awaits_what_others_cancelled_has_failed_and_the_consumer_goes_on(ours: Server, batch: int) -> None:
    fill(ours.url, 3)
    errors: list[Exception] = []
    done: set[int] = set()

    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client:
            consumer = client.consumer("s", "g", block_ms=50, retry_delay_ms=1)

            async def body(messages: Any) -> None:
                if not errors:
                    inner = asyncio.create_task(asyncio.sleep(60))
                    inner.cancel()
                    await inner
                done.update(message.offset for message in (messages if batch else [messages]))
                if done == {1, 2, 3}:
                    consumer.stop()

            await consumer.run(body, batch=batch, on_error=lambda _, error: errors.append(error))

    asyncio.run(main())
    assert held(ours.url) == 0
    assert {type(error) for error in errors} == {RuntimeError}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, asyncio.CancelledError])
def test_the_message_of_an_interrupted_body_comes_again_at_once(ours: Server, interrupt: type[BaseException]) -> None:
    fill(ours.url, 3)
    with (
        Client.from_url(ours.url) as client,
        pytest.raises(interrupt),
        client.consumer("s", "g", retry_delay_ms=600_000) as consumer,
    ):
        for _ in consumer:
            raise interrupt
    assert again(ours.url) == [1, 2, 3]
