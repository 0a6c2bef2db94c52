"""A server that answers ECHO when a test says so."""

from __future__ import annotations

import contextlib
import socket
import threading

import hiredis


class Echo:
    """A server that answers ECHO on any connection: the first one after it got the second, the second when a test says
    so.

    `cuts`: after both it closes the connection instead, once.
    """

    def __init__(self, cuts: bool) -> None:
        self._cuts = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard = {word: threading.Event() for word in (b"first", b"second", b"third")}
        self.may_answer = {b"first": self.heard[b"second"], b"second": threading.Event(), b"third": threading.Event()}
        self.may_answer[b"third"].set()
        self._threads = [threading.Thread(target=self._accept)]
        self._connections: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=[connection]))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        reader = hiredis.Reader()
        with contextlib.suppress(OSError):
            waiting: list[bytes] = []
            connection.settimeout(0.002)
            while True:
                with contextlib.suppress(TimeoutError):
                    data = connection.recv(4096)
                    if not data:
                        return
                    reader.feed(data)
                while (argv := reader.gets()) is not False:
                    waiting.append(argv[-1])
                    if argv[-1] in self.heard:
                        self.heard[argv[-1]].set()
                if self._cuts and waiting and self.heard[b"second"].is_set():
                    self._cuts = False
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                while waiting and (waiting[0] not in self.may_answer or self.may_answer[waiting[0]].is_set()):
                    word = waiting.pop(0)
                    connection.sendall(b"$%d\r\n%b\r\n" % (len(word), word))

    def close(self) -> None:
        for end in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._connections):
            end.close()
