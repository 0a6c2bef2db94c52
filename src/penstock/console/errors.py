"""What can go wrong for a request of the browser, with the status of the answer.

Problem
├── Wrong       400: the input, or the server says that the command cannot be run
├── NotLoggedIn 401
├── Refused     403: the server's user may not, or the request is not from our page
├── Missing     404: no such key or page
├── TooMany     429: wrong passwords, or downloads at once
└── Away        503: the server does not answer
"""

from __future__ import annotations

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError


class Problem(Exception):
    """The text is for the user of the browser."""

    status = 500


class Wrong(Problem):
    status = 400


class NotLoggedIn(Problem):
    status = 401


class Refused(Problem):
    status = 403


class Missing(Problem):
    status = 404


class TooMany(Problem):
    status = 429


class Away(Problem):
    status = 503


def problem_of(error: Exception, command: object = "") -> Problem:
    """An error of the client as one for the browser."""
    name = command.decode("utf-8", "replace") if isinstance(command, bytes) else str(command)
    text = str(error)
    if isinstance(error, NoPermissionError):
        return Refused(f"Your user may not do this: {text}.")
    if isinstance(error, AuthenticationError):
        return NotLoggedIn("The server no longer accepts this login. Log in again.")
    if isinstance(error, ResponseError):
        if text.startswith("no such key"):
            return Missing("There is no such key.")
        return Wrong(f"The server refuses {name}: {text}" if name else f"The server refuses: {text}")
    if isinstance(error, RedisError | OSError | TimeoutError):
        return Away(f"The server does not answer: {text}")
    raise error
