"""Commands given as tuples, encoded for the wire: one, or many in one block; and with a ONCE number around each.

A pipeline of ten thousand commands is encoded before its first byte is sent, so that a pipeline with a bad command is
refused whole. The server waits for that time. Encoded one by one by hiredis, each command is an object of its own,
which then has to be joined with the others.

The functions below have two versions with one set of tests: these, and `_tuples.pyx`, which Cython compiles if there is
a C compiler when the package is installed. The compiled ones are used unless PENSTOCK_PURE is set. A SET among many
takes 0.05 us compiled, and 0.6 us here.

Rejected: encoding one slice while the one before it is sent. It would save little, and a command that cannot be encoded
would be found after half of its pipeline has run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from hiredis import pack_command

from penstock.compiled import use_compiled

_AT_ONCE = 8192  # pieces that are joined at once
_SURE_BITS = 63
_NUMBERS = frozenset([int, float])
_WORDS = _NUMBERS | {bytes, str}


def pack_tuple(words: tuple[Any, ...]) -> bytes | None:
    r"""A command of bytes, str, int and float. None if a word has another type, or needs the slow encoder.

    >>> pack_tuple(("INCRBY", b"a", 5))
    b'*3\r\n$6\r\nINCRBY\r\n$1\r\na\r\n$1\r\n5\r\n'
    >>> pack_tuple(("GET", None))
    """
    for word in words:
        kind = type(word)
        # Subclasses may have their own str(), and hiredis cannot format an int of thousands of digits.
        if kind not in _WORDS or (kind is int and word.bit_length() > _SURE_BITS):
            return None
    try:
        # Numbers are formatted here: hiredis ends the process if a signal handler raises while it formats one.
        shown = tuple([repr(word) if type(word) in _NUMBERS else word for word in words])
        packed: bytes = pack_command(shown)  # type: ignore[arg-type]
        return packed
    except UnicodeEncodeError:
        return None


def pack_tuples(
    commands: Sequence[Sequence[Any]],
) -> tuple[bytes, array[int], int, dict[str | bytes, Sequence[Any]]] | None:
    """As pack_tuple, for many: their bytes; the length of each; the number of words; and their names as spelled, with
    one command of each.

    None if one of them needs the slow encoder, or is not a tuple that begins with a name.
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
    r"""Put `before` (two encoded words), a number and `after` (one encoded word) in front of every chosen command.

    `chosen` has a byte for each command. The numbers are first, first + 1 ... The result is the bytes and the length of
    each.

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


COMPILED = use_compiled(globals(), "penstock.protocol._tuples", "number_packed", "pack_tuple", "pack_tuples")

__all__ = ["COMPILED", "number_packed", "pack_tuple", "pack_tuples"]
