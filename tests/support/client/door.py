"""A door between a client and a server, that can be slammed at a chosen moment: a cutting TCP proxy in a thread."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from types import TracebackType


class Door:
    """`with Door(port) as door:` listens on door.port and passes bytes to `port`, until it is told to do harm."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._pairs: dict[socket.socket, tuple[socket.socket, bool]] = {}  # to the other end; whether it is a client
        self._cut_replies = self._cut_requests = 0
        self._pass_first = 0
        self._frozen: set[socket.socket] = set()
        self._shut = False
        self.refused = 0
        """How many connections were ended at once, because it was shut or the server away."""
        self._held: list[tuple[socket.socket, bytes]] | None = None  # what is kept back, and for whom
        self._at_most, self._pause = 65536, 0.0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut_reply(self, times: int = 1, after: int = 0) -> None:
        """The server executes; its next reply is lost, but for the first `after` bytes, and the connection with it."""
        with self._lock:
            self._cut_replies, self._pass_first = times, after

    def cut_request(self, times: int = 1) -> None:
        """What the client writes next does not arrive, and the connection ends."""
        with self._lock:
            self._cut_requests = times

    def freeze(self) -> None:
        """Half open: bytes are taken and go nowhere, on the connections there are now."""
        with self._lock:
            self._frozen |= self._pairs.keys()

    def hold(self) -> None:
        """Keep replies back, on all connections, until `release`."""
        with self._lock:
            self._held = []

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held or [], None
            for client, data in held:
                if client in self._pairs:
                    self._send(client, data)

    @property
    def is_holding(self) -> bool:
        """Whether there is a reply that is kept back."""
        with self._lock:
            return bool(self._held)

    def slow_down(self, bytes_a_turn: int, pause: float) -> None:
        """Bytes pass more slowly from now on."""
        with self._lock:
            self._at_most, self._pause = bytes_a_turn, pause

    def shut(self) -> None:
        """End all connections and accept no more than it takes to end them."""
        with self._lock:
            self._shut = True
            for sock in list(self._pairs):
                self._end(sock)

    def open(self) -> None:
        with self._lock:
            self._shut = False

    def drop(self) -> None:
        """End all connections, with what is held for them; new ones pass."""
        self.shut()
        with self._lock:
            self._held, self._shut = None, False

    def redirect(self, port: int) -> None:
        """New connections go to another server."""
        with self._lock:
            self._server = port

    def __enter__(self) -> Door:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        with self._lock:
            for sock in list(self._pairs):
                self._end(sock)
        self._listener.close()
        self._selector.close()

    def _work(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.02):
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._pairs:
                        self._pass(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._shut:
            client.close()
            self.refused += 1
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._server))
        except OSError:
            client.close()
            self.refused += 1
            return
        self._pairs[client], self._pairs[server] = (server, True), (client, False)
        for sock in (client, server):
            self._selector.register(sock, selectors.EVENT_READ)

    def _pass(self, sock: socket.socket) -> None:
        other, is_client = self._pairs[sock]
        try:
            data = sock.recv(self._at_most)
        except OSError:
            data = b""
        if not data:
            self._end(sock)
        elif sock in self._frozen:
            return
        elif is_client and self._cut_requests:
            self._cut_requests -= 1
            self._end(sock)
        elif not is_client and self._cut_replies:
            self._cut_replies -= 1
            self._send(other, data[: self._pass_first])
            self._end(sock)
        elif not is_client and self._held is not None:
            self._held.append((other, data))
        else:
            time.sleep(self._pause)
            self._send(other, data)

    @staticmethod
    def _send(sock: socket.socket, data: bytes) -> None:
        with contextlib.suppress(OSError):
            sock.sendall(data)

    def _end(self, sock: socket.socket) -> None:
        if sock not in self._pairs:
            return
        other, _ = self._pairs[sock]
        for one in (sock, other):
            self._pairs.pop(one, None)
            self._frozen.discard(one)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one)
            one.close()
