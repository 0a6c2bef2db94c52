"""Errors travel: out of a process pool, a Spark task, a logger that keeps them."""

from __future__ import annotations

import copy
import pickle

import pytest
import redis

from penstock import Client, Server, commands
from penstock.client.delivery import State
from penstock.client.errors import (
    STREAM_COMMANDS,
    BufferFull,
    NoReplyInTime,
    NotSent,
    OutcomeUnknown,
    reply_error,
)
from penstock.engine.declarations import REGISTRY
from penstock.testing.redis import RedisServer


@pytest.mark.parametrize(
    "error",
    [
        NotSent("it was not", command="INCR"),
        BufferFull("full"),
        OutcomeUnknown("it may have run", State.WRITING, "INCR"),
        NoReplyInTime("silence", State.WRITTEN, "INCR"),
        reply_error("WRONGTYPE another"),
        reply_error("ONCEUNKNOWN who"),
        reply_error("ERR anything"),
    ],
)
def test_an_error_is_pickled_with_its_state(error: Exception) -> None:
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is type(error) and str(copied) == str(error)
        assert copied.state is error.state and getattr(copied, "command", "") == getattr(error, "command", "")


def test_the_error_of_a_pipeline_is_pickled_with_all_states_and_replies() -> None:
    error = OutcomeUnknown("it may have run", State.WRITTEN)
    error.states, error.replies = [State.REPLIED, State.WRITTEN], [1, OutcomeUnknown("x", State.WRITTEN)]
    copied = pickle.loads(pickle.dumps(error))
    assert copied.states == error.states and copied.replies[0] == 1 and copied.replies[1].state is State.WRITTEN


def test_a_client_says_why_it_cannot_be_pickled(ours: Server) -> None:
    with Client.from_url(ours.url) as client:
        for make in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="make one from its URL where it is used"):
                make(client)


def test_a_server_that_knows_no_streams_is_said_to_be_no_penstock_server() -> None:
    with RedisServer() as server, Client(port=server.port) as client:
        for call in (lambda: client.tread("s"), lambda: client.twrite("s", "", "e"), lambda: client.read_arrow("s")):
            with pytest.raises(redis.ResponseError, match=r"unknown command .T\w+.* not a Penstock server"):
                call()
        with pytest.raises(redis.ResponseError, match=r"unknown command .NOTHING") as caught:
            client.execute_command("NOTHING")
        assert "Penstock" not in str(caught.value)


def test_the_commands_that_tell_a_penstock_server_are_all_those_of_streams() -> None:
    commands.load()
    ours = {each.name for each in REGISTRY.by_name.values() if each.group == "stream" and not each.of_module}
    assert {name for name in ours if name.startswith("T")} == STREAM_COMMANDS
