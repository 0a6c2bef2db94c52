"""A user's connection to the server: what a browser session talks through.

Commands are sent at most once: an action of which the answer was lost is reported as such and not repeated. Replies
are those of RESP3, as they come. No connection has a name: CLIENT SETNAME may be forbidden to the user.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from penstock.client.api.aio import Client
from penstock.console.errors import Missing, NotLoggedIn, Problem, Refused, Wrong, problem_of

SECONDS = 20.0
"""How long a command may take."""
REMEMBERED = 60.0
"""Seconds for which it is remembered that a user may not run a command."""

Command = tuple[object, ...]
Plan = Generator[Command, Any, list[Command]]


class Login:
    """The commands of one user. A name or password may be any bytes: those that are no UTF-8 are surrogate escapes."""

    def __init__(self, url: str, user: str | None = None, password: str | None = None) -> None:
        options: dict[str, Any] = {"username": user, "password": password} if user or password else {}
        self._client: Client = Client.from_url(
            url, delivery="at-most-once", protocol=3, command_timeout=SECONDS, backoff_cap=1.0,
            lib_name="penstock-console", encoding_errors="surrogateescape", **options,
        )  # fmt: skip
        self._client.response_callbacks.clear()  # replies stay as they came
        self.user: str = self._client.connection_pool.connection_kwargs.get("username") or "default"
        self._is_closed = self._is_refused = False
        self._forbidden: dict[str, tuple[float, Refused]] = {}
        """Commands that the user may not run, until when that is taken for true, and what the server said."""

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, or the server no longer accepts the login."""
        return self._is_closed or self._is_refused

    async def identify(self) -> str:
        """The name of the user at the server; NotLoggedIn if the server does not accept the login."""
        try:
            name: bytes = (await self._client.execute_many([(b"ACL", b"WHOAMI")]))[0]
            self.user = name.decode("utf-8", "surrogateescape")
            self._is_refused = False
        except NoPermissionError:
            pass  # logged in, and may not ask
        except redis.AuthenticationError:
            raise NotLoggedIn("The user name or the password is wrong.") from None
        except ResponseError as error:
            if not str(error).startswith(("WRONGPASS", "NOAUTH", "invalid username")):
                raise problem_of(error) from error
            raise NotLoggedIn("The user name or the password is wrong.") from None
        except Exception as error:
            raise problem_of(error) from error
        return self.user

    async def call(self, *words: object) -> Any:
        """The reply to a command; Problem if it is refused or lost."""
        if (forbidden := self._known_refusal(words)) is not None:
            raise forbidden
        try:
            return (await self._client.execute_many([_encoded(words)]))[0]
        except Exception as error:
            raise self._problem_of(error, words[0]) from error

    def _problem_of(self, error: Exception, command: object = "") -> Problem:
        if self._is_closed:
            return NotLoggedIn("This session has ended. Log in again.")
        problem = problem_of(error, command)
        self._is_refused = isinstance(problem, NotLoggedIn)
        if isinstance(problem, Refused) and (name := _forbidden_command(str(error))):
            self._forbidden[name] = time.monotonic() + REMEMBERED, problem
        return problem

    def _known_refusal(self, words: Command) -> Refused | None:
        """The server's recent refusal, if the user may not run this command at all.

        Open pages ask every two seconds, and each refusal is a line in the server's ACL LOG.
        """
        if not self._forbidden:
            return None
        name = str(words[0]).lower()
        for known in (name, f"{name}|{str(words[1]).lower()}") if len(words) > 1 else (name,):
            until, problem = self._forbidden.get(known, (0.0, None))
            if problem is not None and time.monotonic() < until:
                return problem
        return None

    def forget_refusals(self) -> None:
        """The user acts, and is to hear what the server says now."""
        self._forbidden.clear()

    async def find(self, *words: object) -> Any:
        """As call; None for a key that is gone or has another type."""
        return _found((await self.call_all([words]))[0])

    async def stream(self, key: bytes) -> Any:
        """TINFO of a stream; Missing if there is none."""
        info = await self.find("TINFO", key)
        if info is None:
            raise Missing("There is no such stream.")
        return info

    async def call_all(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to several commands; a refusal is in the place of its reply, as a Problem."""
        found: list[Any] = [self._known_refusal(words) for words in commands]
        asked = [(at, words) for at, words in enumerate(commands) if found[at] is None]
        try:
            encoded = [_encoded(words) for _, words in asked]
            replies = await self._client.execute_many(encoded, raise_on_error=False) if asked else []
        except Exception as error:
            raise self._problem_of(error, commands[0][0]) from error
        for (at, words), reply in zip(asked, replies, strict=True):
            if isinstance(reply, Exception):
                reply = self._problem_of(reply, words[0])
                if reply.status in (NotLoggedIn.status, 503):
                    raise reply
            found[at] = reply
        return found

    async def find_all(self, commands: Sequence[Command]) -> list[Any]:
        """As call_all, with None for everything that is refused."""
        return [None if isinstance(reply, Problem) else reply for reply in await self.call_all(commands)]

    async def block(self, *words: object) -> Any:
        """A command that waits, on a connection of its own."""
        try:
            return await self._client.execute_command(*words)
        except Exception as error:
            raise self._problem_of(error, words[0]) from error

    async def change(self, key: bytes, plan: Callable[[], Plan]) -> list[Any] | None:
        """Run the commands of a plan as one transaction; None, and no change, if the key changed meanwhile.

        A plan is a generator: it yields commands that read, gets their replies, and returns the commands that write.
        """
        try:
            async with self._client.pipeline() as pipe:
                await pipe.watch(key)
                steps = plan()
                reply: Any = None
                while True:
                    try:
                        words = steps.send(reply)
                    except StopIteration as end:
                        commands: list[Command] = end.value
                        break
                    reply = await pipe.immediate_execute_command(*words)
                pipe.multi()  # type: ignore[no-untyped-call]
                for words in commands:
                    pipe.execute_command(*words)
                return list(await pipe.execute())
        except redis.WatchError:
            return None
        except Problem:
            raise
        except Exception as error:
            raise self._problem_of(error) from error

    async def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(Exception):  # the server may be away
            await self._client.aclose()


def _found(reply: Any) -> Any:
    if isinstance(reply, Problem):
        if reply.status == 404 or (isinstance(reply, Wrong) and "WRONGTYPE" in str(reply)):
            return None
        raise reply
    return reply


def _forbidden_command(error: str) -> str | None:
    """
    >>> _forbidden_command("this user has no permissions to run the 'acl|log' command")
    'acl|log'
    """
    found = re.search("permissions to run the '([^']+)' command", error)
    return found[1].lower() if found else None


def _encoded(words: Sequence[object]) -> tuple[bytes, ...]:
    return tuple(word if isinstance(word, bytes) else str(word).encode() for word in words)


async def quietly(step: Coroutine[Any, Any, Any]) -> Any:
    """The result of a step, or None if the user may not run it: that part of the page is left out."""
    try:
        return await step
    except Problem as problem:
        if problem.status in (401, 503):
            raise
        return None
