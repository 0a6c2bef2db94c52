"""What gets a thread out of `poll` when the socket it waits for has nothing to say: another thread rings.

A pipe would do, and needs two calls for what `socketpair` and `send` do in one; eventfd is Linux's alone.
"""

from __future__ import annotations

import contextlib
import os
import socket

from penstock.client.drivers.polling import POLLIN, Poll, new_poll


class Bell:
    """Any thread may ring; the one that polls hears it, once for any number of rings."""

    def __init__(self) -> None:
        self._ear, self._button = socket.socketpair()
        self._ear.setblocking(False)
        self._button.setblocking(False)
        self.number = self._ear.fileno()
        """What `poll` reports when it rings."""

    def new_poll(self) -> Poll:
        """A poll that listens to the bell, and may listen to more."""
        poll = new_poll()
        poll.register(self._ear, POLLIN)
        return poll

    def ring(self) -> None:
        with contextlib.suppress(OSError):
            self._button.send(b"\0")

    def hear(self) -> None:
        """It rang; from now on it is silent again."""
        with contextlib.suppress(OSError):
            self._ear.recv(4096)

    def close(self) -> None:
        self._ear.close()
        self._button.close()

    def close_in_child(self) -> None:
        """After a fork: close what is the parent's, and no more than the numbers."""
        for end in (self._ear, self._button):
            with contextlib.suppress(OSError):
                os.close(end.detach())
