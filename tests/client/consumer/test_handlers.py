"""The forms of a body: batches, tables, middleware, back-off, order by tag."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from typing import Any

import pytest
import redis
from tests.support.client.consuming import Consume, fill

from penstock import GIVE_UP, Backoff, Client, Server, aio
from penstock.client.consumer import core
from penstock.client.consumer.delivered import Delivered
from penstock.client.consumer.handlers import TRACE_SECONDS, FailureLog
from penstock.protocol.dead_letters import Letter


def test_a_batch_is_a_list_and_is_acknowledged_together(ours: Server, consume: Consume) -> None:
    fill(ours.url, 25)
    seen: list[list[int]] = []

    def body(consumer: Any, batch: Any) -> None:
        seen.append([message.offset for message in batch])
        if sum(map(len, seen)) == 25:
            consumer.stop()

    consume(ours.url, body, {"batch": 10, "batch_ms": 100}, block_ms=50)
    assert [len(batch) for batch in seen] == [10, 10, 5]
    assert [offset for batch in seen for offset in batch] == list(range(1, 26))


def test_the_messages_of_a_batch_that_failed_come_again_one_by_one(ours: Server, consume: Consume) -> None:
    fill(ours.url, 6)
    seen: list[list[int]] = []

    def body(consumer: Any, batch: Any) -> None:
        offsets = [message.offset for message in batch]
        seen.append(offsets)
        if 4 in offsets:
            if len(seen) > 10:
                consumer.stop()
            raise ValueError
        if len(seen) > 10:
            consumer.stop()

    consume(ours.url, body, {"batch": 10, "on_error": lambda *_: None}, retry_delay_ms=1, block_ms=50)
    assert seen[0] == [1, 2, 3, 4, 5, 6] and all(len(batch) == 1 for batch in seen[1:])
    assert sorted(offset for (offset,) in seen[1:7]) == [1, 2, 3, 4, 5, 6]


def test_a_batch_can_be_a_table(ours: Server, consume: Consume) -> None:
    fill(ours.url, 4)
    tables: list[Any] = []

    def body(consumer: Any, table: Any) -> None:
        tables.append(table)
        consumer.stop()

    consume(ours.url, body, {"batch": 10, "table": True})
    (table,) = tables
    assert table.column_names == ["offset", "time", "tag", "entry", "attempts"]
    assert table.column("entry").to_pylist() == [b"1", b"2", b"3", b"4"]
    assert table.column("attempts").to_pylist() == [1, 1, 1, 1]


def test_middleware_is_called_around_the_body_from_the_outside_in(ours: Server) -> None:
    fill(ours.url, 1)
    said: list[str] = []

    def named(name: str) -> Any:
        def middleware(message: Any, call: Any) -> Any:
            said.append(f"{name} before {message.offset}")
            result = call(message)
            said.append(f"{name} after {result}")
            return result

        return middleware

    with Client.from_url(ours.url) as client:
        consumer = client.consumer("s", "g")

        def body(message: Any) -> str:
            consumer.stop()
            return "tea"

        consumer.run(body, middleware=[named("a"), named("b")])
    assert said == ["a before 1", "b before 1", "b after tea", "a after tea"]


def test_middleware_of_tasks_awaits_the_body(ours: Server) -> None:
    fill(ours.url, 1)
    said: list[str] = []

    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client:
            consumer = client.consumer("s", "g")

            async def middleware(message: Any, call: Any) -> None:
                said.append("before")
                await call(message)
                said.append("after")

            async def body(message: Any) -> None:
                await asyncio.sleep(0)
                said.append("body")
                consumer.stop()

            await consumer.run(body, middleware=[middleware])

    asyncio.run(main())
    assert said == ["before", "body", "after"]


@pytest.mark.parametrize("how", [{}, {"batch": 5}, {"middleware": ["async"]}])
def test_a_message_whose_body_must_be_awaited_is_not_acknowledged_by_threads(ours: Server, how: dict[str, Any]) -> None:
    """A decorator hides that a function is a coroutine function: threads would acknowledge what never ran."""
    fill(ours.url, 3)

    async def body(_: Any) -> None: ...

    async def layer(_: Any, call: Any) -> None: ...

    decorated = (lambda _: None) if "middleware" in how else (lambda message: body(message))
    how = {**how, "middleware": [layer]} if "middleware" in how else how
    with Client.from_url(ours.url) as client:
        with pytest.raises(TypeError, match="must be awaited"):
            client.consumer("s", "g").run(decorated, **how)
        assert client.tgroup_list("s")[0].acknowledged == 0
        again = client.tread("s", 0, 10, group="g")
    assert [message.offset for message in again] == [1, 2, 3]


def test_what_follows_a_failure_depends_on_the_exception(ours: Server, consume: Consume) -> None:
    fill(ours.url, 3)
    raised = {1: ZeroDivisionError("never"), 2: ConnectionError("later"), 3: KeyError("soon")}
    seen: list[tuple[int, int]] = []

    def body(consumer: Any, message: Any) -> None:
        seen.append((message.offset, message.attempts))
        if seen[-1] == (3, 2):
            consumer.stop()
            return
        raise raised[message.offset]

    policy = {ArithmeticError: GIVE_UP, OSError: 60_000, Exception: Backoff(1, cap_ms=10)}
    terms = {"retry": policy, "dead_letter": "dead", "block_ms": 50}
    consume(ours.url, body, {"on_error": lambda *_: None}, **terms)
    assert (1, 2) not in seen and (2, 2) not in seen and (3, 2) in seen
    with Client.from_url(ours.url) as client:
        (letter,) = (Letter.decode(message.entry) for message in client.tread("dead", 1, 10))
        assert (letter.offset, letter.why) == (1, "ZeroDivisionError: never")
        assert [lease[:2] for lease in client.tgroup_pending("s", "g")] == [(2, 2)], "it waits for a minute"


@pytest.mark.parametrize("policy", [{"ValueError": 1}, {ValueError: "soon"}])
def test_a_policy_that_cannot_work_is_refused(ours: Server, policy: Any) -> None:
    with Client.from_url(ours.url) as client, pytest.raises(TypeError, match="retry="):
        client.consumer("s", "g", retry=policy)


def test_messages_of_a_tag_keep_their_order_while_others_run_side_by_side(ours: Server, consume: Consume) -> None:
    """Also if one fails: those after it wait until it succeeds."""
    fill(ours.url, 300, tags=10)
    lock = threading.Lock()
    running: dict[bytes, int] = defaultdict(int)
    order: dict[bytes, list[int]] = defaultdict(list)
    side_by_side = 0
    failed: set[int] = set()

    def body(consumer: Any, message: Any) -> None:
        nonlocal side_by_side
        with lock:
            running[message.tag] += 1
            assert running[message.tag] == 1, "one after the other"
            side_by_side = max(side_by_side, sum(running.values()))
        time.sleep(0.002)
        with lock:
            running[message.tag] -= 1
            if message.offset % 40 == 0 and message.attempts < 3:
                failed.add(message.offset)
                raise ValueError
            order[message.tag].append(message.offset)
            if sum(map(len, order.values())) == 300:
                consumer.stop()

    terms = {"ordered_by": "tag", "retry_delay_ms": 20, "block_ms": 50}
    consume(ours.url, body, {"workers": 4, "on_error": lambda *_: None}, **terms)
    assert len(order) == 10 and all(offsets == sorted(offsets) for offsets in order.values())
    assert sum(map(len, order.values())) == 300 and side_by_side > 1 and len(failed) == 7


def test_a_tag_goes_on_after_a_message_that_is_given_up(ours: Server, consume: Consume) -> None:
    fill(ours.url, 6, tags=2)
    seen: list[tuple[int, int]] = []

    def body(consumer: Any, message: Any) -> None:
        seen.append((message.offset, message.attempts))
        if message.offset == 2:
            raise ValueError("bad")
        if len({offset for offset, _ in seen}) == 6 and seen[-1][0] == 6:
            consumer.stop()

    terms = {"ordered_by": "tag", "max_attempts": 2, "dead_letter": "dead", "retry_delay_ms": 1, "block_ms": 50}
    consume(ours.url, body, {"on_error": lambda *_: None}, **terms)
    even = [place for place in seen if place[0] % 2 == 0]
    assert even == [(2, 1), (2, 2), (4, 1), (6, 1)]
    with Client.from_url(ours.url) as client:
        assert client.tinfo("dead").length == 1


def test_a_batch_that_fails_comes_again_in_the_order_of_its_tag(ours: Server, consume: Consume) -> None:
    fill(ours.url, 9, tags=3)
    done: dict[bytes, list[int]] = defaultdict(list)
    failed: set[bytes] = set()
    at_once: dict[bytes, int] = defaultdict(int)

    def body(consumer: Any, batch: Any) -> None:
        (tag,) = {message.tag for message in batch}
        at_once[tag] += 1
        assert at_once[tag] == 1
        if tag not in failed:
            failed.add(tag)
            at_once[tag] -= 1
            raise ValueError
        done[tag] += [message.offset for message in batch]
        at_once[tag] -= 1
        if sum(map(len, done.values())) == 9:
            consumer.stop()

    terms = {"ordered_by": "tag", "retry_delay_ms": 20, "block_ms": 50}
    consume(ours.url, body, {"workers": 3, "batch": 3, "batch_ms": 500, "on_error": lambda *_: None}, **terms)
    assert len(failed) == 3 and all(offsets == sorted(offsets) for offsets in done.values())


def test_a_message_that_cannot_be_given_up_yet_stays_before_those_of_its_tag(
    ours: Server, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has no memory for its dead letter: the tag waits, and others go on."""
    monkeypatch.setattr(core, "NOT_GIVEN_UP", 100)
    fill(ours.url, 6, tags=2)
    seen: list[int] = []

    def body(consumer: Any, message: Any) -> None:
        seen.append(message.offset)
        if message.offset == 2:
            with Client.from_url(ours.url) as client:
                client.config_set("maxmemory", 1 if seen.count(2) < 3 else 0)
            raise ValueError("never")
        if len(set(seen)) == 6:
            consumer.stop()

    try:
        terms = {"ordered_by": "tag", "dead_letter": "dead", "retry": {ValueError: GIVE_UP}, "block_ms": 50}
        consume(ours.url, body, {"workers": 2, "on_error": lambda *_: None}, **terms)
        assert [offset for offset in seen if offset % 2 == 0] == [2, 2, 2, 4, 6]
        with Client.from_url(ours.url) as client:
            assert client.tinfo("dead").length == 1
    finally:
        with Client.from_url(ours.url) as client:
            client.config_set("maxmemory", 0)


