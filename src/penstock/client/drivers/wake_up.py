"""Lets one thread wake another that waits in `poll`.

A pipe would do, and needs two calls for what `socketpair` and `send` do in one; eventfd is Linux's alone.
"""

from __future__ import annotations

import contextlib
import os
import socket

from penstock.client.drivers.polling import POLLIN, Poll, new_poll


class WakeUp:
    """Like threading.Event, for a thread in `poll`: any thread may set it, and any number of sets wake the
    thread once.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self.number = self._receiver.fileno()
        """The descriptor that `poll` reports when it is set."""

    def new_poll(self) -> Poll:
        """A poll that this can wake; sockets may be registered with it too."""
        poll = new_poll()
        poll.register(self._receiver, POLLIN)
        return poll

    def set(self) -> None:
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def clear(self) -> None:
        """Wait for the next `set`."""
        with contextlib.suppress(OSError):
            self._receiver.recv(4096)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()

    def close_in_child(self) -> None:
        """After a fork: close what is the parent's, and no more than the numbers."""
        for end in (self._receiver, self._sender):
            with contextlib.suppress(OSError):
                os.close(end.detach())
