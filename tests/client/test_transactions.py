"""Pipelines and transactions: what an error says about every command, and what a filter and a listener see."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from tests.support.client.clients import Connect

from penstock import State
from penstock.client.delivery import Command
from penstock.client.errors import NotEncodable, NotReplayed, NotSent
from penstock.client.events import Replayed
from penstock.testing.proxy import FaultProxy


def pipe_of(client: Any, transaction: bool, *commands: tuple[Any, ...]) -> Any:
    pipe = client.pipeline(transaction=transaction)
    for command in commands:
        pipe.execute_command(*command)
    return pipe


@pytest.mark.parametrize("transaction", [False, True])
def test_a_reply_that_cannot_be_decoded_is_the_loss_of_its_command_alone(
    connect: Connect, client: Any, peer: str, transaction: bool
) -> None:
    client.set("binary", b"\xff")
    decoding = connect(peer, decode_responses=True)
    decoding.hset("hash", "field", "value")
    pipe = pipe_of(decoding, transaction, ("GET", "binary"), ("INCR", "n"), ("HGETALL", "hash"))
    lost, counted, found = pipe.execute(raise_on_error=False)
    assert isinstance(lost, UnicodeDecodeError) and lost.state is State.REPLIED  # type: ignore[attr-defined]
    assert counted == 1 and found == {"field": "value"}


@pytest.mark.parametrize("transaction", [False, True])
def test_a_reply_that_is_never_decoded_leaves_those_beside_it_as_they_should_be(
    connect: Connect, client: Any, peer: str, transaction: bool
) -> None:
    decoding = connect(peer, decode_responses=True)
    decoding.set("text", "x")
    pipe = decoding.pipeline(transaction=transaction)
    text, dumped = pipe.get("text").dump("text").execute()
    assert text == "x" and isinstance(dumped, bytes)


def test_the_error_of_a_pipeline_has_what_became_of_every_command_whatever_the_error_is(client: Any) -> None:
    for transaction in (False, True):
        pipe = pipe_of(client, transaction, ("SET", "a", 1), ("LPUSH", "a", 2), ("GET", "a"))
        with pytest.raises(redis.ResponseError, match="WRONGTYPE") as wrong:
            pipe.execute()
        assert wrong.value.states == [State.REPLIED] * 3
        assert wrong.value.replies == [True, wrong.value, b"1"]
        with pytest.raises(NotEncodable) as unfit:
            pipe_of(client, transaction, ("SET", "a", 1), ("SET", "a", object())).execute()
        assert unfit.value.states == [State.QUEUED] * 2
    with pytest.raises(redis.ResponseError) as bulk:
        client.execute_many([("GET", "a"), ("LPUSH", "a", 2)])
    assert bulk.value.replies == [b"1", bulk.value]


def test_what_is_refused_before_it_is_queued_is_told_of_every_command_too(connect: Connect) -> None:
    away = connect("redis://127.0.0.1:1", delivery="at-most-once", backoff_base=60, backoff_cap=60)
    commands = [("SET", "a", 1), ("GET", "a")]
    for transaction in (
        False,
        True,
        False,
        True,
    ):  # the first has to wait for a connection, which the others do not any more
        with pytest.raises(NotSent) as refused:
            pipe_of(away, transaction, *commands).execute()
        assert refused.value.states == [State.QUEUED] * 2 and len(refused.value.replies) == 2
    with pytest.raises(NotSent) as refused:
        away.execute_many(commands)
    assert refused.value.states == [State.QUEUED] * 2
    listed = pipe_of(away, False, *commands).execute(raise_on_error=False)
    assert [type(failure) for failure in listed] == [NotSent, NotSent]
    assert [type(failure) for failure in away.execute_many(commands, raise_on_error=False)] == [NotSent, NotSent]


def test_a_filter_and_a_listener_see_the_commands_of_a_transaction_as_their_caller_made_them(
    connect: Connect, proxy: FaultProxy, witness: Any
) -> None:
    """The caller did not send MULTI and EXEC, and a filter that looks at the first argument finds none there."""
    replayed: list[Replayed] = []
    url = f"redis://127.0.0.1:{proxy.port}"
    client = connect(url, replay_filter=lambda command: command.arguments[0] == "never", on_replay=replayed.append)
    client.ping()
    proxy.cut_after_execution(b"EXEC")
    assert pipe_of(client, True, ("SET", "a", 1), ("SET", "b", 2)).execute() == [True, True]
    (event,) = replayed
    assert event.commands == [Command("SET", ("a", 1), State.WRITTEN), Command("SET", ("b", 2), State.WRITTEN)]
    proxy.cut_after_execution(b"EXEC")
    with pytest.raises(NotReplayed, match="INCRBY was sent") as kept:
        pipe_of(client, True, ("SET", "a", 1), ("INCRBY", "never", 1)).execute()
    assert kept.value.states == [State.WRITTEN] * 2 and witness.get("never") == b"1"
