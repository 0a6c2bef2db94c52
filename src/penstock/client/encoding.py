"""Arguments to bytes, before a command is queued: what cannot be encoded fails its caller and nobody else.

Many commands become one piece of bytes, and the length of each in it: a third less memory than a piece each.

redis-py names some commands by two words in one argument ("CLIENT SETNAME"); on the wire they are two.

What is a table already, a command a row, comes encoded (`Encoded`): then nobody makes a tuple of each row to take it apart again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, overload

import hiredis
from hiredis import pack_command

from penstock.client.errors import NotEncodable


def pack(arguments: Sequence[Any]) -> bytes:
    """A command as it travels; redis.DataError names what has no wire form.

    >>> pack(("CONFIG GET", b"save"))
    b'*3\\r\\n$6\\r\\nCONFIG\\r\\n$3\\r\\nGET\\r\\n$4\\r\\nsave\\r\\n'
    """
    if not arguments or (type(arguments) is not tuple and not isinstance(arguments, list | tuple)):
        raise NotEncodable(f"{arguments!r} is no command: give a tuple of its words, as in ('SET', 'key', 'value')")
    head = arguments[0]
    if not isinstance(head, str | bytes) or not head.strip():
        raise NotEncodable(f"{head!r} is no name of a command: give it as str or bytes")
    if " " in head if isinstance(head, str) else b" " in head:
        arguments = (*head.split(), *arguments[1:])
    try:
        packed: bytes = pack_command(arguments if type(arguments) is tuple else tuple(arguments))
    except (TypeError, UnicodeEncodeError):
        packed = pack_command(tuple(_plain(argument) for argument in arguments))  # type: ignore[arg-type]
    return packed


def pack_many(commands: Sequence[Sequence[Any]]) -> tuple[bytes, array[int]]:
    """Commands as they travel, one after the other, and how long each is."""
    if isinstance(commands, Encoded):
        return b"".join(commands.wire), array("Q", map(len, commands.wire))
    parts: list[bytes] = []
    lengths = array("Q")
    for start in range(0, len(commands), _AT_ONCE):
        chunks = _pack_each(commands[start : start + _AT_ONCE])
        lengths.extend(map(len, chunks))
        parts.append(b"".join(chunks))
    return (parts[0] if len(parts) == 1 else b"".join(parts)), lengths


_AT_ONCE = 8192  # pieces that exist beside what they become a part of


def _pack_each(commands: Sequence[Sequence[Any]]) -> list[bytes]:
    if all(type(command) is tuple for command in commands):
        try:
            heads = {command[0] for command in commands}
            if not any(" " in head if type(head) is str else b" " in head for head in heads):
                return [pack_command(command) for command in commands]  # type: ignore[arg-type]
        except (IndexError, TypeError, UnicodeEncodeError):
            pass  # one of them needs a closer look
    return [pack(command) for command in commands]


def _plain(argument: Any) -> bytes | str | int | float:
    if isinstance(argument, bytearray | memoryview):
        return bytes(argument)
    if isinstance(argument, bool) or not isinstance(argument, bytes | str | int | float):
        raise NotEncodable(
            f"{argument!r} is a {type(argument).__name__}, which has no wire form: convert it to bytes, str, int or float"
        )
    if isinstance(argument, str):
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise NotEncodable(f"{argument!r} cannot be encoded as UTF-8: {error.reason}; give bytes") from error
    return argument


def count_words(commands: Sequence[Sequence[Any]]) -> int:
    """Of how many objects the commands are made, as far as that is known without taking them apart."""
    return len(commands) if isinstance(commands, Encoded) else sum(map(len, commands))


class Encoded(Sequence[Sequence[Any]]):
    """Commands as they travel, for `execute_many`. Each has one key, its first argument, and is of an ordinary kind: it does not
    block, and changes nothing about a connection. Nobody checks that.

    As a sequence they are words again, for whoever must name one: a replay filter, an error.
    """

    __slots__ = ("slots", "wire")

    def __init__(self, wire: list[bytes], slots: Sequence[int]) -> None:
        self.wire = wire
        self.slots = slots
        """Of the keys, one a command; a single server does not look at them."""

    def __len__(self) -> int:
        return len(self.wire)

    @overload
    def __getitem__(self, index: int) -> Sequence[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Encoded: ...
    def __getitem__(self, index: int | slice) -> Sequence[Any]:
        if isinstance(index, slice):
            return Encoded(self.wire[index], self.slots[index])
        reader = hiredis.Reader()
        reader.feed(self.wire[index])
        words: list[bytes] = reader.gets()
        return tuple(words)
