"""A client that disconnected while it was blocked: what comes later is not given to it."""

from __future__ import annotations

import pytest
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.protocol.resp import pack
from penstock.server.app import App


@pytest.mark.parametrize(
    "command", ["BLPOP queue 0", "BLMOVE queue other LEFT LEFT 0", "TREAD stream $ 1 BLOCK 0 GROUP g"]
)
def test_a_push_that_comes_right_behind_the_end_of_a_blocked_client_is_not_given_to_it(
    ours: Server, command: str
) -> None:
    """Both events are there when the loop checks its sockets: it reports the end at once, and the loss a turn later."""
    with RawClient(ours.port) as other, RawClient(ours.port) as blocked:
        other.ask("FLUSHALL")
        blocked.command(*command.split())
        while b"blocked_clients:1" not in other.ask("INFO clients"):
            pass

        number = other.ask("CLIENT ID")

        def end_and_push(app: App) -> None:
            (gone,) = (connection for connection in app.connections if connection.session.waiter is not None)
            (active,) = (connection for connection in app.connections if connection.session.id == number)
            gone.eof_received()
            active.data_received(pack(b"RPUSH", b"queue", b"x") + pack(b"TWRITE", b"stream", b"tag", b"x"))

        ours.call(end_and_push)
        assert (other.read(), other.read()) == (1, 1)
        assert other.ask("LRANGE queue 0 -1") == [b"x"]
        assert other.ask("TREAD stream 0 1 GROUP g") == [[1, b"tag", b"x"]] and other.ask("EXISTS other") == 0
