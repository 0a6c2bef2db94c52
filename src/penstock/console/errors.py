"""Errors of a browser's request, each with the status of its answer.

Problem
├── Wrong       400: the input, or the server says that the command cannot be run
├── NotLoggedIn 401
├── Refused     403: the server's user may not, or the request is not from our page
│   └── NotTheirs    : the server's user may run the command, and not on this key
├── Missing     404: no such key or page
├── TooMany     429: wrong passwords, or downloads at once
└── Away        503: the server does not answer
"""

from __future__ import annotations

import re

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from penstock.client.errors import NotSent


class Problem(Exception):
    """The text is for the user of the browser."""

    status = 500


class Wrong(Problem):
    status = 400


class NotLoggedIn(Problem):
    status = 401


class Refused(Problem):
    status = 403


class NotTheirs(Refused):
    pass


class Missing(Problem):
    status = 404


class TooMany(Problem):
    status = 429


class Away(Problem):
    status = 503
    is_unsent = False
    """Whether it is certain that the command did not reach the server."""


def problem_of(error: Exception, command: object = "") -> Problem:
    """An error of the client as one for the browser."""
    name = command.decode("utf-8", "replace") if isinstance(command, bytes) else str(command)
    text = str(error)
    if isinstance(error, NoPermissionError):
        kind = NotTheirs if "access one of the keys" in text else Refused
        return kind(f"Your user may not do this: {text}.")
    if isinstance(error, AuthenticationError):
        return NotLoggedIn("The server no longer accepts this login. Log in again.")
    if isinstance(error, ResponseError):
        if text.startswith("no such key"):
            return Missing("There is no such key.")
        return Wrong(f"The server refuses {name}: {text}" if name else f"The server refuses: {text}")
    if isinstance(error, RedisError | OSError | TimeoutError):
        away = Away(f"The server does not answer: {_cause(text)}")
        away.is_unsent = isinstance(error, NotSent)
        return away
    raise error


def _cause(text: str) -> str:
    """Why a command could not be sent, without its name: readers of a page asked for no INFO.

    >>> _cause("INFO was not sent: Error 111 connecting to 127.0.0.1:6379. Connection refused.")
    'connection refused.'
    """
    found = re.fullmatch(r"[A-Z ]+ was not sent: (?:Error -?\d+ connecting to \S+\. )?(.+)", text, re.DOTALL)
    why = f"{found[1][:1].lower()}{found[1][1:]}" if found else text
    return why if why.endswith(".") else f"{why}."
