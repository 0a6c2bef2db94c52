"""The types of replies, for type checkers: one signature a method serves clients, asyncio clients and pipelines.

As in redis-py, a command method returns what `execute_command` returns: the reply, an awaitable of it, or the pipeline.
A method says what the reply is, and `command_method` tells the rest:

    @command_method
    def twrite(self, key: Key, tag: Value, entry: Value) -> int | None: ...

    client.twrite(...)              int | None
    await aio_client.twrite(...)    int | None
    pipe.twrite(...)                the pipeline

At run time the decorator returns the function as it is.

Rejected: two overloads a method, as redis-py has them. They are three signatures to keep in step, and wrong for
pipelines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from redis.typing import AsyncClientProtocol, SyncClientProtocol

Key = bytes | str | memoryview
Value = bytes | str | memoryview | int | float
P = ParamSpec("P")
R = TypeVar("R", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class AnyPipeline(Protocol):
    """The pipelines of all our clients; their methods return the pipeline."""

    _queues_commands: Literal[True]


Pipe = TypeVar("Pipe", bound=AnyPipeline)

if TYPE_CHECKING:

    class CommandMethod(Generic[P, R]):
        """A command method as an attribute of a client."""

        @overload
        def __get__(self, client: Pipe, owner: Any = None) -> Callable[P, Pipe]: ...
        @overload
        def __get__(self, client: AsyncClientProtocol, owner: Any = None) -> Callable[P, Awaitable[R]]: ...
        @overload
        def __get__(self, client: SyncClientProtocol, owner: Any = None) -> Callable[P, R]: ...
        def __get__(self, client: Any, owner: Any = None) -> Any: ...

    def command_method(function: Callable[Concatenate[Any, P], R]) -> CommandMethod[P, R]:
        """See the top of this file."""
        ...

else:

    def command_method(function: F) -> F:
        """See the top of this file."""
        return function
