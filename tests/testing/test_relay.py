"""A relay that ends leaves nothing behind."""

from __future__ import annotations

import gc
import socket
from contextlib import ExitStack

import pytest

from penstock.testing.relay import Relay


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_relay_that_ends_while_connections_come_closes_all_of_them(is_cut: bool) -> None:
    with ExitStack() as clients, socket.create_server(("127.0.0.1", 0)) as target:
        for _ in range(20):
            with Relay(target.getsockname()[1]) as relay:
                if is_cut:
                    relay.cut()
                for _ in range(3):
                    clients.enter_context(socket.create_connection(("127.0.0.1", relay.port)))
            gc.collect()  # what was not closed is an error now
