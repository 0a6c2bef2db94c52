"""Commands that are tuples of words, as the wire has them: one, or many, one behind the other; and with a number around each.

A pipeline of ten thousand commands is packed before its first byte is sent, so that what cannot be packed is refused whole; what that
takes, the server waits. Packed one by one by hiredis each is an object of its own, which then has to be joined with the others.

There are two versions of the functions below with one set of tests: these, and `_tuples.pyx`, which Cython compiles where a C
compiler is at hand when the package is installed. The compiled ones are used if they are there and PENSTOCK_PURE is not set. A SET
among many takes 0.05 us compiled, and 0.6 us here.

Rejected: packing a slice while the one before it is sent. Little is left to be hidden, and a command that cannot be packed would be
found when half of its pipeline has run.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from hiredis import pack_command

_AT_ONCE = 8192  # pieces that exist beside what they become a part of
_SURE_BITS = 63
_NUMBERS = frozenset([int, float])
_WORDS = _NUMBERS | {bytes, str}


def pack_tuple(words: tuple[Any, ...]) -> bytes | None:
    r"""A command of bytes, str, int and float. None if a word is another thing, or is one of these that needs a closer look.

    >>> pack_tuple(("INCRBY", b"a", 5))
    b'*3\r\n$6\r\nINCRBY\r\n$1\r\na\r\n$1\r\n5\r\n'
    >>> pack_tuple(("GET", None))
    """
    for word in words:
        kind = type(word)
        # Subclasses may show themselves in their own way, and an int of some thousand digits is too much for hiredis.
        if kind not in _WORDS or (kind is int and word.bit_length() > _SURE_BITS):
            return None
    try:
        # Numbers are shown here: hiredis ends the process when a signal's handler raises while it shows one.
        shown = tuple([repr(word) if type(word) in _NUMBERS else word for word in words])
        packed: bytes = pack_command(shown)  # type: ignore[arg-type]
        return packed
    except UnicodeEncodeError:
        return None


def pack_tuples(
    commands: Sequence[Sequence[Any]],
) -> tuple[bytes, array[int], int, dict[str | bytes, Sequence[Any]]] | None:
    """As pack_tuple, of many: all of them; how long each is there; of how many words they are made; and the names that they begin
    with, as spelled, with one command of each. None if one of them needs a closer look, or is no tuple that begins with a name.
    """
    heads: dict[Any, Sequence[Any]] = {}
    parts: list[bytes] = []
    lengths = array("Q")
    for start in range(0, len(commands), _AT_ONCE):
        pieces: list[bytes] = []
        for command in commands[start : start + _AT_ONCE]:
            if type(command) is not tuple or not command or not isinstance(command[0], str | bytes):
                return None
            piece = pack_tuple(command)
            if piece is None:
                return None
            pieces.append(piece)
            heads[command[0]] = command
        lengths.extend(map(len, pieces))
        parts.append(b"".join(pieces))
    return (parts[0] if len(parts) == 1 else b"".join(parts)), lengths, sum(map(len, commands)), heads


def number_packed(
    data: bytes, lengths: Sequence[int], chosen: bytes, before: bytes, first: int, after: bytes
) -> tuple[bytes, array[int]]:
    r"""Put `before`, two words that are packed, a number and `after`, one such word, in front of every command that is chosen, a
    byte each; the numbers are first, first + 1 ... What they are then, and how long each.

    >>> number_packed(b"*1\r\n$4\r\nPING\r\n", [14], b"\1", b"$1\r\nA\r\n$1\r\nB\r\n", 7, b"$1\r\nC\r\n")[0]
    b'*5\r\n$1\r\nA\r\n$1\r\nB\r\n$1\r\n7\r\n$1\r\nC\r\n$4\r\nPING\r\n'
    """
    if sum(lengths) != len(data) or len(chosen) != len(lengths):
        raise ValueError("the lengths are not those of the commands")
    pieces: list[bytes] = []
    for is_chosen, length, end in zip(chosen, lengths, accumulate(lengths), strict=True):
        piece = data[end - length : end]
        if is_chosen:
            head, _, rest = piece.partition(b"\r\n")
            number = b"%d" % first
            piece = b"*%d\r\n%b$%d\r\n%b\r\n%b%b" % (int(head[1:]) + 4, before, len(number), number, after, rest)
            first += 1
        pieces.append(piece)
    return b"".join(pieces), array("Q", map(len, pieces))


COMPILED = False
if not TYPE_CHECKING and not os.environ.get("PENSTOCK_PURE"):
    try:
        from penstock.protocol._tuples import number_packed, pack_tuple, pack_tuples

        COMPILED = True
    except ImportError:
        pass

__all__ = ["COMPILED", "number_packed", "pack_tuple", "pack_tuples"]
