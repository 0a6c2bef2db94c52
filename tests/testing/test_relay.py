"""A relay that ends leaves nothing behind; one that pauses loses nothing."""

from __future__ import annotations

import gc
import socket
from contextlib import ExitStack, suppress

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


def test_a_relay_that_pauses_passes_the_rest_when_it_resumes() -> None:
    sent = b"x" * 300_000
    with socket.create_server(("127.0.0.1", 0)) as target, Relay(target.getsockname()[1]) as relay:
        relay.pause(after=100_000)
        with socket.create_connection(("127.0.0.1", relay.port)) as client, target.accept()[0] as server:
            server.sendall(sent)
            got = b""
            client.settimeout(0.3)
            with suppress(TimeoutError):
                while data := client.recv(1 << 16):
                    got += data
            assert len(got) <= 100_000
            relay.resume()
            client.settimeout(60)
            while len(got) < len(sent):
                got += client.recv(1 << 16)
            assert got == sent
