"""Arguments to bytes, before a command is queued: what cannot be encoded fails its own caller only.

Many commands become one piece of bytes, and the length of each in it: a third less memory than a piece each.

redis-py names some commands by two words in one argument ("CLIENT SETNAME"); on the wire they are two.

Commands made from the rows of a table come encoded (`Encoded`): no tuple is made of each row only to be taken apart
again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import hiredis

from penstock.client.errors import NotEncodable
from penstock.protocol.resp import pack as join_words
from penstock.protocol.tuples import pack_tuple, pack_tuples


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
    words = (*head.split(), *arguments[1:])
    packed = pack_tuple(words)
    return join_words(*map(as_bytes, words)) if packed is None else packed


class Packed(NamedTuple):
    """Many commands as they travel, one behind the other."""

    data: bytes
    lengths: array[int]
    """How long each command is in `data`."""
    words: int
    """The number of words in the commands, as far as it is known without parsing them."""
    heads: dict[Any, Sequence[Any]]
    """The names that need a look, as they are spelled, and one command of each."""


def pack_many(commands: Sequence[Sequence[Any]]) -> Packed:
    """Commands as they travel; redis.DataError names what has no wire form."""
    if isinstance(commands, Encoded):
        return Packed(b"".join(commands.wire), array("Q", map(len, commands.wire)), count_words(commands), {})
    packed = pack_tuples(commands)
    if packed is not None and all(len(head.split()) == 1 for head in packed[3]):
        return Packed(*packed)
    pieces = [pack(command) for command in commands]
    heads = {command[0]: command for command in commands}
    return Packed(b"".join(pieces), array("Q", map(len, pieces)), count_words(commands), heads)


def as_bytes(word: Any) -> bytes:
    """Any word that has a wire form, also of a class of its own, which would show itself in its own way."""
    if isinstance(word, bytes | bytearray | memoryview):
        return bytes(word)
    if isinstance(word, float):
        return repr(float(word)).encode()
    if isinstance(word, int) and not isinstance(word, bool):
        try:
            return b"%d" % word
        except ValueError as error:
            raise NotEncodable(f"an int of {word.bit_length()} bits has no wire form ({error}); give bytes") from error
    if not isinstance(word, str):
        raise NotEncodable(
            f"{word!r} is a {type(word).__name__}, which has no wire form: convert it to bytes, str, int or float"
        )
    try:
        return word.encode()
    except UnicodeEncodeError as error:
        raise NotEncodable(f"{word!r} cannot be encoded as UTF-8: {error.reason}; give bytes") from error


def count_words(commands: Sequence[Sequence[Any]]) -> int:
    """The number of words in the commands, as far as it is known without parsing them."""
    return len(commands) if isinstance(commands, Encoded) else sum(map(len, commands))


class Encoded(Sequence[Sequence[Any]]):
    """Commands as they travel, for `execute_many`. Each has one key, its first argument, and is of an ordinary kind: it
    does not block, and changes nothing about a connection. This is not checked.

    As a sequence they are words again, for what must name one: a replay filter, an error.
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
