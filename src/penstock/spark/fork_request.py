"""The program that Java starts in place of a Python worker: it asks fork_server.py for a fork, and waits for it.

    python -I -S fork_request.py SERVER PYTHON -m MODULE ...

It is a process for each worker, so it imports nothing but what is built into Python: it starts in some milliseconds. If
the server is not there, or refuses, it becomes PYTHON with the words after it.
"""

import _socket
import marshal
import posix
import sys


def ask(server: str, words: list[str]) -> tuple[_socket.socket, int] | None:
    """The connection to the server and the process id of the fork; None if there is none."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(f"\0{server}")
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        if int.from_bytes(credentials[4:8], sys.byteorder) != posix.getuid():
            return None  # it would learn the secrets of our environment
        body = marshal.dumps((words, posix.environ, posix.getcwd()))
        streams = b"".join(each.to_bytes(4, sys.byteorder) for each in (0, 1, 2))
        connection.sendmsg([len(body).to_bytes(8, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
        connection.sendall(body)
        answer = connection.recv(4)
    except OSError:
        return None
    return (connection, int.from_bytes(answer, "little")) if len(answer) == 4 else None


def wait(connection: _socket.socket, pid: int) -> None:
    """End as the fork ends, and if the server is killed, end the fork."""
    nothing = posix.open("/dev/null", posix.O_RDWR)
    for stream in (0, 1, 2):  # they are the fork's now
        posix.dup2(nothing, stream)
    try:
        status = connection.recv(4)
    except OSError:
        status = b""
    if len(status) < 4:
        try:
            posix.kill(pid, 15)
        finally:  # also if it has ended
            posix._exit(1)
    code = int.from_bytes(status, "little", signed=True)
    if code < 0:
        posix.kill(posix.getpid(), -code)
    posix._exit(abs(code))


def main(server: str, python: str, *words: str) -> None:
    forked = ask(server, list(words))
    if forked is not None:
        wait(*forked)
    posix.execv(python, [python, *words])


if __name__ == "__main__":
    main(*sys.argv[1:])
