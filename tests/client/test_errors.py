"""Errors travel: out of a process pool, a Spark task, a logger that keeps them."""

from __future__ import annotations

import copy
import pickle

import pytest

from penstock import Client, Server
from penstock.client.delivery import State
from penstock.client.errors import BufferFull, NoReplyInTime, NotSent, OutcomeUnknown, reply_error


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