@pytest.mark.parametrize(("missing", "named"), [("tgroup|pending", "TGROUP PENDING"), ("time", "TIME")])
def test_order_needs_a_permission_that_the_error_names(
    ours: Server, consume: Consume, missing: str, named: str
) -> None:
    fill(ours.url, 1)
    with Client.from_url(ours.url) as admin:
        admin.acl_setuser("bob", reset=True, enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{missing}"])
        try:
            url = ours.url.replace("redis://", "redis://bob:any@")
            with pytest.raises(redis.exceptions.NoPermissionError, match=f"ordered_by needs the permission .*{named}"):
                consume(url, lambda consumer, message: consumer.stop(), ordered_by="tag", block_ms=50)
            consume(url, lambda consumer, message: consumer.stop(), block_ms=50)
        finally:
            admin.acl_deluser("bob")


def failure(words: str) -> Exception:
    try:
        raise ValueError(words)
    except ValueError as error:
        return error


def test_the_trace_of_a_body_that_fails_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [5.0]
    log_failure = FailureLog(lambda: now[0])
    for offset, attempts in ((1, 0), (1, 1), (2, 0)):
        log_failure(Delivered.of((offset, b"", b"", 0, attempts), Any), failure("boom\nmore"))
    first, *others = caplog.records
    assert first.getMessage() == "the body failed on message 1, attempt 1: ValueError: boom" and first.exc_info
    assert [record.getMessage().partition(" (")[0] for record in others] == [
        "the body failed on message 1, attempt 2: ValueError: boom",
        "the body failed on message 2, attempt 1: ValueError: boom",
    ]
    assert all(record.exc_info is None and "test_handlers.py, line" in record.getMessage() for record in others)
    log_failure(Delivered.of((3, b"", b"", 0, 0), Any), KeyError("another"))
    assert caplog.records[-1].exc_info, "another error"
    now[0] += TRACE_SECONDS
    log_failure(Delivered.of((1, b"", b"", 0, 2), Any), failure("boom"))
    assert caplog.records[-1].exc_info
