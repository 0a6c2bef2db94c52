"""Arguments to bytes, before a command is queued: what cannot be encoded fails its caller and nobody else.

redis-py names some commands by two words in one argument ("CLIENT SETNAME"); on the wire they are two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
